"""The gate on real rows: what an erased scope, a fence or a tombstone keeps out, and races."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import trio

from storage import gate, tombstones
from storage.errors import MnemeshError, ScopeErased, Tombstoned
from storage.gate import Epochs
from storage.model import Scope, ScopeKind
from storage.pool import Tx
from storage.tombstones import Fence, Tombstone
from tests.support.memory import MESH_KEY, START, World, statement

AGENT, PROJECT, MEMORY = bytes([1]) * 16, bytes([2]) * 16, bytes([3]) * 16
NEW_HLC = 1_000_000
COUNT = statement("SELECT count(*) FROM memories WHERE kind = 'cell'")


@dataclass
class Door:
    """The gate of a world, asked from trio."""

    world: World

    async def local(self, project: bytes | None = PROJECT) -> Epochs:
        return await self.world.db.transact(self.world.node.gate.for_write, AGENT, project)

    async def foreign(self, **changes: Any) -> None:
        arguments: dict[str, Any] = {
            "agent_id": AGENT,
            "project_id": PROJECT,
            "epochs": Epochs(1, 1),
            "hlc": NEW_HLC,
            "memory_id": MEMORY,
        }
        await self.world.db.transact(self.world.node.gate.for_foreign, **{**arguments, **changes})

    async def close(self, kind: ScopeKind, raw_id: bytes, epoch: int = 1) -> int:
        async def work(tx: Tx) -> int:
            row = await self.world.node.gate.lock(tx, Scope(kind, raw_id))
            await gate.close_epoch(tx, row.scope_id, epoch)
            return row.scope_id

        return await self.world.db.transact(work)

    async def fence(self, kind: ScopeKind, raw_id: bytes, epoch: int, hlc: int) -> None:
        async def work(tx: Tx) -> None:
            handle = Scope(kind, raw_id).handle(MESH_KEY)
            fence = Fence(kind.value, handle, epoch, hlc, "er_1", b"wire", hlc)
            await tombstones.insert_fence(tx, fence)

        await self.world.db.transact(work)


@pytest.fixture
async def door(world: World) -> Door:
    return Door(world)


async def test_a_new_scope_is_open_in_its_first_epoch(door: Door) -> None:
    assert await door.local() == Epochs(1, 1)
    assert await door.local(None) == Epochs(1, 0)
    await door.foreign()


@pytest.mark.parametrize(
    ("kind", "raw_id"), [(ScopeKind.AGENT, AGENT), (ScopeKind.PROJECT, PROJECT)]
)
async def test_an_erased_scope_is_closed_to_everybody(
    door: Door, kind: ScopeKind, raw_id: bytes
) -> None:
    await door.close(kind, raw_id)
    with pytest.raises(ScopeErased):
        await door.local()
    with pytest.raises(ScopeErased):
        await door.foreign()


async def test_a_reopened_scope_takes_the_next_epoch_alone(door: Door) -> None:
    scope_id = await door.close(ScopeKind.AGENT, AGENT)
    assert await door.world.db.transact(gate.reopen, scope_id, AGENT) == 2
    assert await door.world.db.transact(gate.reopen, scope_id, AGENT) is None
    assert (await door.local()).agent == 2
    with pytest.raises(ScopeErased):
        await door.foreign()
    await door.foreign(epochs=Epochs(2, 1))


async def test_a_scope_known_by_its_handle_alone_stays_closed(door: Door) -> None:
    scope_id = await door.close(ScopeKind.AGENT, AGENT)
    await door.world.db.transact(gate.forget_raw_id, scope_id)
    with pytest.raises(ScopeErased):
        await door.local()
    with pytest.raises(ScopeErased):
        await door.foreign()
    found = await door.world.db.read(door.world.node.gate.find, Scope(ScopeKind.AGENT, AGENT))
    assert found is None


@pytest.mark.parametrize(
    ("kind", "raw_id"), [(ScopeKind.AGENT, AGENT), (ScopeKind.PROJECT, PROJECT)]
)
async def test_a_fence_refuses_its_epochs_and_older_stamps(
    door: Door, kind: ScopeKind, raw_id: bytes
) -> None:
    await door.fence(kind, raw_id, epoch=2, hlc=NEW_HLC)
    later = Epochs(3, 3)
    with pytest.raises(ScopeErased):
        await door.foreign(epochs=Epochs(2, 2), hlc=NEW_HLC + 1)
    with pytest.raises(ScopeErased):
        await door.foreign(epochs=later, hlc=NEW_HLC)
    await door.foreign(epochs=later, hlc=NEW_HLC + 1)
    await door.foreign(
        agent_id=bytes(16), project_id=bytes(16), epochs=Epochs(1, 1), memory_id=bytes(16)
    )


async def test_a_tombstoned_memory_never_comes_in(door: Door) -> None:
    async def work(tx: Tx) -> int | None:
        stone = Tombstone(
            memory_id=MEMORY,
            kind="cell",
            project_id=PROJECT,
            agent_handle=bytes(32),
            project_handle=None,
            epoch=1,
            hlc=1,
            origin_node=bytes(16),
            home_node=bytes(16),
            cause="forget",
            created_at=START,
        )
        return await tombstones.insert(tx, stone)

    assert await door.world.db.transact(work) is not None
    assert await door.world.db.transact(work) is None
    with pytest.raises(Tombstoned):
        await door.foreign()
    await door.foreign(memory_id=bytes(16))
    left = await door.world.db.read(gate.serveable, [MEMORY, bytes(16)])
    assert left == {bytes(16)}


async def test_a_closing_waits_for_writers_and_no_write_slips_between(world: World) -> None:
    agent = await world.agent("busy")
    outcomes: list[str] = []

    async def write(number: int) -> None:
        try:
            await world.remember(agent, f"racing {number}")
            outcomes.append("stored")
        except MnemeshError as error:
            outcomes.append(error.code)

    async def close() -> None:
        async def work(tx: Tx) -> int:
            row = await world.node.gate.lock(tx, Scope(ScopeKind.AGENT, agent.id))
            stored = await tx.fetchval(COUNT)
            await gate.close_epoch(tx, row.scope_id, 1)
            return int(stored)

        counted.append(await world.db.transact(work))

    counted: list[int] = []
    async with trio.open_nursery() as nursery:
        for number in range(6):
            nursery.start_soon(write, number)
        nursery.start_soon(close)
        for number in range(6, 12):
            nursery.start_soon(write, number)
    after = await world.value("SELECT count(*) FROM memories WHERE kind = 'cell'")
    assert after == outcomes.count("stored")
    assert set(outcomes) <= {"stored", "scope_erased"}
    assert counted == [after]
    with pytest.raises(ScopeErased):
        await world.remember(agent, "later")


async def test_first_writers_of_a_scope_do_not_collide(world: World) -> None:
    project = await world.project("p1")
    agents = [await world.agent(f"a{number}") for number in range(4)]
    async with trio.open_nursery() as nursery:
        for agent in agents:
            nursery.start_soon(lambda each: world.store(each, "at once", project_id=project), agent)
    assert await world.value("SELECT count(*) FROM scopes WHERE kind = 'project'") == 1
    assert await world.value("SELECT count(*) FROM diffs") == 4
