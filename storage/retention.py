"""What time takes away: selections and deletions of the retention worker.

Each function is one step inside its caller's transaction. It locks what it is about to remove,
skips what somebody else has locked, asks its condition again in the DELETE, and touches at most
`limit` rows. Rows under a hold or of a scope that is being erased are left alone. Nothing here
decides how old is old enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from storage import diffs, history, memories, tombstones
from storage.model import Memory, MemoryId, NodeId
from storage.pool import Tx
from storage.queries import load

SQL = load("retention")


async def lapsed(tx: Tx, before: datetime, limit: int) -> list[Memory]:
    """Live rows that expired before a time, locked."""
    rows = await tx.fetch(SQL.lapsed, before=before, limit=limit)
    return [memories.from_row(row) for row in rows]


async def deleted(tx: Tx, before: datetime, limit: int) -> list[MemoryId]:
    """Rows that were soft-deleted before a time, oldest first."""
    rows = await tx.fetch(SQL.deleted, before=before, ids=None, limit=limit)
    return [row["id"] for row in rows]


async def count_deferred(
    tx: Tx, *, deleted_before: datetime, expired_before: datetime, limit: int
) -> int:
    """How many rows are due but held or being erased; counting stops at `limit`."""
    return int(
        await tx.fetchval(
            SQL.count_deferred,
            deleted_before=deleted_before,
            expired_before=expired_before,
            limit=limit,
        )
    )


async def drop_vectors(tx: Tx, ids: Sequence[MemoryId], before: datetime) -> int:
    """Remove the vectors of those of `ids` that are still soft-deleted; how many."""
    due = await _still_deleted(tx, ids, before)
    return await tx.execute(SQL.drop_vectors, ids=due, before=before)


async def drop_deleted(
    tx: Tx, ids: Sequence[MemoryId], before: datetime, now: datetime
) -> list[MemoryId]:
    """Remove those of `ids` that are still soft-deleted, and their texts in history; which.

    A memory without a tombstone, which expired by itself, takes its delivery records along.
    """
    due = await _still_deleted(tx, ids, before)
    gone = [row["id"] for row in await tx.fetch(SQL.drop_deleted, ids=due, before=before)]
    if gone:
        await memories.purge(tx, gone)
        await history.blank(tx, gone)
        await diffs.purge_of_memories(tx, gone)
        await tombstones.mark_purged(tx, gone, now)
        await tx.execute(SQL.drop_untold_holders, ids=gone)
        await tx.execute(SQL.begin_purging)
        await tx.execute(SQL.drop_untold_deliveries, ids=gone)
    return gone


async def drop_history(tx: Tx, before: datetime, limit: int) -> int:
    """Remove old events; how many."""
    return await tx.execute(SQL.drop_history, before=before, limit=limit)


async def drop_completed_jobs(tx: Tx, before: datetime, limit: int) -> int:
    """Remove jobs that finished long ago; how many."""
    return await tx.execute(SQL.drop_completed_jobs, before=before, limit=limit)


async def drop_dead_jobs(tx: Tx, before: datetime, limit: int) -> int:
    """Remove jobs that failed for good long ago; how many."""
    return await tx.execute(SQL.drop_dead_jobs, before=before, limit=limit)


async def drop_diffs(tx: Tx, before: datetime, limit: int) -> int:
    """Remove announcements and memories of walks past their last use; how many announcements."""
    await tx.execute(SQL.drop_seen, before=before, limit=limit)
    return await tx.execute(SQL.drop_diffs, before=before, limit=limit)


async def compact_deliveries(tx: Tx, before: datetime, limit: int) -> int:
    """Remove delivery rows that nobody needs any more, then marks without one; how many rows."""
    await tx.execute(SQL.begin_purging)
    count = await tx.execute(SQL.compact_deliveries, before=before, limit=limit)
    await tx.execute(SQL.drop_marks, limit=limit)
    return count


async def drop_a2a_tasks(tx: Tx, before: datetime, limit: int) -> int:
    """Remove finished tasks; how many."""
    return await tx.execute(SQL.drop_a2a_tasks, before=before, limit=limit)


async def collect_tombstones(
    tx: Tx, node_id: NodeId, before: datetime, now: datetime, limit: int
) -> list[MemoryId]:
    """Raise the projects' floors and remove stable tombstones, with holders and deliveries; which.

    A floor never falls, and no tombstone above its project's floor goes.
    """
    rows = await tx.fetch(
        SQL.collect_tombstones, node_id=node_id, before=before, now=now, limit=limit
    )
    gone = [row["memory_id"] for row in rows]
    if gone:
        await tx.execute(SQL.drop_holders, ids=gone)
        await tx.execute(SQL.begin_purging)
        await tx.execute(SQL.drop_deliveries, ids=gone)
    return gone


async def _still_deleted(tx: Tx, ids: Sequence[MemoryId], before: datetime) -> list[MemoryId]:
    rows = await tx.fetch(SQL.deleted, before=before, ids=list(ids), limit=len(ids))
    return [row["id"] for row in rows]
