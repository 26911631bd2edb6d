"""The outbox of this node to one peer, and a peer's outbox to us.

Rows are durable: they leave in the order fence, notice, tombstone, document, head, are repeated
with the same bytes until the peer says that it has them, and a restart loses none. Only this
module changes the state of a row.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import groupby

import trio

from erasure import forget, notices, receipts
from gossip.channel import PeerChannel
from gossip.mesh import Mesh
from gossip.wire.messages import (
    MAX_CHUNK,
    MAX_FRAME,
    MAX_OBJECT,
    MAX_TOMB,
    Deliver,
    Delivered,
    DeliveredStatus,
    Tombs,
    TombsAck,
    Topic,
)
from storage import outbox, records, tombstones
from storage.errors import InvalidInput, MnemeshError
from storage.model import NodeId, OutboxItem, Scope, ScopeKind
from storage.outbox import Topic as RowTopic
from storage.pool import Tx
from storage.records import FenceBody, InvalidRecord, TombstoneBody

BATCH = 256
POLL_S = 1.0
PARTS = 16
MAX_INCOMING = 2 * MAX_OBJECT
MAX_SENT = 4_096
MAX_STAMP = 2**63 - 1


@dataclass(slots=True)
class Sent:
    """Tombstone records on their way to the peer: record id to the row's subject, bounded; the
    row of one that is pushed out is sent again."""

    subjects: OrderedDict[bytes, bytes] = field(default_factory=OrderedDict)

    def note(self, record_id: bytes, subject: bytes) -> None:
        """A record leaves."""
        self.subjects[record_id] = subject
        self.subjects.move_to_end(record_id)
        while len(self.subjects) > MAX_SENT:
            self.subjects.popitem(last=False)


@dataclass(slots=True)
class Incoming:
    """Documents of which some chunks have come, at most 2 MiB of them for one link.

    A document comes in order and is started over by its first chunk; the oldest one makes room.
    """

    _parts: OrderedDict[tuple[Topic, bytes], tuple[int, bytearray]] = field(
        default_factory=OrderedDict
    )

    @property
    def size(self) -> int:
        """Bytes that wait for the rest of their document."""
        return sum(len(held) for _, held in self._parts.values())

    def add(self, message: Deliver) -> bytes | None:
        """Keep a chunk; the whole document when this was its last one."""
        key = (message.topic, message.subject)
        if message.offset == 0:
            self._parts.pop(key, None)
            self._parts[key] = (message.total, bytearray())
        held = self._parts.get(key)
        if held is None or held[0] != message.total or len(held[1]) != message.offset:
            self._parts.pop(key, None)
            return None
        held[1].extend(message.chunk)
        if len(held[1]) == message.total:
            del self._parts[key]
            return bytes(held[1])
        while len(self._parts) > PARTS or self.size > MAX_INCOMING:
            self._parts.popitem(last=False)
        return None


async def carry(mesh: Mesh, channel: PeerChannel, sent: Sent) -> None:
    """Send what is due to this peer, until the link ends; a poll each second is the guarantee."""
    while True:
        due = mesh.outbox_due
        rows = await mesh.db.read(outbox.ready, channel.peer_id, mesh.node.wall(), BATCH)
        if rows:
            await _send_rows(mesh, channel, sent, rows)
        if len(rows) < BATCH:
            with trio.move_on_after(POLL_S):
                await due.wait()


async def tombs_acked(mesh: Mesh, channel: PeerChannel, sent: Sent, message: TombsAck) -> None:
    """Settle the rows of tombstones that the peer has."""
    subjects = [sent.subjects.pop(each) for each in message.ids if each in sent.subjects]
    if subjects:
        await mesh.db.transact(
            outbox.mark_done, RowTopic.TOMBSTONE, channel.peer_id, subjects, mesh.node.wall()
        )
    if message.refused:
        mesh.hooks.count("tombstones_refused_total", "", len(message.refused))


async def delivered(mesh: Mesh, channel: PeerChannel, message: Delivered) -> None:
    """Settle a document's row, unless the peer refused it: then it is offered again later."""
    if message.status is DeliveredStatus.REFUSED:
        mesh.hooks.count("documents_refused_total", message.topic.value)
        return
    await mesh.db.transact(
        outbox.mark_done,
        RowTopic(message.topic.value),
        channel.peer_id,
        [message.subject],
        mesh.node.wall(),
    )


async def apply_records(mesh: Mesh, peer: NodeId, wires: Sequence[bytes]) -> set[bytes]:
    """Apply tombstones and fences from a peer; those that were refused come back.

    A tombstone of a scope whose fence stands here is no news and counts as applied.
    """
    refused: set[bytes] = set()
    gone: list[bytes] = []
    for wire in wires:
        try:
            if _is_fence(wire):
                verdict = await notices.accept_fence(mesh.erasure, wire, peer)
                if verdict.startswith("refused"):
                    refused.add(wire)
                continue
            done = await mesh.db.transact(
                forget.apply_tombstone, mesh.node, mesh.access.current, wire, peer=peer
            )
        except InvalidInput as error:
            if await mesh.db.read(_covered, mesh, wire):
                continue
            mesh.hooks.count("refused_total", error.code)
            refused.add(wire)
            continue
        gone += done.gone
        gone += done.already
    if gone:
        mesh.relay.drop_memories(gone)
        await mesh.hooks.forgotten(gone)
        mesh.wake_outbox()
    return refused


async def delivered_to_us(
    mesh: Mesh, channel: PeerChannel, incoming: Incoming, message: Deliver
) -> Delivered | None:
    """Gather the chunks of a document, hand the whole to the erasure layer; the answer then."""
    body = incoming.add(message)
    if body is None:
        return None
    verdict = await _accept(mesh, channel.peer_id, message.topic, body)
    status, _, reason = verdict.partition(":")
    answers = {
        "applied": DeliveredStatus.STORED,
        "accepted": DeliveredStatus.STORED,
        "refused": DeliveredStatus.REFUSED,
    }
    return Delivered(
        message.topic,
        message.subject,
        answers.get(status, DeliveredStatus.DUP),
        reason[:48],
        channel.peer_nonce,
    )


async def _accept(mesh: Mesh, peer: NodeId, topic: Topic, body: bytes) -> str:
    try:
        match topic:
            case Topic.FENCE:
                return await notices.accept_fence(mesh.erasure, body, peer)
            case Topic.NOTICE:
                return await notices.accept_notice(mesh.erasure, body, peer)
            case Topic.DOCUMENT:
                return await receipts.record_document(mesh.erasure, peer, body)
            case Topic.LEDGER_HEAD:
                return await receipts.record_head(mesh.erasure, peer, body)
    except InvalidInput as error:
        mesh.hooks.count("refused_total", error.code)
        return f"refused:{error.code}"
    except MnemeshError as error:
        if error.retryable:
            raise
        return f"refused:{error.code}"


async def _send_rows(
    mesh: Mesh, channel: PeerChannel, sent: Sent, rows: Sequence[OutboxItem]
) -> None:
    await mesh.db.transact(_mark_sent, mesh, rows)
    for topic, items in groupby(rows, key=lambda row: row.topic):
        if topic == RowTopic.TOMBSTONE:
            await _send_tombstones(channel, sent, list(items))
        else:
            for item in items:
                await _send_document(channel, item)


async def _send_tombstones(channel: PeerChannel, sent: Sent, items: Sequence[OutboxItem]) -> None:
    page: list[bytes] = []
    room = MAX_FRAME - 1024
    for item in items:
        if page and len(item.body) + 8 > room:
            await channel.send(Tombs(tuple(page), 0))
            page, room = [], MAX_FRAME - 1024
        sent.note(records.record_id(b"", item.body), item.subject)
        page.append(item.body)
        room -= len(item.body) + 8
    if page:
        await channel.send(Tombs(tuple(page), 0))


async def _send_document(channel: PeerChannel, item: OutboxItem) -> None:
    for offset in range(0, len(item.body), MAX_CHUNK):
        chunk = item.body[offset : offset + MAX_CHUNK]
        await channel.send(Deliver(Topic(item.topic), item.subject, len(item.body), offset, chunk))


async def _mark_sent(tx: Tx, mesh: Mesh, rows: Sequence[OutboxItem]) -> None:
    """Retry later than the last time: doubling from half a second to five minutes, with jitter."""
    settings = mesh.settings.outbox
    now = mesh.node.wall()
    by_attempt = sorted(rows, key=lambda row: row.attempts)
    for attempts, items in groupby(by_attempt, key=lambda row: row.attempts):
        wait = min(settings.retry_max_s, settings.retry_min_s * 2 ** min(attempts + 1, 20))
        wait *= mesh.rng.uniform(0.8, 1.2)
        await outbox.mark_sent(tx, [item.id for item in items], now + timedelta(seconds=wait))


async def _covered(tx: Tx, mesh: Mesh, wire: bytes) -> bool:
    """True for the tombstone of a memory that a fence here refuses already.

    The agent's card may be gone after its erasure, and with it the proof of the signature.
    """
    try:
        sealed = records.open_sealed(wire, max_bytes=MAX_TOMB)
        body = records.decode(sealed.b, TombstoneBody)
    except InvalidInput:
        return False
    project = Scope(ScopeKind.PROJECT, body.project) if body.project else None
    return await tombstones.fence_covers(
        tx,
        agent_handle=mesh.node.handle(Scope(ScopeKind.AGENT, body.agent)),
        agent_epoch=body.agent_epoch,
        project_handle=mesh.node.handle(project) if project else None,
        project_epoch=body.project_epoch,
        hlc=MAX_STAMP,
    )


def _is_fence(wire: bytes) -> bool:
    sealed = records.open_sealed(wire, max_bytes=MAX_TOMB)
    try:
        records.decode(sealed.b, FenceBody)
    except InvalidRecord:
        return False
    return True
