"""A corpus ten times as large as the memory set aside for it: is all still found, and how fast?

One node inside this process with a tenth of the corpus resident, and the same rows in a table with
a pgvector HNSW index in the same PostgreSQL server, asked through the same connections in turn. The
index is tuned to the recall that the node reaches before the two are timed.
"""

from __future__ import annotations

import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio
import yaml
from rich.console import Console

from node.app import open_node
from node.config import load_config
from node.memory.drafts import Draft
from node.memory.recall import Question, recall
from node.memory.remember import remember_batch
from node.reload import Reloader
from node.services import Services
from node.workspace import Workspace
from ops.bench.graphs import DIM, SIZE, TOP, Vectors, make_vectors, nearest, resident_mib
from ops.bench.result import Result, Timing
from storage import memories
from storage.cluster import DATABASE, ROLE
from storage.embedded import PORT
from storage.errors import MnemeshError
from storage.model import AgentProfile
from storage.pool import Tx, open_database
from storage.queries import compile_query
from storage.settings import DatabaseSettings

TIMES: Final = 10
"""How many times the ceiling the corpus becomes."""
QUESTIONS: Final = 300
BATCH: Final = 500
ADDED_AT_ONCE: Final = 20
EFS: Final = (10, 15, 20, 30, 40, 60, 80, 100, 150, 200, 300, 400, 600, 800)
PASSES: Final = 60
TESTS: Final = 80
QUIET: Final = 6


def run(console: Console, size: int = SIZE) -> int:
    """The benchmark with its node, up to `size` memories; the exit code."""
    root = Path(tempfile.mkdtemp(prefix="mnb-"))
    root.chmod(0o755)
    result = Result("cold")
    try:
        trio.run(_main, root, size, result, console)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    result.show(console, "pgvector")
    return 0 if result.ok else 1


async def _main(root: Path, size: int, result: Result, console: Console) -> None:
    workspace = Workspace(root / "node")
    workspace.prepare()
    config = {
        "version": 1,
        "schema": "mnemesh/v1",
        "embedding": {"provider": "precomputed", "model": "bench", "dimensions": DIM},
        "eviction": {"ceiling": size // TIMES},
        "network": {"port": 0},
    }
    (workspace.root / "agent.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    load = partial(load_config, workspace.root, {})
    with workspace.lock():
        async with trio.open_nursery() as watching:
            async with open_node(workspace, Reloader(load().config, load), watching) as node:
                await _Bench(node, size, result, console).measure()
            watching.cancel_scope.cancel()


@dataclass(slots=True)
class _Bench:
    node: Services
    last: int
    result: Result
    console: Console

    async def measure(self) -> None:
        step = first = 2 * self.last // TIMES
        last = self.last
        rows, extra = make_vectors(last), make_vectors(BATCH, seed=3)
        questions = make_vectors(QUESTIONS, seed=2)
        sizes = range(first, last + 1, step)
        truths = {size: nearest(rows[:size], questions) for size in sizes}
        agent = self.node.agents.resolve(None)
        peak = 0
        recalls: dict[int, float] = {}
        rss: dict[int, float] = {}
        for size in sizes:
            begun = time.perf_counter()
            start = size - step if size > first else 0
            await self._store(agent, rows[start:size], start)
            stored = time.perf_counter() - begun
            await self._consolidate()
            peak = max(peak, self.node.memory.residency.resident_max)
            recalls[size] = await self._recall(agent, questions, truths[size])
            rss[size] = resident_mib()
            self.console.print(
                f"{size:,} memories: stored {(size - start) / stored:,.0f}/s, "
                f"{len(self.node.memory.cold.routes):,} clusters after "
                f"{time.perf_counter() - begun - stored:.0f} s, recall@10 {recalls[size]:.3f}, "
                f"row budget {self.node.memory.cold.budget:,}, {rss[size]:.0f} MiB"
            )
        figures = self.result.figures
        figures |= {f"recall_at_{size}": round(value, 4) for size, value in recalls.items()}
        figures |= {f"rss_mib_at_{size}": round(value, 1) for size, value in rss.items()}
        figures["clusters"] = len(self.node.memory.cold.routes)
        figures["row_budget"] = self.node.memory.cold.budget
        figures["self_test"] = self.node.memory.cold.measured_recall
        what = f"of the ten nearest of {first:,} to {last:,} memories, lowest of all sizes"
        self.result.bar("recall_at_10", what, min(recalls.values()), ">=", 0.95)
        self.result.bar("residents", "most memories resident at once", peak, "<=", last // TIMES)
        growth = rss[last] / rss[first]
        what = f"memory of the process with {last:,} rows against {first:,}"
        self.result.bar("rss_growth", what, growth, "<=", 1.1)
        await self._against_hnsw(agent, questions, rows, extra)

    async def _store(self, agent: AgentProfile, vectors: Vectors, first: int) -> None:
        for start in range(0, len(vectors), BATCH):
            drafts = [
                Draft(content=f"memory {first + place}", agent_id=agent.id, vector=vectors[place])
                for place in range(start, min(start + BATCH, len(vectors)))
            ]
            for done in await remember_batch(self.node.memory, drafts):
                if isinstance(done, MnemeshError):
                    raise done

    async def _consolidate(self) -> None:
        """Until every row has its cluster and the row budget stays as it is."""
        for _ in range(PASSES):
            done = await self.node.consolidation.tick()
            if not (done.placed or done.split or done.moved):
                break
        cold, rng, quiet = self.node.memory.cold, random.Random(1), 0
        for _ in range(TESTS):
            budget = cold.budget
            await cold.test(self.node.db, self.node.memory.embedder.model_id, rng)
            quiet = quiet + 1 if budget == cold.budget else 0
            if quiet == QUIET:
                return

    async def _recall(
        self, agent: AgentProfile, questions: Vectors, truths: Sequence[set[int]]
    ) -> float:
        """Recall at 10 of the node's whole answer; residents as they are, nothing is warmed."""
        found = 0
        for vector, truth in zip(questions, truths, strict=True):
            self.node.memory.residency.has_cold = True
            asked = Question(query="", agent=agent, limit=TOP, vector=vector)
            answer = await recall(self.node.memory, asked)
            places = {int(hit.memory.content.split()[1]) for hit in answer.hits}
            found += len(places & truth)
        return found / (TOP * len(questions))

    # The peer

    async def _against_hnsw(
        self, agent: AgentProfile, questions: Vectors, rows: Vectors, extra: Vectors
    ) -> None:
        begun = time.perf_counter()
        self.console.print("building the HNSW index of the peer ...")
        await self.node.db.transact(_make_peer)
        for start in range(0, len(rows), 2_000):
            await self.node.db.transact(_fill_peer, start, rows[start : start + 2_000])
        patient = DatabaseSettings(statement_timeout=3_600, pool_max=1)
        place = {
            "host": str(self.node.workspace.pg.with_name("pg.sock")),
            "port": PORT,
            "user": ROLE,
            "database": DATABASE,
        }
        async with open_database(self.node.island, place, patient) as db:
            await db.transact(_index_peer)
        built = time.perf_counter() - begun
        self.result.figures["peer_build_s"] = round(built, 1)
        truth = nearest(rows, questions)
        own = await self._cold_recall(agent, questions, truth)
        ef, peer = await self._tuned(questions, truth, own)
        figures = self.result.figures
        figures |= {"cold_recall": round(own, 4), "peer_recall": round(peer, 4), "peer_ef": ef}
        mine, theirs, whole = await self._timed(agent, questions, ef)
        self.result.compare("cold search", 1, mine, theirs)
        self.result.compare("whole recall", 1, whole, None)
        figures["cold_p95_ms"] = round(mine.percentile(95), 3)
        figures["peer_p95_ms"] = round(theirs.percentile(95), 3)
        ratio = mine.percentile(95) / theirs.percentile(95)
        what = f"cold p95 against HNSW at ef {ef}, recall {own:.3f} and {peer:.3f}"
        self.result.bar("cold_p95_ratio", what, ratio, "<=", 2.0)
        await self._adding(agent, extra)
        self.result.notes += [
            f"{self.last:,} x {DIM} vectors, questions are fresh draws. "
            "HNSW: halfvec, m 16, ef_construction 64, same server.",
            "Cold search: the transaction that a recall runs, ten rows judged for the reader. "
            "The peer: its ten nearest in a transaction of the same kind.",
        ]

    async def _cold_recall(
        self, agent: AgentProfile, questions: Vectors, truth: Sequence[set[int]]
    ) -> float:
        found = 0
        for vector, wanted in zip(questions, truth, strict=True):
            rows = await self._cold_search(agent, vector)
            found += len({int(row.memory.content.split()[1]) for row in rows[:TOP]} & wanted)
        return found / (TOP * len(questions))

    async def _cold_search(self, agent: AgentProfile, vector: Vectors) -> list[memories.Found]:
        context = self.node.memory
        return await context.db.read(
            context.cold.search,
            vector,
            context.embedder.model_id,
            context.agents.reader(agent),
            context.now(),
            limit=TOP,
        )

    async def _tuned(
        self, questions: Vectors, truth: Sequence[set[int]], wanted: float
    ) -> tuple[int, float]:
        reached = 0.0
        for ef in EFS:
            found = 0
            for vector, ids in zip(questions, truth, strict=True):
                found += len(set(await self.node.db.read(_ask_peer, vector, ef)) & ids)
            reached = found / (TOP * len(questions))
            if reached >= wanted:
                return ef, reached
        return EFS[-1], reached

    async def _timed(
        self, agent: AgentProfile, questions: Vectors, ef: int
    ) -> tuple[Timing, Timing, Timing]:
        times: tuple[list[float], list[float], list[float]] = ([], [], [])
        for vector in questions:
            asked = Question(query="", agent=agent, limit=TOP, vector=vector)
            for taken, ask in (
                (times[0], partial(self._cold_search, agent, vector)),
                (times[1], partial(self.node.db.read, _ask_peer, vector, ef)),
                (times[2], partial(recall, self.node.memory, asked)),
            ):
                begun = time.perf_counter()
                await ask()
                taken.append(time.perf_counter() - begun)
        mine, theirs, whole = (Timing(tuple(each), sum(each)) for each in times)
        return mine, theirs, whole

    async def _adding(self, agent: AgentProfile, extra: Vectors) -> None:
        """What one more vector costs in the table of the cold tier, and in that with HNSW."""
        context = self.node.memory
        done = await remember_batch(
            context,
            [
                Draft(content=f"added {place}", agent_id=agent.id, vector=extra[place])
                for place in range(BATCH)
            ],
        )
        stored = [each.memory for each in done if not isinstance(each, MnemeshError)]
        own: list[float] = []
        peer: list[float] = []
        for start in range(0, BATCH, ADDED_AT_ONCE):
            part = range(start, start + ADDED_AT_ONCE)
            begun = time.perf_counter()
            await context.db.transact(
                _add_again,
                context,
                [(stored[at], extra[at]) for at in part],
            )
            own.append((time.perf_counter() - begun) / ADDED_AT_ONCE)
            begun = time.perf_counter()
            await context.db.transact(
                _fill_peer, self.last + start, extra[start : start + ADDED_AT_ONCE]
            )
            peer.append((time.perf_counter() - begun) / ADDED_AT_ONCE)
        mine, theirs = statistics.median(own) * 1000, statistics.median(peer) * 1000
        self.result.figures["add_row_ms"] = round(mine, 3)
        self.result.figures["peer_add_row_ms"] = round(theirs, 3)
        what = f"{mine:.2f} ms for a vector in the cold tier, {theirs:.2f} ms in the HNSW table"
        self.result.bar("add_row_ratio", what, mine / theirs, "<=", 0.334)


_TABLE: Final = compile_query(
    "peer", f"CREATE TABLE bench_peer (id bigint PRIMARY KEY, v halfvec({DIM}))"
)
_INDEX: Final = compile_query(
    "peer_index",
    "CREATE INDEX ON bench_peer USING hnsw (v halfvec_ip_ops) WITH (m = 16, ef_construction = 64)",
)
_MEMORY: Final = compile_query("memory", "SET LOCAL maintenance_work_mem = '400MB'")
_FILL: Final = compile_query("peer_fill", "INSERT INTO bench_peer (id, v) VALUES (:id, :v)")
_EF: Final = compile_query("peer_ef", "SELECT set_config('hnsw.ef_search', :ef, true)")
_ASK: Final = compile_query(
    "peer_ask", "SELECT id, v <#> :v AS distance FROM bench_peer ORDER BY 2 LIMIT 10"
)


async def _make_peer(tx: Tx) -> None:
    await tx.execute(_TABLE)


async def _fill_peer(tx: Tx, first: int, vectors: Vectors) -> None:
    await tx.executemany(_FILL, [{"id": first + i, "v": v} for i, v in enumerate(vectors)])


async def _index_peer(tx: Tx) -> None:
    await tx.execute(_MEMORY)
    await tx.execute(_INDEX)


async def _ask_peer(tx: Tx, vector: Vectors, ef: int) -> list[int]:
    await tx.fetch(_EF, ef=str(ef))
    return [row["id"] for row in await tx.fetch(_ASK, v=vector)]


async def _add_again(tx: Tx, context: Any, rows: Sequence[tuple[Any, Vectors]]) -> None:
    """The vectors of these memories once more, under a model of their own."""
    for memory, vector in rows:
        cluster = context.cold.cluster_for(memory, vector)
        await memories.insert_vector(tx, memory, "added again", vector, cluster)
