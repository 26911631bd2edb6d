"""Every memory gets a vector of another model, however often the run is killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from numpy.typing import NDArray

from node.memory import forget as ending
from node.workers.reembed import DiskTooSmall, Estimate, Step, estimate, reembed
from storage import memories
from storage.model import AgentProfile, Memory, Visibility
from storage.pool import Database
from tests.support.memory import FakeEmbedder, World, lit, make_world

ROOT = Path(__file__).resolve().parents[2]


class OtherEmbedder(FakeEmbedder):
    """The same texts in other directions, and what it was asked for."""

    model_id = "other@64#0000"

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.asked += texts
        return -(await super().embed(texts))


class Killed(Exception):
    """Stands for a process that ends between two batches."""


async def filled(world: World) -> tuple[AgentProfile, list[Memory], list[Memory]]:
    """100 live memories, some archived and superseded, and 20 soft-deleted ones."""
    agent = await world.agent("a1")
    live = [await world.store(agent, f"live number {number}") for number in range(100)]
    gone = [await world.store(agent, f"deleted number {number}") for number in range(20)]
    await ending.soft_delete(world.context, agent, [row.id for row in gone])
    await world.change(
        f"UPDATE memories SET visibility = '{Visibility.ARCHIVED}' WHERE id = {lit(live[0].id)}"
    )
    await world.change(
        f"UPDATE memories SET superseded_by = {lit(live[2].id)} WHERE id = {lit(live[1].id)}"
    )
    return agent, live, gone


def quiet(step: Step) -> None:
    assert 0 < step.done <= step.total


async def planned(db: Database, embedder: OtherEmbedder) -> Estimate:
    plan = await estimate(db, embedder, None)
    assert plan is not None
    embedder.asked.clear()
    return plan


async def vectors(world: World) -> dict[tuple[str, bytes], str]:
    rows = await world.rows("SELECT model, memory_id, vector::text FROM embeddings")
    return {(row[0], row[1]): row[2] for row in rows}


async def test_every_row_is_on_the_new_model_whatever_its_state(world: World) -> None:
    await filled(world)
    before = await world.value("SELECT count(*) FROM embeddings")
    embedder = OtherEmbedder()
    written = await reembed(
        world.db, embedder, await planned(world.db, embedder), world.node.wall, quiet, batch=16
    )
    assert written == before
    assert await world.db.read(memories.stored_model) == embedder.model_id
    assert {model for model, _ in await vectors(world)} == {embedder.model_id}
    assert await world.value("SELECT count(*) FROM embeddings") == before
    assert await estimate(world.db, embedder, None) is None


async def test_es_46_a_killed_run_goes_on_and_never_touches_what_was_erased_meanwhile(
    world: World,
) -> None:
    agent, live, _ = await filled(world)
    embedder = OtherEmbedder()
    batches = iter(range(6))

    async def stop() -> None:
        if next(batches, None) is None:
            raise Killed

    with pytest.raises(Killed):
        await reembed(
            world.db,
            embedder,
            await planned(world.db, embedder),
            world.node.wall,
            quiet,
            batch=10,
            between=stop,
        )
    assert await world.db.read(memories.stored_model) == FakeEmbedder.model_id
    erased = live[50:65]
    await ending.forget(world.context, agent, [row.id for row in erased])
    plan = await planned(world.db, embedder)
    assert plan.done > 0
    await reembed(world.db, embedder, plan, world.node.wall, quiet, batch=10)
    assert not {row.content for row in erased} & set(embedder.asked)
    left = await world.rows("SELECT memory_id, model FROM embeddings")
    assert {row[1] for row in left} == {embedder.model_id}
    assert not {row.id for row in erased} & {row[0] for row in left}
    assert len(left) == await world.value("SELECT count(*) FROM memories")


async def test_answers_equal_those_of_a_fresh_build(world: World, tmp_path: Path) -> None:
    _, live, _ = await filled(world)
    embedder = OtherEmbedder()
    await reembed(world.db, embedder, await planned(world.db, embedder), world.node.wall, quiet)
    fresh = await embedder.embed([row.content for row in live])
    stored = await vectors(world)
    for row, vector in zip(live, fresh, strict=True):
        kept = np.array(json.loads(stored[embedder.model_id, row.id]), np.float32)
        np.testing.assert_allclose(kept, vector.astype(np.float16).astype(np.float32), rtol=1e-3)
    (tmp_path / "again").mkdir()
    other = await make_world(world.db, tmp_path / "again", embedder=embedder)
    await other.context.residency.load(other.db)
    hits = await other.found(other.context.agents.resolve("a1"), "live number 42", limit=5)
    assert live[42].id in hits


async def test_clusters_and_aggregates_of_the_old_model_go(world: World) -> None:
    project = await world.project("team")
    agent = await world.agent("a1", project_id=project)
    for number in range(12):
        await world.store(agent, f"near each other {number}", project_id=project)
    from tests.postgres.test_consolidation import worker

    await worker(world, agent).tick()
    assert await world.value("SELECT count(*) FROM memories WHERE kind = 'l1'") > 0
    embedder = OtherEmbedder()
    await reembed(world.db, embedder, await planned(world.db, embedder), world.node.wall, quiet)
    assert await world.value("SELECT count(*) FROM clusters") == 0
    assert await world.value("SELECT count(*) FROM memories WHERE kind = 'l1'") == 0


async def test_another_target_replaces_an_unfinished_one(world: World) -> None:
    await filled(world)
    first = OtherEmbedder()

    async def stop() -> None:
        raise Killed

    with pytest.raises(Killed):
        await reembed(
            world.db,
            first,
            await planned(world.db, first),
            world.node.wall,
            quiet,
            batch=10,
            between=stop,
        )
    second = OtherEmbedder()
    second.model_id = "third@64#0000"
    await reembed(world.db, second, await planned(world.db, second), world.node.wall, quiet)
    assert {model for model, _ in await vectors(world)} == {"third@64#0000"}


async def test_a_disk_without_room_is_refused_before_anything_is_written(world: World) -> None:
    await filled(world)
    embedder = OtherEmbedder()
    plan = await planned(world.db, embedder)
    full = Estimate(**{**{f: getattr(plan, f) for f in plan.__slots__}, "free_bytes": 1})
    with pytest.raises(DiskTooSmall):
        await reembed(world.db, embedder, full, world.node.wall, quiet)
    assert embedder.asked == []
    assert await world.value("SELECT count(*) FROM reembeddings") == 0


PROGRAM = """
    import json, sys, trio
    from datetime import UTC, datetime
    from node.workers.reembed import estimate, reembed
    from storage.island import open_island
    from storage.pool import open_database
    from storage.settings import DatabaseSettings
    from tests.postgres.test_reembed import OtherEmbedder

    async def main():
        async with open_island() as island:
            target = json.loads(sys.argv[1])
            async with open_database(island, target, DatabaseSettings()) as db:
                embedder = OtherEmbedder()
                plan = await estimate(db, embedder, None)
                if plan is not None:
                    print("begun", flush=True)
                    now = lambda: datetime.now(UTC)
                    await reembed(db, embedder, plan, now, lambda step: None, batch=3)

    trio.run(main)
"""


def kill_soon(script: list[str], environ: dict[str, str], seconds: float) -> None:
    """Run the program and kill it a moment after it began to embed."""
    process = subprocess.Popen(script, env=environ, cwd=ROOT, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(seconds)
    process.send_signal(signal.SIGKILL)
    process.communicate()


async def test_ten_kills_at_random_points_end_as_an_undisturbed_run(
    database_target: dict[str, Any], db: Database, tmp_path: Path
) -> None:
    world = await make_world(db, tmp_path)
    await filled(world)
    rng = random.Random(3)
    script = [sys.executable, "-c", textwrap.dedent(PROGRAM), json.dumps(database_target)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    with trio.fail_after(150):
        for _ in range(10):
            await trio.to_thread.run_sync(kill_soon, script, environ, rng.uniform(0.0, 0.15))
        await trio.to_thread.run_sync(
            lambda: subprocess.run(script, env=environ, cwd=ROOT, check=True, timeout=60)
        )
    embedder = OtherEmbedder()
    rows = await world.rows("SELECT id, content FROM memories ORDER BY id")
    stored = await vectors(world)
    assert set(stored) == {(embedder.model_id, row["id"]) for row in rows}
    fresh = await embedder.embed([row["content"] for row in rows])
    for row, vector in zip(rows, fresh, strict=True):
        kept = np.array(json.loads(stored[embedder.model_id, row["id"]]), np.float32)
        np.testing.assert_allclose(kept, vector.astype(np.float16).astype(np.float32), rtol=1e-3)
    assert await world.value("SELECT count(*) FROM reembeddings") == 0
