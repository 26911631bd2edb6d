"""The places in PostgreSQL that can hold a copy: what to plan, how to remove, what to count.

`planned` and `removed` are the hands of an erasure. `scoped_tables` and the counts go another
way, over the catalog, so that the check does not repeat a mistake of the deleter. Identifiers in
a built statement come from the catalog and must be plain names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from storage.model import AgentId, MemoryId, ProjectId
from storage.pool import Tx
from storage.queries import Query, compile_query, load

SQL = load("tiers")
SCOPE_COLUMNS = (
    "agent_id",
    "project_id",
    "scope_id",
    "scope_handle",
    "owner_id",
    "about_agent_id",
)
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}\Z")


@dataclass(frozen=True, slots=True)
class Bounds:
    """What belongs to an erasure: one of agent and project, up to an epoch."""

    erasure_id: str
    agent: AgentId | None
    project: ProjectId | None
    epoch: int


@dataclass(frozen=True, slots=True)
class ScopedTable:
    """A table that can name a scope or a memory, as the catalog describes it."""

    name: str
    scope_columns: tuple[str, ...]
    memory_columns: tuple[str, ...]


async def planned(
    tx: Tx, query: Query, bounds: Bounds, after: str, limit: int, constants: Mapping[str, Any]
) -> list[tuple[str, str]]:
    """(record id, plan) of one place behind `after`, in its order."""
    values = {
        "erasure_id": bounds.erasure_id,
        "agent": bounds.agent,
        "project": bounds.project,
        "epoch": bounds.epoch,
        "after": after,
        "limit": limit,
        **constants,
    }
    rows = await tx.fetch(query, **{name: values[name] for name in query.params})
    return [(row["rid"], row["plan"]) for row in rows]


async def removed(tx: Tx, query: Query, rids: Sequence[str]) -> int:
    """Remove records of one place; how many rows went."""
    return await tx.execute(query, rids=list(rids))


async def scoped_tables(tx: Tx) -> list[ScopedTable]:
    """Every table that the catalog shows to name a scope or a memory."""
    rows = await tx.fetch(SQL.scoped_tables, columns=list(SCOPE_COLUMNS))
    return [
        ScopedTable(row["name"], tuple(row["scope_columns"]), tuple(row["memory_columns"]))
        for row in rows
    ]


async def count_by_id(tx: Tx, table: str, column: str, raw_id: bytes) -> int:
    """Rows of a table that name a scope in a column."""
    query = _count(table, column, "= :id")
    return int(await tx.fetchval(query, id=raw_id))


async def count_by_memory(tx: Tx, table: str, column: str, ids: Sequence[MemoryId]) -> int:
    """Rows of a table that name one of these memories in a column."""
    query = _count(table, column, "= ANY (:ids::bytea[])")
    return int(await tx.fetchval(query, ids=list(ids)))


async def count_live(tx: Tx, ids: Sequence[MemoryId]) -> int:
    """How many of these memories readers can still reach."""
    return int(await tx.fetchval(SQL.count_live, ids=list(ids)))


async def count_words(tx: Tx, ids: Sequence[MemoryId], texts: Sequence[str]) -> int:
    """Full-text answers to these texts among these memories."""
    return int(await tx.fetchval(SQL.count_words, ids=list(ids), texts=list(texts)))


async def count_canaries(
    tx: Tx, erasure_id: str, canaries: Sequence[bytes], *, intent_seq: int, since: datetime
) -> dict[str, int]:
    """Places written since the intent that hold one of these byte strings."""
    row = await tx.fetchrow(
        SQL.count_canaries,
        erasure_id=erasure_id,
        canaries=list(canaries),
        intent_seq=intent_seq,
        since=since,
    )
    return {name: int(value) for name, value in row.items()} if row else {}


def _count(table: str, column: str, condition: str) -> Query:
    for name in (table, column):
        if not _NAME.match(name):
            raise ValueError("not a plain name of a table or column")
    text = f'SELECT count(*) FROM "{table}" WHERE "{column}" {condition}'  # noqa: S608
    return compile_query(f"count_{table}", text)
