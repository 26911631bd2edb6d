"""Memories between running nodes: who gets them, what is noted of it, long ones, late ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gossip.settings import AckSettings, GossipSettings
from storage.model import AgentProfile, MemoryId, NodeId, ProjectId, Visibility
from tests.support.mesh import FAST, SLOW_REPAIR, MeshNode, OtherEmbedder, Town, until

ROSES = "roses garden soil"
WORDS = "the garden soil for roses is dry"

ONE_TRY = replace(FAST, ack=AckSettings(timeout_s=0.1, retries=0))
"""A walk copy that finds no link is given up before its peer is back."""


async def pair(
    town: Town, settings: GossipSettings = FAST
) -> tuple[MeshNode, MeshNode, AgentProfile, ProjectId]:
    """Two linked nodes; the writer is at home on the first, the second wants roses."""
    a, b = [await town.node(name, settings=settings) for name in "ab"]
    project = await town.join("p", a, b)
    writer = await a.agent("writer", "anything at all", project)
    await b.agent("gardener", ROSES, project)
    await a.linked(b)
    return a, b, writer, project


async def stored(a: MeshNode, memory_id: MemoryId, peer: NodeId) -> None:
    """Wait until a peer's ack is written down."""

    async def noted() -> bool:
        return (await a.holders(memory_id)).get(peer) == "stored"

    await until(noted, "the holder is stored")


async def test_a_memory_reaches_the_peer_that_wants_it_and_no_other(town: Town) -> None:
    a, b, c = [await town.node(name, settings=SLOW_REPAIR) for name in "abc"]
    project = await town.join("p", a, b, c)
    writer = await a.agent("writer", "anything at all", project)
    await b.agent("gardener", ROSES, project)
    await c.agent("sailor", "boats harbour wind", project)
    await a.linked(b, c)
    await b.linked(c)
    await until(lambda: _complete(b), "nothing is left to repair")

    memory = await a.remember(writer, WORDS)
    await stored(a, memory.id, b.id)

    assert await b.has(memory.id)
    assert not await c.has(memory.id)
    assert await a.delivered(memory.id, b.id) == ["intent", "stored"]
    assert await a.delivered(memory.id, c.id) == []
    assert await a.holders(memory.id) == {b.id: "stored"}


async def test_a_private_memory_stays_where_it_is(town: Town) -> None:
    a, b, writer, _ = await pair(town)
    hidden = await a.remember(writer, WORDS, visibility=Visibility.PRIVATE)
    shown = await a.remember(writer, WORDS + " again")
    await stored(a, shown.id, b.id)
    assert await b.live() == {shown.id}
    assert await a.holders(hidden.id) == {}


async def test_long_contents_are_fetched_by_those_who_want_them(town: Town) -> None:
    a, b, writer, project = await pair(town)
    c = await town.node("c")
    await town.admit("p", a, c)
    await c.agent("sailor", "boats harbour wind", project)
    await a.linked(b, c)

    texts = [WORDS + " " + "roses soil garden " * n for n in (1_200, 12_000)]
    ids = await a.remember_many(writer, texts)
    for memory_id, text in zip(ids, texts, strict=True):
        await stored(a, memory_id, b.id)
        row = await b.value(f"SELECT content FROM memories WHERE id = '\\x{memory_id.hex()}'")
        assert row == text.strip()
    assert [len(text) > 16 * 1024 for text in texts] == [True, True]
    assert await c.live() == set()
    assert c.count("content_fetch_failed_total") == 0


async def test_an_agent_beyond_its_rate_waits_and_delays_no_other(town: Town) -> None:
    slow = replace(
        FAST,
        limits=replace(FAST.limits, agent_diffs_per_s=2),
        repair=replace(FAST.repair, period_s=600.0),
    )
    a, b, writer, project = await pair(town, settings=slow)
    other = await a.agent("other", "anything else", project)
    many = await a.remember_many(writer, [f"{WORDS} number {n}" for n in range(8)])
    one = await a.remember(other, WORDS)

    await stored(a, one.id, b.id)
    sent = {memory_id for memory_id in many if await a.holders(memory_id)}
    assert len(sent) < len(many)
    await until(lambda: _all_live(b, {*many, one.id}), "all arrive in time")


async def test_c_20_what_was_published_while_a_node_was_down_comes_by_repair(town: Town) -> None:
    a, b, writer, _ = await pair(town, ONE_TRY)
    await b.stop()
    await until(lambda: _unlinked(a), "the link is gone")
    ids = await a.remember_many(writer, [f"{WORDS} number {n}" for n in range(100)])
    await until(lambda: _given_up(a, 100), "walks had their time")
    before = a.count("copies_total", "out,sent")

    b.counted.clear()
    await b.start()
    await until(lambda: _all_live(b, set(ids)), "all are back")
    assert b.count("repair_sessions_total", "complete") <= 2
    assert b.count("walk_stop_total") == 0
    assert b.count("copies_total", "out,sent") == 0
    assert a.count("copies_total", "out,sent") == before


async def test_repair_goes_through_more_than_one_page(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gossip.repair.PAGE_IDS", 16)
    monkeypatch.setattr("gossip.repair.SCAN_PAGE", 10)
    a, b, writer, _ = await pair(town, ONE_TRY)
    await b.stop()
    ids = await a.remember_many(writer, [f"{WORDS} number {n}" for n in range(90)])
    await until(lambda: _given_up(a, 90), "walks had their time")
    await b.start()
    await until(lambda: _all_live(b, set(ids)), "all are back")

    async def counted() -> bool:
        return b.count("repair_items_total", "diffs") == 90

    await until(counted, "all came by repair, each once")


async def test_a_late_member_gets_what_is_no_longer_announced_and_only_once(town: Town) -> None:
    a, b, writer, project = await pair(town)
    ids = await a.remember_many(writer, [f"{WORDS} number {n}" for n in range(5)])
    for memory_id in ids:
        await stored(a, memory_id, b.id)
    for node in (a, b):
        await node.change("DELETE FROM diffs")

    c = await town.node("c")
    await town.admit("p", a, c)
    await c.agent("florist", ROSES, project)
    await until(lambda: _all_live(c, set(ids)), "c has what it wants of old memories")
    for memory_id in ids:
        await stored(a, memory_id, c.id)
    revived = await a.rows("SELECT fanout FROM seen WHERE outcome = 'revived'")
    assert [row["fanout"] for row in revived] == [0] * 5
    await a.change("DELETE FROM diffs")
    await c.stop()
    c.counted.clear()
    await c.start()
    await a.linked(c)
    await until(lambda: _complete(c), "a full session was held")
    assert await a.value("SELECT count(*) FROM diffs") == 0


async def test_models_that_differ_exchange_tombstones_and_no_content(town: Town) -> None:
    a, b = await town.node("a"), await town.node("b", embedder=OtherEmbedder())
    project = await town.join("p", a, b)
    writer = await a.agent("writer", "anything at all", project)
    await b.agent("gardener", ROSES, project)
    await a.linked(b)

    memory = await a.remember(writer, WORDS)
    await until(lambda: _walked(a, 1), "the walk had its time")
    await a.forget(writer, memory.id)
    await until(lambda: b.tombstoned(memory.id), "the tombstone crosses")
    assert await b.live() == set()
    assert await b.value("SELECT count(*) FROM diffs WHERE model = 'fake@64#0000'") == 0


async def _all_live(node: MeshNode, ids: set[MemoryId]) -> bool:
    return ids <= await node.live()


async def _walked(node: MeshNode, n: int) -> bool:
    return int(await node.value("SELECT count(*) FROM seen")) >= n


async def _given_up(node: MeshNode, n: int) -> bool:
    return node.count("deliveries_total", "timeout") >= n


async def _complete(node: MeshNode) -> bool:
    return node.count("repair_sessions_total", "complete") >= 2


async def _unlinked(node: MeshNode) -> bool:
    return not node.mesh.links.live()
