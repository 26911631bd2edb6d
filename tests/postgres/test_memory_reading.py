"""Every way to read a memory against every state that it can be in, and recall itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import trio

from node.memory import forget as ending
from node.memory import reading
from node.memory.ranking import Source
from storage import memories, words
from storage.content import bigrams
from storage.database_errors import DatabaseUnavailable
from storage.errors import InvalidInput, MnemeshError, NotFound
from storage.filters import Filters
from storage.model import AgentProfile, Memory, MemoryId, ReadPolicy, Visibility
from storage.pool import Database
from tests.support.memory import World, lit

TEXT = "the harbour opens at dawn"
Path = Callable[[World, AgentProfile, MemoryId], Awaitable[set[MemoryId]]]


async def by_id(world: World, agent: AgentProfile, memory_id: MemoryId) -> set[MemoryId]:
    try:
        return {(await reading.get(world.context, agent, memory_id)).id}
    except NotFound:
        return set()


async def by_list(world: World, agent: AgentProfile, memory_id: MemoryId) -> set[MemoryId]:
    rows, _ = await reading.page(world.context, agent)
    return {row.id for row in rows}


async def by_export(world: World, agent: AgentProfile, memory_id: MemoryId) -> set[MemoryId]:
    return {row.id async for page in reading.export(world.context, agent) for row in page}


async def by_recall(world: World, agent: AgentProfile, memory_id: MemoryId) -> set[MemoryId]:
    return await world.found(agent, TEXT)


async def by_hot_vectors(world: World, agent: AgentProfile, memory_id: MemoryId) -> set[MemoryId]:
    return await world.found(agent, TEXT, fast=True)


async def by_cold_vectors(world: World, agent: AgentProfile, memory_id: MemoryId) -> set[MemoryId]:
    (vector,) = await world.context.embedder.embed([TEXT])
    rows = await world.db.read(
        memories.search_vectors,
        vector,
        world.context.embedder.model_id,
        world.context.agents.reader(agent),
        world.context.now(),
        limit=10,
        superseded=False,
    )
    return {found.memory.id for found in rows}


async def by_words(world: World, agent: AgentProfile, memory_id: MemoryId) -> set[MemoryId]:
    (vector,) = await world.context.embedder.embed([TEXT])
    matches = await world.db.look(
        words.search,
        words.Terms(["harbour"]),
        vector,
        world.context.embedder.model_id,
        world.context.agents.reader(agent),
        world.context.now(),
        limit=10,
        superseded=False,
    )
    return {found.memory.id for found in matches.rows}


async def by_reload(world: World, agent: AgentProfile, memory_id: MemoryId) -> set[MemoryId]:
    await world.restart()
    return await world.found(agent, TEXT, fast=True)


PATHS: dict[str, Path] = {
    "id": by_id,
    "list": by_list,
    "export": by_export,
    "recall": by_recall,
    "hot": by_hot_vectors,
    "cold": by_cold_vectors,
    "words": by_words,
    "reload": by_reload,
}


async def soft_deleted(world: World, agent: AgentProfile, memory: Memory) -> None:
    await ending.soft_delete(world.context, agent, [memory.id])


async def expired(world: World, agent: AgentProfile, memory: Memory) -> None:
    world.pass_time(hours=2)


async def superseded(world: World, agent: AgentProfile, memory: Memory) -> None:
    await world.change(f"UPDATE memories SET superseded_by = id WHERE id = {lit(memory.id)}")
    await world.restart()


async def archived(world: World, agent: AgentProfile, memory: Memory) -> None:
    await world.change(f"UPDATE memories SET visibility = 'archived' WHERE id = {lit(memory.id)}")
    await world.restart()


async def forgotten(world: World, agent: AgentProfile, memory: Memory) -> None:
    await ending.forget(world.context, agent, [memory.id])


async def closed(world: World, agent: AgentProfile, memory: Memory) -> None:
    await world.change(
        "UPDATE scopes SET open_epoch = NULL, closed_epoch = 1"
        f" WHERE kind = 'agent' AND ext_id = {lit(agent.id)}"
    )
    await world.restart()


STATES = {
    "soft-deleted": soft_deleted,
    "expired": expired,
    "superseded": superseded,
    "archived": archived,
    "forgotten": forgotten,
    "erased": closed,
}


@pytest.mark.parametrize("path", PATHS)
async def test_es_37_a_live_memory_is_on_every_path(world: World, path: str) -> None:
    agent = await world.agent("a1")
    memory = await world.store(agent, TEXT)
    assert await PATHS[path](world, agent, memory.id) == {memory.id}


@pytest.mark.parametrize("state", STATES)
async def test_es_37_l_4_a_memory_that_is_over_is_on_no_path(world: World, state: str) -> None:
    agent = await world.agent("a1")
    memory = await world.store(agent, TEXT, expires_at=world.now[0] + timedelta(hours=1))
    other = await world.store(agent, "harbour of another text")
    await STATES[state](world, agent, memory)
    for name, path in PATHS.items():
        if (state, name) == ("superseded", "export"):
            continue
        assert memory.id not in await path(world, agent, memory.id), name
    if state != "erased":
        assert other.id in await by_list(world, agent, other.id)
    counts = await world.rows(f"SELECT access_count FROM memories WHERE id = {lit(memory.id)}")
    assert counts in ([], [(0,)])


async def test_a_superseded_memory_is_exported_and_found_when_asked_for(world: World) -> None:
    agent = await world.agent("a1")
    memory = await world.store(agent, TEXT)
    await superseded(world, agent, memory)
    assert await by_export(world, agent, memory.id) == {memory.id}
    assert await world.found(agent, TEXT, superseded=True) == {memory.id}


@pytest.mark.parametrize("path", [name for name in PATHS if name != "hot"])
async def test_l_6_an_evicted_memory_is_found_on_every_path(world: World, path: str) -> None:
    agent = await world.agent("a1")
    memory = await world.store(agent, TEXT)
    assert world.context.residency.evict([memory.id]) == 1
    assert await PATHS[path](world, agent, memory.id) == {memory.id}
    if path in ("id", "recall"):
        assert memory.id in world.graph
    assert await world.value("SELECT bool_and(deleted_at IS NULL) FROM memories")


async def test_an_evicted_then_forgotten_memory_is_nowhere(world: World) -> None:
    agent = await world.agent("a1")
    memory = await world.store(agent, TEXT)
    world.context.residency.evict([memory.id])
    await ending.forget(world.context, agent, [memory.id])
    assert await world.context.residency.reload(world.db, [memory.id]) == 0
    assert world.graph.occupants([memory.id]) == set()
    for path in PATHS.values():
        assert await path(world, agent, memory.id) == set()


# Who may read


async def four_rows(world: World) -> tuple[AgentProfile, AgentProfile, dict[str, MemoryId]]:
    a = await world.agent("A", ReadPolicy.ISOLATED)
    b = await world.agent("B", ReadPolicy.SHARED)
    rows = {
        f"{agent.name}-{kind.value}": (
            await world.store(agent, f"harbour {agent.name} {kind.value}", visibility=kind)
        ).id
        for agent in (a, b)
        for kind in (Visibility.GLOBAL, Visibility.PRIVATE)
    }
    return a, b, rows


LISTS = ("list", "recall", "hot", "cold", "words")


@pytest.mark.parametrize("path", LISTS)
async def test_v13_1_2_isolated_and_shared_readers(world: World, path: str) -> None:
    a, b, rows = await four_rows(world)
    assert await PATHS[path](world, a, b"") == {rows["A-global"], rows["A-private"]}
    assert await PATHS[path](world, b, b"") == {
        rows["A-global"],
        rows["B-global"],
        rows["B-private"],
    }


@pytest.mark.parametrize("path", LISTS)
async def test_v13_3_a_group_reads_its_own_global_rows(world: World, path: str) -> None:
    _, _, rows = await four_rows(world)
    c = await world.agent("C", ReadPolicy.GROUP, policy_group="g")
    d = await world.agent("D", ReadPolicy.GROUP, policy_group="g")
    own = await world.store(c, "harbour C private", visibility=Visibility.PRIVATE)
    shared = await world.store(d, "harbour D global")
    await world.store(d, "harbour D private", visibility=Visibility.PRIVATE)
    assert await PATHS[path](world, c, b"") == {own.id, shared.id}
    assert rows["B-global"] not in await PATHS[path](world, d, b"")


@pytest.mark.parametrize("path", LISTS)
async def test_v13_4_archived_rows_are_read_by_nobody(world: World, path: str) -> None:
    a, b, rows = await four_rows(world)
    await world.change(f"UPDATE memories SET visibility = 'archived' WHERE agent_id = {lit(a.id)}")
    await world.restart()
    assert await PATHS[path](world, a, b"") == set()
    assert await PATHS[path](world, b, b"") == {rows["B-global"], rows["B-private"]}


@pytest.mark.parametrize("path", LISTS)
async def test_l_46_private_rows_of_others_stay_theirs(world: World, path: str) -> None:
    a1, a2 = await world.agent("a1"), await world.agent("a2", ReadPolicy.SHARED)
    mine = await world.store(a1, "harbour one")
    await world.store(a2, "harbour two", visibility=Visibility.PRIVATE)
    assert await PATHS[path](world, a1, b"") == {mine.id}


async def test_rows_of_a_project_that_the_node_left_are_hidden(world: World) -> None:
    agent = await world.agent("a1")
    project = await world.project("p1")
    memory = await world.store(agent, TEXT, project_id=project)
    await world.change("DELETE FROM projects")
    await world.access.reload(world.db)
    for name, path in PATHS.items():
        assert await path(world, agent, memory.id) == set(), name


async def test_recall_about_an_agent_returns_that_agents_rows(world: World) -> None:
    _, b, rows = await four_rows(world)
    a = world.context.agents.resolve("A")
    assert await world.found(b, "harbour", filters=Filters(agents=frozenset([a.id]))) == {
        rows["A-global"]
    }
    listed, _ = await reading.page(world.context, b, about=a.id)
    assert {row.id for row in listed} == {rows["A-global"]}


# Recall


async def test_meaning_and_words_become_one_list(world: World) -> None:
    agent = await world.agent("a1")
    best = await world.store(agent, "the harbour opens at dawn")
    near = await world.store(agent, "the harbour closes at dusk")
    await world.store(agent, "bread needs salt")
    hits = (await world.recall(agent, "harbour opens")).hits
    assert [hit.memory.id for hit in hits][:2] == [best.id, near.id]
    assert hits[0].source is Source.HYBRID
    assert hits[0].words == 1.0
    assert all(0 <= hit.score <= 1.0001 for hit in hits)


async def test_a_hidden_crowd_does_not_crowd_out_my_own_words(world: World) -> None:
    crowd, me = await world.agent("crowd"), await world.agent("me")
    world.configure(word_candidates=20)
    for number in range(60):
        await world.store(crowd, f"harbour note {number}", visibility=Visibility.PRIVATE)
    mine = await world.store(me, "quite other matters, but harbour too")
    world.graph.hide([mine.id])
    hits = (await world.recall(me, "harbour")).hits
    assert [hit.memory.id for hit in hits] == [mine.id]
    assert hits[0].words == 1.0


async def test_cold_rows_answer_and_become_resident(world: World) -> None:
    agent = await world.agent("a1")
    memory = await world.store(agent, TEXT)
    world.context.residency.evict([memory.id])
    (hit,) = (await world.recall(agent, TEXT)).hits
    assert (hit.memory.id, hit.tier) == (memory.id, "cold")
    (hit,) = (await world.recall(agent, TEXT)).hits
    assert hit.tier == "hot"


async def test_l_56_unspaced_scripts_are_found_by_a_part(world: World) -> None:
    agent = await world.agent("a1")
    memory = await world.store(agent, "東京の会議は金曜日")
    assert bigrams("会議")
    (hit,) = (await world.recall(agent, "会議")).hits
    assert (hit.memory.id, hit.words) == (memory.id, 1.0)


@pytest.mark.parametrize(
    "query", ['"foo (bar', "c++ -x", "AND", "a:b*", "!&|<->", "'", "\\", "((((", "%_", "a" * 16384]
)
async def test_l_57_no_query_text_is_syntax(world: World, query: str) -> None:
    agent = await world.agent("a1")
    await world.store(agent, "foo bar and c++ x a:b")
    answer = await world.recall(agent, query)
    assert answer.degraded == ()


@pytest.mark.parametrize(
    ("query", "options", "message"),
    [
        ("", {}, "query is required"),
        ("  ", {}, "query is required"),
        ("x" * 16385, {}, "query is longer"),
        ("x\x00", {}, "query contains"),
        ("x", {"limit": 0}, "limit must be"),
        ("x", {"limit": 51}, "limit must be"),
        ("x", {"vector": np.zeros(64, np.float32)}, "vector must be"),
        ("x", {"vector": np.full(64, np.inf, np.float32)}, "vector must be"),
    ],
)
async def test_a_bad_question_names_its_field(
    world: World, query: str, options: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        await world.recall(await world.agent("a1"), query, **options)


async def test_the_fast_way_touches_no_database(world: World) -> None:
    agent = await world.agent("a1")
    memory = await world.store(agent, TEXT)

    class NoDatabase:
        def __getattr__(self, name: str) -> object:
            raise AssertionError(f"{name} was called")

    world.context.db = NoDatabase()  # type: ignore[assignment]
    assert await world.found(agent, TEXT, fast=True) == {memory.id}


async def test_a_question_asked_often_warms_rows_across_a_restart(world: World) -> None:
    agent = await world.agent("a1")
    memory = await world.store(agent, TEXT)
    for _ in range(3):
        await world.recall(agent, TEXT)
    await world.db.transact(memories.count_access, world.context.residency.take_accesses())
    assert await world.value(f"SELECT access_count FROM memories WHERE id = {lit(memory.id)}") == 3
    assert world.context.residency.take_accesses() == {}


async def test_l_59_pages_have_no_gap_and_no_repeat_while_others_write(world: World) -> None:
    agent = await world.agent("a1")
    stored = [(await world.store(agent, f"note number {number}")).id for number in range(105)]
    seen: list[MemoryId] = []
    before = None
    while True:
        page, _ = await reading.page(world.context, agent, limit=10, before=before)
        seen += [row.id for row in page]
        if len(page) < 10:
            break
        before = (page[-1].created_at, page[-1].id)
        world.pass_time(milliseconds=1)
        await world.store(agent, f"written meanwhile {len(seen)}")
    assert len(seen) == len(set(seen))
    assert set(seen) == set(stored)
    with pytest.raises(InvalidInput, match="limit must be between 1 and 200"):
        await reading.page(world.context, agent, limit=201)


async def test_an_export_pages_through_everything_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "EXPORT_PAGE", 7)
    agent = await world.agent("a1", description="likes harbours")
    stored = {(await world.store(agent, f"note {number}")).id for number in range(21)}
    seen = [row.id async for page in reading.export(world.context, agent) for row in page]
    assert len(seen) == 21
    assert set(seen) == stored


async def test_positions_of_agents_are_no_answers(world: World) -> None:
    agent = await world.agent("a1", description=TEXT)
    await world.restart()
    for name, path in PATHS.items():
        assert await path(world, agent, b"\x00" * 16) == set(), name


async def test_an_empty_node_answers_nothing(world: World) -> None:
    agent = await world.agent("a1")
    answer = await world.recall(agent, "anything")
    assert (answer.hits, answer.degraded) == ((), ())


class Stalled:
    """A database whose reads of one kind fail or never end."""

    def __init__(self, db: Database, failure: MnemeshError | None, *works: object) -> None:
        self._db, self._works, self._failure = db, works, failure

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    async def read(self, work: Any, *args: Any, **kwargs: Any) -> Any:
        return await self._stall(self._db.read, work, *args, **kwargs)

    async def look(self, work: Any, *args: Any, **kwargs: Any) -> Any:
        return await self._stall(self._db.look, work, *args, **kwargs)

    async def _stall(self, reading: Any, work: Any, *args: Any, **kwargs: Any) -> Any:
        if work not in self._works:
            return await reading(work, *args, **kwargs)
        if self._failure is not None:
            raise self._failure
        return await trio.sleep_forever()


@pytest.mark.parametrize("failure", [DatabaseUnavailable(), None], ids=["fails", "hangs"])
async def test_a_search_that_fails_or_hangs_is_named_and_residents_answer(
    world: World, failure: MnemeshError | None
) -> None:
    agent = await world.agent("a1")
    memory = await world.store(agent, TEXT)
    world.context.residency.has_cold = True
    world.configure(recall_deadline_s=0.2)
    reason = failure.code if failure else "deadline"
    searches = (words.search, world.context.cold.search)
    db = world.db
    world.context.db = Stalled(db, failure, *searches)  # type: ignore[assignment]
    answer = await world.recall(agent, TEXT)
    assert answer.degraded == (f"text: {reason}", f"cold: {reason}")
    assert [hit.memory.id for hit in answer.hits] == [memory.id]
    world.context.db = Stalled(db, failure, searches[1])  # type: ignore[assignment]
    answer = await world.recall(agent, TEXT)
    assert answer.degraded == (f"cold: {reason}",)
    assert answer.hits[0].words == 1.0


async def test_what_is_forgotten_during_a_recall_is_not_in_its_answer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await world.agent("a1")
    memory = await world.store(agent, TEXT)
    look = world.db.look

    async def forget_first(*args: Any, **kwargs: Any) -> Any:
        rows = await look(*args, **kwargs)
        await ending.forget(world.context, agent, [memory.id])
        return rows

    monkeypatch.setattr(world.db, "look", forget_first)
    assert await world.found(agent, TEXT) == set()


@pytest.mark.parametrize("failure", [DatabaseUnavailable(), None], ids=["fails", "hangs"])
async def test_an_answer_does_not_wait_for_a_reload(
    world: World, failure: MnemeshError | None
) -> None:
    agent = await world.agent("a1")
    memory = await world.store(agent, TEXT)
    world.context.residency.evict([memory.id])
    world.configure(recall_deadline_s=0.5)
    stalled = Stalled(world.db, failure, memories.with_vectors)
    world.context.db = stalled  # type: ignore[assignment]
    assert await world.found(agent, TEXT) == {memory.id}
    assert (await reading.get(world.context, agent, memory.id)).id == memory.id
    assert memory.id not in world.graph
