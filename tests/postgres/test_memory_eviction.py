"""Eviction on a node with a small ceiling: who stays hot, and that nothing is lost."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
import trio

from node.memory import forget as ending
from node.memory import reading
from node.workers.eviction import Eviction
from storage import memories
from storage.database_errors import DatabaseUnavailable
from storage.hot.settings import HotSettings
from storage.pool import Database
from tests.support.memory import World, lit, make_world

DAY = timedelta(days=1)


@pytest.fixture
async def small(db: Database, tmp_path: Path) -> World:
    """A node whose graph holds 20 memories for at most a day."""
    return await make_world(
        db, tmp_path, hot=HotSettings(ceiling=20, idle_ms=86_400_000, batch=5, seed=1)
    )


def eviction(world: World) -> Eviction:
    return Eviction(world.context.residency, world.db, lambda: world.now[0])


async def test_es_45_the_often_recalled_stay_and_the_evicted_come_back(small: World) -> None:
    agent = await small.agent("a1")
    favourites = [await small.store(agent, f"favourite alpha{number}") for number in range(5)]
    for _ in range(3):
        small.pass_time(seconds=1)
        small.context.residency.touch([row.id for row in favourites], small.ms())
    others = [await small.store(agent, f"passing beta{number}") for number in range(40)]
    assert len(small.graph) <= 20
    assert all(row.id in small.graph for row in favourites)
    cold = [row for row in others if row.id not in small.graph]
    assert len(cold) >= 20
    assert await small.found(agent, cold[0].content) >= {cold[0].id}
    assert cold[0].id in small.graph
    cold = [row for row in others if row.id not in small.graph]
    await small.change(f"UPDATE memories SET content = 'edited gamma' WHERE id = {lit(cold[0].id)}")
    edited = await reading.get(small.context, agent, cold[0].id)
    resident = small.graph.get(cold[0].id)
    assert resident is not None
    assert resident.content == edited.content == "edited gamma"
    cold = [row for row in others if row.id not in small.graph]
    await ending.forget(small.context, agent, [cold[0].id])
    assert await small.context.residency.reload(small.db, [cold[0].id]) == 0


async def test_idle_memories_leave_a_batch_at_a_time(small: World) -> None:
    agent = await small.agent("a1")
    rows = [await small.store(agent, f"idle delta{number}") for number in range(8)]
    assert await eviction(small).tick() == 0
    small.now[0] += DAY + timedelta(seconds=1)
    used = rows[3]
    small.context.residency.touch([used.id], small.ms())
    assert await eviction(small).tick() == 5
    assert await eviction(small).tick() == 2
    assert await eviction(small).tick() == 0
    assert used.id in small.graph
    assert small.context.residency.has_cold
    for row in rows:
        assert (await reading.get(small.context, agent, row.id)).content == row.content


async def test_l_6_a_read_by_id_takes_an_evicted_memory_back(small: World) -> None:
    agent = await small.agent("a1")
    memory = await small.store(agent, "epsilon")
    small.now[0] += 2 * DAY
    assert await eviction(small).tick() == 1
    assert memory.id not in small.graph
    found = await reading.get(small.context, agent, memory.id)
    assert found.deleted_at is None
    assert memory.id in small.graph


async def test_recall_finds_what_was_evicted_by_its_meaning(small: World) -> None:
    agent = await small.agent("a1")
    memory = await small.store(agent, "zeta eta theta")
    small.now[0] += 2 * DAY
    await eviction(small).tick()
    (vector,) = await small.context.embedder.embed(["zeta eta theta"])
    hits = (await small.recall(agent, "", vector=vector)).hits
    assert [(hit.memory.id, hit.tier) for hit in hits] == [(memory.id, "cold")]


async def test_accesses_are_written_down_and_survive_a_failure(
    small: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await small.agent("a1")
    memory = await small.store(agent, "iota")
    await small.recall(agent, "iota")
    await small.recall(agent, "iota")

    async def fail(*args: object) -> None:
        raise DatabaseUnavailable

    monkeypatch.setattr(memories, "count_access", fail)
    with pytest.raises(DatabaseUnavailable):
        await eviction(small).tick()
    monkeypatch.undo()
    await eviction(small).tick()
    await eviction(small).tick()
    assert await small.value(f"SELECT access_count FROM memories WHERE id = {lit(memory.id)}") == 2


async def test_the_graph_is_rebuilt_when_many_slots_are_dead(small: World) -> None:
    agent = await small.agent("a1")
    rows = [await small.store(agent, f"kappa{number}") for number in range(18)]
    await ending.soft_delete(small.context, agent, [row.id for row in rows[:14]])
    before = small.graph.stats().rebuilds_total
    await eviction(small).tick()
    assert small.graph.stats().rebuilds_total == before + 1
    assert await small.found(agent, rows[-1].content) >= {rows[-1].id}


async def test_eviction_races_with_recalls_and_loses_nothing(small: World) -> None:
    agent = await small.agent("a1")
    rows = [await small.store(agent, f"lambda{number} mu") for number in range(30)]

    async def evict() -> None:
        for _ in range(15):
            small.context.residency.evict([row.id for row in rows])
            await trio.lowlevel.checkpoint()

    async def ask() -> None:
        for row in rows[:15]:
            assert row.id in await small.found(agent, row.content)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(evict)
            nursery.start_soon(ask)


async def test_a_start_takes_the_most_used_first(small: World) -> None:
    agent = await small.agent("a1")
    rows = [await small.store(agent, f"nu{number}") for number in range(30)]
    used = rows[:5]
    await small.db.transact(memories.count_access, {row.id: 9 for row in used})
    await small.restart()
    assert len(small.graph) == 20
    assert all(row.id in small.graph for row in used)
    assert small.context.residency.has_cold
