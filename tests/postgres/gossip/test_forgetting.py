"""The end of a memory between running nodes: every holder, any order, any stop in between."""

from __future__ import annotations

import asyncio
from itertools import permutations

import pytest
import trio

from gossip import carrying
from gossip.apply import enter, open_copy, store
from gossip.mesh import Mesh
from gossip.wire.messages import Copy, Hop, Tombs
from storage.model import AgentProfile, MemoryId, ProjectId
from storage.pool import Tx
from tests.support.memory import lit
from tests.support.mesh import FAST, SLOW_REPAIR, MeshNode, Town, until

ROSES = "roses garden soil"
WORDS = "the garden soil for roses is dry"


async def three(
    town: Town, settings: object = FAST
) -> tuple[MeshNode, MeshNode, MeshNode, AgentProfile, ProjectId]:
    """Three linked nodes; a writes, b and c want roses."""
    a, b, c = [await town.node(name, settings=settings) for name in "abc"]
    project = await town.join("p", a, b, c)
    writer = await a.agent("writer", "anything at all", project)
    await b.agent("gardener", ROSES, project)
    await c.agent("florist", ROSES, project)
    await a.linked(b, c)
    await b.linked(c)
    return a, b, c, writer, project


async def all_have(memory_id: MemoryId, *nodes: MeshNode) -> None:
    async def there() -> bool:
        return all([await node.has(memory_id) for node in nodes])

    await until(there, "the memory is everywhere")


async def absent(memory_id: MemoryId, *nodes: MeshNode) -> None:
    """Wait until nothing of a memory is left and its tombstone stands, on all of the nodes."""

    async def gone() -> bool:
        return all([await n.tombstoned(memory_id) and not await n.traces(memory_id) for n in nodes])

    await until(gone, "the memory is gone everywhere")


async def done(node: MeshNode, memory_id: MemoryId) -> None:
    async def settled() -> bool:
        return set((await node.outbox(memory_id)).values()) == {"done"}

    await until(settled, "the outbox is settled")


async def test_forget_at_the_origin_removes_it_at_every_holder(town: Town) -> None:
    a, b, c, writer, _ = await three(town, SLOW_REPAIR)
    memory = await a.remember(writer, WORDS)
    await all_have(memory.id, b, c)
    await a.forget(writer, memory.id)
    await absent(memory.id, a, b, c)
    await done(a, memory.id)
    assert set(await a.outbox(memory.id)) >= {b.id, c.id}


async def test_a_second_forget_writes_no_further_row(town: Town) -> None:
    a, b, _, writer, _ = await three(town)
    memory = await a.remember(writer, WORDS)
    await all_have(memory.id, b)
    await a.forget(writer, memory.id)
    await done(a, memory.id)
    rows = await a.rows(f"SELECT id, state, body FROM outbox WHERE subject = {lit(memory.id)}")
    await a.forget(writer, memory.id)
    again = await a.rows(f"SELECT id, state, body FROM outbox WHERE subject = {lit(memory.id)}")
    assert [dict(row) for row in again] == [dict(row) for row in rows]


async def test_a_copy_at_third_hand_is_reached_by_the_second_hands_own_records(
    town: Town,
) -> None:
    """What b sent on is only known to b."""
    a, b, c = [await town.node(name, settings=SLOW_REPAIR) for name in "abc"]
    project = await town.join("p", a, b)
    writer = await a.agent("writer", "anything at all", project)
    await b.agent("gardener", ROSES, project)
    await a.linked(b)
    memory = await a.remember(writer, WORDS)
    await until(lambda: _holder(a, memory.id, b, "stored"), "a knows of b")

    # a has nothing to give c: its announcement is gone, and it may not make another
    await a.change(f"DELETE FROM diffs WHERE memory_id = {lit(memory.id)}")
    a.mesh.announced_again[c.id, project] = a.mesh.mono_ms()
    await town.admit("p", a, c)
    await c.agent("florist", ROSES, project)
    await c.linked(a, b)
    await all_have(memory.id, c)
    assert await a.holders(memory.id) == {b.id: "stored"}

    a.mesh.links.cut([c.id], "test")
    await a.forget(writer, memory.id)
    await absent(memory.id, a, b, c)
    assert c.id not in await a.outbox(memory.id)
    await done(b, memory.id)
    assert c.id in await b.outbox(memory.id)


async def test_c_06_a_holder_that_was_down_serves_nothing_before_it_has_the_tombstones(
    town: Town,
) -> None:
    a, b, c, writer, project = await three(town)
    ids = await a.remember_many(writer, [f"{WORDS} number {n}" for n in range(10)])
    for memory_id in ids:
        await all_have(memory_id, b, c)
    await c.stop()
    await a.forget(writer, *ids)
    await absent(ids[-1], a, b)
    await a.stop()
    await b.stop()

    await c.start(down_ms=3_600_000)
    sent = await c.rows("SELECT seq FROM deliveries")
    assert c.mesh.quarantined()
    assert not c.mesh.may_send_content(project)
    assert await c.live() == set(ids)
    await a.start()
    await b.start()
    for memory_id in ids:
        await absent(memory_id, a, b, c)
    await until(lambda: _free(c), "c left quarantine")
    assert await c.rows("SELECT seq FROM deliveries") == sent


async def test_a_restart_in_quarantine_stays_in_quarantine(town: Town) -> None:
    a, b = [await town.node(name) for name in "ab"]
    await town.join("p", a, b)
    await a.linked(b)
    await a.stop()
    await b.stop()
    await b.start(down_ms=3_600_000)
    assert b.mesh.quarantined()
    await b.stop()
    await b.start(down_ms=0)
    assert b.mesh.quarantined()
    await a.start()
    await until(lambda: _kept(b, ""), "b left quarantine for good")
    await b.stop()
    await b.start(down_ms=0)
    assert not b.mesh.quarantined()


@pytest.mark.parametrize("order", sorted(set(permutations(("copy", "tomb", "copy")))))
async def test_a_tombstone_and_its_content_in_any_order_end_in_absence(
    town: Town, order: tuple[str, ...]
) -> None:
    a, b = [await town.node(name, settings=SLOW_REPAIR) for name in "ab"]
    project = await town.join("p", a, b)
    writer = await a.agent("writer", "anything at all", project)
    await b.agent("gardener", ROSES, project)
    await a.linked(b)
    await b.stop()
    memory = await a.remember(writer, WORDS)
    (signed,) = await a.rows(
        "SELECT diff_id, body, sig FROM diffs WHERE kind = 'add' AND agent_id"
        f" = {lit(writer.id)} AND memory_id = {lit(memory.id)}"
    )
    await a.forget(writer, memory.id)
    wire = await a.value(f"SELECT wire FROM tombstones WHERE memory_id = {lit(memory.id)}")
    # a keeps quiet: b hears only what is said by hand below, over a bare link in a's name
    await a.change("UPDATE outbox SET state = 'done', done_at = now()")
    await a.stop()

    await b.start()
    await a.start(gossiping=False)
    channel = await a.dial(b)
    for what in order:
        if what == "tomb":
            await channel.send(Tombs((wire,), 0))
        else:
            hop = Hop(0, 1, 0, 0, 0, ())
            await channel.send(Copy(signed["body"], signed["sig"], hop, False))
    await until(lambda: _counted(b, "copies_total", 2), "both copies were judged")
    await absent(memory.id, b)
    if order[0] == "tomb":
        assert b.count("copies_total", "in,refused") == 2
        assert b.count("resurrection_blocked_total", "G1") == 2
    await channel.aclose()


async def test_a_copy_whose_sending_was_cut_is_followed_by_its_tombstone(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows commit, the node dies before any frame leaves: the tombstone goes all the same."""
    a, b, _, writer, _ = await three(town, SLOW_REPAIR)
    post = Mesh.post
    silent = a.mesh
    monkeypatch.setattr(
        Mesh, "post", lambda self, *given: self is not silent and post(self, *given)
    )
    memory = await a.remember(writer, WORDS)
    await until(lambda: _holder(a, memory.id, b, "possible"), "the intent is durable")
    await a.stop()
    await a.start()
    await a.linked(b)
    assert not await b.has(memory.id)
    await a.forget(writer, memory.id)
    await until(lambda: b.tombstoned(memory.id), "the possible holder is told")
    await done(a, memory.id)


async def test_outbox_rows_survive_a_restart(town: Town) -> None:
    a, b, _, writer, _ = await three(town, SLOW_REPAIR)
    memory = await a.remember(writer, WORDS)
    await all_have(memory.id, b)
    await b.stop()
    await a.forget(writer, memory.id)
    await a.stop()
    await a.start()
    assert (await a.outbox(memory.id))[b.id] in ("ready", "sent")
    await b.start()
    await absent(memory.id, a, b)
    await done(a, memory.id)


async def test_a_forget_and_a_walk_at_the_same_time_leave_no_copy(town: Town) -> None:
    a, b, c, writer, _ = await three(town, SLOW_REPAIR)
    ids = await a.remember_many(writer, [f"{WORDS} number {n}" for n in range(20)])
    for memory_id in ids:
        await a.forget(writer, memory_id)
    for memory_id in ids:
        await done_or_untold(a, memory_id)
    for node in (a, b, c):
        assert await node.live() == set()


async def test_a_tombstone_that_meets_a_copy_being_stored_waits_and_finds_it(town: Town) -> None:
    """Both transactions are open at once; neither may miss the other."""
    a, b = [await town.node(name, settings=SLOW_REPAIR) for name in "ab"]
    project = await town.join("p", a, b)
    writer = await a.agent("writer", "anything at all", project)
    await b.agent("gardener", ROSES, project)
    await a.linked(b)
    await b.stop()
    memory = await a.remember(writer, WORDS)
    (row,) = await a.rows(f"SELECT body, sig FROM diffs WHERE memory_id = {lit(memory.id)}")
    await a.forget(writer, memory.id)
    wire = await a.value(f"SELECT wire FROM tombstones WHERE memory_id = {lit(memory.id)}")
    a_id = a.id
    await a.stop()
    await b.start()
    inbound = open_copy(b.mesh, row["body"], row["sig"], a_id)
    open_now = trio.Event()
    token = trio.lowlevel.current_trio_token()

    async def slowly(tx: Tx) -> None:
        await enter(tx, b.mesh, inbound)
        await store(tx, b.mesh, inbound, WORDS)
        token.run_sync_soon(open_now.set)
        await asyncio.sleep(0.3)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(b.db.transact, slowly)
        await open_now.wait()
        assert await carrying.apply_records(b.mesh, a_id, [wire]) == set()
    assert await b.tombstoned(memory.id)
    assert await b.traces(memory.id) == 0


async def done_or_untold(node: MeshNode, memory_id: MemoryId) -> None:
    async def settled() -> bool:
        return set((await node.outbox(memory_id)).values()) <= {"done"}

    await until(settled, "the outbox is settled")


async def _kept(node: MeshNode, cause: str) -> bool:
    return set(node.mesh.quarantines_kept.values()) == {cause}


async def _free(node: MeshNode) -> bool:
    return not node.mesh.quarantined()


async def _counted(node: MeshNode, name: str, n: int) -> bool:
    return node.count(name) >= n


async def _holder(node: MeshNode, memory_id: MemoryId, peer: MeshNode, state: str) -> bool:
    return (await node.holders(memory_id)).get(peer.id) == state
