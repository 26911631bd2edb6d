"""Rows of `outbox`: what lower layers ask the mesh to carry.

Whoever causes a frame writes its row in the transaction of the cause; only gossip changes the
state of a row. Bodies of tombstones and fences never hold a vector or a text.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum

from storage.model import NodeId, OutboxItem, ProjectId
from storage.pool import Tx
from storage.queries import load

SQL = load("outbox")


class Topic(StrEnum):
    """What a frame carries, in the order in which frames leave."""

    FENCE = "gossip.fence"
    NOTICE = "erasure.notice"
    TOMBSTONE = "gossip.tombstone"
    DOCUMENT = "erasure.document"
    HEAD = "ledger.head"


_PRIORITY = {topic: rank for rank, topic in enumerate(Topic)}


async def enqueue(
    tx: Tx,
    topic: Topic,
    peers: Sequence[NodeId],
    subject: bytes,
    body: bytes,
    *,
    project_id: ProjectId | None,
    now: datetime,
    replace: bool = False,
) -> int:
    """Ask for `body` to be carried to each peer; how many rows are new.

    With `replace` a newer body about the same subject takes the place of the older one.
    """
    new = 0
    for peer in sorted(set(peers)):
        row_id = await tx.fetchval(
            SQL.replace if replace else SQL.enqueue,
            topic=topic.value,
            peer=peer,
            project_id=project_id,
            subject=subject,
            body=body,
            priority=_PRIORITY[topic],
            now=now,
        )
        new += row_id is not None
    return new


async def ready(tx: Tx, peer: NodeId, now: datetime, limit: int) -> list[OutboxItem]:
    """Frames for one peer that are due, most urgent first; a sent one is due again in time."""
    return [
        OutboxItem(**dict(row))
        for row in await tx.fetch(SQL.ready, peer=peer, now=now, limit=limit)
    ]


async def mark_sent(tx: Tx, ids: Sequence[int], retry_at: datetime) -> None:
    """Frames left; they are due again at `retry_at` unless an answer settles them."""
    await tx.execute(SQL.mark_sent, ids=list(ids), retry_at=retry_at)


async def mark_done(
    tx: Tx, topic: Topic, peer: NodeId, subjects: Sequence[bytes], now: datetime
) -> int:
    """The peer has these; how many rows settled by it."""
    rows = await tx.fetch(
        SQL.mark_done, topic=topic.value, peer=peer, subjects=list(subjects), now=now
    )
    return len(rows)


async def make_due(tx: Tx, peer: NodeId, now: datetime) -> None:
    """A peer came back: do not wait out the back-off."""
    await tx.execute(SQL.make_due, peer=peer, now=now)


async def release(tx: Tx, peer: NodeId, now: datetime) -> None:
    """A peer is gone for good: nothing waits for it any more."""
    await tx.execute(SQL.release, peer=peer, now=now)


async def counts(tx: Tx) -> dict[tuple[str, str], int]:
    """Rows by (topic, state)."""
    return {(row["topic"], row["state"]): row["n"] for row in await tx.fetch(SQL.counts)}


async def progress(tx: Tx, topic: Topic, subject: bytes) -> dict[NodeId, str]:
    """State by peer of one subject."""
    rows = await tx.fetch(SQL.of_subject, topic=topic.value, subject=subject)
    return {row["peer"]: row["state"] for row in rows}


async def drop_done(tx: Tx, before: datetime, limit: int) -> int:
    """Remove frames settled before a time; how many went."""
    return len(await tx.fetch(SQL.drop_done, before=before, limit=limit))
