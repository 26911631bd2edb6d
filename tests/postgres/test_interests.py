"""What a node tells peers it cares about: positions of agents first, then settled aggregates."""

from __future__ import annotations

from gossip.mesh import Interests
from node.interests import interests
from node.memory import forget as ending
from storage.model import MemoryKind
from tests.postgres.test_consolidation import many, topics, worker
from tests.support.memory import World


async def told(world: World, k_min: int = 5) -> Interests:
    return await interests(
        world.db,
        world.node,
        world.context.embedder.model_id,
        world.context.agents.all(),
        k_min,
    )


async def test_settled_aggregates_follow_the_positions(world: World) -> None:
    project = await world.project("team")
    agent = await world.agent("a1", project_id=project)
    await many(world, agent, project)
    await worker(world, agent).tick()
    assert (await told(world)).aggregates == ()
    world.pass_time(hours=2)
    found = await told(world)
    assert len(found.positions) == 1
    kinds = [each.kind for each in found.aggregates]
    assert kinds == sorted(kinds, key=[MemoryKind.L2, MemoryKind.L1].index)
    assert {MemoryKind.L2, MemoryKind.L1} == set(kinds)
    assert max(each.weight for each in found.aggregates) == 1.0


async def test_a_dirty_aggregate_and_one_below_k_min_are_in_no_profile(world: World) -> None:
    project = await world.project("team")
    agent = await world.agent("a1", project_id=project)
    rows = await topics(world, agent, project)
    await worker(world, agent).tick()
    world.pass_time(hours=2)
    assert len((await told(world)).aggregates) == 1
    assert (await told(world, k_min=1_000)).aggregates == ()
    await ending.forget(world.context, agent, [rows[0][0].id])
    assert (await told(world)).aggregates == ()


async def test_aggregates_of_what_others_wrote_are_no_interest(world: World) -> None:
    project = await world.project("team")
    agent = await world.agent("a1", project_id=project)
    await topics(world, agent, project)
    await world.change("UPDATE memories SET origin_node = decode(repeat('11', 16), 'hex')")
    await worker(world, agent).tick()
    world.pass_time(hours=2)
    assert (await told(world)).aggregates == ()
