"""Rows of `memory_history`: what happened to a memory, even after it is gone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from storage.model import AgentId, Memory, MemoryId, id_text
from storage.pool import Tx
from storage.queries import load

SQL = load("history")


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a memory; texts are None once the memory was forgotten or purged."""

    id: int
    memory_id: MemoryId
    agent_id: AgentId
    event: str
    old_content: str | None
    new_content: str | None
    changed_by: str
    reason: str | None
    created_at: datetime
    metadata: dict[str, Any] = field(default_factory=dict)


async def record(
    tx: Tx,
    memory: Memory,
    event: str,
    *,
    now: datetime,
    changed_by: str,
    old_content: str | None = None,
    new_content: str | None = None,
    reason: str | None = None,
    metadata: dict[str, Any] | None = None,
) -> None:
    """Append an event of `memory`."""
    await tx.execute(
        SQL.insert_event,
        memory_id=memory.id,
        agent_id=memory.agent_id,
        project_id=memory.project_id,
        event=event,
        old_content=old_content,
        new_content=new_content,
        changed_by=changed_by,
        reason=reason,
        metadata=json.dumps(metadata or {}),
        created_at=now,
        actor_type=None,
        session_id=None,
        request_id=None,
    )


async def of_memory(tx: Tx, memory_id: MemoryId, *, limit: int = 1000) -> list[Event]:
    """Events of a memory, oldest first."""
    return await _events(tx, memory_id, limit, 0, 0)


async def page_of_memory(
    tx: Tx,
    memory_id: MemoryId,
    agent_id: AgentId,
    *,
    limit: int,
    after: int | None = None,
    offset: int = 0,
) -> list[Event] | None:
    """Events behind a number, oldest first; None unless the memory is, or was, the agent's."""
    first = await _events(tx, memory_id, 1, 0, 0)
    if not first or first[0].agent_id != agent_id:
        return None
    return await _events(tx, memory_id, limit, after or 0, offset)


async def _events(tx: Tx, memory_id: MemoryId, limit: int, after: int, offset: int) -> list[Event]:
    rows = await tx.fetch(
        SQL.of_memory, memory_id=memory_id, limit=limit, after=after, offset=offset
    )
    return [
        Event(
            id=row["id"],
            memory_id=row["memory_id"],
            agent_id=row["agent_id"],
            event=row["event"],
            old_content=row["old_content"],
            new_content=row["new_content"],
            changed_by=row["changed_by"],
            reason=row["reason"],
            created_at=row["created_at"],
            metadata=json.loads(row["metadata"]),
        )
        for row in rows
    ]


async def blank(tx: Tx, ids: Sequence[MemoryId]) -> None:
    """Take the texts of memories out of all events; the events and ids stay."""
    await tx.execute(SQL.blank_texts, ids=list(ids))
    await tx.execute(SQL.blank_targets, ids=[id_text(memory_id) for memory_id in ids])
