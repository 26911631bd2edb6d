"""Rows of `clusters`: which memories are near each other, and what stands for them.

Clusters of the lowest level route the search of cold rows. One whose members all belong to one
project and are visible there may also have an aggregate: a memory of kind l1, l2 or beacon whose
text is that of its middle member. Lineage is read both ways: `embeddings.cluster_id` and
`clusters.parent_id` lead up, their indexes lead down.

A trigger marks a cluster dirty, and deletes its text, in the transaction in which a member leaves
or changes; a dirty cluster is neither used for a search nor in a profile, and gets a text again
only after `settle`. No function here announces anything.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage.memories import as_vector
from storage.model import AgentId, Hlc, MemoryId, MemoryKind, NodeId, ProjectId
from storage.pool import Record, Tx
from storage.queries import load

SQL = load("aggregates")

KIND: Final = {1: MemoryKind.L1, 2: MemoryKind.L2, 3: MemoryKind.BEACON}
SETTLED_AT_ONCE: Final = 50


@dataclass(frozen=True, slots=True, eq=False)
class Cluster:
    """A group of near memories; `centroid` is float32 of shape (dim,), a mean and no unit vector.

    `project_id` is None for the node's own group, whose clusters have no text.
    """

    id: int
    project_id: ProjectId | None
    centroid: NDArray[np.float32]
    size: int


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """A memory to be placed, or a member; `vector` is float32 of shape (dim,)."""

    memory_id: MemoryId
    vector: NDArray[np.float32]
    project_id: ProjectId | None = None
    cluster_id: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Aggregate:
    """An aggregate that may stand in a profile; `mass` counts its inputs and their recalls."""

    memory_id: MemoryId
    kind: MemoryKind
    centroid: NDArray[np.float32]
    mass: float


async def routing(tx: Tx, model: str) -> tuple[list[Cluster], list[int]]:
    """The clusters that a search may be routed to, by id, and the ids of dirty ones."""
    rows = await tx.fetch(SQL.all_clusters, model=model)
    clean = [_cluster(row) for row in rows if row["centroid"] is not None]
    return clean, [row["cluster_id"] for row in rows if row["centroid"] is None]


async def member_counts(tx: Tx, model: str) -> dict[int | None, int]:
    """Rows of each cluster, dead ones too; under None those that have no cluster."""
    rows = await tx.fetch(SQL.member_counts, model=model)
    return {row["cluster_id"]: row["n"] for row in rows}


async def agent_counts(tx: Tx, model: str) -> dict[AgentId, int]:
    """Rows of each agent."""
    return {row["agent_id"]: row["n"] for row in await tx.fetch(SQL.agent_counts, model=model)}


async def settle(tx: Tx, now: datetime, limit: int = SETTLED_AT_ONCE) -> int:
    """Compute some dirty clusters again from their survivors, or drop them; how many.

    The old centroid is overwritten in this transaction and kept nowhere. One without survivors
    goes, and one above the lowest level always does: what it stood for is grouped anew.
    """
    rows = await tx.fetch(SQL.doubtful, limit=limit)
    low = [row["cluster_id"] for row in rows if row["level"] == 1]
    gone = [row["cluster_id"] for row in rows if row["level"] > 1]
    if low:
        await tx.execute(SQL.let_strangers_go, ids=low)
        settled = await tx.fetch(SQL.settle, ids=low, now=now)
        gone += set(low) - {row["cluster_id"] for row in settled}
    await drop(tx, gone)
    return len(rows)


async def settled_since(
    tx: Tx, model: str, after: tuple[datetime, int], limit: int
) -> list[tuple[datetime, int]]:
    """When clusters of the lowest level got their centroids, and their ids, oldest first, behind
    `after`."""
    rows = await tx.fetch(
        SQL.settled_since, model=model, at=after[0], cluster_id=after[1], limit=limit
    )
    return [(row["settled_at"], row["cluster_id"]) for row in rows]


async def drop(tx: Tx, ids: Collection[int]) -> None:
    """Remove dirty clusters; members stay and are placed anew."""
    if not ids:
        return
    await tx.fetch(SQL.lock_for_dropping, ids=list(ids))
    await tx.execute(SQL.empty_clusters, ids=list(ids))
    await tx.execute(SQL.orphan_clusters, ids=list(ids))
    await tx.execute(SQL.drop_clusters, ids=list(ids))


async def doubt(tx: Tx, ids: Collection[int]) -> None:
    """Mark clusters, and those above, as dirty, because their members are others now."""
    await tx.execute(SQL.doubt, ids=list(ids))


async def lock(tx: Tx, ids: Collection[int]) -> list[int]:
    """Those clusters that stand and are clean, locked until commit."""
    return [row["cluster_id"] for row in await tx.fetch(SQL.lock_clean, ids=sorted(ids))]


async def unplaced(tx: Tx, model: str, limit: int) -> list[Row]:
    """Live cells without a cluster, in no order."""
    rows = await tx.fetch(SQL.unplaced, model=model, limit=limit)
    return [Row(row["memory_id"], as_vector(row["vector"]), row["project_id"]) for row in rows]


async def members(tx: Tx, ids: Sequence[int]) -> list[Row]:
    """Live members of clusters, by cluster and id."""
    rows = await tx.fetch(SQL.members, ids=list(ids))
    return [
        Row(row["memory_id"], as_vector(row["vector"]), cluster_id=row["cluster_id"])
        for row in rows
    ]


async def insert(tx: Tx, model: str, project_id: ProjectId | None) -> int:
    """A new cluster, dirty until its members are in it and it is settled; its id."""
    return int(await tx.fetchval(SQL.insert_cluster, model=model, project_id=project_id))


async def insert_above(
    tx: Tx, model: str, project_id: ProjectId, below: Sequence[Cluster], now: datetime
) -> int:
    """A cluster of clusters that the caller has locked; its id."""
    masses = np.array([cluster.size for cluster in below], np.float64)
    centroids = np.stack([cluster.centroid for cluster in below])
    cluster_id = int(
        await tx.fetchval(
            SQL.insert_above,
            model=model,
            project_id=project_id,
            centroid=np.average(centroids, axis=0, weights=masses).astype(np.float32),
            size=int(masses.sum()),
            now=now,
        )
    )
    await tx.execute(SQL.set_parent, ids=[cluster.id for cluster in below], parent_id=cluster_id)
    return cluster_id


async def place(
    tx: Tx,
    model: str,
    rows: Sequence[tuple[MemoryId, int]],
    previous: int | None,
) -> int:
    """Put rows that are in `previous` into other clusters; how many were still there."""
    return await tx.execute(
        SQL.place,
        ids=[memory_id for memory_id, _ in rows],
        clusters=[cluster_id for _, cluster_id in rows],
        model=model,
        previous=previous,
    )


async def without_text(tx: Tx, model: str, k_min: int, limit: int) -> list[tuple[Cluster, int]]:
    """Clean clusters of projects with at least `k_min` inputs and no text yet, with their level."""
    rows = await tx.fetch(SQL.without_text, model=model, k_min=k_min, limit=limit)
    return [(_cluster(row), row["level"]) for row in rows]


async def medoid(
    tx: Tx, ids: Sequence[int], project_id: ProjectId, centroid: NDArray[np.float32]
) -> str | None:
    """The text of the visible member nearest to a middle, None when nobody is left."""
    text = await tx.fetchval(SQL.medoid, ids=list(ids), project_id=project_id, centroid=centroid)
    return None if text is None else str(text)


async def set_text(tx: Tx, cluster_id: int, memory_id: MemoryId) -> None:
    """Connect a cluster with its aggregate; the caller has locked it."""
    await tx.execute(SQL.set_text, cluster_id=cluster_id, memory_id=memory_id)


async def children(tx: Tx, cluster_id: int) -> list[int]:
    """The clusters under one."""
    return [row["cluster_id"] for row in await tx.fetch(SQL.children, cluster_id=cluster_id)]


async def parentless(tx: Tx, model: str, limit: int) -> list[Cluster]:
    """Clusters of level 1 with a text and nothing above them."""
    return [_cluster(row) for row in await tx.fetch(SQL.parentless, model=model, limit=limit)]


async def raise_stable(tx: Tx, before: datetime, now: datetime, limit: int) -> list[int]:
    """Turn aggregates of level 2 that are unchanged since `before` into beacons; their ids."""
    ids = [row["cluster_id"] for row in await tx.fetch(SQL.stable, before=before, limit=limit)]
    if ids:
        await tx.execute(SQL.raise_to_beacon, ids=ids, now=now)
    return ids


async def mark(tx: Tx, ids: Sequence[int], how: str, hlc: Hlc) -> int:
    """Mark the announcements of all members as `promoted` or `consolidated`; how many are new.

    Retention keeps the deliveries of an announcement until it has a mark.
    """
    return await tx.execute(SQL.mark, ids=list(ids), mark=how, hlc=hlc)


async def for_profile(
    tx: Tx, model: str, origin: NodeId, k_min: int, before: datetime, limit: int
) -> list[Aggregate]:
    """Clean aggregates with at least `k_min` inputs, most of them written here, highest level
    and largest mass first; those that changed since `before` are left out."""
    rows = await tx.fetch(
        SQL.for_profile, model=model, origin=origin, k_min=k_min, before=before, limit=limit
    )
    return [
        Aggregate(row["memory_id"], KIND[row["level"]], as_vector(row["centroid"]), row["mass"])
        for row in rows
    ]


def _cluster(row: Record) -> Cluster:
    return Cluster(
        row["cluster_id"],
        row["project_id"],
        as_vector(row["centroid"]),
        row["size"],
    )
