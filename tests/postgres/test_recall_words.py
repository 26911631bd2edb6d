"""Recall by words: who is read, who is judged, and which words count."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from node.memory.commonwords import KEPT_S
from node.memory.words import COMMON_ROWS
from storage import births, memories, words
from storage.model import AgentProfile, Memory, MemoryId
from storage.pool import Tx
from tests.support.memory import World

CROWD = COMMON_ROWS + 20


async def crowd(world: World, agent: AgentProfile) -> list[Memory]:
    """So many memories with the word "harbour" that it says nothing any more; all resident."""
    template = await world.store(agent, "template")
    rows = [
        Memory(
            **{
                name: getattr(template, name)
                for name in Memory.__slots__
                if name not in ("id", "content", "normalized_content", "content_hash")
            },
            id=number.to_bytes(16),
            content=f"the harbour has berth {number}",
            normalized_content=f"the harbour has berth {number}",
            content_hash=f"{number:064x}",
        )
        for number in range(1, CROWD + 1)
    ]
    model = world.context.embedder.model_id
    vectors = await world.context.embedder.embed([row.content for row in rows])

    async def fill(tx: Tx) -> None:
        await births.insert(tx, model, list(map(births.Birth, rows, vectors)))

    await world.db.transact(fill)
    await world.restart()
    return rows


async def matches(world: World, agent: AgentProfile, terms: words.Terms) -> words.Matches:
    vector = np.ones(world.context.embedder.dimension, np.float32)
    return await world.db.look(
        words.search,
        terms,
        vector / np.linalg.norm(vector),
        world.context.embedder.model_id,
        world.context.agents.reader(agent),
        world.context.now(),
        limit=500,
        superseded=False,
    )


def met(found: words.Matches) -> set[MemoryId]:
    return {row.memory.id for row in found.rows}


async def test_a_word_in_too_many_rows_counts_only_where_no_rarer_one_finds_anything(
    world: World,
) -> None:
    agent = await world.agent("a1")
    full = [await world.store(agent, f"harbour note {number}") for number in range(5)]
    rare = await world.store(agent, "the lighthouse keeper")
    both = await matches(world, agent, words.Terms(["harbour", "lighthouse"], most=3))
    assert met(both) == {rare.id}
    assert list(both.common) == ["harbour"]
    alone = await matches(world, agent, words.Terms(["harbour", "nowhere"], most=3))
    assert met(alone) == {row.id for row in full}


@pytest.mark.parametrize("rare", ["lighthouse", "nowhere"])
async def test_a_word_known_to_be_common_gives_what_it_gave_before(world: World, rare: str) -> None:
    agent = await world.agent("a1")
    for number in range(5):
        await world.store(agent, f"harbour note {number}")
    await world.store(agent, "the lighthouse keeper")
    first = await matches(world, agent, words.Terms([rare, "harbour"], most=3))
    again = await matches(world, agent, words.Terms([rare, "harbour"], most=3, common=first.common))
    assert (again.ranked, again.rows) == (first.ranked, first.rows)


async def test_a_recall_reads_a_common_word_once_in_a_while(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await world.agent("a1")
    await crowd(world, agent)
    asked: list[set[str]] = []
    look = world.db.look

    async def note(work: Any, terms: words.Terms, *args: Any, **kwargs: Any) -> Any:
        asked.append(set(terms.words) - set(terms.common))
        return await look(work, terms, *args, **kwargs)

    monkeypatch.setattr(world.db, "look", note)
    first = await world.recall(agent, "harbour berth 7")
    again = await world.recall(agent, "harbour berth 7")
    assert again == first
    world.pass_time(seconds=KEPT_S + 1)
    await world.recall(agent, "harbour berth 7")
    assert asked == [{"harbour", "berth", "7"}, {"7"}, {"harbour", "berth", "7"}]


async def test_residents_answer_without_their_rows_being_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await world.agent("a1")
    hot = await world.store(agent, "the harbour opens at dawn")
    cold = await world.store(agent, "the harbour closes at dusk")
    world.context.residency.evict([cold.id])
    read: list[MemoryId] = []

    def noted(row: Any) -> Memory:
        read.append(row["id"])
        return memories.from_row(row)

    monkeypatch.setattr(words, "from_row", noted)
    hits = (await world.recall(agent, "harbour")).hits
    assert {(hit.memory.id, hit.tier, hit.words > 0) for hit in hits} == {
        (hot.id, "hot", True),
        (cold.id, "cold", True),
    }
    assert read == [cold.id]


async def test_a_resident_beyond_the_nearest_answers_by_its_words_and_its_own_cosine(
    world: World,
) -> None:
    agent = await world.agent("a1")
    await crowd(world, agent)
    world.configure(alpha=0.3)
    wanted = await world.store(agent, "zebra crossing near nothing else that was said")
    (vector,) = await world.context.embedder.embed(["harbour has the berth zebra"])
    (hit,) = [
        hit
        for hit in (await world.recall(agent, "harbour has the berth zebra")).hits
        if hit.memory.id == wanted.id
    ]
    own = world.graph.vector(wanted.id)
    assert own is not None
    assert (hit.words, hit.tier) == (1.0, "hot")
    assert hit.cosine == pytest.approx(max(float(own @ vector), 0.0), abs=1e-5)


async def test_an_expired_resident_takes_no_part_in_the_scale_of_words(world: World) -> None:
    agent = await world.agent("a1")
    soon = world.context.now() + timedelta(minutes=1)
    await world.store(agent, "lighthouse lamp", expires_at=soon)
    left = await world.store(agent, "a lighthouse far away from every other house of this coast")
    world.pass_time(minutes=2)
    (hit,) = (await world.recall(agent, "lighthouse lamp")).hits
    assert (hit.memory.id, hit.words) == (left.id, 1.0)
