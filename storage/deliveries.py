"""Rows of `deliveries` and `holders`: who got what, and who therefore must hear of its end."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from storage import memories
from storage.model import (
    AgentId,
    Hlc,
    Holder,
    Memory,
    MemoryId,
    NodeId,
    ProjectId,
    Reader,
)
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
    that a subscriber who resumes behind a number misses nothing; a memory is handed to an agent
    once, and None comes back for a second time.
    """
    if to_agent:
        await lock_agent(tx, recipient)
        if await tx.fetchval(SQL.was_handed, memory_id=memory_id, recipient=recipient):
            return None
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


async def lock_agent(tx: Tx, agent_id: AgentId) -> None:
    """Let nobody else write deliveries to an agent until the commit."""
    await tx.execute(SQL.lock_recipient, recipient=agent_id)


async def last_to_agent(tx: Tx, agent_id: AgentId) -> int:
    """The number of the newest delivery to an agent, 0 before the first."""
    return int(await tx.fetchval(SQL.last_to_agent, recipient=agent_id))


async def last_given(tx: Tx) -> int:
    """The highest number that any delivery got, whether its row is still there or not."""
    return int(await tx.fetchval(SQL.last_given))


async def handed(
    tx: Tx, agent_id: AgentId, reader: Reader, now: datetime, *, after: int, limit: int, room: int
) -> list[tuple[int, Memory | None]]:
    """Numbers behind `after` with the memories handed over; None for one not to be seen now.

    At most `limit`, and no more behind `room` bytes of contents.
    """
    rows = await tx.fetch(
        SQL.handed,
        recipient=agent_id,
        after=after,
        limit=limit,
        room=room,
        **memories.seen_by(reader, now, False),
    )
    return [(row["seq"], memories.from_row(row) if row["id"] is not None else None) for row in rows]


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
