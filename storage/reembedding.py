"""Rows of a re-embedding: vectors of the new model beside those of the old, until one commit swaps.

What is done is told by the rows themselves, so a run that was killed goes on where it stopped and
a memory that was erased meanwhile is never read or written again. Until the swap the old vectors
are complete and a node may serve with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from storage.model import MemoryId
from storage.pool import Tx
from storage.queries import load

SQL = load("reembed")


@dataclass(frozen=True, slots=True)
class Progress:
    """A re-embedding that has begun; `total` is the number of memories at its start."""

    old_model: str
    new_model: str
    total: int
    started_at: datetime


@dataclass(frozen=True, slots=True)
class Left:
    """Memories that lack a vector of the new model, and the characters of their texts."""

    rows: int
    characters: int


async def progress(tx: Tx) -> Progress | None:
    """The re-embedding under way."""
    row = await tx.fetchrow(SQL.progress)
    if row is None:
        return None
    return Progress(row["old_model"], row["new_model"], row["total"], row["started_at"])


async def models(tx: Tx) -> dict[str, int]:
    """How many vectors there are of each model."""
    return {row["model"]: row["n"] for row in await tx.fetch(SQL.models)}


async def left(tx: Tx, old_model: str, new_model: str) -> Left:
    """What a re-embedding has to do still."""
    row = await tx.fetchrow(SQL.left, old_model=old_model, new_model=new_model)
    return Left(int(row["rows"]), int(row["characters"])) if row else Left(0, 0)


async def begin(tx: Tx, new: Progress) -> None:
    """Note that a re-embedding runs; one to another model is given up and its vectors go."""
    before = await progress(tx)
    if before is not None and before.new_model != new.new_model:
        await tx.execute(SQL.drop_model, model=before.new_model)
    await tx.execute(
        SQL.begin,
        old_model=new.old_model,
        new_model=new.new_model,
        total=new.total,
        now=new.started_at,
    )


async def page(
    tx: Tx, old_model: str, new_model: str, after: MemoryId, limit: int
) -> list[tuple[MemoryId, str]]:
    """Ids and texts of memories that lack the new vector, behind an id, in any state."""
    rows = await tx.fetch(
        SQL.page, old_model=old_model, new_model=new_model, after=after, limit=limit
    )
    return [(row["id"], row["content"]) for row in rows]


async def put(tx: Tx, model: str, rows: Sequence[tuple[MemoryId, NDArray[np.float32]]]) -> None:
    """New vectors of those memories that still stand."""
    await tx.executemany(
        SQL.insert,
        [
            {"id": memory_id, "model": model, "dims": len(vector), "vector": vector}
            for memory_id, vector in rows
        ],
    )


async def swap(tx: Tx, old_model: str, new_model: str) -> bool:
    """Let the new vectors take the place of the old; False while any memory lacks one."""
    if (await left(tx, old_model, new_model)).rows:
        return False
    await tx.execute(SQL.drop_aggregates)
    await tx.execute(SQL.drop_clusters)
    await tx.execute(SQL.drop_model, model=old_model)
    await tx.execute(SQL.finish)
    return True
