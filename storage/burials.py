"""Tombstones and fences of erasures: what refuses every late copy of an erased memory.

The signed word of an erasure is its fence; the ids below it travel in no record and only make
this node certain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from storage.model import AgentId, Handle, Hlc, MemoryId, NodeId, ProjectId
from storage.pool import Record, Tx
from storage.queries import load

SQL = load("erasures")


@dataclass(frozen=True, slots=True)
class Burial:
    """What the tombstone of one erased memory says."""

    memory_id: MemoryId
    kind: str
    project_id: ProjectId | None
    agent_handle: Handle
    project_handle: Handle | None
    home_node: NodeId


async def count_evidence(
    tx: Tx, erasure_id: str, agent: AgentId | None, project: ProjectId | None
) -> tuple[int, int]:
    """(tombstones, holder and delivery rows of peers) that stay."""
    row = await tx.fetchrow(SQL.count_evidence, erasure_id=erasure_id, agent=agent, project=project)
    return (int(row["tombstones"]), int(row["copies"])) if row else (0, 0)


@dataclass(frozen=True, slots=True)
class FenceRow:
    """The fence of one epoch as it was signed, and its local number."""

    wire: bytes
    hlc_floor: Hlc
    hlc: Hlc
    erasure_id: str
    recv_seq: int


async def fence_at(tx: Tx, kind: str, handle: Handle, epoch: int) -> FenceRow | None:
    """The fence of one epoch of a scope."""
    row = await tx.fetchrow(SQL.fence_at, kind=kind, handle=handle, epoch=epoch)
    return FenceRow(**dict(row)) if row else None


async def to_bury(tx: Tx, ids: Sequence[MemoryId]) -> list[Record]:
    """id, kind, agent_id, project_id, origin_node of memories that stand."""
    return await tx.fetch(SQL.to_bury, ids=list(ids))


async def bury(
    tx: Tx,
    burials: Sequence[Burial],
    *,
    erasure_id: str,
    epoch: int,
    hlc: Hlc,
    node_id: NodeId,
    now: datetime,
) -> None:
    """Set the tombstones of erased memories; an older one of another cause stays."""
    if not burials:
        return
    await tx.execute(SQL.lock_recv_seq)
    await tx.execute(
        SQL.bury,
        epoch=epoch,
        hlc=hlc,
        origin_node=node_id,
        erasure_id=erasure_id,
        now=now,
        ids=[one.memory_id for one in burials],
        kinds=[one.kind for one in burials],
        projects=[one.project_id for one in burials],
        agent_handles=[one.agent_handle for one in burials],
        project_handles=[one.project_handle for one in burials],
        homes=[one.home_node for one in burials],
    )


async def buried(tx: Tx, erasure_id: str) -> list[MemoryId]:
    """Ids under the tombstones of an erasure, 16 bytes each."""
    return [row["memory_id"] for row in await tx.fetch(SQL.buried, erasure_id=erasure_id)]
