"""Storing: single memories and batches over the agent port next to what people use today.

A remember is durable when it is answered: row, vector, full text, history, and the hot graph. The
peers store a text and a vector with an HNSW index, also durably, in a PostgreSQL of the same
build. All sides are given the vectors. What an insert into a graph costs follows from its size, so
all sides hold a base of vectors before anything is timed. They take turns, and a bar judges the
middle one of the turns' ratios, since a machine is never equally busy for long. A peer whose
packages are missing is left out and named.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from node.client import Client, Draft
from ops.bench import shapes
from ops.bench.chroma import PeerMissing
from ops.bench.graphstore import GraphStore, open_graph_store
from ops.bench.load import by_tasks
from ops.bench.node import on_a_node
from ops.bench.plain import PlainTable, open_plain
from ops.bench.ported import drive, in_flight
from ops.bench.recall import DIMENSION, content, fill
from ops.bench.result import Result, Timing
from ops.bench.server import peer_server
from ops.bench.shapes import Vectors
from ops.mesh.nodes import Node

TOTAL: Final = 12_000
BASE: Final = 40_000
"""Memories that are there before anything is timed."""
TURNS: Final = 5
SHARES: Final = {1: 1 / 8, 16: 1 / 2}
"""How much of a turn is stored one at a time and by 16 writers; the rest goes in batches."""
BATCH: Final = 100

Row = tuple[str, Vectors]
Side = Callable[[Sequence[Row]], Timing]


@dataclass(slots=True)
class Turns:
    """What one side did, turn by turn."""

    timings: list[Timing] = field(default_factory=list)

    @property
    def whole(self) -> Timing:
        """All turns as if they were one."""
        return Timing(
            tuple(each for timing in self.timings for each in timing.latencies),
            sum(timing.seconds for timing in self.timings),
            self.timings[0].per,
        )

    def by(self, other: Turns) -> float:
        """The middle one of the ratios of the rates."""
        pairs = zip(self.timings, other.timings, strict=True)
        return statistics.median(own.rate / peer.rate for own, peer in pairs)


def run(console: Console, size: int = TOTAL) -> int:
    """The benchmark with its node; the exit code."""
    return on_a_node("ingest", "pgvector", BASE + size, partial(_measure, size), console)


def _measure(size: int, node: Node, result: Result, console: Console) -> None:
    vectors = shapes.corpus(BASE + size, DIMENSION)
    result.figures |= {"base": BASE, "memories": size, "dimension": DIMENSION}
    with ExitStack() as stack:
        sockets = stack.enter_context(peer_server(node.workspace.parent))
        console.print(f"a base of {BASE:,} memories on all sides ...")
        fill(node, vectors[:BASE])
        sides: dict[str, Side] = {}
        for tasks in SHARES:
            sides[f"own {tasks}"] = partial(_own_singles, node, tasks)
        sides["own 0"] = partial(_own_batches, node)
        sides |= stack.enter_context(_pgvector(sockets, vectors))
        try:
            store = stack.enter_context(open_graph_store(sockets, vectors, content))
            store.fill([content(place) for place in range(BASE)], vectors[:BASE])
            sides["store 0"] = partial(_store_batches, store)
        except PeerMissing as missing:
            result.notes.append(f"PostgresStore was left out: {missing}")
        done = {name: Turns() for name in sides}
        for turn in range(TURNS):
            console.print(f"storing, turn {turn + 1} of {TURNS} ...")
            parts = parts_of(size // TURNS, BASE + turn * (size // TURNS))
            for name in sorted(sides, key=lambda name: name.split()[1]):
                part = parts[int(name.split()[1])]
                done[name].timings.append(
                    sides[name]([(content(place), vectors[place]) for place in part])
                )
    for tasks in SHARES:
        result.compare("remember", tasks, done[f"own {tasks}"].whole, done[f"peer {tasks}"].whole)
    result.compare("remember in batches", 2, done["own 0"].whole, done["peer 0"].whole)
    one, many = (done[f"own {tasks}"].by(done[f"peer {tasks}"]) for tasks in SHARES)
    result.bar("single_by_pgvector", "one at a time", one, ">=", 1)
    result.bar("writers_by_pgvector", "16 writers", many, ">=", 2)
    if "store 0" in done:
        result.figures["store_batch_per_s"] = round(done["store 0"].whole.rate, 1)
        ratio = done["own 0"].by(done["store 0"])
        result.bar("batch_by_store", "batches by PostgresStore's", ratio, ">=", 3)


def parts_of(count: int, start: int) -> dict[int, range]:
    """Which memories of a turn are stored how: one at a time, by 16 writers, and in batches."""
    first = start + int(count * SHARES[1])
    second = first + int(count * SHARES[16])
    return {1: range(start, first), 16: range(first, second), 0: range(second, start + count)}


def _groups(rows: Sequence[Row]) -> list[Sequence[Row]]:
    return [rows[start : start + BATCH] for start in range(0, len(rows), BATCH)]


def _own_singles(node: Node, tasks: int, rows: Sequence[Row]) -> Timing:
    async def store(client: Client) -> Timing:
        async def one(row: Row) -> None:
            await client.remember(row[0], vector=row[1])

        return await in_flight(one, rows, tasks)

    return drive(node.workspace, store)


def _own_batches(node: Node, rows: Sequence[Row]) -> Timing:
    groups = [
        [Draft(text, vector=vector.astype("<f4").tobytes()) for text, vector in group]
        for group in _groups(rows)
    ]

    async def store(client: Client) -> Timing:
        return await in_flight(client.remember_batch, groups, 2, BATCH)

    return drive(node.workspace, store)


@contextmanager
def _pgvector(sockets: Path, vectors: Vectors) -> Iterator[dict[str, Side]]:
    """A table that holds the base, and the ways to store into it. Single rows are committed by
    their own statement, which is the shortest way to store one."""

    async def singles(plain: PlainTable, tasks: int, rows: Sequence[Row]) -> Timing:
        async def add(row: Row) -> None:
            await plain.add(*row)

        return await by_tasks(add, rows, tasks)

    async def batches(plain: PlainTable, rows: Sequence[Row]) -> Timing:
        return await by_tasks(plain.insert, _groups(rows), 2, BATCH)

    with asyncio.Runner() as runner:
        table = open_plain(sockets, DIMENSION, 16)
        plain = runner.run(table.__aenter__())
        try:
            runner.run(plain.fill([(content(place), vectors[place]) for place in range(BASE)]))

            def run(work: Callable[[Sequence[Row]], Any], rows: Sequence[Row]) -> Timing:
                timing: Timing = runner.run(work(rows))
                return timing

            sides: dict[str, Side] = {
                f"peer {tasks}": partial(run, partial(singles, plain, tasks)) for tasks in SHARES
            }
            sides["peer 0"] = partial(run, partial(batches, plain))
            yield sides
        finally:
            runner.run(table.__aexit__(None, None, None))


def _store_batches(store: GraphStore, rows: Sequence[Row]) -> Timing:
    return store.batch([(int(text.split()[1].rstrip(":")), text) for text, _ in rows], BATCH)
