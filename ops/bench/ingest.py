"""Storing: single memories and batches over the agent port next to what people use today.

A remember is durable when it is answered: row, vector, full text, history, and the hot graph. The
peers store a text and a vector with an HNSW index, also durably, in a PostgreSQL of the same
build. All sides are given the vectors. A peer whose packages are missing is left out and named.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from node.client import Client, Draft
from ops.bench import shapes
from ops.bench.chroma import PeerMissing
from ops.bench.graphstore import open_graph_store
from ops.bench.load import by_tasks
from ops.bench.node import on_a_node
from ops.bench.plain import open_plain
from ops.bench.ported import drive, in_flight
from ops.bench.recall import DIMENSION, content
from ops.bench.result import Result, Timing
from ops.bench.server import peer_server
from ops.bench.shapes import Vectors
from ops.mesh.nodes import Node

TOTAL: Final = 8_000
SINGLES: Final = {1: 400, 16: 2_000}
BATCH: Final = 100


def run(console: Console, size: int = TOTAL) -> int:
    """The benchmark with its node; the exit code."""
    return on_a_node("ingest", "pgvector", size, partial(_measure, size), console)


def _measure(size: int, node: Node, result: Result, console: Console) -> None:
    vectors = shapes.corpus(size, DIMENSION)
    result.figures |= {"memories": size, "dimension": DIMENSION}
    parts = _parts(size)
    console.print(f"storing {size:,} memories on each side ...")
    own = {tasks: drive(node.workspace, partial(_single, vectors, parts[tasks], tasks))
           for tasks in SINGLES}  # fmt: skip
    batched = drive(node.workspace, partial(_batches, vectors, parts[0]))
    with peer_server(node.workspace.parent) as sockets:
        peers = asyncio.run(_pgvector(sockets, vectors, parts))
        store = _graph_store(sockets, vectors, parts, result)
    for tasks in SINGLES:
        result.compare("remember", tasks, own[tasks], peers[tasks])
    result.compare("remember in batches", 2, batched, peers[0])
    result.bar("single_by_pgvector", "one at a time", own[1].rate / peers[1].rate, ">=", 1)
    result.bar("writers_by_pgvector", "16 writers", own[16].rate / peers[16].rate, ">=", 2)
    if store is not None:
        ratio = batched.rate / store.rate
        result.bar("batch_by_store", "batches by PostgresStore's", ratio, ">=", 3)


def _parts(size: int) -> dict[int, range]:
    """Which memories are stored how: one at a time, by 16 writers, and the rest in batches."""
    first = min(SINGLES[1], size // 8)
    second = min(SINGLES[16], size // 4)
    return {1: range(first), 16: range(first, first + second), 0: range(first + second, size)}


def _draft(vectors: Vectors, place: int) -> Draft:
    return Draft(content(place), vector=vectors[place].astype("<f4").tobytes())


async def _single(vectors: Vectors, places: range, tasks: int, client: Client) -> Timing:
    async def store(place: int) -> None:
        await client.remember(content(place), vector=vectors[place])

    return await in_flight(store, places, tasks)


async def _batches(vectors: Vectors, places: range, client: Client) -> Timing:
    groups = [
        [_draft(vectors, place) for place in places[start : start + BATCH]]
        for start in range(0, len(places), BATCH)
    ]
    return await in_flight(client.remember_batch, groups, 2, BATCH)


async def _pgvector(sockets: Path, vectors: Vectors, parts: dict[int, range]) -> dict[int, Timing]:
    async with open_plain(sockets, DIMENSION, 16) as plain:

        async def store(places: Sequence[int]) -> None:
            await plain.insert([(content(place), vectors[place]) for place in places])

        timings = {
            tasks: await by_tasks(store, [[place] for place in parts[tasks]], tasks)
            for tasks in SINGLES
        }
        rest = parts[0]
        groups: list[Any] = [rest[at : at + BATCH] for at in range(0, len(rest), BATCH)]
        timings[0] = await by_tasks(store, groups, 2, BATCH)
        return timings


def _graph_store(
    sockets: Path, vectors: Vectors, parts: dict[int, range], result: Result
) -> Timing | None:
    try:
        with open_graph_store(sockets, vectors, content) as store:
            texts = [(place, content(place)) for place in (*parts[1], *parts[0][:2_000])]
            single = store.put(texts[: len(parts[1]) // 2])
            batched = store.batch(texts[len(parts[1]) :], BATCH)
    except PeerMissing as missing:
        result.notes.append(f"PostgresStore was left out: {missing}")
        return None
    result.figures["store_put_per_s"] = round(single.rate, 1)
    result.figures["store_batch_per_s"] = round(batched.rate, 1)
    return batched
