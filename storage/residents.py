"""What the rows say about the residents of the hot graph: for a warm start and for an audit.

Reads only, except `refile` and `drop_orphans`. A change is found by the transaction that made it,
not by a clock: `updated_at` of one that commits late lies before a stamp that does not contain it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from storage import memories
from storage.hot.snapshot import Stamp
from storage.memories import Stored
from storage.model import Hlc, Memory, MemoryId
from storage.pool import Tx
from storage.queries import load

SQL = load("residents")
ID_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class State:
    """What stands in the way of a memory; without any of it and with a vector it is live."""

    has_row: bool
    deleted: bool
    tombstoned: bool
    fenced: bool


async def stamp(tx: Tx, hlc: Hlc) -> Stamp:
    """The present state of the database; `hlc` is the newest stamp of the node's clock."""
    row = await tx.fetchrow(SQL.stamp)
    assert row is not None  # a row of sub-queries
    return Stamp(row["system"], row["xid"], row["recv_seq"], row["ledger_seq"], hlc)


async def present(tx: Tx, model: str) -> set[MemoryId]:
    """Ids of all live rows with a vector of the model."""
    whole = bytes(await tx.fetchval(SQL.present, model=model))
    return {whole[at : at + ID_BYTES] for at in range(0, len(whole), ID_BYTES)}


async def changed(tx: Tx, model: str, xid: int) -> list[MemoryId]:
    """Live rows that may have been written since a stamp; some that were not may be among them."""
    rows = await tx.fetch(SQL.changed, model=model, xid=xid)
    return [row["id"] for row in rows]


async def live_page(tx: Tx, model: str, after: MemoryId | None, limit: int) -> list[Stored]:
    """Live rows with vectors in id order."""
    rows = await tx.fetch(SQL.live_page, model=model, after=after, limit=limit)
    return [Stored(memories.from_row(row), memories.as_vector(row["vector"])) for row in rows]


async def without_vector(tx: Tx, model: str, after: MemoryId | None, limit: int) -> list[Memory]:
    """Live rows that no search by meaning can find."""
    rows = await tx.fetch(SQL.without_vector, model=model, after=after, limit=limit)
    return [memories.from_row(row) for row in rows]


async def orphans(tx: Tx, limit: int) -> list[MemoryId]:
    """Memories that have a vector and no row."""
    return [row["memory_id"] for row in await tx.fetch(SQL.orphans, limit=limit)]


async def misfiled(tx: Tx, limit: int) -> list[MemoryId]:
    """Memories whose vector is kept under another agent or project than their row."""
    return [row["memory_id"] for row in await tx.fetch(SQL.misfiled, limit=limit)]


async def refile(tx: Tx, ids: Sequence[MemoryId]) -> int:
    """Put vectors under the agent and project of their rows; how many."""
    return await tx.execute(SQL.refile, ids=list(ids))


async def drop_orphans(tx: Tx, ids: Sequence[MemoryId]) -> int:
    """Remove vectors that have no row; how many."""
    return await tx.execute(SQL.drop_orphans, ids=list(ids))


async def states(tx: Tx, ids: Sequence[MemoryId]) -> dict[MemoryId, State]:
    """What the tables say about memories by id."""
    return {
        row["id"]: State(row["has_row"], row["deleted"], row["tombstoned"], row["fenced"])
        for row in await tx.fetch(SQL.states, ids=list(ids))
    }
