"""How fast a node's graph is full again: from its snapshot, next to from the rows in PostgreSQL.

One embedded server, one set of rows. Then a process that writes snapshots is killed twenty times
at random moments; each time the next start must come from a whole file or from the rows, and have
exactly the live rows resident.
"""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import asyncpg
import numpy as np
import trio
from pgvector.asyncpg import register_vector
from rich.console import Console

from node.memory.residency import Residency
from node.workers.snapshots import Snapshots
from ops.bench import graphs
from ops.bench.graphs import DIM, SIZE, id_of
from ops.bench.result import Result
from storage import residents
from storage.clock import HybridClock
from storage.embedded import open_embedded
from storage.gate import Gate
from storage.hot.snapshot import Owner, SnapshotFolder
from storage.island import open_island
from storage.keyring import KeyStore
from storage.local import LocalNode
from storage.migrate import migrate
from storage.pool import Database, open_database
from storage.settings import DatabaseSettings, EmbeddedSettings

MODEL: Final = "bench@256#0000"
FASTER: Final = 10.0
KILLS: Final = 20
MAX_WRITE_S: Final = 30.0
TICK_S: Final = 0.002
_ROWS: Final = """
INSERT INTO memories (id, kind, agent_id, content, normalized_content, created_at, updated_at,
                      origin_node, agent_epoch, project_epoch, hlc, indexed_chars)
SELECT id, 'cell', $2, content, content, now(), now(), $3, 1, 0, 1, 0
FROM unnest($1::bytea[], $4::text[]) AS row (id, content)
"""
_VECTORS: Final = """
INSERT INTO embeddings (memory_id, agent_id, model, dims, vector) VALUES ($1, $2, $3, $4, $5)
"""


def run(console: Console, size: int = SIZE) -> int:
    """Measure; the exit code."""
    root = Path(tempfile.mkdtemp(prefix="mnb-"))
    root.chmod(0o755)
    result = Result("restart")
    try:
        trio.run(_measure, root, size, result, console)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    result.show(console, "-")
    return 0 if result.ok else 1


async def _measure(root: Path, size: int, result: Result, console: Console) -> None:
    node = _node(root)
    async with (
        trio.open_nursery() as nursery,
        open_island() as island,
        open_embedded(root / "pg", root / "pg.log", EmbeddedSettings()) as server,
    ):
        nursery.start_soon(server.watch)
        target = server.connect_kwargs
        await migrate(island, target)
        console.print(f"{size:,} rows x {DIM} ...")
        await island.call(_insert, target, node.node_id, size)
        async with open_database(island, target, DatabaseSettings()) as db:
            await _compare(root, db, node, size, result, console)
            await _killed(root, db, node, size, result, console)
        nursery.cancel_scope.cancel()


async def _compare(
    root: Path, db: Database, node: LocalNode, size: int, result: Result, console: Console
) -> None:
    console.print("from the rows ...")
    cold, slow, _ = await _start(root, db, node)
    assert cold.start is not None
    written = await cold.write()
    console.print(f"from the file of {written.size / 2**20:,.0f} MiB ...")
    warm, fast, stall = await _start(root, db, node)
    assert warm.start is not None
    result.figures |= {
        "memories": size,
        "from_rows_s": round(slow, 2),
        "from_snapshot_s": round(fast, 3),
        "snapshot_mib": round(written.size / 2**20, 1),
        "snapshot_write_s": round(written.seconds, 2),
        "read_again": warm.start.reloaded,
        "stall_before_ready_ms": round(stall, 1),
    }
    result.bar("warm", "the start came from the file", warm.start.source == "snapshot", "==", True)
    result.bar("faster", "start from the rows to start from the file", slow / fast, ">=", FASTER)
    result.bar("equal", "residents that differ from the rows", await _differ(db, warm), "==", 0)


async def _killed(
    root: Path, db: Database, node: LocalNode, size: int, result: Result, console: Console
) -> None:
    console.print(f"killed {KILLS} times while writing ...")
    rng = random.Random(11)
    wrong = from_file = 0
    for _ in range(KILLS):
        wait = partial(_kill_a_writer, root, rng)
        await trio.to_thread.run_sync(wait)
        started, _, _ = await _start(root, db, node)
        assert started.start is not None
        from_file += started.start.source == "snapshot"
        residency = started._residency
        if residency.degraded:
            await residency.load(db)
        wrong += (await _differ(db, started)) > 0
    result.figures["kills_started_from_file"] = from_file
    result.bar("wrong_starts", f"of {KILLS} starts after a kill, those not right", wrong, "==", 0)


def _kill_a_writer(root: Path, rng: random.Random) -> None:
    """Let a process with the graph of the file write it again and again, and kill it."""
    with subprocess.Popen(
        [sys.executable, "-m", "ops.bench.restart", str(root)],
        stdout=subprocess.PIPE,
        text=True,
    ) as writer:
        assert writer.stdout is not None
        took = float(writer.stdout.readline())
        time.sleep(rng.uniform(0, min(1.2 * took, MAX_WRITE_S)))
        writer.send_signal(signal.SIGKILL)


def _write_for_ever(root: Path) -> None:
    """The process that is killed: prints how long a write takes, then writes on."""
    folder = _folder(root, _node(root))
    found = folder.read()
    assert found is not None
    image, stamp = found
    graph = graphs.make_graph()
    graph.restore(image)
    number = 0
    while True:
        graph.evict([image.residents[number].id])
        graph.insert([image.residents[number]], graphs.make_vectors(1, seed=number))
        number += 1
        print(folder.write(graph, stamp).seconds, flush=True)


async def _start(root: Path, db: Database, node: LocalNode) -> tuple[Snapshots, float, float]:
    """A new life of the graph: its worker, the seconds, and the longest stall in milliseconds."""
    residency = Residency(graphs.make_graph(), node, MODEL)
    snapshots = Snapshots(residency, db, node, _folder(root, node))
    late = [0.0]

    async def tick() -> None:
        while True:
            due = time.perf_counter() + TICK_S
            await trio.sleep(TICK_S)
            late.append(time.perf_counter() - due)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(tick)
        begun = time.perf_counter()
        await snapshots.load()
        seconds = time.perf_counter() - begun
        nursery.cancel_scope.cancel()
    return snapshots, seconds, max(late) * 1000


async def _differ(db: Database, snapshots: Snapshots) -> int:
    """Live rows that are not resident with their text, and residents without a live row."""
    residency = snapshots._residency
    there = {each.id: each.content for each in residency.graph.residents()}
    present = await db.read(residents.present, MODEL)
    wrong = len(present ^ set(there))
    return wrong + sum(
        text != graphs.make_resident(graphs.number_of(memory_id)).content
        for memory_id, text in there.items()
    )


def _node(root: Path) -> LocalNode:
    keys = KeyStore(root / "keys")
    keys.prepare()
    return LocalNode(
        identity=keys.node(),
        keys=keys,
        clock=HybridClock(graphs.now_ms),
        gate=Gate(bytes(32)),
        mesh_id="bench",
        wall=lambda: datetime.now(UTC),
    )


def _folder(root: Path, node: LocalNode) -> SnapshotFolder:
    (root / "hot").mkdir(mode=0o700, exist_ok=True)
    return SnapshotFolder(root / "hot", Owner(node.node_id, MODEL, DIM, 1))


async def _insert(target: Mapping[str, Any], node_id: bytes, size: int) -> None:
    connection = await asyncpg.connect(**target)
    try:
        await register_vector(connection)
        for start in range(0, size, 5_000):
            numbers = range(start, min(start + 5_000, size))
            vectors = graphs.make_vectors(len(numbers), seed=start)
            made = [graphs.make_resident(n) for n in numbers]
            async with connection.transaction():
                ids = [each.id for each in made]
                texts = [each.content for each in made]
                await connection.execute(_ROWS, ids, id_of(0), node_id, texts)
                await connection.executemany(
                    _VECTORS,
                    [
                        (memory_id, id_of(0), MODEL, DIM, vector.astype(np.float16))
                        for memory_id, vector in zip(ids, vectors, strict=True)
                    ],
                )
        await connection.execute("ANALYZE memories, embeddings")
    finally:
        await connection.close()


if __name__ == "__main__":
    _write_for_ever(Path(sys.argv[1]))
