"""Rows of `tombstones` and `fences`: the marks that make a deletion stick."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from storage.model import Handle, Hlc, MemoryId, NodeId, ProjectId
from storage.pool import Tx
from storage.queries import load

SQL = load("tombstones")


@dataclass(frozen=True, slots=True)
class Tombstone:
    """A memory is gone. `wire` is the signed record that travels, None for ids of an erasure,
    which the fence covers."""

    memory_id: MemoryId
    kind: str
    project_id: ProjectId | None
    agent_handle: Handle
    project_handle: Handle | None
    epoch: int
    hlc: Hlc
    origin_node: NodeId
    home_node: NodeId
    cause: str
    created_at: datetime
    erasure_id: str | None = None
    parent_peer: NodeId | None = None
    wire: bytes | None = None
    purged_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Fence:
    """An epoch of a scope is closed for ever."""

    scope_kind: str
    scope_handle: Handle
    epoch_floor: int
    hlc_floor: Hlc
    erasure_id: str
    wire: bytes
    hlc: Hlc


@dataclass(frozen=True, slots=True)
class Standing:
    """What this node knows of one tombstone."""

    memory_id: MemoryId
    cause: str
    origin_node: NodeId
    home_node: NodeId
    hlc: Hlc
    purged_at: datetime | None
    recv_seq: int
    wire: bytes | None


async def insert(tx: Tx, tombstone: Tombstone) -> int | None:
    """Set a tombstone; its local number, or None when the id has one."""
    await tx.execute(SQL.lock_recv_seq)
    seq = await tx.fetchval(
        SQL.insert_tombstone,
        memory_id=tombstone.memory_id,
        kind=tombstone.kind,
        project_id=tombstone.project_id,
        agent_handle=tombstone.agent_handle,
        project_handle=tombstone.project_handle,
        epoch=tombstone.epoch,
        hlc=tombstone.hlc,
        origin_node=tombstone.origin_node,
        home_node=tombstone.home_node,
        cause=tombstone.cause,
        erasure_id=tombstone.erasure_id,
        parent_peer=tombstone.parent_peer,
        wire=tombstone.wire,
        created_at=tombstone.created_at,
        purged_at=tombstone.purged_at,
    )
    return int(seq) if seq is not None else None


async def lock(tx: Tx) -> None:
    """No other unit sets a tombstone or writes a peer's content until this one commits."""
    await tx.execute(SQL.lock_recv_seq)


async def hold_off(tx: Tx) -> None:
    """No tombstone is set until this unit commits; units that hold off do not wait for another."""
    await tx.execute(SQL.share_recv_seq)


async def insert_fence(tx: Tx, fence: Fence) -> int | None:
    """Set a fence; its local number, or None when it stands already."""
    await tx.execute(SQL.lock_recv_seq)
    seq = await tx.fetchval(
        SQL.insert_fence,
        scope_kind=fence.scope_kind,
        scope_handle=fence.scope_handle,
        epoch_floor=fence.epoch_floor,
        hlc_floor=fence.hlc_floor,
        erasure_id=fence.erasure_id,
        wire=fence.wire,
        hlc=fence.hlc,
    )
    return int(seq) if seq is not None else None


async def existing(tx: Tx, ids: Sequence[MemoryId]) -> set[MemoryId]:
    """Those of `ids` that are tombstoned."""
    return {row["memory_id"] for row in await tx.fetch(SQL.existing, ids=list(ids))}


async def standing(tx: Tx, memory_id: MemoryId) -> Standing | None:
    """The tombstone of one id."""
    row = await tx.fetchrow(SQL.by_id, id=memory_id)
    return Standing(**dict(row)) if row else None


async def mark_purged(tx: Tx, ids: Sequence[MemoryId], now: datetime) -> None:
    """The content under these tombstones is gone from this node."""
    await tx.execute(SQL.mark_purged, ids=list(ids), now=now)


async def unpurged(tx: Tx, limit: int) -> list[MemoryId]:
    """Tombstoned ids whose content a crash may have left behind."""
    return [row["memory_id"] for row in await tx.fetch(SQL.unpurged, limit=limit)]


async def page(tx: Tx, project_id: ProjectId, after: int, limit: int) -> list[tuple[int, bytes]]:
    """(number, signed record) of a project's tombstones and of all fences behind `after`."""
    rows = await tx.fetch(SQL.page, project_id=project_id, after=after, limit=limit)
    return [(row["recv_seq"], row["wire"]) for row in rows]


async def fence_covers(
    tx: Tx,
    *,
    agent_handle: Handle,
    agent_epoch: int,
    project_handle: Handle | None,
    project_epoch: int,
    hlc: Hlc,
) -> bool:
    """True when a fence of the agent or the project refuses this epoch or stamp."""
    return bool(
        await tx.fetchval(
            SQL.fence_covers,
            agent_handle=agent_handle,
            agent_epoch=agent_epoch,
            project_handle=project_handle,
            project_epoch=project_epoch,
            hlc=hlc,
        )
    )


async def fence_of(tx: Tx, scope_kind: str, handle: Handle) -> Fence | None:
    """The newest fence of a scope."""
    row = await tx.fetchrow(SQL.fence, scope_kind=scope_kind, scope_handle=handle)
    if row is None:
        return None
    return Fence(
        row["scope_kind"],
        row["scope_handle"],
        row["epoch_floor"],
        row["hlc_floor"],
        row["erasure_id"],
        row["wire"],
        row["hlc"],
    )


async def last_seq(tx: Tx) -> int:
    """The newest local number of a tombstone or fence."""
    return int(await tx.fetchval(SQL.last_seq))


async def all_ids(tx: Tx) -> list[MemoryId]:
    """Every tombstoned id, 16 bytes each."""
    return [row["memory_id"] for row in await tx.fetch(SQL.all_ids)]


async def ids_after(tx: Tx, seq: int, limit: int) -> list[tuple[int, MemoryId]]:
    """(number, memory) of tombstones behind a local number, in order."""
    rows = await tx.fetch(SQL.ids_after, seq=seq, limit=limit)
    return [(row["recv_seq"], row["memory_id"]) for row in rows]


async def acked_by(tx: Tx, memory_id: MemoryId, peer: NodeId) -> bool:
    """Whether a peer said that it has this tombstone."""
    return bool(await tx.fetchval(SQL.acked_by, id=memory_id, peer=peer))


async def count_pending(tx: Tx) -> int:
    """Tombstones that some holder has not acknowledged yet."""
    return int(await tx.fetchval(SQL.count_pending))
