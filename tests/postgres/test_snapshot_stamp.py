"""Rows that changed since a stamp are told by the transaction that wrote them."""

from __future__ import annotations

import pytest

from storage import residents
from tests.support.memory import World, lit

pytestmark = pytest.mark.postgres


async def changed(world: World, xid: int) -> set[bytes]:
    return set(await world.db.read(residents.changed, world.context.residency.model, xid))


async def test_only_what_was_written_since_counts_as_changed(world: World) -> None:
    agent = await world.agent("a")
    old = [await world.store(agent, f"text {n}") for n in range(5)]
    stamp = await world.db.read(residents.stamp, 0)
    assert await changed(world, stamp.xid) == set()
    await world.change(f"UPDATE memories SET who = 'x' WHERE id = {lit(old[1].id)}")
    await world.change(f"UPDATE embeddings SET vector = vector WHERE memory_id = {lit(old[2].id)}")
    new = await world.store(agent, "another")
    assert await changed(world, stamp.xid) >= {old[1].id, old[2].id, new.id}
    assert not await changed(world, stamp.xid) & {old[0].id, old[3].id, old[4].id}


async def test_a_stamp_of_long_ago_makes_every_row_count(world: World) -> None:
    agent = await world.agent("a")
    stored = {(await world.store(agent, f"text {n}")).id for n in range(3)}
    assert await changed(world, 1) >= stored
    assert await changed(world, -3_000_000_000) >= stored
