"""Soft deletion inside a transaction: what a user's delete and an expiry have in common."""

from __future__ import annotations

from collections.abc import Sequence

from erasure import forget as ending
from erasure.forget import NoSigningKey, signing_key
from storage import diffs, history, memories
from storage.access import Access
from storage.local import LocalNode
from storage.model import Memory, MemoryId
from storage.pool import Tx


async def hide_rows(
    tx: Tx,
    node: LocalNode,
    access: Access,
    rows: Sequence[Memory],
    *,
    actor: str,
    reason: str | None = None,
) -> list[MemoryId]:
    """Soft-delete live rows that this transaction has locked; their ids.

    Peers are told to purge their copies of announced ones first. Raises NoSigningKey when this
    node may not speak for one of these.
    """
    announced = [row for row in rows if row.announced_at is not None]
    await ending.forget(tx, node, access, announced, actor=actor, keep_rows=True)
    await diffs.purge_of_memories(tx, [row.id for row in announced])
    return await _hide(tx, node, rows, actor, reason)


async def hide_expired(
    tx: Tx, node: LocalNode, access: Access, rows: Sequence[Memory], *, actor: str
) -> list[MemoryId]:
    """As `hide_rows`, for expired ones.

    Copies at peers expire by the signed time that they came with, so a memory that this node may
    not speak for is hidden without telling anybody.
    """
    own = [row for row in rows if _may_tell(node, access, row)]
    hidden = await hide_rows(tx, node, access, own, actor=actor, reason="expired")
    told = set(hidden)
    others = [row for row in rows if row.id not in told]
    return hidden + await _hide(tx, node, others, actor, "expired")


def _may_tell(node: LocalNode, access: Access, row: Memory) -> bool:
    if row.origin_node != node.node_id:
        return False
    try:
        signing_key(node, access, row.agent_id, row.project_id)
    except NoSigningKey:
        return row.announced_at is None
    return True


async def _hide(
    tx: Tx, node: LocalNode, rows: Sequence[Memory], actor: str, reason: str | None
) -> list[MemoryId]:
    now = node.wall()
    hidden = await memories.soft_delete(tx, [row.id for row in rows], now, actor)
    for row in rows:
        await history.record(
            tx,
            row,
            "deleted",
            now=now,
            changed_by=actor,
            old_content=row.content,
            reason=reason,
        )
    return hidden
