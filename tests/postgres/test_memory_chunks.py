"""Texts in parts: all of them or none."""

from __future__ import annotations

import pytest
import trio

from node.memory.chunks import Chunked, remember_chunks
from node.memory.drafts import Draft
from storage.errors import Conflict, ContentTooLarge, InvalidInput
from storage.model import AgentProfile
from tests.support.memory import World

pytestmark = pytest.mark.postgres

PARTS = ("the harbour opens at dawn", "the market closes at noon", "cats sleep all day")


async def save(
    world: World, agent: AgentProfile, *texts: str, key: str | None = None, label: str | None = None
) -> Chunked:
    draft = Draft("", agent.id, tags=("book",), idempotency_key=key, scope_label=label)
    return await remember_chunks(world.context, draft, texts)


async def cells(world: World) -> int:
    return int(await world.value("SELECT count(*) FROM memories WHERE kind = 'cell'"))


async def test_each_part_is_found_by_itself(world: World) -> None:
    agent = await world.agent("a1")
    done = await save(world, agent, *PARTS)
    assert [part.content for part in done.parts] == list(PARTS)
    assert {part.tags for part in done.parts} == {("book",)}
    (hit,) = (await world.recall(agent, "market noon", limit=1)).hits
    assert hit.memory.id == done.parts[1].id


async def test_a_part_that_stands_already_refuses_them_all(world: World) -> None:
    agent = await world.agent("a1")
    await world.store(agent, PARTS[1])
    with pytest.raises(Conflict, match="chunk content already exists for this agent and scope"):
        await save(world, agent, *PARTS)
    assert await cells(world) == 1
    assert (await save(world, agent, *PARTS, label="elsewhere")).deduped is False


async def test_equal_parts_refuse_them_all(world: World) -> None:
    agent = await world.agent("a1")
    with pytest.raises(Conflict, match="chunk content already exists"):
        await save(world, agent, "same", "Same.")
    assert await cells(world) == 0


async def test_the_same_parts_under_the_same_key_change_nothing(world: World) -> None:
    agent = await world.agent("a1")
    first = await save(world, agent, *PARTS, key="k")
    again = await save(world, agent, *PARTS, key="k")
    assert (again.deduped, again.group_id) == (True, first.group_id)
    assert [part.id for part in again.parts] == [part.id for part in first.parts]
    assert await cells(world) == 3


async def test_a_key_stands_for_one_thing(world: World) -> None:
    agent = await world.agent("a1")
    await save(world, agent, *PARTS, key="k")
    with pytest.raises(Conflict, match="idempotency_key stands for other chunked content"):
        await save(world, agent, "another text", key="k")
    with pytest.raises(Conflict, match="idempotency_key stands for chunked content"):
        await world.remember(agent, "a single text", idempotency_key="k")
    await world.store(agent, "single", idempotency_key="s")
    with pytest.raises(Conflict, match="idempotency_key stands for single content"):
        await save(world, agent, "in parts", key="s")
    assert await cells(world) == 4


async def test_saved_at_once_under_one_key_they_are_one_group(world: World) -> None:
    agent = await world.agent("a1")
    done: list[Chunked] = []

    async def one() -> None:
        done.append(await save(world, agent, *PARTS, key="k"))

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(one)
    assert len({each.group_id for each in done}) == 1
    assert [each.deduped for each in done].count(False) == 1
    assert await cells(world) == 3


async def test_one_bad_part_stores_none(world: World) -> None:
    agent = await world.agent("a1")
    with pytest.raises(InvalidInput, match="content contains a character"):
        await save(world, agent, "good", "nul \x00")
    with pytest.raises(ContentTooLarge):
        await save(world, agent, "good", "x" * 1_100_000)
    for number in (0, 501):
        with pytest.raises(InvalidInput, match="chunks must have 1 to 500 items"):
            await save(world, agent, *(f"part {n}" for n in range(number)))
    assert await cells(world) == 0
    assert len(world.graph) == 0
