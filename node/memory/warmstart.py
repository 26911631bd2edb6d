"""The hot graph at the start of a node: from its snapshot, brought up to the rows as they are now.

The rows decide. A file that is not exactly right, or older than what can be caught up with, is
set aside; then the graph fills from the rows while the node already serves, and every recall
asks the rows until that is done.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import trio

from node.memory.residency import Residency
from storage import memories, residents
from storage.hot.image import BadImage, Image
from storage.hot.snapshot import SnapshotFolder, SnapshotRefused, Stamp
from storage.model import MemoryId
from storage.pool import Database, Tx

log = logging.getLogger(__name__)

PAGE: Final = 2_000


@dataclass(frozen=True, slots=True)
class Start:
    """Where the residents came from, and why not from the snapshot when that was refused."""

    residents: int
    source: str
    refused: str | None = None
    gone: int = 0
    reloaded: int = 0


async def start(
    residency: Residency, db: Database, folder: SnapshotFolder, present: Stamp
) -> Start:
    """Fill the empty graph; afterwards `residency.degraded` says whether it is not filled yet.

    Without a file the rows fill it here and now. `present` is the state of the database before
    anything of this life was written.
    """
    await trio.to_thread.run_sync(folder.drop_remains)
    try:
        found = await trio.to_thread.run_sync(folder.read)
        if found is None:
            return Start(await residency.load(db), "rows")
        image, stamp = found
        check_stamp(stamp, present)
        return await _catch_up(residency, db, image, stamp)
    except (SnapshotRefused, BadImage) as error:
        log.warning("the snapshot is refused: %s", error)
        await trio.to_thread.run_sync(folder.set_aside)
        residency.degrade("the snapshot was refused and the graph is filled from the rows")
        return Start(0, "rows", refused=str(error))


def check_stamp(stamp: Stamp, present: Stamp) -> None:
    """Raises SnapshotRefused when the database cannot tell what changed since the stamp."""
    if stamp.system != present.system:
        raise SnapshotRefused("foreign: of another database cluster")
    for name in ("xid", "recv_seq", "ledger_seq", "hlc"):
        if getattr(stamp, name) > getattr(present, name):
            raise SnapshotRefused(f"the database is older than the file: {name}")


async def _catch_up(residency: Residency, db: Database, image: Image, stamp: Stamp) -> Start:
    """Only what stands as a live row stays, and what changed is read again."""
    await trio.to_thread.run_sync(residency.graph.restore, image)
    present, changed = await db.read(_now, residency.model, stamp.xid)
    gone = [one.id for one in image.residents if one.id not in present]
    await trio.to_thread.run_sync(residency.graph.forget, gone)
    for begin in range(0, len(changed), PAGE):
        await residency.refresh(db, changed[begin : begin + PAGE], only_others=True)
    residency.has_cold = await db.read(memories.count_live) > len(residency.graph)
    residency.resident_max = len(residency.graph)
    return Start(len(residency.graph), "snapshot", gone=len(gone), reloaded=len(changed))


async def _now(tx: Tx, model: str, xid: int) -> tuple[set[MemoryId], Sequence[MemoryId]]:
    return await residents.present(tx, model), await residents.changed(tx, model, xid)
