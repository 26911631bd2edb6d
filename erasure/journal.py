"""The ledger of this node: appended inside the transaction of its cause, copied to a file after.

The file is written behind the commit and synced before a head leaves the node. So a file that is
behind only tells of a crash and is caught up, while a database behind its file was restored from
an older state and must not serve. Never rewrites an entry.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

import trio

from erasure import canonical, merkle
from erasure.context import ErasureContext
from erasure.ledger import Entry, LedgerKind, LogState, log_id, tree_head
from erasure.ledger import append as extend
from erasure.parts import LedgerRef
from storage import ledger
from storage.errors import StartRefused
from storage.keyring import sync_folder
from storage.ledger import EntryRow
from storage.local import LocalNode
from storage.pool import Tx

PAGE = 500
COPY = "ledger.jsonl"

Field = int | str | bytes | None


class RestoredDatabase(StartRefused):
    """The database is older than the ledger's file copy: run `mnemesh restore-check`."""

    code = "database_restored"


async def state(tx: Tx) -> LogState:
    """Where the ledger ends, held until commit."""
    row = await ledger.lock(tx)
    if row is None:
        return LogState()
    return LogState(row.last_leaf, merkle.Frontier(row.size, row.frontier))


async def next_entry(tx: Tx, node: LocalNode, at: datetime) -> LedgerRef:
    """The place that the next `append` of this transaction will have.

    Opens the log when it is empty, so that a document can name its own entry before it is
    signed.
    """
    now = await state(tx)
    if now.size == 0:
        now = await _write(tx, node, now, LedgerKind.LOG_OPENED, at, {})
    return LedgerRef(log_id(node.keys.ledger_key()), now.size + 1)


async def append(
    tx: Tx, node: LocalNode, kind: LedgerKind, at: datetime, fields: Mapping[str, Field]
) -> int:
    """Add an entry; its number. Raises InvalidEntry for a field that is no token."""
    await next_entry(tx, node, at)
    now = await _write(tx, node, await state(tx), kind, at, fields)
    return now.size


async def copy(ctx: ErasureContext) -> None:
    """Bring the file copy up to the database, durably. Called behind every commit."""
    async with ctx.ledger_lock:
        last = await trio.to_thread.run_sync(_last_copied, ctx.ledger_dir)
        while rows := await ctx.db.read(ledger.page, last[0], PAGE):
            await trio.to_thread.run_sync(_extend_copy, ctx.ledger_dir, rows)
            last = (rows[-1].seq, rows[-1].leaf)


async def compare(ctx: ErasureContext) -> None:
    """At start: the file may be behind the database, never the other way round.

    Raises RestoredDatabase.
    """
    seq, leaf = await trio.to_thread.run_sync(_last_copied, ctx.ledger_dir)
    if seq:
        row = await ctx.db.read(ledger.entry, seq)
        if row is None or row.leaf != leaf:
            raise RestoredDatabase()
    await copy(ctx)


async def _write(
    tx: Tx,
    node: LocalNode,
    before: LogState,
    kind: LedgerKind,
    at: datetime,
    fields: Mapping[str, Field],
) -> LogState:
    entry, now = extend(before, kind, at, fields)
    await _insert(tx, node, entry, now, at)
    return now


async def _insert(tx: Tx, node: LocalNode, entry: Entry, now: LogState, at: datetime) -> None:
    await ledger.append(
        tx,
        seq=entry.seq,
        kind=entry.kind.value,
        payload=entry.payload,
        leaf=entry.leaf,
        prev=entry.prev,
        head=tree_head(now, at, node.keys.ledger_key()).to_bytes(),
        root=now.root,
        frontier=now.frontier.peaks,
    )


def _last_copied(folder: Path) -> tuple[int, bytes]:
    """Number and leaf of the last whole line; a line that a crash cut is taken away."""
    path = folder / COPY
    if not path.exists():
        return 0, b""
    with path.open("rb+") as file:
        size = file.seek(0, os.SEEK_END)
        window = 1 << 16
        while True:
            start = max(0, size - window)
            file.seek(start)
            tail = file.read(size - start)
            whole = tail.rfind(b"\n") + 1
            line_start = tail.rfind(b"\n", 0, max(whole - 1, 0)) + 1
            if start == 0 or line_start > 0:
                break
            window *= 4
        if whole < len(tail):
            file.truncate(start + whole)
            file.flush()
            os.fsync(file.fileno())
    if whole == 0:
        return 0, b""
    try:
        line = canonical.decode(tail[line_start : whole - 1])
        if not isinstance(line, dict) or not isinstance(line.get("entry"), str):
            raise RestoredDatabase("the ledger's file copy is damaged")
        payload = line["entry"].encode("utf-8")
        entry = canonical.decode(payload)
    except canonical.Malformed as error:
        raise RestoredDatabase("the ledger's file copy is damaged") from error
    if not isinstance(entry, dict) or not isinstance(entry.get("seq"), int):
        raise RestoredDatabase("the ledger's file copy is damaged")
    return int(entry["seq"]), merkle.leaf_hash(payload)


def _extend_copy(folder: Path, rows: list[EntryRow]) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / COPY
    fresh = not path.exists()
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "ab") as file:
        for row in rows:
            line = {
                "entry": row.payload.decode("utf-8"),
                "head": canonical.decode(row.head),
            }
            file.write(canonical.encode(line) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    if fresh:
        sync_folder(folder)
