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
from storage import diffs, erasures, history, memories, tombstones
from storage.database_errors import CommitUnknown
from storage.errors import Conflict, InvalidInput, NotFound
from storage.filters import Filters
from storage.model import AgentProfile, Memory, MemoryId
from storage.pool import Tx

MAX_IDS = 500


class StateConflict(Conflict):
    """The state of a memory does not allow it; `live_id` is the one that stands in the way."""

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
    return await _forget_now(context, agent, sorted(set(ids)), actor, reason, lenient=False)


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
    return await _hide_now(context, agent, sorted(set(ids)), actor, reason, lenient=False)


async def recover(
    context: MemoryContext, agent: AgentProfile, memory_id: MemoryId, *, actor: str = "api"
) -> Recovered:
    """Undo a soft delete within its window.

    A tombstone is final, so a memory that was announced comes back under a new id. Raises
    NotFound, StateConflict.
    """
    recovered = await context.db.transact(_recover, context, agent, memory_id, actor)
    await context.residency.readmit(
        context.db, recovered.memory.id, context.settings.recall_deadline_s
    )
    if recovered.memory.announced_at:
        context.announced()
    return recovered


async def soft_delete_matching(
    context: MemoryContext,
    agent: AgentProfile,
    filters: Filters,
    *,
    actor: str = "api",
    reason: str | None = None,
) -> int:
    """`soft_delete` for all memories of the agent that it sees and that match; how many.

    In several commits, until nothing matches any more. Raises InvalidInput for no condition.
    """
    _check_filters(filters)
    total = 0
    while ids := await context.db.read(_matching, context, agent, filters):
        total += len(await _hide_now(context, agent, ids, actor, reason, lenient=True))
    return total


async def forget_matching(
    context: MemoryContext,
    agent: AgentProfile,
    filters: Filters,
    *,
    actor: str = "api",
    reason: str | None = None,
) -> int:
    """`forget` for all memories of the agent that it sees and that match; how many.

    In several commits, until nothing matches any more. Raises InvalidInput for no condition.
    """
    _check_filters(filters)
    total = 0
    while ids := await context.db.read(_matching, context, agent, filters):
        done = await _forget_now(context, agent, ids, actor, reason, lenient=True)
        total += len(done.gone)
    return total


async def forget_all(context: MemoryContext, agent: AgentProfile, *, actor: str) -> int:
    """`forget` for all memories of the agent, in any state; how many."""
    total, after = 0, b""
    while ids := await context.db.read(memories.own_cells, agent.id, MAX_IDS, after=after):
        await _forget_now(context, agent, ids, actor, None, lenient=True)
        total, after = total + len(ids), ids[-1]
    return total


async def count_matching(
    context: MemoryContext, agent: AgentProfile, filters: Filters, limit: int
) -> int:
    """How many would go, counted up to a limit. Raises InvalidInput for no condition."""
    _check_filters(filters)
    return len(await context.db.read(_matching, context, agent, filters, limit))


async def _matching(
    tx: Tx,
    context: MemoryContext,
    agent: AgentProfile,
    filters: Filters,
    limit: int = MAX_IDS,
) -> list[MemoryId]:
    reader = context.agents.reader(agent)
    return await memories.matching(tx, agent.id, reader, context.now(), filters, limit)


def _check_filters(filters: Filters) -> None:
    if not filters.beyond_agents:
        raise InvalidInput("filters must name what is to go")


async def _forget_now(
    context: MemoryContext,
    agent: AgentProfile,
    ids: Sequence[MemoryId],
    actor: str,
    reason: str | None,
    *,
    lenient: bool,
) -> Forgotten:
    """One commit and what follows it; `lenient` passes over what is gone already."""
    try:
        done = await context.db.transact(_forget, context, agent, ids, actor, reason, lenient)
    except CommitUnknown:
        await context.residency.doubt(ids)
        raise
    await context.residency.forget(ids)
    if done.told:
        context.announced()
    return done


async def _hide_now(
    context: MemoryContext,
    agent: AgentProfile,
    ids: Sequence[MemoryId],
    actor: str,
    reason: str | None,
    *,
    lenient: bool,
) -> list[MemoryId]:
    try:
        hidden = await context.db.transact(
            _soft_delete, context, agent, ids, actor, reason, lenient
        )
    except CommitUnknown:
        await context.residency.doubt(ids)
        raise
    await context.residency.hide(hidden)
    context.announced()
    return hidden


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
    lenient: bool,
) -> Forgotten:
    rows = await memories.by_ids(tx, ids, lock=True)
    mine = [row for row in rows if row.agent_id == agent.id]
    gone = set(ids) - {row.id for row in mine}
    if lenient:
        gone = set()
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
    lenient: bool,
) -> list[MemoryId]:
    rows = await memories.by_ids(tx, ids, lock=True)
    mine = [row for row in rows if row.agent_id == agent.id]
    if len(mine) != len(ids) and not lenient:
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
        raise StateConflict("not_deleted", "the memory is not deleted")
    if await erasures.held(tx, [old.id]):
        raise StateConflict("held", "the memory is under a hold")
    window = timedelta(milliseconds=context.settings.soft_deleted_ttl_ms)
    if now - old.deleted_at > window:
        raise StateConflict("retention_expired", f"Recover window expired ({window.days} days)")
    if old.expires_at is not None and old.expires_at <= now:
        raise StateConflict("expired", "the memory has expired")
    met = await memories.find_duplicate(tx, old)
    if met is not None:
        raise StateConflict("duplicate", "the same text was stored again", met.id)
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
            raise StateConflict("duplicate", "the same text was stored again")
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
