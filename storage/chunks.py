"""Rows of a text that was saved in parts: one group id, a number for each part.

A part is a memory of source type `chunk` whose source id is its group and its number. The first
one carries the caller's idempotency key, so that the index over those keys sees parts and single
memories alike.
"""

from __future__ import annotations

from typing import Final

from storage.memories import from_row
from storage.model import AgentId, Memory, ProjectId
from storage.pool import Tx
from storage.queries import load

SQL = load("chunks")
CHUNK: Final = "chunk"


def part_id(group: str, number: int) -> str:
    """The source id of a part; parts sort by it."""
    return f"{group}:{number:04}"


def group_of(memory: Memory) -> str:
    """The group of a part."""
    return (memory.source_id or "").partition(":")[0]


async def by_key(
    tx: Tx, agent_id: AgentId, project_id: ProjectId | None, scope_label: str | None, key: str
) -> Memory | None:
    """The live row that an idempotency key stands for."""
    row = await tx.fetchrow(
        SQL.by_key, agent_id=agent_id, project_id=project_id, scope_label=scope_label, key=key
    )
    return from_row(row) if row else None


async def of_group(tx: Tx, first: Memory) -> list[Memory]:
    """The live parts of the group that `first` belongs to, in their order."""
    rows = await tx.fetch(
        SQL.of_group,
        agent_id=first.agent_id,
        project_id=first.project_id,
        scope_label=first.scope_label,
        source_type=CHUNK,
        prefix=f"{group_of(first)}:",
    )
    return [from_row(row) for row in rows]
