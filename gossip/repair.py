"""Completeness by pulling: tombstones first, then the announcements that this node wants.

A simple exchange by pages. Tombstones go by the sender's own numbers, so a peer that has all up
to one number asks for what follows. Announcements go by id: the server names those that the
asker's profile wants, the asker fetches what it lacks. Repair never starts or feeds a walk.

`serve_*` answer a peer, `pull_*` ask one; each pull ends with a verdict that is only success when
the server's last word agrees with what arrived.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from gossip.affinity import quantised
from gossip.announcing import HOUR_MS, announce_again
from gossip.apply import Inbound, blame, enter, pass_gate_of_row, store
from gossip.channel import PeerChannel
from gossip.copies import Refusal
from gossip.mesh import Mesh
from gossip.wire.messages import (
    IDS_PER_FETCH,
    MAX_FRAME,
    Ack,
    AckStatus,
    Busy,
    Copy,
    Fetch,
    FetchDone,
    Hop,
    Page,
    Pull,
    TombPull,
    Tombs,
    TombSynced,
)
from storage import clock, deliveries, diffs, memories, peers, tombstones
from storage.diffs import Signed
from storage.errors import MnemeshError, ScopeErased, Tombstoned
from storage.gate import serveable
from storage.memories import Stored
from storage.model import NodeId, ProjectId
from storage.pool import Tx

TOMB_PAGE = 256
SCAN_PAGE = 1_000
PAGE_IDS = 512
MAX_PAGES = 1_024
MAX_SERVED = 4_096
RETRY_MS = 1_000
MAX_HLC = 2**63 - 1
ROOM = MAX_FRAME - 1024
REPAIR_HOP = Hop(0, 0, 0, 0, 0, ())


@dataclass(frozen=True, slots=True)
class Pulled:
    """What one pull session with a peer brought. `retry_ms`: the peer could not answer yet."""

    project: ProjectId
    asked: int = 0
    kept: int = 0
    retry_ms: int | None = None
    cut: bool = False

    @property
    def verdict(self) -> str:
        """`complete` only when everything that the peer named is here."""
        if self.retry_ms is not None:
            return "busy"
        return "partial" if self.cut or self.kept < self.asked else "complete"


async def serve_tombstones(mesh: Mesh, channel: PeerChannel, ask: TombPull) -> None:
    """Send a project's tombstones and all fences behind a number, and what they add up to.

    The number also tells that the peer has everything up to it. One beyond our own says that
    this node was restored; the answer then names the smaller one, and the peer asks from 0.
    """
    if ask.project not in channel.shared_projects:
        return
    top = await mesh.db.read(tombstones.last_seq)
    acked = ask.after_seq if ask.after_seq <= top else 0
    await mesh.db.transact(peers.set_acked, channel.peer_id, ask.project, acked)
    digest, count, after = hashlib.sha256(), 0, ask.after_seq
    while True:
        page = await mesh.db.read(tombstones.page, ask.project, after, TOMB_PAGE)
        if not page:
            break
        for records in _by_size([wire for _, wire in page]):
            await channel.send(Tombs(tuple(records), page[-1][0]))
        for _, wire in page:
            digest.update(hashlib.sha256(wire).digest())
        count += len(page)
        after = page[-1][0]
    # Numbers become visible in their order, so the pages had everything up to `top`.
    upto = max(top, after) if count else top
    await channel.send(TombSynced(ask.project, upto, count, digest.digest()))


async def pull_tombstones(
    mesh: Mesh,
    channel: PeerChannel,
    project: ProjectId,
    receive: Callable[[], Awaitable[Tombs | TombSynced]],
    apply: Callable[[Sequence[bytes]], Awaitable[set[bytes]]],
) -> bool:
    """Fetch what the peer's tombstones have that ours lack; True when nothing is missing.

    `apply` takes signed records and returns those that it refused. The mark that spares the next
    pull moves only when every record arrived and none was refused. Raises trio.TooSlowError.
    """
    mark = await mesh.db.read(peers.sync_mark, channel.peer_id, project)
    after = mark.received
    for _ in range(2):
        await channel.send(TombPull(project, after))
        digest, count, refused = hashlib.sha256(), 0, 0
        while True:
            message = await receive()
            if isinstance(message, TombSynced):
                if message.project == project:
                    break
                continue
            refused += len(await apply(message.records))
            for wire in message.records:
                digest.update(hashlib.sha256(wire).digest())
            count += len(message.records)
        if message.upto_seq < after:
            # The peer counts anew, as after a restore: our mark means nothing to it.
            after = 0
            continue
        if count != message.count or digest.digest() != message.digest or refused:
            return False
        await mesh.db.transact(
            peers.set_received, channel.peer_id, project, message.upto_seq, mesh.node.wall()
        )
        return True
    return False


async def serve_page(mesh: Mesh, channel: PeerChannel, ask: Pull) -> Page | Busy:
    """Name the announcements behind a cursor that the asker's profile wants.

    Busy while this node may not speak of content or does not know that profile: an empty page
    would say that there is nothing.
    """
    profile = mesh.profiles.get(channel.peer_id)
    if (
        ask.project not in channel.shared_projects
        or not mesh.may_send_content(ask.project)
        or profile is None
        or profile.version != ask.profile_version
    ):
        return Busy(RETRY_MS)
    if ask.full and not ask.after:
        await announce_again(mesh, ask.project, profile)
    place = _place(ask.after)
    wanted: list[bytes] = []
    while True:
        rows = await mesh.db.read(diffs.page, ask.project, place, SCAN_PAGE)
        for row in rows:
            place = (row.hlc, row.diff_id)
            if row.model == profile.model and profile.wants(quantised(row.q8)):
                wanted.append(row.diff_id)
            if len(wanted) == PAGE_IDS:
                return Page(ask.project, tuple(wanted), _cursor(place), False)
        if len(rows) < SCAN_PAGE:
            return Page(ask.project, tuple(wanted), b"", True)


async def serve_fetch(
    mesh: Mesh, channel: PeerChannel, ask: Fetch, served: OrderedDict[bytes, Signed]
) -> None:
    """Send announcements by id: rows that say so first, frames after. `served` notes them.

    Each is asked for again just before it leaves; what was forgotten meanwhile is missing.
    """
    ready = await mesh.db.transact(_record_served, mesh, channel, ask.ids)
    sent: set[bytes] = set()
    for signed in ready:
        if not await mesh.db.read(serveable, [signed.memory_id]):
            continue
        served[signed.diff_id] = signed
        while len(served) > MAX_SERVED:
            served.popitem(last=False)
        await channel.send(Copy(signed.body, signed.sig, REPAIR_HOP, True))
        sent.add(signed.diff_id)
    await channel.send(FetchDone(len(sent), tuple(each for each in ask.ids if each not in sent)))


async def pull_diffs(
    mesh: Mesh,
    channel: PeerChannel,
    project: ProjectId,
    receive: Callable[[], Awaitable[Page | Busy]],
    fetch: Callable[[Sequence[bytes]], Awaitable[int]],
) -> Pulled:
    """Fetch announcements of a project that this node wants and lacks.

    `fetch` asks for some by id and returns how many are here now; the copies come through the
    session's reader. Once an hour the peer is asked for everything, also for what it no longer
    announces. Raises trio.TooSlowError.
    """
    profile = mesh.own_profile
    if profile is None:
        return Pulled(project)
    key, mono = (channel.peer_id, project), mesh.mono_ms()
    full = mono - mesh.caught_up.get(key, -HOUR_MS) >= HOUR_MS
    asked = kept = 0
    cursor = b""
    for _ in range(MAX_PAGES):
        await channel.send(Pull(project, profile.version, cursor, full))
        page = await receive()
        if isinstance(page, Busy):
            return Pulled(project, asked, kept, page.retry_ms)
        known = await mesh.db.read(diffs.known, list(page.ids))
        lacking = [diff_id for diff_id in dict.fromkeys(page.ids) if diff_id not in known]
        asked += len(lacking)
        for start in range(0, len(lacking), IDS_PER_FETCH):
            kept += await fetch(lacking[start : start + IDS_PER_FETCH])
        if page.last:
            if full and kept == asked:
                mesh.caught_up[key] = mono
            return Pulled(project, asked, kept)
        if page.project != project or page.next <= cursor:
            break
        cursor = page.next
    return Pulled(project, asked, kept, cut=True)


async def take(
    mesh: Mesh, peer: NodeId, inbound: Inbound, content: str | None
) -> tuple[AckStatus, str]:
    """Store a copy that was fetched, when it is wanted and may be here; the answer to it."""
    own = mesh.own_profile
    if content is None or own is None or not own.wants(inbound.q):
        return AckStatus.RELAYED, ""
    try:
        stored = await mesh.db.transact(_store, mesh, inbound, content)
    except (ScopeErased, Tombstoned) as error:
        mesh.hooks.count("resurrection_blocked_total", "G4")
        return AckStatus.REFUSED, (await blame(mesh, peer, inbound, error)).value
    except MnemeshError as error:
        if error.retryable:
            raise
        mesh.hooks.count("refused_total", Refusal.MALFORMED.value)
        return AckStatus.REFUSED, Refusal.MALFORMED.value
    if stored is None:
        return AckStatus.DUP, ""
    await mesh.hooks.stored([stored])
    mesh.hooks.count("repair_items_total", "diffs")
    return AckStatus.STORED, ""


async def answered(tx: Tx, mesh: Mesh, peer: NodeId, signed: Signed, ack: Ack) -> None:
    """Note what the peer did with a copy that it had fetched."""
    await deliveries.record(
        tx,
        diff_id=signed.diff_id,
        memory_id=signed.memory_id,
        project_id=signed.project_id,
        recipient=peer,
        to_agent=False,
        role="store",
        status=ack.status.value,
        reason=ack.reason or None,
        hlc=mesh.node.clock.now(),
        now=mesh.node.wall(),
    )
    held = ack.status in (AckStatus.STORED, AckStatus.DUP)
    await deliveries.set_holder(tx, signed.memory_id, peer, "stored" if held else "none")


async def _store(tx: Tx, mesh: Mesh, inbound: Inbound, content: str) -> Stored | None:
    await enter(tx, mesh, inbound)
    return await store(tx, mesh, inbound, content)


async def _record_served(
    tx: Tx, mesh: Mesh, channel: PeerChannel, ids: Sequence[bytes]
) -> list[Signed]:
    """Those that may leave, oldest first, each noted as served and its holder as possible.

    The memories' rows are locked, so that a forget waits and finds the new holders.
    """
    profile = mesh.profiles.get(channel.peer_id)
    if profile is None:
        return []
    found = [
        row
        for row in await diffs.by_ids(tx, ids)
        if row.project_id in channel.shared_projects
        and mesh.may_send_content(row.project_id)
        and profile.wants(quantised(row.q8))
    ]
    rows = await memories.by_ids(tx, [row.memory_id for row in found], lock=True)
    alive = {row.id: row for row in rows if row.deleted_at is None}
    ready: list[Signed] = []
    for signed in sorted(found, key=lambda row: row.hlc):
        row = alive.get(signed.memory_id)
        if row is None:
            continue
        try:
            await pass_gate_of_row(tx, mesh, row)
        except (ScopeErased, Tombstoned):
            continue
        await _note_served(tx, mesh, channel.peer_id, signed)
        ready.append(signed)
    return ready


async def _note_served(tx: Tx, mesh: Mesh, peer: NodeId, row: Signed) -> None:
    seq = await deliveries.record(
        tx,
        diff_id=row.diff_id,
        memory_id=row.memory_id,
        project_id=row.project_id,
        recipient=peer,
        to_agent=False,
        role="store",
        status="served",
        hlc=mesh.node.clock.now(),
        now=mesh.node.wall(),
    )
    await deliveries.hold(
        tx,
        row.memory_id,
        peer,
        row.project_id,
        row.agent_id,
        state="possible",
        seq=seq or 0,
    )


def _by_size(wires: Sequence[bytes]) -> list[list[bytes]]:
    """Pages that fit into a frame each."""
    pages: list[list[bytes]] = []
    room = 0
    for wire in wires:
        if not pages or len(wire) + 8 > room:
            pages.append([])
            room = ROOM
        pages[-1].append(wire)
        room -= len(wire) + 8
    return pages


def _cursor(place: tuple[int, bytes]) -> bytes:
    return clock.to_bytes(place[0]) + place[1]


def _place(cursor: bytes) -> tuple[int, bytes]:
    if len(cursor) != 40:
        return diffs.START
    return min(int.from_bytes(cursor[:8], "big"), MAX_HLC), cursor[8:]
