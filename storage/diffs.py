"""Rows of `diffs` and `seen`: announcements, and what this node remembers of their walks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from storage.model import AgentId, Hlc, MemoryId, NodeId, ProjectId
from storage.pool import Tx
from storage.queries import load

SQL = load("diffs")
START = (0, b"")


@dataclass(frozen=True, slots=True)
class Diff:
    """An announcement as stored: the signed bytes and the columns that queries need."""

    diff_id: bytes
    kind: str
    project_id: ProjectId
    agent_id: AgentId
    agent_epoch: int
    project_epoch: int
    memory_id: MemoryId
    origin_node: NodeId
    hlc: Hlc
    model: str
    q8: bytes
    body: bytes
    sig: bytes
    expires_at: datetime
    drop_after: datetime


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a repair page needs of an announcement: place, vector and model."""

    diff_id: bytes
    hlc: Hlc
    q8: bytes
    model: str
    memory_id: MemoryId


@dataclass(frozen=True, slots=True)
class Seen:
    """The durable memory of one walk at this node; energies in milli-units."""

    diff_id: bytes
    first_hlc: Hlc
    energy_in: int
    energy_out: int
    fanout: int
    sent: tuple[NodeId, ...]
    senders: tuple[NodeId, ...]
    outcome: str


async def insert(tx: Tx, diff: Diff) -> bool:
    """Store an announcement; False when these bytes are here already."""
    stored = await tx.fetchval(
        SQL.insert_diff,
        diff_id=diff.diff_id,
        kind=diff.kind,
        project_id=diff.project_id,
        agent_id=diff.agent_id,
        agent_epoch=diff.agent_epoch,
        project_epoch=diff.project_epoch,
        memory_id=diff.memory_id,
        origin_node=diff.origin_node,
        hlc=diff.hlc,
        model=diff.model,
        q8=diff.q8,
        body=diff.body,
        sig=diff.sig,
        expires_at=diff.expires_at,
        drop_after=diff.drop_after,
    )
    return stored is not None


@dataclass(frozen=True, slots=True)
class Signed:
    """The bytes of an announcement and what a sender must know to send them."""

    diff_id: bytes
    body: bytes
    sig: bytes
    memory_id: MemoryId
    project_id: ProjectId
    agent_id: AgentId
    agent_epoch: int
    project_epoch: int
    hlc: Hlc
    q8: bytes
    expires_at: datetime


async def by_ids(tx: Tx, ids: Sequence[bytes]) -> list[Signed]:
    """Announcements by id, in no particular order."""
    rows = await tx.fetch(SQL.by_ids, ids=list(ids))
    return [
        Signed(
            diff_id=row["diff_id"],
            body=row["body"],
            sig=row["sig"],
            memory_id=row["memory_id"],
            project_id=row["project_id"],
            agent_id=row["agent_id"],
            agent_epoch=row["agent_epoch"],
            project_epoch=row["project_epoch"],
            hlc=row["hlc"],
            q8=row["q8"],
            expires_at=row["expires_at"],
        )
        for row in rows
    ]


async def page(tx: Tx, project_id: ProjectId, after: tuple[Hlc, bytes], limit: int) -> list[Wanted]:
    """Live announcements of a project behind a (stamp, id) cursor, in that order."""
    rows = await tx.fetch(
        SQL.page, project_id=project_id, after_hlc=after[0], after_id=after[1], limit=limit
    )
    return [
        Wanted(row["diff_id"], row["hlc"], row["q8"], row["model"], row["memory_id"])
        for row in rows
    ]


async def known(tx: Tx, ids: Sequence[bytes]) -> set[bytes]:
    """Those of `ids` that are stored here or were durably refused."""
    return {row["diff_id"] for row in await tx.fetch(SQL.known, ids=list(ids))}


async def unwalked(
    tx: Tx, node_id: NodeId, now: datetime, limit: int, held: Sequence[ProjectId] = ()
) -> list[bytes]:
    """Own live announcements whose walk has not begun, those of the projects in `held` left out.

    The agents take turns, each with its oldest first, so that one cannot keep others waiting.
    """
    rows = await tx.fetch(SQL.unwalked, node_id=node_id, now=now, limit=limit, held=sorted(held))
    return [row["diff_id"] for row in rows]


async def purge_of_memories(tx: Tx, ids: Sequence[MemoryId]) -> int:
    """Remove the announcements of memories; how many there were."""
    return len(await tx.fetch(SQL.purge_of_memories, ids=list(ids)))


async def purge_of_agent(tx: Tx, ids: Sequence[MemoryId], agent_id: AgentId) -> int:
    """Remove the announcements of memories as far as this agent made them; how many."""
    return len(await tx.fetch(SQL.purge_of_agent, ids=list(ids), agent_id=agent_id))


async def load_seen(tx: Tx, diff_id: bytes) -> Seen | None:
    """The memory of a walk."""
    row = await tx.fetchrow(SQL.seen, diff_id=diff_id)
    if row is None:
        return None
    return Seen(
        diff_id=row["diff_id"],
        first_hlc=row["first_hlc"],
        energy_in=row["energy_in"],
        energy_out=row["energy_out"],
        fanout=row["fanout"],
        sent=tuple(row["sent"]),
        senders=tuple(row["senders"]),
        outcome=row["outcome"],
    )


async def save_seen(tx: Tx, seen: Seen, expires_at: datetime, drop_after: datetime) -> None:
    """Insert or replace the memory of a walk."""
    await tx.execute(
        SQL.insert_seen,
        diff_id=seen.diff_id,
        first_hlc=seen.first_hlc,
        expires_at=expires_at,
        drop_after=drop_after,
        energy_in=seen.energy_in,
        energy_out=seen.energy_out,
        fanout=seen.fanout,
        sent=list(seen.sent),
        senders=list(seen.senders),
        outcome=seen.outcome,
    )


async def senders_of(tx: Tx, ids: Sequence[MemoryId]) -> dict[MemoryId, set[NodeId]]:
    """Peers that sent announcements of these memories to us by walk."""
    found: dict[MemoryId, set[NodeId]] = {}
    for row in await tx.fetch(SQL.senders_of_memory, ids=list(ids)):
        found.setdefault(row["memory_id"], set()).add(row["sender"])
    return found
