"""Rows of `deliveries` and `holders`: who got what, and who therefore must hear of its end."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from storage.model import AgentId, Hlc, Holder, MemoryId, NodeId, ProjectId
from storage.pool import Tx
from storage.queries import load

SQL = load("deliveries")


async def record(
    tx: Tx,
    *,
    diff_id: bytes | None,
    memory_id: MemoryId,
    project_id: ProjectId,
    recipient: bytes,
    to_agent: bool,
    role: str,
    status: str,
    hlc: Hlc,
    now: datetime,
    reason: str | None = None,
) -> int | None:
    """Append a delivery row; its number, or None when the same intent stands already.

    A row for an agent takes its number under a lock of that agent which is held to commit, so
    that a subscriber who resumes behind a number misses nothing.
    """
    if to_agent:
        await tx.execute(SQL.lock_recipient, recipient=recipient)
    seq = await tx.fetchval(
        SQL.insert_delivery,
        diff_id=diff_id,
        memory_id=memory_id,
        project_id=project_id,
        recipient_kind="agent" if to_agent else "peer",
        recipient=recipient,
        role=role,
        status=status,
        reason=reason,
        hlc=hlc,
        at=now,
    )
    return int(seq) if seq is not None else None


async def project_of(tx: Tx, diff_id: bytes, peer: NodeId) -> ProjectId | None:
    """The project of an announcement that was sent to a peer, by its delivery rows."""
    found = await tx.fetchval(SQL.project_of, diff_id=diff_id, recipient=peer)
    return bytes(found) if found is not None else None


async def to_agent(tx: Tx, agent_id: AgentId, after: int, limit: int) -> list[tuple[int, MemoryId]]:
    """(number, memory) of what was handed to an agent behind `after`."""
    rows = await tx.fetch(SQL.to_agent, recipient=agent_id, after=after, limit=limit)
    return [(row["seq"], row["memory_id"]) for row in rows]


async def hold(
    tx: Tx,
    memory_id: MemoryId,
    peer_id: NodeId,
    project_id: ProjectId,
    agent_id: AgentId,
    *,
    state: str,
    seq: int,
) -> None:
    """Note that a peer has or may have a copy; `stored` never falls back to `possible`."""
    await tx.execute(
        SQL.insert_holder,
        memory_id=memory_id,
        peer_id=peer_id,
        project_id=project_id,
        agent_id=agent_id,
        first_seq=seq,
        state=state,
    )


async def set_holder(tx: Tx, memory_id: MemoryId, peer_id: NodeId, state: str) -> None:
    """What a holder told of its copy: stored, none or purged."""
    await tx.execute(SQL.set_holder, memory_id=memory_id, peer_id=peer_id, state=state)


async def holders_of(tx: Tx, ids: Sequence[MemoryId]) -> list[Holder]:
    """All holder rows of these memories."""
    rows = await tx.fetch(SQL.holders_of, ids=list(ids))
    return [Holder(row["memory_id"], row["peer_id"], row["state"]) for row in rows]


async def count_holders(tx: Tx) -> int:
    """How many holder rows there are."""
    return int(await tx.fetchval(SQL.count_holders))
