"""An agent that leaves its node, with what it wrote."""

from __future__ import annotations

import pytest

from node.memory import forget as ending
from node.memory.leaving import Left, remove_agent
from storage.errors import InvalidInput, NotFound
from storage.model import ReadPolicy, Visibility
from tests.support.memory import World

pytestmark = pytest.mark.postgres


async def test_v13_4_rows_of_a_removed_agent_are_read_by_nobody(world: World) -> None:
    agent = await world.agent("a1", description="harbours")
    other = await world.agent("a2", ReadPolicy.SHARED)
    await world.store(agent, "the harbour opens at dawn")
    await world.store(agent, "the harbour is mine", visibility=Visibility.PRIVATE)
    kept = await world.store(other, "the harbour of a2")
    assert await remove_agent(world.context, agent, purge=False) == Left(archived=2)
    for _ in range(2):
        assert await world.found(agent, "harbour") == set()
        assert await world.found(other, "harbour") == {kept.id}
        await world.restart()
    assert await world.value("SELECT count(*) FROM memories WHERE visibility = 'archived'") == 2
    assert await world.value("SELECT count(*) FROM memories WHERE kind = 'agent'") == 0
    with pytest.raises(NotFound):
        world.context.agents.resolve("a1")


async def test_what_a_removed_agent_shared_goes_at_the_peers(world: World) -> None:
    agent = await world.agent("a1")
    memory = await world.store(agent, "for the team", project_id=await world.project("p1"))
    await remove_agent(world.context, agent, purge=False)
    assert await world.rows("SELECT memory_id, wire IS NOT NULL FROM tombstones") == [
        (memory.id, True)
    ]
    assert await world.value("SELECT count(*) FROM diffs") == 0
    assert await world.value("SELECT content FROM memories WHERE kind = 'cell'") == "for the team"


async def test_a_purge_forgets_in_any_state(world: World) -> None:
    agent = await world.agent("a1")
    for number in range(3):
        await world.store(agent, f"secret {number}")
    hidden = await world.store(agent, "secret and hidden")
    await ending.soft_delete(world.context, agent, [hidden.id])
    assert await remove_agent(world.context, agent, purge=True) == Left(forgotten=4)
    assert await world.value("SELECT count(*) FROM memories WHERE kind = 'cell'") == 0
    assert await world.value("SELECT count(*) FROM tombstones") == 4
    dump = await world.value("SELECT string_agg(h::text, '') FROM memory_history h")
    assert "secret" not in dump


async def test_the_agent_that_owns_what_the_node_writes_stays(world: World) -> None:
    agent = world.context.agents.resolve(None)
    with pytest.raises(InvalidInput, match="default cannot be removed"):
        await remove_agent(world.context, agent, purge=False)
    assert world.context.agents.resolve(None) == agent


async def test_a_name_that_comes_back_is_another_agent(world: World) -> None:
    old = await world.agent("a1")
    await world.store(old, "of the first life")
    await remove_agent(world.context, old, purge=False)
    new = await world.agent("a1")
    assert new.id != old.id
    memory = await world.store(new, "of the first life")
    assert await world.found(new, "life") == {memory.id}
