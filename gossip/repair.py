"""Completeness by pulling: tombstones first, then the announcements that this node wants.

A simple exchange by pages. Tombstones go by the sender's own numbers, so a peer that has all up
to one number asks for what follows. Announcements go by id: the server names those that the
asker's profile wants, the asker fetches what it lacks. Repair never starts or feeds a walk.

`serve_*` answer a peer, `pull_*` ask one; each pull ends with a verdict that is only success when
the server's last word agrees with what arrived.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from gossip.affinity import quantised
from gossip.channel import PeerChannel
from gossip.mesh import Mesh
from gossip.wire.messages import (
    IDS_PER_FETCH,
    MAX_FRAME,
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
from storage import clock, deliveries, diffs, peers, tombstones
from storage.gate import serveable
from storage.model import MemoryId, NodeId, ProjectId
from storage.pool import Tx

TOMB_PAGE = 256
SCAN_PAGE = 1_000
PAGE_IDS = 512
ROOM = MAX_FRAME - 1024
REPAIR_HOP = Hop(0, 0, 0, 0, 0, ())


@dataclass(frozen=True, slots=True)
class Pulled:
    """What one pull session with a peer brought."""

    project: ProjectId
    asked: int
    fetched: int
    missing: int

    @property
    def complete(self) -> bool:
        """True when everything that was asked for came."""
        return self.missing == 0


async def serve_tombstones(mesh: Mesh, channel: PeerChannel, ask: TombPull) -> None:
    """Send a project's tombstones and all fences behind a number, and what they add up to.

    The number also tells that the peer has everything up to it.
    """
    if ask.project not in channel.shared_projects:
        return
    await mesh.db.transact(peers.set_acked, channel.peer_id, ask.project, ask.after_seq)
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
    upto = max(after, await mesh.db.read(tombstones.last_seq))
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
    pull moves only when every record arrived and none was refused.
    """
    mark = await mesh.db.read(peers.sync_mark, channel.peer_id, project)
    after = mark.received
    for _ in range(2):
        await channel.send(TombPull(project, after))
        digest, count, refused = hashlib.sha256(), 0, 0
        while True:
            message = await receive()
            if isinstance(message, TombSynced):
                break
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


async def serve_page(mesh: Mesh, channel: PeerChannel, ask: Pull) -> None:
    """Name the announcements behind a cursor that the asker's profile wants."""
    profile = mesh.profiles.get(channel.peer_id)
    if (
        ask.project not in channel.shared_projects
        or not mesh.may_send_content(ask.project)
        or profile is None
        or profile.version != ask.profile_version
    ):
        await channel.send(Page(ask.project, (), b"", True))
        return
    place = _place(ask.after)
    wanted: list[bytes] = []
    while True:
        rows = await mesh.db.read(diffs.page, ask.project, place, SCAN_PAGE)
        for row in rows:
            place = (row.hlc, row.diff_id)
            if row.model == profile.model and profile.wants(quantised(row.q8)):
                wanted.append(row.diff_id)
            if len(wanted) == PAGE_IDS:
                await channel.send(Page(ask.project, tuple(wanted), _cursor(place), False))
                return
        if len(rows) < SCAN_PAGE:
            await channel.send(Page(ask.project, tuple(wanted), b"", True))
            return


async def serve_fetch(
    mesh: Mesh, channel: PeerChannel, ask: Fetch, served: dict[bytes, MemoryId]
) -> None:
    """Send announcements by id: rows that say so first, frames after. `served` notes them."""
    ready = await mesh.db.transact(_record_served, mesh, channel, ask.ids)
    for signed in ready:
        served[signed.diff_id] = signed.memory_id
        await channel.send(Copy(signed.body, signed.sig, REPAIR_HOP, True))
    found = {signed.diff_id for signed in ready}
    await channel.send(FetchDone(len(ready), tuple(each for each in ask.ids if each not in found)))


async def pull_diffs(
    mesh: Mesh,
    channel: PeerChannel,
    project: ProjectId,
    receive_page: Callable[[], Awaitable[Page]],
    receive_done: Callable[[], Awaitable[FetchDone]],
) -> Pulled:
    """Fetch announcements of a project that this node wants and lacks.

    The copies themselves arrive through the session's reader before each `FetchDone`.
    """
    profile = mesh.own_profile
    if profile is None:
        return Pulled(project, 0, 0, 0)
    asked = fetched = missing = 0
    cursor = b""
    while True:
        await channel.send(Pull(project, profile.version, cursor, False))
        page = await receive_page()
        known = await mesh.db.read(diffs.known, list(page.ids))
        lacking = [diff_id for diff_id in page.ids if diff_id not in known]
        asked += len(lacking)
        for start in range(0, len(lacking), IDS_PER_FETCH):
            await channel.send(Fetch(tuple(lacking[start : start + IDS_PER_FETCH])))
            done = await receive_done()
            fetched += done.served
            missing += len(done.missing)
        cursor = page.next
        if page.last:
            return Pulled(project, asked, fetched, missing)


async def _record_served(
    tx: Tx, mesh: Mesh, channel: PeerChannel, ids: Sequence[bytes]
) -> list[diffs.Signed]:
    profile = mesh.profiles.get(channel.peer_id)
    if profile is None:
        return []
    rows = [
        row
        for row in await diffs.by_ids(tx, ids)
        if row.project_id in channel.shared_projects
        and mesh.may_send_content(row.project_id)
        and profile.wants(quantised(row.q8))
    ]
    alive = await serveable(tx, [row.memory_id for row in rows])
    ready = sorted((row for row in rows if row.memory_id in alive), key=lambda row: row.hlc)
    for row in ready:
        await _note_served(tx, mesh, channel.peer_id, row)
    return ready


async def _note_served(tx: Tx, mesh: Mesh, peer: NodeId, row: diffs.Signed) -> None:
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
    return int.from_bytes(cursor[:8], "big"), cursor[8:]
