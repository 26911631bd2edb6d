"""The clock's reserve: no stamp is given out that a restart could give out again.

Each second a stamp two seconds ahead is made durable, first in the database, then in a file
beside the ledger. At start the clock begins above it and above every stamp in the rows. A
database that is behind the file was restored from a backup: the node refuses to start, since
what was forgotten since then would come back.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from storage import principals
from storage.clock import HybridClock, from_bytes, from_millis, millis, to_bytes
from storage.errors import StartRefused
from storage.keyring import sync_folder
from storage.model import Hlc
from storage.pool import Database, Tx
from storage.queries import load

SQL = load("reserve")
AHEAD_MS = 2_000
FILE_NAME = "hlc"


class DatabaseRestored(StartRefused):
    """The database is older than the node's own files."""

    code = "database_restored"


@dataclass(frozen=True, slots=True)
class LastLife:
    """Where the clock starts, and when the node was last known to run."""

    start: Hlc
    last_seen_ms: int | None


async def read_reserve(db: Database, folder: Path) -> LastLife:
    """What the node's earlier life left behind. Raises DatabaseRestored."""
    reserve, newest, last_seen = await db.read(_stamps)
    path = folder / FILE_NAME
    kept = from_bytes(path.read_bytes()) if path.exists() else 0
    if kept > reserve:
        raise DatabaseRestored(
            f"the database ends at {_text(reserve)}, this node's files at {_text(kept)}: it was "
            "restored from a backup, and deletions since then are missing in it. Restore the "
            "newer state, or join the mesh again with an empty workspace"
        )
    return LastLife(max(reserve, newest), last_seen)


async def keep_reserve(
    db: Database, clock: HybridClock, folder: Path, wall: Callable[[], datetime]
) -> None:
    """Make the next seconds of the clock durable; called each second."""
    now_ms = int(wall().timestamp() * 1000)
    reserve = max(from_millis(now_ms + AHEAD_MS), clock.last + 1)
    await db.transact(_write, reserve, now_ms)
    _write_file(folder / FILE_NAME, to_bytes(reserve))


async def _stamps(tx: Tx) -> tuple[Hlc, Hlc, int | None]:
    reserve = await principals.state(tx, "hlc_reserve")
    seen = await principals.state(tx, "last_seen_wall")
    newest = await tx.fetchval(SQL.newest_stamp)
    return (
        from_bytes(reserve) if reserve else 0,
        int(newest or 0),
        int.from_bytes(seen, "big") if seen else None,
    )


async def _write(tx: Tx, reserve: Hlc, now_ms: int) -> None:
    await principals.set_state(tx, "hlc_reserve", to_bytes(reserve))
    await principals.set_state(tx, "last_seen_wall", now_ms.to_bytes(8, "big"))


def _write_file(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.new")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    sync_folder(path.parent)


def _text(stamp: Hlc) -> str:
    return datetime.fromtimestamp(millis(stamp) / 1000).astimezone().isoformat(timespec="seconds")
