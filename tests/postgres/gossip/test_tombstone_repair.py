"""Pulling tombstones: pages, marks, gaps, peers that were restored or that do not add up."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pytest

from gossip.channel import PeerChannel
from gossip.wire.messages import Message, TombPull, Tombs, TombSynced
from storage.model import ProjectId
from tests.support.memory import lit
from tests.support.mesh import FAST, MeshNode, Town, until

SETTINGS = replace(FAST, repair=replace(FAST.repair, period_s=600.0))


async def mark(node: MeshNode, peer: MeshNode) -> tuple[int, int]:
    """(acked, received) tombstone numbers of a peer."""
    rows = await node.rows(
        f"SELECT acked_recv_seq, received_recv_seq FROM sync_marks WHERE peer_id = {lit(peer.id)}"
    )
    return (rows[0][0], rows[0][1]) if rows else (0, 0)


async def tombstones(node: MeshNode) -> int:
    return int(await node.value("SELECT count(*) FROM tombstones"))


async def test_more_tombstones_than_a_page_come_whole_and_move_both_marks(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gossip.repair.TOMB_PAGE", 4)
    a, b = [await town.node(name, settings=SETTINGS) for name in "ab"]
    project = await town.join("p", a, b)
    writer = await a.agent("writer", "anything", project)
    ids = await a.remember_many(writer, [f"text {n}" for n in range(90)])
    await a.linked(b)
    await b.stop()
    await a.forget(writer, *ids)
    top = int(await a.value("SELECT max(recv_seq) FROM tombstones"))

    await b.start()
    await until(lambda: _count(b, 90), "all tombstones")
    await until(lambda: _marked(b, a, top), "the mark follows")
    b.mesh.repair_again()
    await until(lambda: _acked(a, b, top), "the acked mark follows")


class Spoken:
    """A peer that answers pulls of tombstones as the test says."""

    def __init__(self, channel: PeerChannel, project: ProjectId) -> None:
        self.channel = channel
        self.project = project

    async def asked(self) -> int:
        """The number behind which the node asks next."""
        while True:
            message = await self.channel.receive()
            if isinstance(message, TombPull):
                return message.after_seq

    async def answer(
        self, wires: list[bytes], upto: int, *, count: int | None = None, digest: bytes = b""
    ) -> None:
        if wires:
            await self.channel.send(Tombs(tuple(wires), upto))
        total = hashlib.sha256(b"".join(hashlib.sha256(wire).digest() for wire in wires))
        await self.channel.send(
            TombSynced(
                self.project,
                upto,
                len(wires) if count is None else count,
                digest or total.digest(),
            )
        )


async def spoken(town: Town) -> tuple[MeshNode, MeshNode, Spoken, list[bytes]]:
    """A node, a peer that speaks by hand, and three tombstones that the peer may sign."""
    a, m = [await town.node(name, settings=SETTINGS) for name in "am"]
    project = await town.join("p", a, m)
    writer = await m.agent("writer", "anything", project)
    await a.linked(m)
    await until(lambda: _card(a, project, writer.id), "the card is known")
    ids = await m.remember_many(writer, ["one", "two", "three"])
    await m.stop()
    await m.start(gossiping=False)
    await m.forget(writer, *ids)
    wires = [row["wire"] for row in await m.rows("SELECT wire FROM tombstones ORDER BY recv_seq")]
    await until(lambda: _unlinked(a), "the link is gone")
    return a, m, Spoken(await m.dial(a), project), wires


async def test_c_01_the_mark_does_not_pass_a_record_that_was_refused(town: Town) -> None:
    a, m, peer, wires = await spoken(town)
    start = await peer.asked()
    broken = wires[1][:-1] + bytes([wires[1][-1] ^ 1])
    await peer.answer([wires[0], broken, wires[2]], start + 3)
    await until(lambda: _count(a, 2), "what is valid is applied")
    await until(lambda: _said(a, "diverged"), "the session says so")
    assert (await mark(a, m))[1] == start
    a.mesh.repair_again()
    assert await peer.asked() == start
    await peer.answer(wires, start + 3)
    await until(lambda: _marked(a, m, start + 3), "the mark moves when all came")
    assert await tombstones(a) == 3


@pytest.mark.parametrize("lie", [{"count": 4}, {"digest": bytes(32)}])
async def test_a_sum_that_does_not_fit_is_a_divergence(town: Town, lie: dict[str, Any]) -> None:
    a, m, peer, wires = await spoken(town)
    start = await peer.asked()
    await peer.answer(wires, start + 3, **lie)
    await until(lambda: _said(a, "diverged"), "the session says so")
    assert (await mark(a, m))[1] == start
    assert await tombstones(a) == 3


async def test_a_restored_peer_is_asked_again_from_the_beginning(town: Town) -> None:
    a, m, peer, wires = await spoken(town)
    start = await peer.asked()
    await peer.answer([], start + 1_000)
    await until(lambda: _marked(a, m, start + 1_000), "the mark is high")
    a.mesh.repair_again()
    assert await peer.asked() == start + 1_000
    await peer.answer([], 3)
    assert await peer.asked() == 0
    await peer.answer(wires, 3)
    await until(lambda: _marked(a, m, 3), "the mark counts anew")
    assert await tombstones(a) == 3


async def test_a_restored_node_tells_a_peer_that_knows_more(town: Town) -> None:
    a, m, peer, _ = await spoken(town)
    await peer.asked()
    await peer.channel.send(TombPull(peer.project, 1_000_000))
    answer = await _heard(peer.channel, TombSynced)
    assert answer.upto_seq < 1_000_000
    assert (await mark(a, m))[0] == 0


async def _heard(channel: PeerChannel, kind: type[Message]) -> Any:
    while True:
        message = await channel.receive()
        if isinstance(message, kind):
            return message


async def _count(node: MeshNode, n: int) -> bool:
    return await tombstones(node) == n


async def _said(node: MeshNode, verdict: str) -> bool:
    return node.count("repair_sessions_total", verdict) > 0


async def _marked(node: MeshNode, peer: MeshNode, seq: int) -> bool:
    return (await mark(node, peer))[1] == seq


async def _acked(node: MeshNode, peer: MeshNode, seq: int) -> bool:
    return (await mark(node, peer))[0] == seq


async def _card(node: MeshNode, project: ProjectId, agent_id: bytes) -> bool:
    return agent_id in node.access.current.projects[project].cards


async def _unlinked(node: MeshNode) -> bool:
    return not node.mesh.links.live()
