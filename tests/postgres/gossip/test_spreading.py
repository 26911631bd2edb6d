"""Memories and their ends between running nodes."""

from __future__ import annotations

from tests.support.mesh import Town, until


async def test_a_memory_reaches_the_peer_that_wants_it_and_no_other(town: Town) -> None:
    a, b, c = [await town.node(name) for name in "abc"]
    project = await town.join("p", a, b, c)
    writer = await a.agent("writer", "anything at all", project)
    await b.agent("gardener", "roses garden soil", project)
    await c.agent("sailor", "boats harbour wind", project)
    await a.linked(b, c)

    memory = await a.remember(writer, "the garden soil for roses is dry")
    await until(lambda: b.has(memory.id), "b has it")
    await until(lambda: _acked(a, memory.id, b.id), "ack is recorded")

    assert not await c.has(memory.id)
    assert await a.delivered(memory.id, b.id) == ["intent", "stored"]
    assert await a.holders(memory.id) == {b.id: "stored"}


async def _acked(node, memory_id, peer) -> bool:
    return "stored" in await node.delivered(memory_id, peer)
