"""How new memories are stored: in one statement, under the right epoch, all or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import trio

from node.embed.base import EmbeddingFailed
from node.memory.drafts import Draft
from node.memory.remember import Remembered, remember_batch, remember_each
from storage import gate
from storage.database_errors import CommitUnknown, DatabaseUnavailable
from storage.errors import InvalidInput, ScopeErased
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


def told(results: object) -> list[object]:
    assert isinstance(results, list)
    return [
        (each.memory.content, each.deduped) if isinstance(each, Remembered) else type(each)
        for each in results
    ]


async def test_what_came_together_is_one_commit_and_resident(world: World) -> None:
    agent, other = await world.agent("a1"), await world.agent("a2")
    for each in (agent, other):
        await world.store(each, f"makes the epochs of {each.name} known")
    before = {pid for (pid,) in await world.rows(WRITERS)}
    drafts = [Draft(f"text {place}", (agent, other)[place % 2].id) for place in range(6)]
    results = await remember_each(world.context, drafts)
    assert told(results) == [(f"text {place}", False) for place in range(6)]
    assert len({pid for (pid,) in await world.rows(WRITERS)} - before) == 1
    assert len(world.graph) == 8
    assert await world.value("SELECT count(*) FROM memory_history WHERE event = 'created'") == 8


async def test_of_what_came_together_each_has_its_own_outcome(world: World) -> None:
    agent = await world.agent("a1")
    await world.store(agent, "known")
    drafts = [
        Draft(text, agent.id, importance=importance)
        for text, importance in (("new", 0.5), ("known", 0.5), ("bad", 7.0), ("new", 0.5))
    ]
    results = await remember_each(world.context, drafts)
    assert told(results) == [("new", False), ("known", True), InvalidInput, ("new", True)]
    assert await world.rows(
        "SELECT content, seen_count FROM memories WHERE kind = 'cell' ORDER BY 1"
    ) == [("known", 2), ("new", 2)]


async def test_a_closed_scope_refuses_its_own_of_what_came_together(world: World) -> None:
    agent, other = await world.agent("a1"), await world.agent("a2")
    for each in (agent, other):
        await world.store(each, "makes the epochs known")
    await close(world, agent)
    results = await remember_each(
        world.context, [Draft("of the closed", agent.id), Draft("of the open", other.id)]
    )
    assert told(results) == [ScopeErased, ("of the open", False)]


async def test_what_was_left_out_leaves_nothing(world: World) -> None:
    agent = await world.agent("a1")
    await world.store(agent, "makes the epochs known")
    drafts = [Draft(f"text {place}", agent.id) for place in range(3)]
    results = await remember_each(world.context, drafts, lambda place: place == 1)
    assert told(results) == [("text 0", False), type(None), ("text 2", False)]
    assert await world.value(CELLS) == 3
    assert len(world.graph) == 3


async def test_what_the_statement_took_stays_when_the_rest_cannot_be_stored(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await world.agent("a1")
    await world.store(agent, "known")

    async def away(*args: object) -> None:
        raise DatabaseUnavailable

    with monkeypatch.context() as patched:
        patched.setattr(world.db, "transact", away)
        results = await remember_each(
            world.context, [Draft(text, agent.id) for text in ("known", "new")]
        )
    assert told(results) == [DatabaseUnavailable, ("new", False)]
    assert {each.content for each in world.graph.residents()} == {"known", "new"}


async def test_texts_that_cannot_be_embedded_together_fail_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await world.agent("a1")
    embed = world.context.embedder.embed

    async def choosy(texts: Sequence[str]) -> Any:
        if "poison" in texts:
            raise EmbeddingFailed
        return await embed(texts)

    monkeypatch.setattr(world.context.embedder, "embed", choosy)
    results = await remember_each(
        world.context, [Draft(text, agent.id) for text in ("one", "poison", "two")]
    )
    assert told(results) == [("one", False), EmbeddingFailed, ("two", False)]


async def test_a_cancelled_remember_is_stored_and_resident_or_neither(world: World) -> None:
    agent = await world.agent("a1")
    await world.store(agent, "makes the epochs known")
    drafts = [Draft(f"text {place}", agent.id) for place in range(3)]

    async def hold(tx: Tx) -> None:
        await world.node.gate.lock(tx, Scope(ScopeKind.AGENT, agent.id))
        await tx.execute(statement("SELECT pg_sleep(0.4)"))

    async def store(scope: trio.CancelScope) -> None:
        with scope:
            await remember_each(world.context, drafts)

    scope = trio.CancelScope()
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.db.transact, hold)
            await pid_of(world, SLEEPER)
            nursery.start_soon(store, scope)
            await pid_of(world, BLOCKED)
            scope.cancel()
    stored = {text for (text,) in await world.rows("SELECT content FROM memories")}
    assert {each.content for each in world.graph.residents()} & {d.content for d in drafts} == (
        stored & {draft.content for draft in drafts}
    )
