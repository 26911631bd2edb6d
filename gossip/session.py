"""One link to one peer, from the hellos to its end: introductions, repair, and every message.

One task reads, others ask; answers find their asker through small bounded channels. A fault ends
this link and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import trio

from gossip import carrying, introductions, repair
from gossip.apply import CopyRefused, Inbound, checked_content, open_copy, pass_gate, store
from gossip.channel import LinkError, PeerChannel
from gossip.copies import AckIn, Refusal
from gossip.limits import Standing, Traffic
from gossip.liveness import Heard, LinkDown, LinkUp
from gossip.mesh import Mesh
from gossip.spreading import Spreading
from gossip.wire.codec import WireError
from gossip.wire.messages import (
    MAX_CHUNK,
    Ack,
    AckStatus,
    Acl,
    Busy,
    Cards,
    Content,
    Copy,
    Deliver,
    Delivered,
    Fetch,
    FetchDone,
    Message,
    Page,
    Ping,
    Pong,
    ProfileMsg,
    Pull,
    TombPull,
    Tombs,
    TombsAck,
    TombSynced,
    WantContent,
)
from storage import deliveries, memories, records
from storage.errors import MnemeshError, ScopeErased, Tombstoned
from storage.gate import serveable
from storage.memories import Stored
from storage.model import MemoryId, ProjectId
from storage.pool import Tx

ANSWER_S = 20.0
CONTENT_S = 30.0
FETCHES = 4

A = TypeVar("A")


class Answers(Generic[A]):
    """A bounded way from the reader to whoever asked."""

    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[A](16)

    def put(self, answer: A) -> None:
        """Hand over an answer; one that nobody waits for is dropped with the oldest."""
        try:
            self._send.send_nowait(answer)
        except trio.WouldBlock:
            self._receive.receive_nowait()
            self._send.send_nowait(answer)

    async def get(self) -> A:
        """The next answer. Raises trio.TooSlowError."""
        with trio.fail_after(ANSWER_S):
            return await self._receive.receive()

    def clear(self) -> None:
        """Drop answers of an earlier question."""
        try:
            while True:
                self._receive.receive_nowait()
        except trio.WouldBlock:
            return


@dataclass(slots=True)
class Session:
    """The conversation over one channel."""

    mesh: Mesh
    spreading: Spreading
    channel: PeerChannel
    tombs: Answers[Tombs | TombSynced] = field(default_factory=Answers)
    pages: Answers[Page] = field(default_factory=Answers)
    fetched: Answers[FetchDone] = field(default_factory=Answers)
    contents: dict[bytes, Answers[Content]] = field(default_factory=dict)
    served: dict[bytes, MemoryId] = field(default_factory=dict)
    incoming: carrying.Incoming = field(default_factory=carrying.Incoming)
    sent: carrying.Sent = field(default_factory=carrying.Sent)
    pulling_tombstones: bool = False
    fetch_slots: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(FETCHES))

    async def run(self) -> None:
        """Until the link ends. Raises LinkError or WireError with the reason."""
        mesh, peer = self.mesh, self.channel.peer_id
        if not await self._only_link():
            return
        await introductions.met(mesh, self.channel)
        for effect in mesh.liveness.handle(LinkUp(peer), mesh.now()):
            introductions.life_changed(mesh, effect)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._ask)
                nursery.start_soon(carrying.carry, mesh, self.channel, self.sent)
                await self._read(nursery)
        finally:
            if not mesh.links.live(peer) or mesh.links.live(peer) == (self.channel,):
                for effect in mesh.liveness.handle(LinkDown(peer), mesh.now()):
                    introductions.life_changed(mesh, effect)

    async def _only_link(self) -> bool:
        """Of two links between the same nodes the one that the smaller id dialled stays."""
        own, peer = self.mesh.node.node_id, self.channel.peer_id
        for other in self.mesh.links.live(peer):
            if other is self.channel:
                continue
            mine = own if self.channel.outbound else peer
            theirs = own if other.outbound else peer
            if mine <= theirs:
                await other.aclose("duplicate")
            else:
                await self.channel.aclose("duplicate")
                return False
        return True

    # Asking

    async def _ask(self) -> None:
        """Introduce this node, then repair now, and again whenever it is due."""
        await introductions.introduce(self.mesh, self.channel)
        while True:
            due = self.mesh.repair_due
            for project in sorted(self.channel.shared_projects):
                await self._repair(project)
            with trio.move_on_after(self.mesh.settings.repair.period_s):
                await due.wait()

    async def _repair(self, project: ProjectId) -> None:
        mesh = self.mesh
        try:
            self.tombs.clear()
            self.pulling_tombstones = True
            complete = await repair.pull_tombstones(
                mesh, self.channel, project, self.tombs.get, self._apply_tombs
            )
            self.pulling_tombstones = False
            mesh.hooks.count("repair_sessions_total", "tombstones" if complete else "diverged")
            if complete:
                introductions.synced(mesh, project, self.channel.peer_id)
            if self.channel.tombstones_only:
                return
            self.pages.clear()
            self.fetched.clear()
            pulled = await repair.pull_diffs(
                mesh, self.channel, project, self.pages.get, self.fetched.get
            )
        except trio.TooSlowError:
            mesh.hooks.count("repair_sessions_total", "timeout")
            return
        finally:
            self.pulling_tombstones = False
        mesh.hooks.count("repair_sessions_total", "complete" if pulled.complete else "partial")
        mesh.hooks.count("repair_items_total", "diffs", pulled.fetched)

    # Reading

    async def _read(self, nursery: trio.Nursery) -> None:
        mesh, channel = self.mesh, self.channel
        while True:
            message = await channel.receive()
            mesh.last_contact[channel.peer_id] = mesh.node.wall()
            for effect in mesh.liveness.handle(Heard(channel.peer_id), mesh.now()):
                introductions.life_changed(mesh, effect)
            if (
                mesh.limits.of(channel.peer_id, mesh.mono_ms()).standing(mesh.mono_ms())
                is Standing.DISCONNECT
            ):
                await channel.aclose("conduct")
                return
            await self._handle(message, nursery)

    async def _handle(self, message: Message, nursery: trio.Nursery) -> None:
        mesh, channel = self.mesh, self.channel
        match message:
            case Ping():
                await channel.send(Pong(message.seq))
            case Copy():
                await self._copy(message, nursery)
            case Ack():
                await self._acked(message)
            case Tombs() if self.pulling_tombstones and message.upto_seq:
                self.tombs.put(message)
            case TombSynced():
                self.tombs.put(message)
            case Tombs():
                await self._tombs(message)
            case TombsAck():
                if message.nonce == channel.own_nonce:
                    await carrying.tombs_acked(mesh, channel, self.sent, message)
            case TombPull():
                await repair.serve_tombstones(mesh, channel, message)
            case Pull():
                nursery.start_soon(self._serve_page, message)
            case Fetch():
                nursery.start_soon(self._serve_fetch, message)
            case Page():
                self.pages.put(message)
            case FetchDone():
                self.fetched.put(message)
            case WantContent():
                nursery.start_soon(self._serve_content, message)
            case Content():
                if message.digest in self.contents:
                    self.contents[message.digest].put(message)
            case Deliver():
                await carrying.delivered_to_us(mesh, channel, self.incoming, message)
            case Delivered():
                if message.nonce == channel.own_nonce:
                    await carrying.delivered(mesh, channel, message)
            case ProfileMsg():
                await introductions.profile_in(mesh, channel, message)
            case Cards():
                await introductions.cards_in(mesh, channel, message)
            case Acl():
                await introductions.acl_in(mesh, message)
            case Busy():
                await trio.sleep(min(message.retry_ms, 10_000) / 1000)
            case _:
                return

    async def _serve_page(self, message: Pull) -> None:
        async with self.fetch_slots:
            await repair.serve_page(self.mesh, self.channel, message)

    async def _serve_fetch(self, message: Fetch) -> None:
        async with self.fetch_slots:
            await repair.serve_fetch(self.mesh, self.channel, message, self.served)

    async def _copy(self, message: Copy, nursery: trio.Nursery) -> None:
        mesh, peer = self.mesh, self.channel.peer_id
        read_ms = mesh.mono_ms()
        traffic = Traffic.REPAIR if message.repair else Traffic.WALK
        admission = mesh.limits.of(peer, read_ms).admit(traffic, len(message.body), 1, read_ms)
        diff_id = records.record_id(records.DOMAIN_DIFF, message.body)
        try:
            if not admission.accepted:
                raise CopyRefused(Refusal.RATE)
            inbound = open_copy(mesh, message.body, message.sig, peer)
        except CopyRefused as error:
            await self._refuse(message, diff_id, error.refusal)
        else:
            if inbound.record.content is None:
                nursery.start_soon(self._copy_by_reference, message, inbound, read_ms)
            else:
                await self._take(message, inbound, read_ms, inbound.record.content)
        if admission.pause_ms:
            await trio.sleep(admission.pause_ms / 1000)

    async def _copy_by_reference(self, message: Copy, inbound: Inbound, read_ms: int) -> None:
        """A long content is fetched before its row is written, by those who want it."""
        content: str | None = None
        try:
            if self._wants(inbound):
                async with self.fetch_slots:
                    content = await self._fetch_content(inbound)
        except (CopyRefused, trio.TooSlowError):
            self.mesh.hooks.count("content_fetch_failed_total")
            await self._refuse(message, inbound.diff_id, Refusal.MALFORMED)
            return
        await self._take(message, inbound, read_ms, content)

    async def _take(
        self, message: Copy, inbound: Inbound, read_ms: int, content: str | None
    ) -> None:
        if message.repair:
            await self._take_repair(inbound, content)
            return
        await self.spreading.copy_in(self.channel.peer_id, inbound, message.hop, read_ms, content)

    async def _take_repair(self, inbound: Inbound, content: str | None) -> None:
        mesh, channel = self.mesh, self.channel
        status, reason = AckStatus.RELAYED, ""
        try:
            if content is not None and self._wants(inbound):
                stored = await mesh.db.transact(_store_repaired, mesh, inbound, content)
                status = AckStatus.STORED if stored else AckStatus.DUP
                if stored:
                    await mesh.hooks.stored([stored])
        except (ScopeErased, Tombstoned) as error:
            status, reason = AckStatus.REFUSED, error.code
            mesh.hooks.count("resurrection_blocked_total", "G4")
        await channel.send(Ack(inbound.diff_id, status, reason, channel.peer_nonce))

    async def _refuse(self, message: Copy, diff_id: bytes, refusal: Refusal) -> None:
        if message.repair:
            self.mesh.hooks.count("refused_total", refusal.value)
            await self.channel.send(
                Ack(diff_id, AckStatus.REFUSED, refusal.value, self.channel.peer_nonce)
            )
            return
        await self.spreading.refused_copy(self.channel.peer_id, diff_id, message.hop, refusal)

    def _wants(self, inbound: Inbound) -> bool:
        own = self.mesh.own_profile
        return own is not None and own.wants(inbound.q)

    async def _acked(self, message: Ack) -> None:
        if message.nonce != self.channel.own_nonce:
            return
        peer = self.channel.peer_id
        memory_id = self.served.pop(message.diff_id, None)
        if memory_id is not None:
            held = message.status in (AckStatus.STORED, AckStatus.DUP)
            await self.mesh.db.transact(
                deliveries.set_holder, memory_id, peer, "stored" if held else "none"
            )
            return
        await self.spreading.ack_in(AckIn(peer, message.diff_id, message.status, message.reason))

    async def _tombs(self, message: Tombs) -> None:
        refused = await self._apply_tombs(message.records)
        ids = [records.record_id(b"", wire) for wire in message.records]
        bad = [records.record_id(b"", wire) for wire in refused]
        await self.channel.send(
            TombsAck(
                message.upto_seq,
                tuple(each for each in ids if each not in bad),
                tuple((each, "refused") for each in bad),
                self.channel.peer_nonce,
            )
        )

    async def _apply_tombs(self, wires: Sequence[bytes]) -> set[bytes]:
        return await carrying.apply_records(self.mesh, self.channel.peer_id, wires)

    # Long contents

    async def _fetch_content(self, inbound: Inbound) -> str:
        reference = inbound.record.content_ref
        if reference is None:
            raise CopyRefused(Refusal.MALFORMED)
        answers: Answers[Content] = Answers()
        self.contents[reference.digest] = answers
        received = bytearray()
        try:
            with trio.fail_after(CONTENT_S):
                while len(received) < reference.length:
                    await self.channel.send(
                        WantContent(inbound.record.memory, reference.digest, len(received))
                    )
                    piece = await answers.get()
                    if piece.total != reference.length or piece.offset != len(received):
                        raise CopyRefused(Refusal.MALFORMED)
                    received += piece.chunk
        finally:
            self.contents.pop(reference.digest, None)
        return checked_content(inbound, bytes(received))

    async def _serve_content(self, ask: WantContent) -> None:
        async with self.fetch_slots:
            content = await self.mesh.db.read(_content, self.mesh, self.channel, ask)
            if content is None or ask.offset >= len(content):
                await self.channel.send(Content(ask.digest, 0, 0, b""))
                return
            chunk = content[ask.offset : ask.offset + MAX_CHUNK]
            await self.channel.send(Content(ask.digest, len(content), ask.offset, chunk))


async def handle(mesh: Mesh, spreading: Spreading, channel: PeerChannel) -> None:
    """Run a session until its link ends; the end of a link is no error of the node."""
    try:
        await Session(mesh, spreading, channel).run()
    except* (LinkError, WireError):
        mesh.hooks.count("links_ended_total")
    except* MnemeshError as group:
        for error in group.exceptions:
            mesh.hooks.count("session_failed_total", getattr(error, "code", "internal"))
        await channel.aclose("fault")


async def _store_repaired(tx: Tx, mesh: Mesh, inbound: Inbound, content: str) -> Stored | None:
    await pass_gate(tx, mesh, inbound)
    return await store(tx, mesh, inbound, content)


async def _content(tx: Tx, mesh: Mesh, channel: PeerChannel, ask: WantContent) -> bytes | None:
    rows = await memories.by_ids(tx, [ask.memory])
    if not rows or rows[0].deleted_at is not None or rows[0].announced_at is None:
        return None
    row = rows[0]
    if row.project_id not in channel.shared_projects or not await serveable(tx, [row.id]):
        return None
    if row.project_id is None or not mesh.may_send_content(row.project_id):
        return None
    content = row.content.encode("utf-8")
    return content if records.content_digest(content) == ask.digest else None
