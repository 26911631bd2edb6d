"""Delete hides here and can be undone; forget removes for good, everywhere.

Both change only memories of the calling agent. What a peer must drop is decided in erasure and
written with the change itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from erasure import forget as ending
from erasure.forget import Forgotten
from node.memory.context import MemoryContext
from node.memory.hiding import hide_rows
from node.memory.remember import announcement
from storage import diffs, history, memories, tombstones
from storage.database_errors import CommitUnknown
from storage.errors import Conflict, InvalidInput, NotFound
from storage.model import AgentProfile, Memory, MemoryId
from storage.pool import Tx

MAX_IDS = 500


class RecoverRefused(Conflict):
    """The memory cannot be recovered."""

    def __init__(self, status: str, message: str, live_id: MemoryId | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.live_id = live_id


@dataclass(frozen=True, slots=True)
class Recovered:
    """A memory that is back; under a new id if the old one was announced to the mesh."""

    memory: Memory
    recovered_from: MemoryId


async def forget(
    context: MemoryContext,
    agent: AgentProfile,
    ids: Sequence[MemoryId],
    *,
    actor: str = "api",
    reason: str | None = None,
) -> Forgotten:
    """Forget memories of the agent. Idempotent for ids that were forgotten before.

    Raises NotFound when one is neither here nor forgotten, or is another agent's: nothing
    changes then.
    """
    _check(ids)
    chosen = sorted(set(ids))
    try:
        done = await context.db.transact(_forget, context, agent, chosen, actor, reason)
    except CommitUnknown:
        await context.residency.doubt(chosen)
        raise
    await context.residency.forget(chosen)
    if done.told:
        context.announced()
    return done


async def soft_delete(
    context: MemoryContext,
    agent: AgentProfile,
    ids: Sequence[MemoryId],
    *,
    actor: str = "api",
    reason: str | None = None,
) -> list[MemoryId]:
    """Hide memories of the agent for the recovery window; the ids that were live.

    Peers drop their copies at once. Raises NotFound as `forget` does.
    """
    _check(ids)
    try:
        hidden = await context.db.transact(_soft_delete, context, agent, ids, actor, reason)
    except CommitUnknown:
        await context.residency.doubt(ids)
        raise
    await context.residency.hide(hidden)
    context.announced()
    return hidden


async def recover(
    context: MemoryContext, agent: AgentProfile, memory_id: MemoryId, *, actor: str = "api"
) -> Recovered:
    """Undo a soft delete within its window.

    A tombstone is final, so a memory that was announced comes back under a new id. Raises
    NotFound, RecoverRefused.
    """
    recovered = await context.db.transact(_recover, context, agent, memory_id, actor)
    await context.residency.readmit(
        context.db, recovered.memory.id, context.settings.recall_deadline_s
    )
    if recovered.memory.announced_at:
        context.announced()
    return recovered


def _check(ids: Sequence[MemoryId]) -> None:
    if not 1 <= len(ids) <= MAX_IDS:
        raise InvalidInput(f"ids: 1 to {MAX_IDS} are needed")


async def _forget(
    tx: Tx,
    context: MemoryContext,
    agent: AgentProfile,
    ids: Sequence[MemoryId],
    actor: str,
    reason: str | None,
) -> Forgotten:
    rows = await memories.by_ids(tx, ids, lock=True)
    mine = [row for row in rows if row.agent_id == agent.id]
    gone = set(ids) - {row.id for row in mine}
    if gone:
        finished = await tombstones.existing(tx, sorted(gone))
        for memory_id in sorted(gone):
            events = await history.of_memory(tx, memory_id, limit=1)
            if memory_id not in finished or not events or events[0].agent_id != agent.id:
                raise NotFound("memory not found")
    done = await ending.forget(
        tx, context.node, context.access.current, mine, actor=actor, reason=reason
    )
    return replace(done, already=tuple(sorted({*done.already, *gone})))


async def _soft_delete(
    tx: Tx,
    context: MemoryContext,
    agent: AgentProfile,
    ids: Sequence[MemoryId],
    actor: str,
    reason: str | None,
) -> list[MemoryId]:
    rows = await memories.by_ids(tx, sorted(set(ids)), lock=True)
    mine = [row for row in rows if row.agent_id == agent.id]
    if len(mine) != len(set(ids)):
        raise NotFound("memory not found")
    live = [row for row in mine if row.deleted_at is None]
    return await hide_rows(
        tx, context.node, context.access.current, live, actor=actor, reason=reason
    )


async def _recover(
    tx: Tx, context: MemoryContext, agent: AgentProfile, memory_id: MemoryId, actor: str
) -> Recovered:
    rows = await memories.by_ids(tx, [memory_id], lock=True)
    if not rows or rows[0].agent_id != agent.id:
        raise NotFound("memory not found")
    old = rows[0]
    now = context.now()
    if old.deleted_at is None:
        raise RecoverRefused("not_deleted", "the memory is not deleted")
    window = timedelta(milliseconds=context.settings.soft_deleted_ttl_ms)
    if now - old.deleted_at > window:
        raise RecoverRefused("retention_expired", f"Recover window expired ({window.days} days)")
    if old.expires_at is not None and old.expires_at <= now:
        raise RecoverRefused("expired", "the memory has expired")
    met = await memories.find_duplicate(tx, old)
    if met is not None:
        raise RecoverRefused("duplicate", "the same text was stored again", met.id)
    epochs = await context.node.gate.for_write(tx, old.agent_id, old.project_id)
    vector = await memories.vector_of(tx, old.id, context.embedder.model_id)
    if not await tombstones.existing(tx, [old.id]):
        await memories.undelete(tx, old.id, now, actor)
        back = replace(old, deleted_at=None, updated_at=now, updated_by=actor)
    else:
        back = replace(
            old,
            id=context.node.new_id(),
            deleted_at=None,
            announced_at=now,
            updated_at=now,
            updated_by=actor,
            agent_epoch=epochs.agent,
            project_epoch=epochs.project,
            hlc=context.node.clock.now(),
        )
        if not await memories.insert(tx, back):
            raise RecoverRefused("duplicate", "the same text was stored again")
        await memories.insert_vector(tx, back, context.embedder.model_id, vector)
        await memories.purge(tx, [old.id])
        await history.blank(tx, [old.id])
        await tombstones.mark_purged(tx, [old.id], now)
        await diffs.insert(tx, announcement(context, back, vector, "add", now))
    await history.record(
        tx,
        back,
        "recovered",
        now=now,
        changed_by=actor,
        new_content=back.content,
        metadata={"recovered_from": old.id.hex()},
    )
    return Recovered(back, old.id)
