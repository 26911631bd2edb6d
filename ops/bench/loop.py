"""How long the loop of a node stands still while the hot graph is worked on.

A ticking task measures how late it wakes up, next to tasks that do what a node does: memories
come in a few at a time and in batches, recalls ask, batches are evicted, the graph is rebuilt
and its snapshot is written, each again and again.
"""

from __future__ import annotations

import gc
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import trio
from rich.console import Console

from node.memory.gathering import Gathering
from ops.bench import graphs
from ops.bench.graphs import DIM, SIZE, TOP, Vectors
from ops.bench.result import Result, Timing
from storage.hot.graph import HotGraph
from storage.hot.searching import Asked
from storage.hot.snapshot import Owner, SnapshotFolder, Stamp

SECONDS: Final = 20.0
TICK_S: Final = 0.002
QUIET_S: Final = 5.0
P999_MS: Final = 20.0
MAX_MS: Final = 100.0
BATCH: Final = 50
NEW: Final = 20_000
IDLE: Final = 2**62
"""A moment at which every memory is idle."""


def run(console: Console, size: int = SIZE) -> int:
    """Measure; the exit code."""
    result = Result("loop")
    folder = Path(tempfile.mkdtemp(prefix="mnb-"))
    try:
        _measure(console, size, folder, result)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    result.show(console, "-")
    return 0 if result.ok else 1


def _measure(console: Console, size: int, folder: Path, result: Result) -> None:
    console.print(f"{size:,} x {DIM} residents ...")
    graph = graphs.make_graph(ceiling=size)
    graphs.fill(graph, range(size), graphs.make_vectors(size))
    gc.collect()
    gc.freeze()
    fresh = graphs.make_vectors(NEW, seed=9)
    snapshots = SnapshotFolder(folder, Owner(b"b" * 16, "bench", DIM, 1))
    work: dict[str, Callable[[], Awaitable[object]]] = {
        "quiet": _rest,
        "ingesting": lambda: _ingest(graph, fresh),
        "evicting": lambda: _in_thread(lambda: _evict(graph, fresh)),
        "rebuilding": lambda: _in_thread(graph.rebuild),
        "writing the snapshot": lambda: _in_thread(
            lambda: snapshots.write(graph, Stamp("bench", 1, 0, 0, 0))
        ),
    }
    worst: list[Timing] = []
    for name, step in work.items():
        seconds = QUIET_S if name == "quiet" else SECONDS
        timing, turns = trio.run(_watched, graph, fresh, step, seconds)
        result.compare(name, 1, timing, None)
        result.figures[f"{name.replace(' ', '_')}_max_ms"] = round(timing.percentile(100), 2)
        result.figures[f"{name.replace(' ', '_')}_turns"] = turns
        if name != "quiet":
            worst.append(timing)
    everything = Timing(tuple(x for each in worst for x in each.latencies), len(worst) * SECONDS)
    result.bar("p99_9_ms", "stall of the loop, 99.9 %", everything.percentile(99.9), "<=", P999_MS)
    result.bar("max_ms", "longest stall of the loop", everything.percentile(100), "<=", MAX_MS)
    result.figures["memories"] = size
    result.notes.append("The figures are how late a task woke up that sleeps for 2 ms.")


async def _watched(
    graph: HotGraph, queries: Vectors, step: Callable[[], Awaitable[object]], seconds: float
) -> tuple[Timing, int]:
    late: list[float] = []
    turns = 0
    gathering = Gathering(graph)

    async def tick() -> None:
        while True:
            due = time.perf_counter() + TICK_S
            await trio.sleep(TICK_S)
            late.append(max(time.perf_counter() - due, 0.0))

    async def recall(first: int) -> None:
        at = first
        while True:
            await gathering.ask(Asked(queries[at % len(queries)], 3 * TOP))
            at += 1
            await trio.sleep(0.005)

    with trio.move_on_after(seconds):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tick)
            for first in range(4):
                nursery.start_soon(recall, first * 1_000)
            while True:
                await step()
                turns += 1
    return Timing(tuple(late), seconds), turns


async def _ingest(graph: HotGraph, vectors: Vectors) -> None:
    """Single memories on the loop, as a node does, and a batch in a thread."""
    start = time.time_ns()
    at = start % (len(vectors) - BATCH)
    numbers = range(start, start + BATCH)
    for n in range(4):
        graph.insert([graphs.make_resident(start + 1_000 + n)], vectors[at : at + 1])
        await trio.lowlevel.checkpoint()
    await _in_thread(
        lambda: graph.insert([graphs.make_resident(n) for n in numbers], vectors[at : at + BATCH])
    )


def _evict(graph: HotGraph, vectors: Vectors) -> None:
    """A batch out, and as many others in."""
    left = graph.evict(graph.plan_eviction(IDLE))
    numbers = range(start := time.time_ns(), start + left)
    graph.insert([graphs.make_resident(n) for n in numbers], vectors[:left])


async def _rest() -> None:
    await trio.sleep(1)


async def _in_thread(work: Callable[[], object]) -> None:
    await trio.to_thread.run_sync(work)
