"""Clients of the agent port that do nothing but ask."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import trio

from node.client import Client, open_client
from ops.bench.result import Timing

T = TypeVar("T")


async def in_flight(
    work: Callable[[T], Awaitable[object]], items: Sequence[T], tasks: int, per: int = 1
) -> Timing:
    """Do the work for every item once, with so many under way at any time."""
    todo: Iterator[T] = iter(items)
    latencies: list[float] = []

    async def worker() -> None:
        for item in todo:
            begun = time.perf_counter()
            await work(item)
            latencies.append(time.perf_counter() - begun)

    begun = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for _ in range(tasks):
            nursery.start_soon(worker)
    return Timing(tuple(latencies), time.perf_counter() - begun, per)


@asynccontextmanager
async def connect(workspace: Path) -> AsyncIterator[Client]:
    """A connected client of the node in a workspace."""
    async with open_client(workspace) as client:
        await client.ping()
        yield client


def drive(workspace: Path, work: Callable[[Client], Awaitable[T]]) -> T:
    """Run one piece of work with a client of its own."""

    async def run() -> T:
        async with connect(workspace) as client:
            return await work(client)

    return trio.run(run)
