"""Delete, forget and recover on real rows, and a peer's tombstone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import pytest
import trio

from erasure import forget as erasing
from node.memory import forget as ending
from node.memory import reading
from node.memory.forget import StateConflict
from node.memory.leaving import remove_agent
from node.memory.modify import Changes, modify
from storage import clock, deliveries, outbox, records, tombstones
from storage.errors import InvalidInput, NotFound
from storage.filters import Filters
from storage.keyring import public_bytes
from storage.model import AgentProfile, Memory, NodeId, ProjectId
from storage.outbox import Topic
from storage.pool import Tx
from storage.records import BadSignature, InvalidRecord, TombstoneBody
from tests.support.memory import World, lit, other_identity

PEER = bytes([7]) * 16


async def test_a_deleted_memory_is_hidden_but_on_disk(world: World) -> None:
    agent = await world.agent("a1")
    memory = await world.store(agent, "gone for now")
    assert await ending.soft_delete(world.context, agent, [memory.id], reason="tidy") == [memory.id]
    assert memory.id not in world.graph
    assert await world.found(agent, "gone for now") == set()
    with pytest.raises(NotFound):
        await reading.get(world.context, agent, memory.id)
    assert await world.value("SELECT count(*) FROM memories WHERE deleted_at IS NOT NULL") == 1
    events = await reading.events(world.context, agent, memory.id)
    assert [(each.event, each.reason) for each in events] == [
        ("created", None),
        ("deleted", "tidy"),
    ]


async def test_a_memory_never_announced_dies_without_a_signed_tombstone(world: World) -> None:
    agent = await world.agent("a1")
    memory = await world.store(agent, "only here")
    await ending.forget(world.context, agent, [memory.id])
    assert await world.rows("SELECT memory_id, wire, purged_at IS NULL FROM tombstones") == [
        (memory.id, None, False)
    ]
    assert await world.value("SELECT count(*) FROM outbox") == 0


async def test_forgetting_removes_row_vector_announcement_and_texts(world: World) -> None:
    agent = await world.agent("a1")
    project = await world.project("p1")
    memory = await world.store(agent, "a secret text", project_id=project)
    done = await ending.forget(world.context, agent, [memory.id])
    assert done.gone == (memory.id,)
    for table in ("diffs", "embeddings"):
        assert await world.value(f"SELECT count(*) FROM {table}") == 0
    assert await world.value("SELECT count(*) FROM memories") == 0
    dump = await world.value("SELECT string_agg(h::text, '') FROM memory_history h")
    assert "secret" not in dump
    events = await reading.events(world.context, agent, memory.id)
    assert [each.event for each in events] == ["created", "deleted"]
    assert world.graph.occupants([memory.id]) == set()


async def test_forgetting_is_idempotent(world: World) -> None:
    agent = await world.agent("a1")
    memory = await world.store(agent, "once")
    await ending.forget(world.context, agent, [memory.id])
    again = await ending.forget(world.context, agent, [memory.id])
    assert (again.gone, again.already) == ((), (memory.id,))
    assert await world.value("SELECT count(*) FROM tombstones") == 1
    assert await world.value("SELECT count(*) FROM memory_history WHERE event = 'deleted'") == 1


async def test_one_unknown_id_changes_nothing(world: World) -> None:
    agent = await world.agent("a1")
    memory = await world.store(agent, "stays")
    for act in (ending.forget, ending.soft_delete):
        with pytest.raises(NotFound, match="memory not found"):
            await act(world.context, agent, [memory.id, bytes(16)])
    assert await world.found(agent, "stays") == {memory.id}


async def test_l_48_es_30_another_agents_id_is_as_unknown(world: World) -> None:
    owner, other = await world.agent("a1"), await world.agent("a2")
    memory = await world.store(owner, "mine alone")

    acts: dict[str, Callable[[bytes], Awaitable[object]]] = {
        "get": lambda id: reading.get(world.context, other, id),
        "history": lambda id: reading.events(world.context, other, id),
        "forget": lambda id: ending.forget(world.context, other, [id]),
        "delete": lambda id: ending.soft_delete(world.context, other, [id]),
        "recover": lambda id: ending.recover(world.context, other, id),
    }

    async def refusal(name: str, memory_id: bytes) -> str:
        with pytest.raises(NotFound) as caught:
            await acts[name](memory_id)
        return str(caught.value)

    for name in acts:
        assert await refusal(name, memory.id) == await refusal(name, bytes(16))
    exported = [row async for page in reading.export(world.context, other) for row in page]
    assert exported == []
    assert (await reading.get(world.context, owner, memory.id)) == memory
    await ending.forget(world.context, owner, [memory.id])
    assert await refusal("forget", memory.id) == await refusal("forget", bytes(16))


async def test_es_10_the_tombstone_is_durable_before_the_answer(world: World) -> None:
    agent = await world.agent("a1")
    memory = await world.store(agent, "gone at once")
    await ending.forget(world.context, agent, [memory.id])
    await world.restart()
    assert memory.id not in world.graph
    assert await world.found(agent, "gone at once") == set()


async def test_a_cancelled_caller_leaves_no_forgotten_resident(world: World) -> None:
    agent = await world.agent("a1")
    for number in range(5):
        memory = await world.store(agent, f"cancelled {number}")
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ending.forget, world.context, agent, [memory.id])
                await trio.sleep(0.0005 * number)
                scope.cancel()
        live = await world.value(f"SELECT count(*) FROM memories WHERE id = {lit(memory.id)}")
        assert (memory.id in world.graph) == bool(live)


async def test_es_10_content_left_under_a_tombstone_is_purged_at_start(world: World) -> None:
    agent = await world.agent("a1")
    left = await world.store(agent, "left behind")
    waiting = await world.store(
        agent, "waits as a soft delete", project_id=await world.project("p")
    )
    await ending.soft_delete(world.context, agent, [waiting.id])
    await world.change(
        "INSERT INTO tombstones (memory_id, kind, agent_handle, epoch, hlc, origin_node,"
        " home_node, cause, recv_seq, created_at) SELECT id, kind, sha256(agent_id), 1, 1,"
        " origin_node, origin_node, 'forget', nextval('recv_seq'), now() FROM memories"
        f" WHERE id = {lit(left.id)}"
    )
    await world.restart()
    assert await world.found(agent, "left behind") == set()
    gone = await world.db.transact(erasing.finish_unpurged, world.node, 100)
    assert gone == [left.id]
    assert await world.rows("SELECT id FROM memories WHERE kind = 'cell'") == [(waiting.id,)]
    assert await world.db.transact(erasing.finish_unpurged, world.node, 100) == []


async def test_deleting_an_announced_memory_tells_holders_at_once(world: World) -> None:
    agent = await world.agent("a1")
    project = await world.project("p1")
    memory = await world.store(agent, "travelled", project_id=project)

    async def hold(tx: Tx) -> None:
        await deliveries.hold(tx, memory.id, PEER, project, agent.id, state="stored", seq=1)

    await world.db.transact(hold)
    await ending.soft_delete(world.context, agent, [memory.id])
    ((peer, subject, body),) = await world.rows("SELECT peer, subject, body FROM outbox")
    assert (peer, subject) == (PEER, memory.id)
    assert world.access.current.check_tombstone(body).target == memory.id
    assert b"travelled" not in body
    assert await world.value("SELECT purged_at FROM tombstones") is None
    assert await world.value("SELECT count(*) FROM diffs") == 0


async def test_forgetting_after_a_delete_purges_under_the_first_tombstone(world: World) -> None:
    agent = await world.agent("a1")
    memory = await world.store(agent, "twice", project_id=await world.project("p1"))
    await ending.soft_delete(world.context, agent, [memory.id])
    first = await world.rows("SELECT wire FROM tombstones")
    done = await ending.forget(world.context, agent, [memory.id])
    assert done.already == (memory.id,)
    assert await world.rows("SELECT wire FROM tombstones") == first
    assert await world.value("SELECT count(*) FROM memories") == 0
    assert await world.value("SELECT purged_at IS NULL FROM tombstones") is False


async def test_l_15_recover_within_its_window(world: World) -> None:
    agent = await world.agent("a1")
    memory = await world.store(agent, "comes back")
    with pytest.raises(StateConflict) as live:
        await ending.recover(world.context, agent, memory.id)
    assert live.value.status == "not_deleted"
    await ending.soft_delete(world.context, agent, [memory.id])
    world.pass_time(days=29)
    back = await ending.recover(world.context, agent, memory.id)
    assert (back.memory.id, back.recovered_from) == (memory.id, memory.id)
    assert memory.id in world.graph
    assert await world.found(agent, "comes back") == {memory.id}
    await ending.soft_delete(world.context, agent, [memory.id])
    world.pass_time(days=31)
    with pytest.raises(StateConflict, match=r"Recover window expired \(30 days\)") as late:
        await ending.recover(world.context, agent, memory.id)
    assert late.value.status == "retention_expired"
    await ending.forget(world.context, agent, [memory.id])
    with pytest.raises(NotFound):
        await ending.recover(world.context, agent, memory.id)


async def test_an_announced_memory_comes_back_under_a_new_id(world: World) -> None:
    agent = await world.agent("a1")
    memory = await world.store(agent, "team text", project_id=await world.project("p1"))
    await ending.soft_delete(world.context, agent, [memory.id])
    back = await ending.recover(world.context, agent, memory.id)
    assert back.memory.id != memory.id
    assert await world.found(agent, "team text") == {back.memory.id}
    assert await world.value("SELECT memory_id FROM diffs") == back.memory.id
    (event,) = await reading.events(world.context, agent, back.memory.id)
    assert event.metadata["recovered_from"] == memory.id.hex()
    assert await world.value("SELECT count(*) FROM embeddings") == 1


async def test_forgetting_a_recovered_memory_leaves_its_text_nowhere(world: World) -> None:
    agent = await world.agent("a1")
    memory = await world.store(agent, "unspoken", project_id=await world.project("p1"))
    await ending.soft_delete(world.context, agent, [memory.id])
    back = await ending.recover(world.context, agent, memory.id)
    await ending.forget(world.context, agent, [back.memory.id])
    assert "unspoken" not in await world.value(
        "SELECT string_agg(h::text, '') FROM memory_history h"
    )


async def test_a_text_stored_again_stands_in_the_way_of_recovery(world: World) -> None:
    agent = await world.agent("a1")
    old = await world.store(agent, "twin")
    await ending.soft_delete(world.context, agent, [old.id])
    new = await world.store(agent, "twin")
    with pytest.raises(StateConflict) as caught:
        await ending.recover(world.context, agent, old.id)
    assert (caught.value.status, caught.value.live_id) == ("duplicate", new.id)


async def test_an_expired_memory_does_not_come_back(world: World) -> None:
    agent = await world.agent("a1")
    memory = await world.store(agent, "brief", expires_at=world.now[0] + timedelta(hours=1))
    await ending.soft_delete(world.context, agent, [memory.id])
    world.pass_time(hours=2)
    with pytest.raises(StateConflict) as caught:
        await ending.recover(world.context, agent, memory.id)
    assert caught.value.status == "expired"


async def test_the_number_of_ids_is_bounded(world: World) -> None:
    agent = await world.agent("a1")
    for act in (ending.forget, ending.soft_delete):
        for ids in ([], [bytes(16)] * 501):
            with pytest.raises(InvalidInput, match="ids: 1 to 500"):
                await act(world.context, agent, ids)


# A peer's tombstone


def tombstone(world: World, memory: Memory, **changes: object) -> TombstoneBody:
    fields: dict[str, object] = {
        "project": memory.project_id,
        "agent": memory.agent_id,
        "origin": world.node.node_id,
        "home": memory.origin_node,
        "agent_epoch": 1,
        "project_epoch": 1,
        "hlc": clock.to_bytes(world.node.clock.now()),
        "nonce": bytes(16),
        "target": memory.id,
        "mkind": "cell",
        "cause": "forget",
    }
    return TombstoneBody(**{**fields, **changes})  # type: ignore[arg-type]


def signed_by(world: World, agent: AgentProfile, body: TombstoneBody) -> bytes:
    key = world.node.keys.agent(agent.id)
    assert key is not None
    return records.seal(key, records.DOMAIN_TOMBSTONE, body)


async def apply(world: World, wire: bytes, peer: NodeId = PEER) -> erasing.Forgotten:
    return await world.db.transact(
        erasing.apply_tombstone, world.node, world.access.current, wire, peer=peer
    )


async def shared(world: World) -> tuple[AgentProfile, ProjectId, Memory]:
    agent = await world.agent("a1")
    project = await world.project("p1")
    return agent, project, await world.store(agent, "held here", project_id=project)


async def test_a_peers_tombstone_removes_the_memory_and_is_passed_on(world: World) -> None:
    agent, project, memory = await shared(world)
    holder = bytes([9]) * 16

    async def hold(tx: Tx) -> None:
        for peer in (holder, PEER):
            await deliveries.hold(tx, memory.id, peer, project, agent.id, state="stored", seq=1)

    await world.db.transact(hold)
    wire = signed_by(world, agent, tombstone(world, memory))
    done = await apply(world, wire)
    assert (done.gone, done.told) == ((memory.id,), 1)
    progress = await world.db.read(outbox.progress, Topic.TOMBSTONE, memory.id)
    assert progress == {holder: "ready"}
    assert await world.value("SELECT count(*) FROM memories") == 0
    assert (await apply(world, wire)).already == (memory.id,)


async def test_a_tombstone_before_its_memory_leaves_its_mark(world: World) -> None:
    agent, _, memory = await shared(world)
    body = tombstone(world, memory, target=bytes([3]) * 16)
    await apply(world, signed_by(world, agent, body))
    standing = await world.db.read(tombstones.standing, bytes([3]) * 16)
    assert standing is not None
    assert standing.purged_at is not None


async def test_an_agent_cannot_forget_for_another(world: World) -> None:
    _, project, memory = await shared(world)
    thief = await world.agent("thief", project_id=project)
    own_name = signed_by(world, thief, tombstone(world, memory, agent=thief.id))
    with pytest.raises(InvalidRecord, match="not of the memory's agent"):
        await apply(world, own_name)
    others_name = signed_by(world, thief, tombstone(world, memory))
    with pytest.raises(BadSignature):
        await apply(world, others_name)
    assert await world.value("SELECT count(*) FROM memories WHERE kind = 'cell'") == 1
    assert await world.value("SELECT count(*) FROM tombstones") == 0


async def test_the_owner_of_one_project_cannot_forget_in_another(world: World) -> None:
    _, _, memory = await shared(world)
    other = await world.project("p2")
    key = world.node.keys.project(other)
    assert key is not None
    wire = records.seal(key, records.DOMAIN_TOMBSTONE, tombstone(world, memory, project=other))
    with pytest.raises(InvalidRecord):
        await apply(world, wire)
    assert await world.value("SELECT count(*) FROM tombstones") == 0


async def test_the_project_key_may_forget_in_its_project(world: World) -> None:
    _, project, memory = await shared(world)
    key = world.node.keys.project(project)
    assert key is not None
    wire = records.seal(key, records.DOMAIN_TOMBSTONE, tombstone(world, memory))
    assert (await apply(world, wire)).gone == (memory.id,)


async def test_a_strangers_signature_counts_for_nothing(world: World, tmp_path: Path) -> None:
    _, _, memory = await shared(world)
    stranger = other_identity(tmp_path / "stranger").node()
    wire = records.seal(stranger.private_key, records.DOMAIN_TOMBSTONE, tombstone(world, memory))
    with pytest.raises(BadSignature):
        await apply(world, wire)
    assert public_bytes(stranger.private_key) not in {
        key
        for project in world.access.current.projects.values()
        for key in project.signers_for(memory.agent_id)
    }


async def test_an_echo_of_our_own_tombstone_keeps_the_recovery_window(world: World) -> None:
    agent, _, memory = await shared(world)
    await ending.soft_delete(world.context, agent, [memory.id])
    wire = await world.value("SELECT wire FROM tombstones")
    assert (await apply(world, wire)).already == (memory.id,)
    assert (await ending.recover(world.context, agent, memory.id)).recovered_from == memory.id


async def test_a_tombstone_takes_only_its_signers_announcements(world: World) -> None:
    _, project, memory = await shared(world)
    thief = await world.agent("thief", project_id=project)
    await world.change(f"DELETE FROM memories WHERE id = {lit(memory.id)}")
    await apply(world, signed_by(world, thief, tombstone(world, memory, agent=thief.id)))
    assert await world.value("SELECT count(*) FROM diffs") == 1


# --- holds ----------------------------------------------------------------------------------------

Ending = Callable[[World, AgentProfile, Memory], Awaitable[object]]


async def forgotten(world: World, agent: AgentProfile, memory: Memory) -> object:
    return await ending.forget(world.context, agent, [memory.id])


async def forgotten_by_filter(world: World, agent: AgentProfile, memory: Memory) -> object:
    return await ending.forget_matching(world.context, agent, Filters(types=frozenset({"fact"})))


async def purged_with_its_agent(world: World, agent: AgentProfile, memory: Memory) -> object:
    return await remove_agent(world.context, agent, purge=True)


async def rewritten(world: World, agent: AgentProfile, memory: Memory) -> object:
    return await modify(world.context, agent, memory.id, Changes(content="another text"))


async def deleted_and_forgotten(world: World, agent: AgentProfile, memory: Memory) -> object:
    await ending.soft_delete(world.context, agent, [memory.id])
    return await ending.forget(world.context, agent, [memory.id])


@pytest.mark.parametrize(
    "act",
    [
        forgotten,
        forgotten_by_filter,
        purged_with_its_agent,
        rewritten,
        deleted_and_forgotten,
    ],
)
async def test_es_31_a_held_memory_keeps_its_row_and_nothing_else(
    world: World, act: Ending
) -> None:
    agent = await world.agent("a1")
    project = await world.project("p1")
    memory = await world.store(agent, "kept for the court", project_id=project)
    await world.change(
        "INSERT INTO erasure_holds (memory_id, ground, placed_by, placed_at, review_at, seq)"
        f" VALUES ({lit(memory.id)}, 'law', 'officer', now(), now(), 1)"
    )
    await act(world, agent, memory)
    row = f"SELECT content, deleted_at IS NOT NULL FROM memories WHERE id = {lit(memory.id)}"
    assert await world.rows(row) == [("kept for the court", True)]
    of_it = f"WHERE memory_id = {lit(memory.id)}"
    for table in ("embeddings", "diffs"):
        assert await world.value(f"SELECT count(*) FROM {table} {of_it}") == 0
    assert await world.rows(f"SELECT purged_at FROM tombstones {of_it}") == [(None,)]
    assert memory.id not in world.graph
    assert await world.db.transact(erasing.finish_unpurged, world.node, 100) == []
    assert len(await world.rows(row)) == 1
    await world.change("UPDATE erasure_holds SET released_at = now()")
    world.pass_time(days=31)
    await world.retention().sweep()
    assert await world.rows(row) == []
    assert await world.value(f"SELECT purged_at IS NOT NULL FROM tombstones {of_it}") is True


async def test_a_held_memory_is_not_recovered(world: World) -> None:
    agent = await world.agent("a1")
    memory = await world.store(agent, "kept for the court")
    await ending.soft_delete(world.context, agent, [memory.id])
    await world.change(
        "INSERT INTO erasure_holds (memory_id, ground, placed_by, placed_at, review_at, seq)"
        f" VALUES ({lit(memory.id)}, 'law', 'officer', now(), now(), 1)"
    )
    with pytest.raises(StateConflict) as caught:
        await ending.recover(world.context, agent, memory.id)
    assert caught.value.status == "held"
