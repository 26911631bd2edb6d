"""Rows of `memories` and `embeddings`.

Every function works inside its caller's transaction and holds no rule of its own beyond what
the table enforces; who may see what is the SQL function `memory_visible`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from storage.content import bigrams, full_text_part
from storage.errors import NotFound
from storage.filters import NO_FILTERS, Filters, arguments, to_ms
from storage.model import (
    AgentId,
    Memory,
    MemoryId,
    MemoryKind,
    NodeId,
    ProjectId,
    Reader,
    Resident,
    Visibility,
)
from storage.pool import Record, Tx
from storage.queries import load

SQL = load("memories")


@dataclass(frozen=True, slots=True)
class Stored:
    """A memory together with its vector, float32 of shape (dim,)."""

    memory: Memory
    vector: NDArray[np.float32]


def from_row(row: Record) -> Memory:
    """The record of a row of the view `memory_rows`."""
    return Memory(
        id=row["id"],
        kind=MemoryKind(row["kind"]),
        agent_id=row["agent_id"],
        project_id=row["project_id"],
        scope_label=row["scope_label"],
        content=row["content"],
        normalized_content=row["normalized_content"],
        content_hash=row["content_hash"],
        hash_version=row["hash_version"],
        type=row["type"],
        tags=tuple(row["tags"]),
        who=row["who"],
        importance=row["importance"],
        pinned=row["pinned"],
        visibility=Visibility(row["visibility"]),
        source_type=row["source_type"],
        source_id=row["source_id"],
        idempotency_key=row["idempotency_key"],
        seen_count=row["seen_count"],
        superseded_by=row["superseded_by"],
        superseded_at=row["superseded_at"],
        expires_at=row["expires_at"],
        deleted_at=row["deleted_at"],
        announced_at=row["announced_at"],
        access_count=row["access_count"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        updated_by=row["updated_by"],
        origin_node=row["origin_node"],
        agent_epoch=row["agent_epoch"],
        project_epoch=row["project_epoch"],
        hlc=row["hlc"],
    )


def resident(memory: Memory, node_id: NodeId) -> Resident:
    """What the hot graph keeps of a row; equal short texts of many are one object."""
    return Resident(
        id=memory.id,
        kind=memory.kind,
        agent_id=memory.agent_id,
        project_id=memory.project_id,
        visibility=memory.visibility,
        content=memory.content,
        created_ms=to_ms(memory.created_at),
        scope_label=memory.scope_label and sys.intern(memory.scope_label),
        type=sys.intern(memory.type),
        tags=memory.tags,
        who=memory.who and sys.intern(memory.who),
        importance=memory.importance,
        pinned=memory.pinned,
        expires_ms=to_ms(memory.expires_at) if memory.expires_at else None,
        superseded=memory.superseded_by is not None,
        foreign=memory.origin_node != node_id,
    )


async def insert(tx: Tx, memory: Memory, *, searchable: bool = True) -> bool:
    """Add a row. False when an equal live text, source id or idempotency key stands already.

    One that is not `searchable` is never found by its words.
    """
    columns = _columns(memory)
    if not searchable:
        columns |= {"bigrams": [], "indexed_chars": 0}
    return await tx.fetchval(SQL.insert_memory, **columns) is not None


def _columns(memory: Memory) -> dict[str, Any]:
    return {
        "id": memory.id,
        "kind": memory.kind.value,
        "agent_id": memory.agent_id,
        "project_id": memory.project_id,
        "scope_label": memory.scope_label,
        "content": memory.content,
        "normalized_content": memory.normalized_content,
        "content_hash": memory.content_hash,
        "hash_version": memory.hash_version,
        "type": memory.type,
        "tags": list(memory.tags),
        "who": memory.who,
        "importance": memory.importance,
        "pinned": memory.pinned,
        "visibility": memory.visibility.value,
        "source_type": memory.source_type,
        "source_id": memory.source_id,
        "idempotency_key": memory.idempotency_key,
        "expires_at": memory.expires_at,
        "announced_at": memory.announced_at,
        "created_at": memory.created_at,
        "updated_at": memory.updated_at,
        "updated_by": memory.updated_by,
        "origin_node": memory.origin_node,
        "agent_epoch": memory.agent_epoch,
        "project_epoch": memory.project_epoch,
        "hlc": memory.hlc,
        "bigrams": bigrams(memory.content),
        "indexed_chars": len(full_text_part(memory.content)),
    }


_CHANGING: Final = (
    "id",
    "content",
    "normalized_content",
    "content_hash",
    "hash_version",
    "bigrams",
    "indexed_chars",
    "type",
    "tags",
    "importance",
    "pinned",
    "visibility",
    "announced_at",
    "updated_at",
    "updated_by",
    "agent_epoch",
    "project_epoch",
    "hlc",
)


async def insert_vector(
    tx: Tx,
    memory: Memory,
    model: str,
    vector: NDArray[np.float32],
    cluster_id: int | None = None,
) -> None:
    """Add the vector of a memory, rounded to half precision by its column.

    A cluster that is gone meanwhile counts as none.
    """
    await tx.execute(
        SQL.insert_vector,
        memory_id=memory.id,
        agent_id=memory.agent_id,
        project_id=memory.project_id,
        model=model,
        dims=len(vector),
        vector=vector,
        cluster_id=cluster_id,
    )


async def replace_vectors(
    tx: Tx,
    memory: Memory,
    model: str,
    vector: NDArray[np.float32],
    cluster_id: int | None = None,
) -> None:
    """`insert_vector` for a memory whose text is another now: no vector of the old one stays."""
    await purge_vectors(tx, [memory.id])
    await insert_vector(tx, memory, model, vector, cluster_id)


async def find_duplicate(tx: Tx, memory: Memory) -> Memory | None:
    """The live row that stands in the way of inserting `memory`, locked."""
    row = await tx.fetchrow(
        SQL.find_duplicate,
        agent_id=memory.agent_id,
        project_id=memory.project_id,
        scope_label=memory.scope_label,
        source_type=memory.source_type,
        source_id=memory.source_id,
        idempotency_key=memory.idempotency_key,
        hash_version=memory.hash_version,
        content_hash=memory.content_hash,
    )
    return from_row(row) if row else None


async def count_seen_again(tx: Tx, memory_id: MemoryId) -> None:
    """Note that the same memory was stored once more."""
    await tx.execute(SQL.count_seen_again, id=memory_id)


async def by_ids(tx: Tx, ids: Sequence[MemoryId], *, lock: bool = False) -> list[Memory]:
    """Rows by id in any state; with `lock`, in id order and locked."""
    rows = await tx.fetch(SQL.lock_by_ids if lock else SQL.by_ids, ids=list(ids))
    return [from_row(row) for row in rows]


async def visible_by_ids(
    tx: Tx, ids: Sequence[MemoryId], reader: Reader, now: datetime, *, superseded: bool = False
) -> list[Memory]:
    """Those of `ids` that the reader may see, in no particular order."""
    rows = await tx.fetch(SQL.visible_by_ids, ids=list(ids), **seen_by(reader, now, superseded))
    return [from_row(row) for row in rows]


async def list_page(
    tx: Tx,
    reader: Reader,
    now: datetime,
    *,
    limit: int,
    agent_id: AgentId | None = None,
    before: tuple[datetime, MemoryId] | None = None,
    offset: int = 0,
) -> list[Memory]:
    """Visible rows, newest first; `before` is the place of the last row of the page before."""
    await tx.execute(SQL.plan_for_values)
    rows = await tx.fetch(
        SQL.list_page,
        agent_id=agent_id,
        before_at=before[0] if before else None,
        before_id=before[1] if before else None,
        limit=limit,
        offset=offset,
        **seen_by(reader, now, False),
    )
    return [from_row(row) for row in rows]


@dataclass(frozen=True, slots=True)
class Found:
    """A row that a search met. `cosine` is None for a row without a vector of the model, `words`
    is 0 for one that no word led to; word scores compare only within one search."""

    memory: Memory
    cosine: float | None
    words: float = 0.0


async def search_vectors(
    tx: Tx,
    vector: NDArray[np.float32],
    model: str,
    reader: Reader,
    now: datetime,
    *,
    limit: int,
    filters: Filters = NO_FILTERS,
    superseded: bool,
) -> list[Found]:
    """Exact nearest visible rows, for unit vectors."""
    await tx.execute(SQL.plan_for_values)
    rows = await tx.fetch(
        SQL.search_vectors,
        vector=vector,
        model=model,
        limit=limit,
        **arguments(filters),
        **seen_by(reader, now, superseded),
    )
    return [Found(from_row(row), _cosine(row["score"])) for row in rows]


async def with_vectors(tx: Tx, ids: Sequence[MemoryId], model: str) -> list[Stored]:
    """Live rows with vectors, for the hot graph."""
    rows = await tx.fetch(SQL.with_vectors, ids=list(ids), model=model)
    return [Stored(from_row(row), as_vector(row["vector"])) for row in rows]


async def unannounced(
    tx: Tx,
    project_id: ProjectId,
    node_id: NodeId,
    peer_id: NodeId,
    model: str,
    now: datetime,
    after: bytes,
    limit: int,
) -> list[Stored]:
    """Live memories of this node whose announcement is gone and that the peer is not known to
    store, with vectors, by id behind `after`."""
    rows = await tx.fetch(
        SQL.unannounced,
        project_id=project_id,
        node_id=node_id,
        peer_id=peer_id,
        model=model,
        now=now,
        after=after,
        limit=limit,
    )
    return [Stored(from_row(row), as_vector(row["vector"])) for row in rows]


async def warmest_page(
    tx: Tx, model: str, now: datetime, *, limit: int, offset: int
) -> list[Stored]:
    """Live rows with vectors in the order in which they should become resident."""
    rows = await tx.fetch(SQL.warmest_page, model=model, now=now, limit=limit, offset=offset)
    return [Stored(from_row(row), as_vector(row["vector"])) for row in rows]


async def count_access(tx: Tx, accesses: Mapping[MemoryId, int]) -> None:
    """Add to the counts of recalled memories, so that they are resident first after a restart."""
    ids = sorted(accesses)
    await tx.execute(SQL.count_access, ids=ids, counts=[accesses[each] for each in ids])


async def soft_delete(tx: Tx, ids: Sequence[MemoryId], now: datetime, actor: str) -> list[MemoryId]:
    """Hide rows; the ids that were live until now."""
    rows = await tx.fetch(SQL.soft_delete, ids=list(ids), now=now, actor=actor)
    return [row["id"] for row in rows]


async def matching(
    tx: Tx, agent_id: AgentId, reader: Reader, now: datetime, filters: Filters, limit: int
) -> list[MemoryId]:
    """Ids of an agent's own visible memories that meet all conditions, superseded ones too."""
    await tx.execute(SQL.plan_for_values)
    rows = await tx.fetch(
        SQL.matching,
        agent_id=agent_id,
        limit=limit,
        **arguments(filters),
        **seen_by(reader, now, True),
    )
    return [row["id"] for row in rows]


async def own_cells(
    tx: Tx, agent_id: AgentId, limit: int, *, after: MemoryId = b"", readable: bool = False
) -> list[MemoryId]:
    """Ids of an agent's memories in any state, behind an id; `readable` leaves out deleted and
    archived ones."""
    rows = await tx.fetch(
        SQL.own_cells, agent_id=agent_id, after=after, readable=readable, limit=limit
    )
    return [row["id"] for row in rows]


async def change(tx: Tx, memory: Memory) -> None:
    """Write what may change of a row; its vector is the caller's to change."""
    columns = _columns(memory)
    await tx.execute(SQL.change, **{name: columns[name] for name in _CHANGING})


async def undelete(tx: Tx, memory_id: MemoryId, now: datetime, actor: str) -> None:
    """Bring a soft-deleted row back."""
    await tx.execute(SQL.undelete, id=memory_id, now=now, actor=actor)


async def purge(tx: Tx, ids: Sequence[MemoryId]) -> list[MemoryId]:
    """Take rows and vectors out for good; the ids that were there."""
    await purge_vectors(tx, ids)
    rows = await tx.fetch(SQL.purge, ids=list(ids))
    return [row["id"] for row in rows]


async def purge_vectors(tx: Tx, ids: Sequence[MemoryId]) -> None:
    """Take the vectors of memories out for good."""
    await tx.execute(SQL.purge_vectors, ids=list(ids))


async def set_announced(tx: Tx, ids: Sequence[MemoryId], now: datetime) -> None:
    """Remember that peers may have copies, so that deleting writes a tombstone."""
    await tx.execute(SQL.set_announced, ids=list(ids), now=now)


async def agent_vectors(
    tx: Tx, agent_id: AgentId, model: str, origin: NodeId, limit: int
) -> list[NDArray[np.float32]]:
    """The newest vectors of an agent's own memories."""
    rows = await tx.fetch(
        SQL.agent_vectors, agent_id=agent_id, model=model, origin=origin, limit=limit
    )
    return [as_vector(row["vector"]) for row in rows]


async def sample_vectors(tx: Tx, model: str, limit: int) -> list[NDArray[np.float32]]:
    """Vectors of this node, for its interest threshold."""
    return [
        as_vector(row["vector"])
        for row in await tx.fetch(SQL.sample_vectors, model=model, limit=limit)
    ]


async def position_of(tx: Tx, agent_id: AgentId) -> Memory | None:
    """The memory of kind agent that holds an agent's position."""
    row = await tx.fetchrow(SQL.position_of, agent_id=agent_id)
    return from_row(row) if row else None


async def count_live(tx: Tx) -> int:
    """How many live rows there are."""
    return int(await tx.fetchval(SQL.count_live))


async def export_page(
    tx: Tx, agent_id: AgentId, reader: Reader, now: datetime, *, after: MemoryId | None, limit: int
) -> list[Memory]:
    """Rows of one agent in id order, behind `after`."""
    await tx.execute(SQL.plan_for_values)
    rows = await tx.fetch(
        SQL.export_page,
        agent_id=agent_id,
        after=after,
        limit=limit,
        **{
            name: value
            for name, value in seen_by(reader, now, True).items()
            if name != "with_superseded"
        },
    )
    return [from_row(row) for row in rows]


async def vector_of(tx: Tx, memory_id: MemoryId, model: str) -> NDArray[np.float32]:
    """The vector of one memory. Raises NotFound when it has none of this model."""
    vector = await vector_if_any(tx, memory_id, model)
    if vector is None:
        raise NotFound("the memory has no vector of this model")
    return vector


async def vector_if_any(tx: Tx, memory_id: MemoryId, model: str) -> NDArray[np.float32] | None:
    """The vector of one memory, None when it has none of this model."""
    value = await tx.fetchval(SQL.vector_of, id=memory_id, model=model)
    return None if value is None else as_vector(value)


async def stored_model(tx: Tx) -> str | None:
    """The embedding model of this database's vectors, None while it has none."""
    model = await tx.fetchval(SQL.stored_model)
    return str(model) if model is not None else None


def seen_by(reader: Reader, now: datetime, superseded: bool) -> dict[str, Any]:
    """The arguments of `memory_visible`."""
    return {
        "reader": reader.agent_id,
        "policy": reader.policy.value,
        "group": sorted(reader.group),
        "projects": sorted(reader.projects),
        "now": now,
        "with_superseded": superseded,
    }


def _cosine(score: float | None) -> float | None:
    return None if score is None else float(score)


def as_vector(value: Any) -> NDArray[np.float32]:
    """A database vector as float32 of shape (dim,)."""
    return np.asarray(value.to_numpy() if hasattr(value, "to_numpy") else value, dtype=np.float32)
