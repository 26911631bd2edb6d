"""Filters of a recall: one meaning for residents and rows, and refusals by name."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
import trio

from storage import memories, words
from storage.filters import Filters, passes
from storage.memories import resident
from storage.model import Memory, MemoryKind, Reader, ReadPolicy, Visibility
from storage.pool import Tx
from tests.support.memory import START, World
from tests.support.services import Edge, edge

__all__ = ["edge"]

pytestmark = pytest.mark.postgres

AGENTS = [bytes([number]) * 16 for number in range(1, 4)]
PROJECTS = [bytes([number]) * 16 for number in range(11, 13)]
TAGS = ("ops", "web", 'a"b', "c,d")
KINDS = (MemoryKind.CELL, MemoryKind.L1, MemoryKind.L2, MemoryKind.BEACON)


def near_start(rng: random.Random) -> datetime:
    """A moment around START with microseconds, often exactly on a millisecond."""
    micros = rng.randrange(-3_000, 3_000)
    return START + timedelta(microseconds=micros - micros % rng.choice([1, 1000]))


def a_row(rng: random.Random, number: int) -> Memory:
    return Memory(
        id=number.to_bytes(16, "big"),
        kind=rng.choice(KINDS),
        agent_id=rng.choice(AGENTS),
        project_id=rng.choice([None, *PROJECTS]),
        content="the harbour opens",
        normalized_content="the harbour opens",
        content_hash=None,
        created_at=near_start(rng),
        updated_at=START,
        origin_node=bytes(16),
        agent_epoch=1,
        project_epoch=0,
        hlc=number,
        type=rng.choice(["fact", "decision"]),
        tags=tuple(rng.sample(TAGS, rng.randrange(len(TAGS)))),
        who=rng.choice([None, "eve", "bob"]),
        importance=rng.choice([0.0, 0.1, 0.3, 0.5, 0.7, 1.0]),
        pinned=rng.random() < 0.5,
        visibility=rng.choice([Visibility.GLOBAL, Visibility.PRIVATE]),
        scope_label=rng.choice([None, "team-a", "a:b"]),
    )


def some(rng: random.Random, values: Any) -> frozenset[Any]:
    return (
        frozenset(rng.sample(list(values), rng.randrange(1, 3)))
        if rng.random() < 0.3
        else (frozenset())
    )


def a_filter(rng: random.Random) -> Filters:
    def maybe(value: Any) -> Any:
        return value if rng.random() < 0.2 else None

    return Filters(
        agents=some(rng, AGENTS),
        projects=some(rng, PROJECTS),
        kinds=some(rng, KINDS),
        types=some(rng, ["fact", "decision", "none"]),
        tags=some(rng, TAGS),
        who=some(rng, ["eve", "bob"]),
        since=maybe(near_start(rng)),
        until=maybe(near_start(rng)),
        importance_min=maybe(rng.choice([0.0, 0.1, 0.3, 0.7])),
        pinned=maybe(rng.random() < 0.5),
        visibility=maybe(rng.choice([Visibility.GLOBAL, Visibility.PRIVATE])),
        scope_label=maybe(rng.choice(["team-a", "a:b"])),
    )


@pytest.mark.parametrize("seed", range(3))
async def test_both_searches_of_rows_and_the_twin_agree_on_random_filters(
    world: World, seed: int
) -> None:
    rng = random.Random(seed)
    rows = [a_row(rng, number) for number in range(1, 201)]
    vector = np.ones(world.context.embedder.dimension, np.float32)
    vector /= np.linalg.norm(vector)
    model = world.context.embedder.model_id
    reader = Reader(AGENTS[0], ReadPolicy.SHARED, projects=frozenset(PROJECTS))
    readable = {
        row.id
        for row in rows
        if row.visibility is Visibility.GLOBAL or row.agent_id == reader.agent_id
    }

    async def fill(tx: Tx) -> None:
        for row in rows:
            await memories.insert(tx, row)
            await memories.insert_vector(tx, row, model, vector)

    await world.db.transact(fill)
    residents = [resident(row, world.node.node_id) for row in rows]
    matched = 0
    for _ in range(40):
        filters = a_filter(rng)
        expected = {one.id for one in residents if one.id in readable and passes(one, filters)}
        by_vector = await world.db.read(
            memories.search_vectors,
            vector,
            model,
            reader,
            START,
            limit=500,
            filters=filters,
            superseded=False,
        )
        by_word = await world.db.look(
            words.search,
            words.Terms(["harbour"]),
            vector,
            model,
            reader,
            START,
            limit=500,
            filters=filters,
            superseded=False,
        )
        assert {found.memory.id for found in by_vector} == expected
        assert {found.memory.id for found in by_word.rows} == expected
        matched += len(expected)
    assert matched > 200


@pytest.mark.parametrize("cold", [False, True])
async def test_a_recall_keeps_to_its_filters_hot_and_cold(world: World, cold: bool) -> None:
    agent = world.context.agents.resolve(None)
    wanted = await world.store(agent, "the harbour opens at six", tags=("ops", "web"), who="eve")
    other = await world.store(agent, "the harbour opens at ten", tags=("ops",))
    if cold:
        world.context.residency.evict([wanted.id, other.id])
    filters = Filters(tags=frozenset(["ops", "web"]), who=frozenset(["eve"]))
    assert await world.found(agent, "harbour", filters=filters) == {wanted.id}


async def test_a_fast_recall_keeps_to_its_filters(world: World) -> None:
    agent = world.context.agents.resolve(None)
    wanted = await world.store(agent, "the harbour opens at six", pinned=True)
    await world.store(agent, "the harbour opens at ten")
    found = await world.found(agent, "harbour opens", filters=Filters(pinned=True), fast=True)
    assert found == {wanted.id}


async def test_a_fast_recall_touches_no_database(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = world.context.agents.resolve(None)
    stored = await world.store(agent, "the harbour opens at six")

    async def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("the database was asked")

    for way in ("read", "look", "transact"):
        monkeypatch.setattr(type(world.db), way, refuse)
    assert await world.found(agent, "harbour opens", fast=True) == {stored.id}


async def test_a_deadline_of_the_caller_gives_a_partial_answer_marked_so(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = world.context.agents.resolve(None)
    stored = await world.store(agent, "the harbour opens at six")

    async def late(*args: object, **kwargs: object) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(type(world.db), "look", late)
    answer = await world.recall(agent, "harbour opens", deadline_s=0.05)
    assert [hit.memory.id for hit in answer.hits] == [stored.id]
    assert answer.degraded == ("text: deadline",)


async def remember(edge: Edge, content: str, **fields: Any) -> str:
    answer = await edge.post("/api/memory/remember", {"content": content} | fields)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


@pytest.mark.parametrize(
    ("filters", "query"),
    [
        ({"tags": ["ops", "web"]}, {"tags": "ops,web"}),
        ({"type": "decision"}, {"type": "decision"}),
        ({"who": "eve"}, {"who": "eve"}),
        ({"importance_min": 0.9}, {"importance_min": "0.9"}),
        ({"pinned": True}, {"pinned": "true"}),
        ({"visibility": "private"}, {"visibility": "private"}),
        ({"scope": 'a"b'}, {"scope": 'a"b'}),
        ({"since": "2026-08-01T12:30:00Z"}, {"since": "2026-08-01T12:30:00Z"}),
        ({"agent": "bob"}, {"agent": "bob"}),
    ],
)
async def test_each_filter_works_in_a_body_and_in_a_query_string(
    edge: Edge, filters: dict[str, Any], query: dict[str, str]
) -> None:
    await edge.world.agent("bob")
    await remember(edge, "the harbour opens at ten")
    edge.world.pass_time(hours=1)
    wanted = await remember(
        edge,
        "the harbour opens at six",
        agent_id="bob",
        tags=["ops", "web"],
        type="decision",
        who="eve",
        importance=0.9,
        pinned=True,
        visibility="private",
        scope='a"b',
    )
    who = {"agent_id": "bob"}
    body = await edge.post("/api/memory/recall", who | {"query": "harbour", "filters": filters})
    asked = await edge.get("/api/memory/search", params=who | {"q": "harbour"} | query)
    for answer in (body, asked):
        assert [hit["id"] for hit in answer.json()["results"]] == [wanted], answer.text


@pytest.mark.parametrize(
    ("filters", "text"),
    [
        ({"colour": "red"}, "unknown filter: colour"),
        ({"kind": "agent"}, "kind is invalid"),
        ({"kind": ["cell", "soup"]}, "kind is invalid"),
        ({"since": "yesterday"}, "since is invalid"),
        ({"since": "2026-08-01T12:00:00"}, "since must carry a time zone"),
        ({"importance_min": "much"}, "importance_min is invalid"),
        ({"importance_min": 7}, "importance_min is invalid"),
        ({"pinned": "maybe"}, "pinned is invalid"),
        ({"visibility": "archived"}, "visibility is invalid"),
        ({"agent": "nobody"}, "agent is not an id"),
        ({"tags": ["t"] * 33}, "tags has more than 32 values"),
        ({"who": "a\x00"}, "who contains a character that cannot be stored"),
    ],
)
async def test_a_bad_filter_is_refused_by_name(
    edge: Edge, filters: dict[str, Any], text: str
) -> None:
    answer = await edge.post("/api/memory/recall", {"query": "harbour", "filters": filters})
    assert (answer.status_code, answer.json()["error"]) == (400, text)


async def test_l_51_nothing_that_is_written_becomes_a_statement(edge: Edge) -> None:
    stored = await remember(edge, "Orbit'); DROP TABLE memories;--")
    body = {"query": "Orbit'); DROP TABLE memories;--"}
    answer = await edge.post("/api/memory/recall", body)
    assert [hit["id"] for hit in answer.json()["results"]] == [stored]
    refused = await edge.post("/api/memory/recall", body | {"filters": {"a' OR 1=1": "x"}})
    assert (refused.status_code, refused.json()["error"][:14]) == (400, "unknown filter")


async def test_explain_gives_the_parts_of_a_score(edge: Edge) -> None:
    await remember(edge, "the harbour opens at six")
    body = {"query": "harbour", "explain": True}
    (hit,) = (await edge.post("/api/memory/recall", body)).json()["results"]
    parts = hit["explain"]
    assert hit["score"] == pytest.approx(
        parts["meaning"]["part"] + parts["words"]["part"], abs=2e-6
    )
    assert (parts["meaning"]["weight"], parts["words"]["weight"]) == (0.7, 0.3)


def test_an_exact_millisecond_is_no_rounding_error() -> None:
    row = a_row(random.Random(0), 1)
    for ms in range(0, 2000, 7):
        moment = datetime(2026, 8, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
        made = resident(Memory(**{**_fields(row), "created_at": moment}), bytes(16))
        assert passes(made, Filters(since=moment))
        assert not passes(made, Filters(until=moment))


def _fields(row: Memory) -> dict[str, Any]:
    return {name: getattr(row, name) for name in Memory.__slots__}
