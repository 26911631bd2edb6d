"""Modify: text, type, tags, importance, pin and visibility of a memory of one's own.

Peers hold what was announced to them and nobody tells them of a change. So an announced memory
whose text or visibility changes ends under a tombstone, which takes the old copies away, and goes
on under a new id, as a recovered one does. Other fields change in place, and a peer that has the
memory keeps them as they were announced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from erasure import forget as ending
from gossip.announcing import WIRE_DTYPE
from node.memory.context import MemoryContext
from node.memory.drafts import check_marks
from node.memory.forget import StateConflict
from node.memory.handing import Announced
from node.memory.hiding import hide_expired
from node.memory.remember import announcement
from storage import diffs, history, memories
from storage.content import NormalContent, normalize
from storage.database_errors import CommitUnknown
from storage.errors import InvalidInput, NotFound
from storage.model import AgentId, AgentProfile, Memory, MemoryId, MemoryKind, Visibility
from storage.pool import Tx

ARCHIVED_AT_ONCE = 200
"""Memories of one commit when all of an agent are archived."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What is to become another; None stays as it is."""

    content: str | None = None
    type: str | None = None
    tags: tuple[str, ...] | None = None
    importance: float | None = None
    pinned: bool | None = None
    visibility: Visibility | None = None


@dataclass(frozen=True, slots=True)
class Modified:
    """The memory as it is now; `recovered_from` is the id that it had before."""

    memory: Memory
    recovered_from: MemoryId


@dataclass(frozen=True, slots=True)
class _Text:
    """A new text and its vector."""

    content: NormalContent
    vector: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class _Done:
    """A committed change and what is to follow in this process."""

    memory: Memory
    before: MemoryId
    vector: NDArray[np.float32] | None
    hidden: Sequence[MemoryId] = ()
    handed: frozenset[AgentId] = frozenset()


async def modify(
    context: MemoryContext,
    agent: AgentProfile,
    memory_id: MemoryId,
    changes: Changes,
    *,
    actor: str = "api",
) -> Modified:
    """Change a memory of the agent, also one that is archived; durable when this returns.

    Raises InvalidInput and ContentTooLarge as `remember` does, NotFound for what is not there or
    not the agent's, StateConflict `duplicate` when the new text stands already, and ScopeErased.
    """
    if changes == Changes():
        raise InvalidInput("nothing to change is given")
    text = None if changes.content is None else await _text(context, changes.content)
    async with context.changing:
        try:
            done = await context.db.transact(
                _modify, context, agent, memory_id, changes, text, actor
            )
        except CommitUnknown:
            await context.residency.doubt([memory_id])
            raise
        await _follow(context, [done])
    return Modified(done.memory, done.before)


async def archive_all(context: MemoryContext, agent: AgentProfile, *, actor: str) -> int:
    """Make all memories of the agent unreadable, in several commits; how many."""
    total = 0
    async with context.changing:
        while ids := await context.db.read(
            memories.own_cells, agent.id, ARCHIVED_AT_ONCE, readable=True
        ):
            try:
                done = await context.db.transact(_archive, context, agent, ids, actor)
            except CommitUnknown:
                await context.residency.doubt(ids)
                raise
            await _follow(context, done)
            total += len(done)
    return total


async def _text(context: MemoryContext, content: str) -> _Text:
    normal = normalize(
        content,
        collapse=context.settings.collapse_storage_whitespace,
        max_bytes=context.settings.max_bytes,
    )
    (vector,) = await context.embedder.embed([normal.storage])
    return _Text(normal, vector.astype(WIRE_DTYPE).astype(np.float32))


async def _follow(context: MemoryContext, batch: Sequence[_Done]) -> None:
    """Let graph, mesh and subscribers follow a commit."""
    left = [done.before for done in batch if done.before != done.memory.id]
    if left:
        await context.residency.forget(left)
    for done in batch:
        if done.hidden:
            await context.residency.hide(done.hidden)
        context.desk.told(done.handed)
    await context.residency.add(
        [(done.memory, done.vector) for done in batch if done.vector is not None]
    )
    context.announced()


async def _archive(
    tx: Tx, context: MemoryContext, agent: AgentProfile, ids: Sequence[MemoryId], actor: str
) -> list[_Done]:
    changes = Changes(visibility=Visibility.ARCHIVED)
    rows = await memories.by_ids(tx, ids, lock=True)
    return [
        await _change(tx, context, row, changes, None, actor)
        for row in rows
        if row.agent_id == agent.id
    ]


async def _modify(
    tx: Tx,
    context: MemoryContext,
    agent: AgentProfile,
    memory_id: MemoryId,
    changes: Changes,
    text: _Text | None,
    actor: str,
) -> _Done:
    rows = await memories.by_ids(tx, [memory_id], lock=True)
    old = rows[0] if rows else None
    if (
        old is None
        or old.agent_id != agent.id
        or old.kind is not MemoryKind.CELL
        or old.deleted_at is not None
        or (old.expires_at is not None and old.expires_at <= context.now())
    ):
        raise NotFound("memory not found")
    if old.superseded_by is not None:
        raise StateConflict("superseded", "a newer memory stands for it", old.superseded_by)
    return await _change(tx, context, old, changes, text, actor)


async def _change(
    tx: Tx,
    context: MemoryContext,
    old: Memory,
    changes: Changes,
    text: _Text | None,
    actor: str,
) -> _Done:
    now = context.now()
    new = _changed(old, changes, text)
    kept = await memories.vector_if_any(tx, old.id, context.embedder.model_id)
    if new == old:
        return _Done(old, old.id, kept)
    check_marks(new.type, new.tags, new.importance)
    epochs = await context.node.gate.for_write(tx, old.agent_id, old.project_id)
    hidden = await _make_room(tx, context, new, now, actor)
    vector = kept if text is None or new.content == old.content else text.vector
    travelled = old.announced_at is not None
    ends = travelled and (new.content, new.visibility) != (old.content, old.visibility)
    travels = (
        new.visibility is Visibility.GLOBAL
        and new.project_id in context.access.current.projects
        and (ends or not travelled)
        and vector is not None
    )
    new = replace(new, updated_at=now, updated_by=actor)
    if ends or travels:
        new = replace(
            new,
            announced_at=now if travels else None,
            agent_epoch=epochs.agent,
            project_epoch=epochs.project,
            hlc=context.node.clock.now(),
        )
    if ends:
        new = replace(new, id=context.node.new_id(), seen_count=1, access_count=0)
        await ending.forget(tx, context.node, context.access.current, [old], actor=actor)
        if not await memories.insert(tx, new):
            raise StateConflict("duplicate", "the same text is stored already")
    else:
        await memories.change(tx, new)
    if vector is not None and (ends or vector is not kept):
        cluster = context.cold.cluster_for(new, vector)
        await memories.replace_vectors(tx, new, context.embedder.model_id, vector, cluster)
    await _record(tx, old, new, now, actor)
    handed: set[AgentId] = set()
    if travels and vector is not None:
        diff = announcement(context, new, vector, "add", now)
        await diffs.insert(tx, diff)
        handed = await context.desk.hand(tx, [Announced(new, diff.diff_id, diff.q8)])
    return _Done(new, old.id, vector, hidden, frozenset(handed))


def _changed(old: Memory, changes: Changes, text: _Text | None) -> Memory:
    new = replace(
        old,
        type=old.type if changes.type is None else changes.type,
        tags=old.tags if changes.tags is None else changes.tags,
        importance=old.importance if changes.importance is None else changes.importance,
        pinned=old.pinned if changes.pinned is None else changes.pinned,
        visibility=old.visibility if changes.visibility is None else changes.visibility,
    )
    if text is None:
        return new
    return replace(
        new,
        content=text.content.storage,
        normalized_content=text.content.normalized,
        content_hash=text.content.content_hash,
        hash_version=text.content.hash_version,
    )


async def _make_room(
    tx: Tx, context: MemoryContext, new: Memory, now: datetime, actor: str
) -> list[MemoryId]:
    """The expired memories that stood in the way of a new text. Raises StateConflict for others."""
    met = await memories.find_duplicate(tx, replace(new, source_id=None, idempotency_key=None))
    if met is None or met.id == new.id:
        return []
    if met.expires_at is None or met.expires_at > now:
        raise StateConflict("duplicate", "the same text is stored already", met.id)
    return await hide_expired(tx, context.node, context.access.current, [met], actor=actor)


async def _record(tx: Tx, old: Memory, new: Memory, now: datetime, actor: str) -> None:
    fields = ("content", "type", "tags", "importance", "pinned", "visibility")
    texts = old.content != new.content
    metadata: dict[str, object] = {
        "changed": [name for name in fields if getattr(old, name) != getattr(new, name)]
    }
    if old.id != new.id:
        metadata["recovered_from"] = old.id.hex()
    await history.record(
        tx,
        new,
        "updated",
        now=now,
        changed_by=actor,
        old_content=old.content if texts else None,
        new_content=new.content if texts else None,
        metadata=metadata,
    )
