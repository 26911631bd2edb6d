"""Clients that do nothing but ask: over HTTP by threads, in PostgreSQL by tasks.

The HTTP clients use the standard library's connections, which cost a fraction of what a full
client library does, since clients and node share the same cores.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

from ops.bench.result import Timing

T = TypeVar("T")


class HttpFailed(Exception):
    """The node answered with something else than success."""


def over_http(url: str, path: str, bodies: Sequence[Any], clients: int, per: int = 1) -> Timing:
    """POST every body once, by so many clients with a connection each. Raises HttpFailed."""
    place = urlsplit(url)
    encoded = [json.dumps(body).encode("utf-8") for body in bodies]
    todo = iter(encoded)
    lock = threading.Lock()
    latencies: list[float] = []
    failures: list[BaseException] = []

    def client() -> None:
        connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)
        own: list[float] = []
        try:
            for body in _taken(todo, lock):
                begun = time.perf_counter()
                connection.request("POST", path, body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                said = answer.read()
                own.append(time.perf_counter() - begun)
                if answer.status != 200:
                    raise HttpFailed(f"POST {path}: {answer.status} {said[:200]!r}")
        except (OSError, http.client.HTTPException, HttpFailed) as error:
            failures.append(error)
        finally:
            connection.close()
        with lock:
            latencies.extend(own)

    threads = [threading.Thread(target=client) for _ in range(clients)]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - begun
    if failures:
        raise HttpFailed(str(failures[0])) from failures[0]
    return Timing(tuple(latencies), seconds, per)


def _taken(todo: Iterator[T], lock: threading.Lock) -> Iterator[T]:
    while True:
        with lock:
            item = next(todo, None)
        if item is None:
            return
        yield item


async def by_tasks(
    work: Callable[[T], Awaitable[None]], items: Sequence[T], clients: int, per: int = 1
) -> Timing:
    """Do the work for every item once, by so many tasks."""
    todo = iter(items)
    latencies: list[float] = []

    async def client() -> None:
        for item in todo:
            begun = time.perf_counter()
            await work(item)
            latencies.append(time.perf_counter() - begun)

    begun = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    return Timing(tuple(latencies), time.perf_counter() - begun, per)
