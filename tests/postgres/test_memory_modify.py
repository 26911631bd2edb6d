"""Changes of memories: in place, or under a new id where peers hold the old one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import trio

from node.memory import forget as ending
from node.memory import modify as modifying
from node.memory import reading
from node.memory.forget import StateConflict
from node.memory.modify import Changes, Modified
from storage import deliveries, records
from storage.errors import ContentTooLarge, InvalidInput, NotFound, ScopeErased
from storage.model import AgentProfile, MemoryId, ReadPolicy, Scope, ScopeKind, Visibility
from storage.pool import Tx
from tests.support.memory import World, lit

pytestmark = pytest.mark.postgres

PEER = bytes([7]) * 16


async def modify(world: World, agent: AgentProfile, id: MemoryId, **changes: Any) -> Modified:
    return await modifying.modify(world.context, agent, id, Changes(**changes))


async def test_a_new_text_is_found_and_the_old_one_is_not(world: World) -> None:
    agent = await world.agent("a1")
    memory = await world.store(agent, "the deploy runs on fridays")
    done = await modify(world, agent, memory.id, content="the garden  needs water")
    assert (done.memory.id, done.memory.content) == (memory.id, "the garden needs water")
    (vector,) = await world.context.embedder.embed(["the garden needs water"])
    resident = world.graph.vector(memory.id)
    assert resident is not None
    np.testing.assert_allclose(resident, vector, atol=2e-3)
    for cold in (False, True):
        if cold:
            world.context.residency.evict([memory.id])
        assert await world.found(agent, "garden") == {memory.id}
        (hit,) = (await world.recall(agent, "deploy fridays")).hits or [None]
        assert hit is None or hit.memory.content == "the garden needs water"
        assert hit is None or hit.words == 0


async def test_a_change_survives_a_restart(world: World) -> None:
    agent = await world.agent("a1")
    memory = await world.store(agent, "first text", tags=("a",))
    await modify(world, agent, memory.id, content="second text", tags=("b", "c"), pinned=True)
    await world.restart()
    (hit,) = (await world.recall(agent, "second text")).hits
    assert (hit.memory.id, hit.memory.tags, hit.memory.pinned) == (memory.id, ("b", "c"), True)
    row = await reading.get(world.context, agent, memory.id)
    assert (row.content, row.tags, row.updated_by) == ("second text", ("b", "c"), "api")


async def test_what_changed_stands_in_the_history(world: World) -> None:
    agent = await world.agent("a1")
    memory = await world.store(agent, "old words")
    await modify(world, agent, memory.id, content="new words", importance=0.75)
    await modify(world, agent, memory.id, pinned=True)
    events = await reading.events(world.context, agent, memory.id)
    assert [(one.event, one.old_content, one.new_content) for one in events] == [
        ("created", None, "old words"),
        ("updated", "old words", "new words"),
        ("updated", None, None),
    ]
    assert events[1].metadata == {"changed": ["content", "importance"]}
    assert events[2].metadata == {"changed": ["pinned"]}


async def test_a_change_that_changes_nothing_leaves_no_trace(world: World) -> None:
    agent = await world.agent("a1")
    memory = await world.store(agent, "the same", tags=("a",))
    world.pass_time(hours=1)
    done = await modify(world, agent, memory.id, content=" the  same ", tags=("a",))
    assert done.memory == memory
    assert len(await reading.events(world.context, agent, memory.id)) == 1


async def test_the_text_of_another_live_row_stands_in_the_way(world: World) -> None:
    agent = await world.agent("a1")
    standing = await world.store(agent, "Tea.")
    memory = await world.store(agent, "coffee")
    with pytest.raises(StateConflict) as caught:
        await modify(world, agent, memory.id, content="tea")
    assert (caught.value.status, caught.value.live_id) == ("duplicate", standing.id)
    assert (await reading.get(world.context, agent, memory.id)) == memory
    await ending.soft_delete(world.context, agent, [standing.id])
    done = await modify(world, agent, memory.id, content="tea")
    assert done.memory.content == "tea"


async def test_an_expired_text_makes_room_for_a_change(world: World) -> None:
    agent = await world.agent("a1")
    brief = await world.store(agent, "tea", expires_at=world.now[0] + timedelta(hours=1))
    memory = await world.store(agent, "coffee")
    world.pass_time(hours=2)
    await modify(world, agent, memory.id, content="tea")
    assert await world.value(f"SELECT deleted_at FROM memories WHERE id = {lit(brief.id)}")
    assert brief.id not in world.graph


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, "nothing to change is given"),
        ({"content": " "}, "content is required"),
        ({"content": "nul \x00"}, "content contains a character that cannot be stored"),
        ({"type": ""}, "type must have 1 to 64 characters"),
        ({"tags": ("",)}, "tags: at most 32, each of 1 to 128 characters"),
        ({"importance": 1.5}, "importance must be between 0 and 1"),
        ({"importance": float("nan")}, "importance must be between 0 and 1"),
    ],
)
async def test_a_change_that_does_not_fit_is_named_and_changes_nothing(
    world: World, changes: dict[str, Any], reason: str
) -> None:
    agent = await world.agent("a1")
    memory = await world.store(agent, "as it was")
    with pytest.raises(InvalidInput) as caught:
        await modify(world, agent, memory.id, **changes)
    assert str(caught.value) == reason
    assert (await reading.get(world.context, agent, memory.id)) == memory


async def test_a_text_above_the_limit_is_refused(world: World) -> None:
    agent = await world.agent("a1")
    memory = await world.store(agent, "short")
    with pytest.raises(ContentTooLarge, match="content exceeds 1048576 bytes"):
        await modify(world, agent, memory.id, content="x" * 1_100_000)


async def test_who_may_not_change_it_finds_nothing(world: World) -> None:
    owner, other = await world.agent("a1"), await world.agent("a2")
    memory = await world.store(owner, "mine", expires_at=world.now[0] + timedelta(hours=1))
    for agent, memory_id in ((other, memory.id), (owner, bytes(16))):
        with pytest.raises(NotFound, match="memory not found"):
            await modify(world, agent, memory_id, pinned=True)
    await ending.soft_delete(world.context, owner, [memory.id])
    with pytest.raises(NotFound):
        await modify(world, owner, memory.id, pinned=True)
    await ending.recover(world.context, owner, memory.id)
    world.pass_time(hours=2)
    with pytest.raises(NotFound):
        await modify(world, owner, memory.id, pinned=True)


async def test_what_was_replaced_names_what_stands_for_it(world: World) -> None:
    agent = await world.agent("a1")
    old, new = await world.store(agent, "version one"), await world.store(agent, "version two")
    await world.change(
        f"UPDATE memories SET superseded_by = {lit(new.id)}, superseded_at = now()"
        f" WHERE id = {lit(old.id)}"
    )
    with pytest.raises(StateConflict) as caught:
        await modify(world, agent, old.id, pinned=True)
    assert (caught.value.status, caught.value.live_id) == ("superseded", new.id)


async def test_a_closed_scope_is_not_written(world: World) -> None:
    agent = await world.agent("a1")
    memory = await world.store(agent, "of the old epoch")

    async def close(tx: Tx) -> None:
        await world.node.gate.lock(tx, Scope(ScopeKind.AGENT, agent.id))

    await world.db.transact(close)
    await world.change("UPDATE scopes SET open_epoch = NULL, closed_epoch = 1 WHERE kind = 'agent'")
    with pytest.raises(ScopeErased):
        await modify(world, agent, memory.id, pinned=True)


async def announced(world: World, agent: AgentProfile) -> tuple[MemoryId, bytes]:
    """A memory that a peer stores."""
    project = await world.project("p1")
    memory = await world.store(agent, "the team meets at nine", project_id=project)

    async def hold(tx: Tx) -> None:
        await deliveries.hold(tx, memory.id, PEER, project, agent.id, state="stored", seq=1)

    await world.db.transact(hold)
    return memory.id, project


async def test_a_new_text_of_an_announced_memory_ends_the_old_copies(world: World) -> None:
    agent = await world.agent("a1")
    old, project = await announced(world, agent)
    done = await modify(world, agent, old, content="the team meets at ten")
    assert (done.recovered_from, done.memory.id != old) == (old, True)
    ((peer, subject),) = await world.rows("SELECT peer, subject FROM outbox")
    assert (peer, subject) == (PEER, old)
    ((body,),) = await world.rows("SELECT body FROM diffs")
    diff = records.decode_diff(body)
    assert (diff.memory, diff.content, diff.project) == (
        done.memory.id,
        "the team meets at ten",
        project,
    )
    assert old not in world.graph
    assert await world.found(agent, "team meets") == {done.memory.id}
    (event,) = await reading.events(world.context, agent, done.memory.id)
    assert (event.event, event.metadata["recovered_from"]) == ("updated", old.hex())


@pytest.mark.parametrize("visibility", [Visibility.PRIVATE, Visibility.ARCHIVED])
async def test_an_announced_memory_that_is_withdrawn_goes_on_under_a_new_id(
    world: World, visibility: Visibility
) -> None:
    agent = await world.agent("a1")
    old, _ = await announced(world, agent)
    done = await modify(world, agent, old, visibility=visibility)
    assert done.memory.id != old
    assert done.memory.announced_at is None
    assert await world.value("SELECT memory_id FROM tombstones") == old
    assert await world.value("SELECT count(*) FROM diffs") == 0
    assert await world.value("SELECT count(*) FROM memories WHERE kind = 'cell'") == 1
    seen = {done.memory.id} if visibility is Visibility.PRIVATE else set()
    assert await world.found(agent, "team meets") == seen
    back = await modify(world, agent, done.memory.id, visibility=Visibility.GLOBAL)
    assert back.memory.id == done.memory.id
    assert await world.value("SELECT memory_id FROM diffs") == done.memory.id


async def test_marks_of_an_announced_memory_change_in_place(world: World) -> None:
    agent = await world.agent("a1")
    old, _ = await announced(world, agent)
    done = await modify(world, agent, old, tags=("ops",), importance=0.9)
    assert (done.memory.id, done.recovered_from) == (old, old)
    assert await world.value("SELECT count(*) FROM tombstones") == 0
    assert await world.value("SELECT count(*) FROM diffs") == 1


async def test_a_private_memory_that_is_shared_is_announced_under_its_id(world: World) -> None:
    agent = await world.agent("a1")
    project = await world.project("p1")
    memory = await world.store(
        agent, "kept to itself", project_id=project, visibility=Visibility.PRIVATE
    )
    done = await modify(world, agent, memory.id, visibility=Visibility.GLOBAL)
    assert done.memory.id == memory.id
    assert await world.value("SELECT memory_id FROM diffs") == memory.id
    await ending.soft_delete(world.context, agent, [memory.id])
    assert await world.value("SELECT wire IS NOT NULL FROM tombstones") is True


async def test_a_shared_memory_is_handed_to_who_cares(world: World) -> None:
    writer, reader = await world.agent("a1"), await world.agent("a2")
    project = await world.project("p1")
    await world.agent("a2", ReadPolicy.SHARED, description="kept to itself")
    await world.place_agents()
    memory = await world.store(
        writer, "kept to itself", project_id=project, visibility=Visibility.PRIVATE
    )
    await modify(world, writer, memory.id, visibility=Visibility.GLOBAL)
    told = "SELECT recipient, memory_id FROM deliveries WHERE recipient_kind = 'agent'"
    assert await world.rows(told) == [(reader.id, memory.id)]


async def test_changes_at_once_leave_the_graph_as_the_row(world: World) -> None:
    agent = await world.agent("a1")
    memory = await world.store(agent, "text number zero")
    async with trio.open_nursery() as nursery:
        for number in range(8):

            async def change(number: int = number) -> None:
                await modify(world, agent, memory.id, content=f"text number {number}x")

            nursery.start_soon(change)
    row = await reading.get(world.context, agent, memory.id)
    resident = world.graph.get(memory.id)
    assert resident is not None
    assert resident.content == row.content


async def test_a_cancelled_change_leaves_graph_and_row_alike(world: World) -> None:
    agent = await world.agent("a1")
    memory = await world.store(agent, "text 0")
    for number in range(1, 6):
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:

                async def change(number: int = number) -> None:
                    await modify(world, agent, memory.id, content=f"text {number}")

                nursery.start_soon(change)
                await trio.sleep(0.0005 * number)
                scope.cancel()
        content = await world.value(f"SELECT content FROM memories WHERE id = {lit(memory.id)}")
        resident = world.graph.get(memory.id)
        assert resident is not None
        assert resident.content == content
