"""Residents that leave, return, change and end at the same time agree with the rows afterwards."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from erasure import requests
from node.memory import forget as ending
from node.memory.audit import audit_graph
from node.memory.modify import Changes, modify
from node.memory.residency import Residency
from storage import memories
from storage.errors import NotFound
from storage.hot.settings import HotSettings
from storage.island import Island
from storage.model import AgentProfile, Memory, MemoryId
from storage.pool import Database
from tests.support.erasure_nodes import agent as scope_of
from tests.support.erasure_nodes import request
from tests.support.memory import World, make_world
from tests.support.services import config, edge_services

CEILING = 30
KEPT = 60
GONE = 15
ROUNDS = 20


async def change(world: World, agent: AgentProfile, memory_id: MemoryId, text: str) -> None:
    """Another text of a memory, if it is still there."""
    with suppress(NotFound):
        await modify(world.context, agent, memory_id, Changes(content=text))


@pytest.mark.parametrize("seed", range(3))
async def test_evicted_reloaded_changed_forgotten_and_erased_at_once_agree_with_the_rows(
    db: Database, island: Island, tmp_path: Path, seed: int
) -> None:
    with trio.fail_after(60):
        world = await make_world(db, tmp_path, hot=HotSettings(ceiling=CEILING, batch=5, seed=1))
        erasure = edge_services(world, island, tmp_path / "workspace", config()).erasure
        residency = world.context.residency
        stays, leaves = await world.agent("stays"), await world.agent("leaves")
        kept = [await world.store(stays, f"kept {number}") for number in range(KEPT)]
        lost = [await world.store(leaves, f"lost {number}") for number in range(GONE)]
        ids = [memory.id for memory in (*kept, *lost)]
        forgotten = {memory.id for memory in random.Random(seed).sample(kept, GONE)}
        stirred = random.Random(seed + 100)

        async def pause() -> None:
            await trio.sleep(stirred.random() / 500)

        async def evict() -> None:
            for _ in range(ROUNDS):
                residency.evict(stirred.sample(ids, 20))
                await pause()

        async def reload() -> None:
            for _ in range(ROUNDS):
                await residency.reload(db, stirred.sample(ids, 10))
                await pause()

        async def update() -> None:
            for number in range(ROUNDS):
                await change(world, stays, stirred.choice(kept).id, f"changed {number}")
                await pause()

        async def forget() -> None:
            for memory_id in sorted(forgotten):
                await ending.forget(world.context, stays, [memory_id])
                await pause()

        async def erase() -> None:
            await pause()
            await requests.erase(erasure, request(scope_of(leaves.id)))

        async with trio.open_nursery() as nursery:
            for task in (evict, reload, reload, update, forget, erase):
                nursery.start_soon(task)

        over = forgotten | {memory.id for memory in lost}
        left = {row[0] for row in await world.rows("SELECT id FROM memories WHERE kind = 'cell'")}
        assert left == set(ids) - over
        assert not any(memory_id in world.graph for memory_id in over)
        assert not world.graph.occupants(sorted(over))
        assert len(world.graph) <= CEILING
        assert (await audit_graph(world.context)).drift == {}


Late = Callable[[World, Memory], Awaitable[None]]


async def changed(world: World, memory: Memory) -> None:
    await change(world, world.context.agents.resolve("a1"), memory.id, "newer")
    world.context.residency.evict([memory.id])


async def forgotten(world: World, memory: Memory) -> None:
    await ending.forget(world.context, world.context.agents.resolve("a1"), [memory.id])


@pytest.mark.parametrize("meanwhile", [changed, forgotten])
async def test_a_row_that_becomes_another_while_it_is_reloaded_does_not_stay_as_it_was(
    world: World, monkeypatch: pytest.MonkeyPatch, meanwhile: Late
) -> None:
    agent = await world.agent("a1")
    memory, cold = [await world.store(agent, text) for text in ("older", "always cold")]
    residency = world.context.residency
    residency.evict([memory.id, cold.id])
    insert, late = Residency._insert, [meanwhile]

    async def after_the_change(
        self: Residency, rows: Sequence[memories.Stored], *, only_absent: bool = False
    ) -> None:
        if late:
            await late.pop()(world, memory)
        await insert(self, rows, only_absent=only_absent)

    monkeypatch.setattr(Residency, "_insert", after_the_change)
    await residency.reload(world.db, [memory.id])
    resident = world.graph.get(memory.id)
    assert resident is None
    assert residency.has_cold
    assert (await audit_graph(world.context)).drift == {}


async def test_a_reload_leaves_a_newer_resident_as_it_is(world: World) -> None:
    agent = await world.agent("a1")
    memory = await world.store(agent, "older")
    stored = await world.db.read(
        memories.with_vectors, [memory.id], world.context.embedder.model_id
    )
    await change(world, agent, memory.id, "newer")
    await world.context.residency._insert(stored, only_absent=True)
    resident = world.graph.get(memory.id)
    assert resident is not None
    assert resident.content == "newer"
