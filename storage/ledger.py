"""Rows of `ledger` and `ledger_head`: the append-only log of what erasures did here.

What an entry says and how its hash is made is decided above; the SQL function behind `append`
only keeps the numbers without gaps. Nothing here changes or removes an entry, and the table
refuses it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from storage.pool import Tx
from storage.queries import load

SQL = load("ledger")


@dataclass(frozen=True, slots=True)
class HeadRow:
    """Size, root, leaf of the newest entry, and the peaks of the tree, largest first."""

    size: int
    root: bytes
    last_leaf: bytes
    frontier: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class EntryRow:
    """One entry with the signed head that came with it."""

    seq: int
    kind: str
    payload: bytes
    leaf: bytes
    head: bytes


async def lock(tx: Tx) -> HeadRow | None:
    """Where the ledger ends, held until commit; None for an empty one."""
    await tx.execute(SQL.lock_ledger)
    return await head(tx)


async def head(tx: Tx) -> HeadRow | None:
    """Where the ledger ends; None for an empty one."""
    row = await tx.fetchrow(SQL.head)
    if row is None:
        return None
    return HeadRow(row["size"], row["root"], row["last_leaf"], tuple(row["frontier"]))


async def append(
    tx: Tx,
    *,
    seq: int,
    kind: str,
    payload: bytes,
    leaf: bytes,
    prev: bytes,
    head: bytes,
    root: bytes,
    frontier: tuple[bytes, ...],
) -> None:
    """Add the next entry. The ledger must be locked."""
    await tx.execute(
        SQL.append,
        seq=seq,
        kind=kind,
        payload=payload,
        leaf=leaf,
        prev=prev,
        head=head,
        root=root,
        frontier=list(frontier),
    )


async def page(tx: Tx, after: int, limit: int) -> list[EntryRow]:
    """Entries behind `after`, in order."""
    return [EntryRow(**dict(row)) for row in await tx.fetch(SQL.page, after=after, limit=limit)]


async def entry(tx: Tx, seq: int) -> EntryRow | None:
    """One entry by its number."""
    row = await tx.fetchrow(SQL.entry, seq=seq)
    return EntryRow(**dict(row)) if row else None


async def leaves(tx: Tx, upto: int) -> list[bytes]:
    """Leaf hashes of the first `upto` entries, in order."""
    return [row["leaf"] for row in await tx.fetch(SQL.leaves, upto=upto)]


@dataclass(frozen=True, slots=True)
class WitnessedRow:
    """The highest head that was seen of a log; for this node's own, as others have signed it."""

    size: int
    root: bytes
    head: bytes


async def witnessed(tx: Tx, log_id: bytes, *, lock: bool = False) -> WitnessedRow | None:
    """The highest head seen of a log; with `lock`, held until commit."""
    row = await tx.fetchrow(SQL.witnessed if lock else SQL.read_witnessed, log_id=log_id)
    return WitnessedRow(**dict(row)) if row else None


async def put_witnessed(
    tx: Tx, log_id: bytes, size: int, root: bytes, head: bytes, now: datetime
) -> None:
    """Keep a head unless a higher one of the same log is kept."""
    await tx.execute(SQL.put_witnessed, log_id=log_id, size=size, root=root, head=head, now=now)
