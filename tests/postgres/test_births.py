"""How new memories are stored: in one statement, under the right epoch, all or nothing."""

from __future__ import annotations

import pytest
import trio

from node.memory.remember import Draft, Remembered, remember_batch
from storage import gate
from storage.database_errors import CommitUnknown
from storage.errors import ScopeErased
from storage.model import AgentProfile, Scope, ScopeKind
from storage.pool import Tx
from tests.support.memory import START, World, statement

pytestmark = pytest.mark.postgres

CELLS = "SELECT count(*) FROM memories WHERE kind = 'cell'"
WRITERS = """SELECT xmin::text FROM memories WHERE kind = 'cell'
             UNION SELECT e.xmin::text FROM embeddings e
             UNION SELECT h.xmin::text FROM memory_history h WHERE event = 'created'
             UNION SELECT d.xmin::text FROM diffs d"""
SLEEPER = """SELECT pid FROM pg_stat_activity
             WHERE datname = current_database() AND state = 'active' AND query LIKE '%pg_sleep%'
               AND pid <> pg_backend_pid()"""
BLOCKED = """SELECT pid FROM pg_stat_activity
             WHERE datname = current_database() AND wait_event_type = 'Lock'"""


def both(outcomes: object) -> list[tuple[str, bool]]:
    assert isinstance(outcomes, list)
    return [(each.memory.content, each.deduped) for each in outcomes]


async def close(world: World, agent: AgentProfile, lasting: float = 0.0) -> None:
    """Close the agent's epoch in a transaction that stays open for some seconds."""

    async def work(tx: Tx) -> None:
        row = await world.node.gate.lock(tx, Scope(ScopeKind.AGENT, agent.id))
        await gate.close_epoch(tx, row.scope_id, row.open_epoch or 0)
        if lasting:
            await tx.execute(statement(f"SELECT pg_sleep({lasting})"))

    await world.db.transact(work)


async def pid_of(world: World, sql: str) -> int:
    while not (rows := await world.rows(sql)):  # noqa: ASYNC110 - polls a server
        await trio.sleep(0.01)
    return int(rows[0][0])


@pytest.mark.parametrize("count", [1, 5])
async def test_rows_vectors_events_and_announcements_are_one_commit(
    world: World, count: int
) -> None:
    agent = await world.agent("a1")
    project = await world.project("p1")
    await world.store(agent, "makes the epochs known", project_id=project)
    await world.change("DELETE FROM diffs")
    await world.change("DELETE FROM embeddings")
    await world.change("DELETE FROM memory_history")
    await world.change("DELETE FROM memories WHERE kind = 'cell'")
    drafts = [Draft(f"text {place}", agent.id, project) for place in range(count)]
    await remember_batch(world.context, drafts)
    assert len(await world.rows(WRITERS)) == 1
    for table in ("embeddings", "diffs"):
        assert await world.value(f"SELECT count(*) FROM {table}") == count


async def test_a_text_twice_in_one_batch_is_one_row_counted_twice(world: World) -> None:
    agent = await world.agent("a1")
    drafts = [Draft(text, agent.id) for text in ("a", "b", "a")]
    outcomes = await remember_batch(world.context, drafts)
    assert both(outcomes) == [("a", False), ("b", False), ("a", True)]
    assert await world.rows(
        "SELECT content, seen_count FROM memories WHERE kind = 'cell' ORDER BY 1"
    ) == [("a", 2), ("b", 1)]


async def test_a_batch_stores_what_is_new_and_counts_what_is_known(world: World) -> None:
    agent = await world.agent("a1")
    await world.store(agent, "known")
    outcomes = await remember_batch(world.context, [Draft(t, agent.id) for t in ("known", "new")])
    assert both(outcomes) == [("known", True), ("new", False)]
    assert await world.value("SELECT count(*) FROM memory_history WHERE event = 'created'") == 2


async def test_an_epoch_that_closed_since_the_last_commit_lets_nothing_in(world: World) -> None:
    agent = await world.agent("a1")
    await world.store(agent, "of the first epoch")
    await close(world, agent)
    with pytest.raises(ScopeErased):
        await world.remember(agent, "too late")
    assert await world.value(CELLS) == 1


async def test_a_memory_belongs_to_the_epoch_that_was_reopened(world: World) -> None:
    agent = await world.agent("a1")
    await world.store(agent, "of the first epoch")
    await close(world, agent)

    async def reopen(tx: Tx) -> None:
        row = await world.node.gate.lock(tx, Scope(ScopeKind.AGENT, agent.id))
        await gate.reopen(tx, row.scope_id, agent.id)

    await world.db.transact(reopen)
    for text in ("first after", "second after"):
        assert (await world.store(agent, text)).agent_epoch == 2


async def test_a_closing_under_way_is_waited_for(world: World) -> None:
    agent = await world.agent("a1")
    await world.store(agent, "makes the epochs known")
    refused = []

    async def store() -> None:
        with pytest.raises(ScopeErased):
            await world.remember(agent, "between check and write")
        refused.append(True)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(close, world, agent, 0.4)
            await pid_of(world, SLEEPER)
            nursery.start_soon(store)
    assert refused == [True]
    assert await world.value(CELLS) == 1


async def test_a_connection_lost_before_the_commit_leaves_nothing(world: World) -> None:
    agent = await world.agent("a1")
    await world.store(agent, "makes the epochs known")
    errors = []

    async def store() -> None:
        with pytest.raises(CommitUnknown) as unknown:
            await world.remember(agent, "never committed")
        errors.append(unknown.value)

    async def hold(tx: Tx) -> None:
        await world.node.gate.lock(tx, Scope(ScopeKind.AGENT, agent.id))
        await tx.execute(statement("SELECT pg_sleep(20)"))

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.db.transact, hold)
            await pid_of(world, SLEEPER)
            nursery.start_soon(store)
            blocked = await pid_of(world, BLOCKED)
            await world.value(f"SELECT pg_terminate_backend({blocked})")
            while not errors:  # noqa: ASYNC110 - ends with the store
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
        assert await world.value(CELLS) == 1
        assert world.context.residency.has_cold
        assert (await world.remember(agent, "never committed")).deduped is False


async def test_an_expired_row_makes_room_in_a_batch(world: World) -> None:
    agent = await world.agent("a1")
    old = await world.store(agent, "for now", expires_at=START)
    world.pass_time(seconds=1)
    outcomes = await remember_batch(
        world.context, [Draft(text, agent.id) for text in ("for now", "new")]
    )
    fresh = outcomes[0]
    assert isinstance(fresh, Remembered)
    assert not fresh.deduped
    assert fresh.memory.id != old.id
    assert old.id not in world.graph
    assert fresh.memory.id in world.graph
