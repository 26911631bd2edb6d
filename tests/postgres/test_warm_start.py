"""A node that starts from its snapshot has what the rows have, whatever happened in between."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import trio

from erasure.tiers import Target
from node.memory import forget as forgetting
from node.memory.residency import Residency
from node.tiers import _snapshot
from node.workers.snapshots import Snapshots
from storage import memories, residents
from storage.hot.graph import HotGraph
from storage.hot.settings import HotSettings
from storage.hot.snapshot import NAME, REFUSED, Owner, SnapshotFolder
from storage.memories import with_vectors
from storage.model import MemoryId, Scope, ScopeKind
from tests.support.memory import World, lit

pytestmark = pytest.mark.postgres


class Life:
    """One life of the node after another on the same rows and the same folder."""

    def __init__(self, world: World, folder: Path) -> None:
        self.world = world
        self.path = folder / "hot"
        self.path.mkdir(mode=0o700)
        self.snapshots = self._made()

    async def begin(self, **settings: int) -> Snapshots:
        """A new process: an empty graph, filled as a node fills it."""
        graph = HotGraph(
            self.world.context.embedder.dimension,
            HotSettings(**{"ceiling": 5_000, **settings}),
            self.world.ms,
        )
        self.world.context.residency = Residency(
            graph, self.world.node, self.world.context.embedder.model_id
        )
        self.snapshots = self._made()
        await self.snapshots.load()
        return self.snapshots

    async def equal_to_rows(self) -> None:
        """Every live row is resident as it is now, and nothing else is."""
        residency = self.world.context.residency
        ids = [row["id"] for row in await self.world.rows("SELECT id FROM live_rows")]
        rows = await self.world.db.read(with_vectors, ids, residency.model)
        there = {one.id: one for one in residency.graph.residents()}
        assert set(there) == {row.memory.id for row in rows}
        for row in rows:
            assert there[row.memory.id].content == row.memory.content
            assert there[row.memory.id].visibility == row.memory.visibility
            vector = residency.graph.vector(row.memory.id)
            assert vector is not None
            np.testing.assert_allclose(vector, row.vector / np.linalg.norm(row.vector), atol=1e-6)

    def _made(self) -> Snapshots:
        context = self.world.context
        owner = Owner(
            self.world.node.node_id, context.embedder.model_id, context.embedder.dimension, 1
        )
        return Snapshots(
            context.residency, self.world.db, self.world.node, SnapshotFolder(self.path, owner)
        )


@pytest.fixture
async def life(world: World, tmp_path: Path) -> Life:
    """A node with 30 memories whose first life has written its snapshot."""
    agent = await world.agent("a")
    made = Life(world, tmp_path)
    await made.begin()
    for n in range(30):
        await world.store(agent, f"memory number {n} about subject {n % 7}")
    await made.snapshots.tick()
    await made.snapshots.write()
    return made


async def some(life: Life, number: int) -> list[MemoryId]:
    rows = await life.world.rows("SELECT id FROM memories WHERE kind = 'cell' ORDER BY created_at")
    return [row["id"] for row in rows][:number]


async def test_a_start_from_the_file_reads_few_rows_again(life: Life) -> None:
    await life.begin()
    start = life.snapshots.start
    assert start is not None
    assert (start.source, start.refused, start.gone) == ("snapshot", None, 0)
    assert start.residents == len(life.world.graph) >= 30
    assert not life.world.context.residency.has_cold
    await life.equal_to_rows()


async def test_es_10_what_was_forgotten_after_the_file_stays_forgotten(life: Life) -> None:
    gone = await some(life, 5)
    context = life.world.context
    agent = await life.world.agent("a")
    await forgetting.forget(context, agent, gone)
    await life.begin()
    assert life.snapshots.start is not None
    assert life.snapshots.start.gone == 5
    assert not life.world.graph.occupants(gone)
    await life.equal_to_rows()


async def test_es_11_a_third_deleted_since_the_file_is_filtered_at_the_start(life: Life) -> None:
    gone = await some(life, 10)
    ids = ", ".join(lit(each) for each in gone)
    await life.world.change(f"UPDATE memories SET deleted_at = now() WHERE id IN ({ids})")
    await life.begin()
    assert len(life.world.graph) == await life.world.value("SELECT count(*) FROM live_rows")
    assert not life.world.graph.occupants(gone)
    await life.equal_to_rows()


async def test_rows_that_changed_or_came_since_the_file_are_read_again(life: Life) -> None:
    changed = (await some(life, 1))[0]
    agent = await life.world.agent("a")
    await life.world.change(
        f"UPDATE memories SET content = 'another text' WHERE id = {lit(changed)}"
    )
    new = await life.world.store(agent, "a memory that came later")
    await life.begin()
    resident = life.world.graph.get(changed)
    assert resident is not None
    assert resident.content == "another text"
    assert new.id in life.world.graph
    await life.equal_to_rows()


async def test_rows_whose_accesses_were_written_down_are_not_put_in_again(life: Life) -> None:
    context = life.world.context
    touched = await some(life, 20)
    context.residency.touch(touched, life.world.ms())
    accesses = context.residency.take_accesses()
    await life.world.db.transact(memories.count_access, accesses)
    await life.begin()
    assert life.snapshots.start is not None
    assert life.snapshots.start.reloaded >= 20
    assert life.world.context.residency.graph.stats().changes_total == 0
    await life.equal_to_rows()


async def test_a_stop_behind_written_accesses_leaves_nothing_to_read_again(life: Life) -> None:
    await life.begin()
    await life.snapshots.write()
    context = life.world.context
    context.residency.touch(await some(life, 20), life.world.ms())
    await life.world.db.transact(memories.count_access, context.residency.take_accesses())
    await life.snapshots.last_write()
    await life.begin()
    assert life.snapshots.start is not None
    assert life.snapshots.start.reloaded == 0


async def test_a_row_without_any_tombstone_that_is_gone_leaves_too(life: Life) -> None:
    gone = await some(life, 3)
    ids = ", ".join(lit(each) for each in gone)
    await life.world.change(f"DELETE FROM embeddings WHERE memory_id IN ({ids})")
    await life.world.change(f"DELETE FROM memories WHERE id IN ({ids})")
    await life.begin()
    assert not life.world.graph.occupants(gone)
    await life.equal_to_rows()


async def test_es_49_a_flipped_byte_degrades_until_the_rows_have_filled_the_graph(
    life: Life, nursery: trio.Nursery
) -> None:
    path = life.path / NAME
    image = bytearray(path.read_bytes())
    image[len(image) // 2] ^= 4
    path.write_bytes(image)
    snapshots = await life.begin()
    context = life.world.context
    assert snapshots.start is not None
    assert snapshots.start.refused == "corrupt: the checksum differs"
    assert snapshots.status()["degraded"] is not None
    assert (life.path / REFUSED).exists()
    agent = await life.world.agent("a")
    answer = await life.world.recall(agent, "memory number 3 about subject 3")
    assert len(answer.hits) > 0
    await nursery.start(snapshots.run)
    while context.residency.degraded:  # noqa: ASYNC110  # the worker has no event for tests
        await trio.sleep(0.01)
    assert snapshots.status()["degraded"] is None
    await life.equal_to_rows()
    await snapshots.write()
    assert snapshots.folder.generations() == [NAME]


async def test_es_44_the_database_of_another_time_refuses_the_file(life: Life) -> None:
    folder = life.snapshots.folder
    stamp = await life.world.db.read(residents.stamp, life.world.node.clock.last)
    image, kept = folder.read() or pytest.fail("no file")
    del image
    for later in (
        {"xid": stamp.xid + 10**6},
        {"recv_seq": stamp.recv_seq + 1},
        {"ledger_seq": stamp.ledger_seq + 1},
        {"system": "another"},
    ):
        await life.begin()
        graph = life.world.graph

        folder.write(graph, replace(kept, **later))
        await life.begin()
        assert life.snapshots.start is not None
        assert life.snapshots.start.refused is not None
        await life.world.context.residency.load(life.world.db)
        life.snapshots.folder.write(life.world.graph, stamp)


async def test_a_lower_ceiling_refuses_the_file_and_the_rows_fill_it(life: Life) -> None:
    await life.begin(ceiling=10)
    residency = life.world.context.residency
    assert residency.degraded is not None
    await residency.load(life.world.db)
    assert len(residency.graph) == 10
    assert residency.has_cold


async def test_es_20_an_erasure_takes_the_target_out_of_every_generation(life: Life) -> None:
    gone = await some(life, 4)
    (life.path / REFUSED).write_bytes((life.path / NAME).read_bytes())
    tier = _snapshot(life.snapshots)
    target = Target(None, tuple(gone))
    assert tier.enumerate(target) == [NAME, REFUSED]
    life.world.graph.purge(gone, rebuild=True)
    names = tier.enumerate(target)
    assert await trio.to_thread.run_sync(tier.remove, target, names) == 2
    assert tier.count(target) == 0
    assert life.snapshots.folder.generations() == [NAME]


async def test_an_erasure_of_a_scope_finds_its_file_without_any_id(life: Life) -> None:
    agent = await life.world.agent("a")
    tier = _snapshot(life.snapshots)
    assert tier.enumerate(Target(Scope(ScopeKind.AGENT, agent.id), ())) == [NAME]
    assert tier.enumerate(Target(Scope(ScopeKind.AGENT, bytes(16)), ())) == []
    assert tier.enumerate(Target(Scope(ScopeKind.AGENT, agent.id), (), all_of_scope=False)) == []


async def test_without_room_for_a_new_file_an_erasure_unlinks_the_old(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = await some(life, 1)
    tier = _snapshot(life.snapshots)
    life.world.graph.forget(gone)

    def full(*given: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("storage.hot.snapshot.write_image", full)
    target = Target(None, tuple(gone))
    await trio.to_thread.run_sync(tier.remove, target, tier.enumerate(target))
    assert life.snapshots.folder.generations() == []


async def test_a_stop_writes_what_changed_and_nothing_when_nothing_did(life: Life) -> None:
    before = life.snapshots.last
    await life.snapshots.last_write()
    assert life.snapshots.last is before
    agent = await life.world.agent("a")
    memory = await life.world.store(agent, "the last one")
    await life.snapshots.last_write()
    assert life.snapshots.last is not before
    await life.begin()
    assert memory.id in life.world.graph


async def test_many_changes_or_enough_time_make_a_write_due(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [10_000.0]
    monkeypatch.setattr("node.workers.snapshots.time.monotonic", lambda: now[0])
    await life.snapshots.write()
    agent = await life.world.agent("a")
    await life.world.store(agent, "one more")
    now[0] += 800
    assert not await life.snapshots.tick()
    now[0] += 100
    assert await life.snapshots.tick()
    now[0] += 10_000
    assert not await life.snapshots.tick()


async def test_a_write_that_is_cancelled_gives_up_at_once_and_keeps_the_old_file(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = (life.path / NAME).read_bytes()
    monkeypatch.setattr("storage.hot.snapshot.write_image", lambda *given: time.sleep(60))
    with trio.move_on_after(0.2) as scope, trio.fail_after(60):
        await life.snapshots.write()
    assert scope.cancelled_caught
    assert (life.path / NAME).read_bytes() == old
