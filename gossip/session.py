"""One link to one peer, from the hellos to its end: introductions, repair, and every message.

One task reads, one writes what nobody waits for, one asks, a few serve. The reader never waits
for the writer, only for room in bounded queues, so two nodes that serve each other much at once
cannot stand still together. A fault ends this link and nothing else.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

import trio

from gossip import carrying, introductions, repair
from gossip.answers import Answers, Fetching
from gossip.apply import CopyRefused, Inbound, open_copy
from gossip.channel import LinkError, PeerChannel
from gossip.contents import CONTENT_S, Contents, serve_content
from gossip.copies import AckIn, Refusal
from gossip.limits import Admission, Conduct, Standing, TokenBucket, Traffic
from gossip.liveness import Heard, Life, LinkDown, LinkUp
from gossip.mesh import Mesh
from gossip.outgoing import Outgoing
from gossip.spreading import Spreading
from gossip.wire.codec import WireError
from gossip.wire.messages import (
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
from storage import records
from storage.diffs import Signed
from storage.errors import MnemeshError
from storage.gate import serveable
from storage.model import MemoryId, ProjectId

log = logging.getLogger(__name__)

SERVERS = 4
SERVE_ROOM = 32
SMALL_BYTES = 64
MINUTE = 60
PROFILE_BURST = 3

Work: TypeAlias = Callable[[], Awaitable[None]]


@dataclass(slots=True)
class Session:
    """The conversation over one channel."""

    mesh: Mesh
    spreading: Spreading
    channel: PeerChannel
    out: Outgoing = field(init=False)
    contents: Contents = field(init=False)
    tombs: Answers[Tombs | TombSynced] = field(default_factory=Answers)
    pages: Answers[Page | Busy] = field(default_factory=Answers)
    fetched: Answers[FetchDone] = field(default_factory=Answers)
    fetching: Fetching = field(default_factory=Fetching)
    served: OrderedDict[bytes, Signed] = field(default_factory=OrderedDict)
    incoming: carrying.Incoming = field(default_factory=carrying.Incoming)
    sent: carrying.Sent = field(default_factory=carrying.Sent)
    profiles: TokenBucket = field(init=False)
    pulls: TokenBucket = field(init=False)
    work: trio.MemorySendChannel[Work] = field(init=False)
    waiting: trio.MemoryReceiveChannel[Work] = field(init=False)

    def __post_init__(self) -> None:
        mesh, limits = self.mesh, self.mesh.settings.limits
        mono = mesh.mono_ms()
        self.out = Outgoing(
            self.channel,
            lambda diff_id: mesh.relay.get(diff_id, mesh.mono_ms()),
            self._serveable,
            mesh.mono_ms,
            mesh.hooks.count,
        )
        self.contents = Contents(self.channel)
        per_min = limits.profiles_per_min
        self.profiles = TokenBucket(per_min, MINUTE * max(PROFILE_BURST, per_min), mono)
        pulls = limits.repair_per_min * max(1, len(self.channel.shared_projects))
        self.pulls = TokenBucket(pulls, MINUTE * pulls, mono)
        self.work, self.waiting = trio.open_memory_channel[Work](SERVE_ROOM)

    async def run(self) -> None:
        """Until the link ends. Raises LinkError or WireError with the reason."""
        mesh, peer = self.mesh, self.channel.peer_id
        if mesh.standing(peer) is Standing.DISCONNECT:
            await self.channel.aclose("conduct")
            return
        if not await self._only_link():
            return
        await introductions.met(mesh, self.channel)
        if self.channel.tombstones_only:
            mesh.hooks.count("old_peer_refused_total", peer.hex())
        mesh.outgoing[peer] = self.out
        introductions.observe(mesh, LinkUp(peer))
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.out.run)
                nursery.start_soon(self._ask)
                nursery.start_soon(carrying.carry, mesh, self.channel, self.sent)
                for _ in range(SERVERS):
                    nursery.start_soon(self._serve)
                await self._read(nursery)
        finally:
            if mesh.outgoing.get(peer) is self.out:
                del mesh.outgoing[peer]
                introductions.observe(mesh, LinkDown(peer))

    async def _only_link(self) -> bool:
        """Of two links between the same nodes the one that the smaller id dialled stays.

        Against a link over which nothing was heard lately the newer one stays: the other end
        of the older may be gone without a word.
        """
        own, peer = self.mesh.node.node_id, self.channel.peer_id
        silent = self.mesh.liveness.life(peer) is not Life.ALIVE
        for other in self.mesh.links.live(peer):
            if other is self.channel:
                continue
            mine = own if self.channel.outbound else peer
            theirs = own if other.outbound else peer
            if mine <= theirs or silent:
                await other.aclose("duplicate")
            else:
                await self.channel.aclose("duplicate")
                return False
        return not self.channel.closed

    async def _serveable(self, ids: Collection[MemoryId]) -> set[MemoryId]:
        return await self.mesh.db.read(serveable, list(ids))

    # Asking

    async def _ask(self) -> None:
        """Introduce this node, then repair now, and again whenever it is due."""
        mesh = self.mesh
        await introductions.introduce(mesh, self.channel)
        while True:
            due = mesh.repair_due
            wait = mesh.settings.repair.period_s * mesh.rng.uniform(0.8, 1.2)
            for project in sorted(self.channel.shared_projects):
                retry_ms = await self._repair(project)
                if retry_ms is not None:
                    wait = min(wait, max(retry_ms, repair.RETRY_MS) / 1000)
            with trio.move_on_after(wait):
                await due.wait()

    async def _repair(self, project: ProjectId) -> int | None:
        """Tombstones, then announcements; milliseconds after which to ask again, if the peer
        could not answer yet."""
        mesh, count = self.mesh, self.mesh.hooks.count
        try:
            with self.tombs.asking():
                complete = await repair.pull_tombstones(
                    mesh, self.channel, project, self.tombs.get, self._apply
                )
            count("repair_sessions_total", "tombstones" if complete else "diverged")
            if complete:
                introductions.synced(mesh, project, self.channel.peer_id)
            if self.channel.tombstones_only or mesh.model[:64] not in self.channel.hello.models:
                return None
            with self.pages.asking(), self.fetched.asking():
                pulled = await repair.pull_diffs(
                    mesh, self.channel, project, self.pages.get, self._fetch
                )
        except trio.TooSlowError:
            count("repair_sessions_total", "timeout")
            return None
        count("repair_sessions_total", pulled.verdict)
        return pulled.retry_ms

    async def _fetch(self, ids: Sequence[bytes]) -> int:
        self.fetching.ask(ids)
        await self.channel.send(Fetch(tuple(ids)))
        await self.fetched.get()
        return await self.fetching.kept(CONTENT_S)

    # Serving

    async def _serve(self) -> None:
        async for work in self.waiting:
            await work()

    def _enqueue(self, work: Work) -> None:
        """Have a question answered, unless the peer asked too much at once."""
        try:
            self.work.send_nowait(work)
        except trio.WouldBlock:
            self.mesh.hooks.count("repair_sessions_total", "refused")
            self.out.post(Busy(repair.RETRY_MS))

    async def _serve_page(self, ask: Pull) -> None:
        await self.channel.send(await repair.serve_page(self.mesh, self.channel, ask))

    # Reading

    async def _read(self, nursery: trio.Nursery) -> None:
        mesh, channel = self.mesh, self.channel
        while True:
            message = await channel.receive()
            mesh.last_contact[channel.peer_id] = mesh.node.wall()
            introductions.observe(mesh, Heard(channel.peer_id))
            admission = self._admit(message)
            await self._handle(message, admission, nursery)
            if mesh.standing(channel.peer_id) is Standing.DISCONNECT:
                await channel.aclose("conduct")
                return
            if admission.pause_ms:
                await trio.sleep(admission.pause_ms / 1000)

    def _admit(self, message: Message) -> Admission:
        traffic, size, n = Traffic.OTHER, SMALL_BYTES, 1
        match message:
            case Copy():
                traffic = Traffic.REPAIR if message.repair else Traffic.WALK
                size = len(message.body)
            case Tombs():
                traffic, n = Traffic.TOMBSTONE, len(message.records)
                size = sum(map(len, message.records))
            case Deliver() | Content():
                size = len(message.chunk)
            case ProfileMsg():
                size = len(message.body)
            case Cards():
                size = sum(map(len, message.cards))
            case Acl():
                size = len(message.document)
        mono = self.mesh.mono_ms()
        return self.mesh.limits.of(self.channel.peer_id, mono).admit(traffic, size, n, mono)

    async def _handle(self, message: Message, admission: Admission, nursery: trio.Nursery) -> None:
        mesh, channel = self.mesh, self.channel
        match message:
            case Ping():
                self.out.post(Pong(message.seq))
            case Copy():
                await self._copy(message, admission, nursery)
            case Ack():
                await self._acked(message)
            case Tombs() if message.upto_seq and self.tombs.asked:
                await self.tombs.put(message)
            case Tombs():
                await self._tombs(message)
            case TombSynced():
                await self.tombs.put(message)
            case TombsAck():
                if message.nonce == channel.own_nonce:
                    await carrying.tombs_acked(mesh, channel, self.sent, message)
            case TombPull():
                self._enqueue(partial(repair.serve_tombstones, mesh, channel, message))
            case Pull():
                if not message.after and not self.pulls.take(MINUTE, mesh.mono_ms()):
                    self.out.post(Busy(repair.RETRY_MS))
                else:
                    self._enqueue(partial(self._serve_page, message))
            case Fetch():
                self._enqueue(partial(repair.serve_fetch, mesh, channel, message, self.served))
            case Page() | Busy():
                await self.pages.put(message)
            case FetchDone():
                await self.fetched.put(message)
            case WantContent():
                self._enqueue(partial(serve_content, mesh, channel, message))
            case Content():
                await self.contents.put(message)
            case Deliver():
                answer = await carrying.delivered_to_us(mesh, channel, self.incoming, message)
                if answer is not None:
                    self.out.post(answer)
            case Delivered():
                if message.nonce == channel.own_nonce:
                    await carrying.delivered(mesh, channel, message)
            case ProfileMsg():
                if self.profiles.take(MINUTE, mesh.mono_ms()):
                    await introductions.profile_in(mesh, channel, message)
            case Cards():
                await introductions.cards_in(mesh, channel, message)
            case Acl():
                await introductions.acl_in(mesh, message)
            case _:
                return

    # Copies

    async def _copy(self, message: Copy, admission: Admission, nursery: trio.Nursery) -> None:
        mesh, peer = self.mesh, self.channel.peer_id
        read_ms = mesh.mono_ms()
        diff_id = records.record_id(records.DOMAIN_DIFF, message.body)
        if message.repair and not self.fetching.take(diff_id):
            mesh.hooks.count("refused_total", "unasked")
            return
        try:
            barred = mesh.standing(peer) is Standing.REPAIR_ONLY
            if not message.repair and (barred or not admission.accepted):
                raise CopyRefused(Refusal.RATE)
            inbound = open_copy(mesh, message.body, message.sig, peer)
            if inbound.record.content is None and self.contents.full:
                raise CopyRefused(Refusal.RATE)
        except CopyRefused as error:
            await self._refuse(message, diff_id, error.refusal)
            return
        if inbound.record.content is None and self._wants(inbound):
            nursery.start_soon(self._copy_by_reference, message, inbound, read_ms)
        else:
            await self._take(message, inbound, read_ms, inbound.record.content)

    async def _copy_by_reference(self, message: Copy, inbound: Inbound, read_ms: int) -> None:
        """A long content is fetched before its row is written, by those who want it."""
        try:
            content = await self.contents.fetch(inbound)
        except (CopyRefused, trio.TooSlowError):
            self.mesh.hooks.count("content_fetch_failed_total")
            await self._refuse(message, inbound.diff_id, Refusal.MALFORMED)
            return
        await self._take(message, inbound, read_ms, content)

    async def _take(
        self, message: Copy, inbound: Inbound, read_ms: int, content: str | None
    ) -> None:
        peer = self.channel.peer_id
        if not message.repair:
            await self.spreading.copy_in(peer, inbound, message.hop, read_ms, content)
            return
        kept = False
        try:
            status, reason = await repair.take(self.mesh, peer, inbound, content)
            kept = status in (AckStatus.STORED, AckStatus.DUP)
        finally:
            self.fetching.settle(inbound.diff_id, kept)
        self.out.post(Ack(inbound.diff_id, status, reason, self.channel.peer_nonce))

    async def _refuse(self, message: Copy, diff_id: bytes, refusal: Refusal) -> None:
        mesh, peer = self.mesh, self.channel.peer_id
        if not message.repair:
            await self.spreading.refused_copy(peer, diff_id, message.hop, refusal)
            return
        mesh.hooks.count("refused_total", refusal.value)
        if refusal in (Refusal.SIGNATURE, Refusal.NONCANONICAL):
            mesh.note(peer, Conduct.BAD_SIGNATURE)
        self.fetching.settle(diff_id, kept=False)
        self.out.post(Ack(diff_id, AckStatus.REFUSED, refusal.value, self.channel.peer_nonce))

    def _wants(self, inbound: Inbound) -> bool:
        own = self.mesh.own_profile
        return own is not None and own.wants(inbound.q)

    async def _acked(self, message: Ack) -> None:
        if message.nonce != self.channel.own_nonce:
            self.mesh.hooks.count("refused_total", "nonce")
            return
        peer = self.channel.peer_id
        signed = self.served.pop(message.diff_id, None)
        if signed is not None:
            await self.mesh.db.transact(repair.answered, self.mesh, peer, signed, message)
            return
        await self.spreading.ack_in(AckIn(peer, message.diff_id, message.status, message.reason))

    # Tombstones

    async def _tombs(self, message: Tombs) -> None:
        refused = await self._apply(message.records)
        ids = [records.record_id(b"", wire) for wire in message.records]
        bad = {records.record_id(b"", wire) for wire in refused}
        self.out.post(
            TombsAck(
                message.upto_seq,
                tuple(each for each in ids if each not in bad),
                tuple((each, "refused") for each in sorted(bad)),
                self.channel.peer_nonce,
            )
        )

    async def _apply(self, wires: Sequence[bytes]) -> set[bytes]:
        return await carrying.apply_records(self.mesh, self.channel.peer_id, wires)


async def handle(mesh: Mesh, spreading: Spreading, channel: PeerChannel) -> None:
    """Run a session until its link ends; the end of a link is no error of the node."""
    try:
        await Session(mesh, spreading, channel).run()
    except* (LinkError, WireError):
        mesh.hooks.count("links_ended_total")
    except* MnemeshError as group:
        for code in _codes(group):
            mesh.hooks.count("session_failed_total", code)
            log.warning("a link ended by a fault: %s", code)
    except* Exception:
        mesh.hooks.count("session_failed_total", "internal")
        log.exception("the task of a link failed; the node goes on")
    finally:
        await channel.aclose("fault")


def _codes(group: BaseExceptionGroup[MnemeshError]) -> Iterator[str]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _codes(error)
        else:
            yield error.code
