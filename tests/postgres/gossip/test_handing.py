"""What peers bring is handed to the agents that care."""

from __future__ import annotations

import trio

from node.memory.watch import Feed
from storage.model import ReadPolicy
from tests.support.mesh import Town, until


async def test_a_peers_memory_is_handed_to_the_agent_that_wants_it(town: Town) -> None:
    a, b = [await town.node(name) for name in "ab"]
    project = await town.join("p", a, b)
    writer = await a.agent("writer", "anything at all", project)
    gardener = await b.agent("gardener", "roses garden soil", project)
    gardener = await b.agents.put("gardener", read_policy=ReadPolicy.SHARED)
    hermit = await b.agent("hermit", "roses garden soil", project)
    hermit = await b.agents.put("hermit", read_policy=ReadPolicy.ISOLATED)
    await b.place_agents()
    await a.linked(b)
    feed = Feed(b.context, lambda: gardener, 0)
    heard = []

    async def follow() -> None:
        heard.extend(await feed.read(1))

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            memory = await a.remember(writer, "the garden soil for roses is dry")
    assert [one.memory.id for one in heard] == [memory.id]
    assert await Feed(b.context, lambda: hermit, 0).read(1, 0.05) == []
    await a.forget(writer, memory.id)

    async def gone() -> bool:
        return not await b.has(memory.id)

    await until(gone, "b purged it")
    assert await Feed(b.context, lambda: gardener, 0).read(1, 0.05) == []
