"""Re-embedding: every memory gets a vector of another model while the node is down.

Cold, soft-deleted, superseded and archived memories too, since each may be asked for again. New
vectors stand beside the old until all are there; then one commit swaps. A run that was killed goes
on where it stopped.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from node.embed.base import Embedder
from storage import memories, reembedding
from storage.errors import Conflict, StartRefused
from storage.model import MemoryId
from storage.pool import Database
from storage.reembedding import Progress

BATCH: Final = 256
TRIED: Final = 256
"""Memories that are embedded to estimate the time; their vectors are thrown away."""
ROW_BYTES: Final = 220
"""Ids, model, tuple header and index entries beside the vector itself."""
LOG_SHARE: Final = 1.5
"""Room for the write-ahead log and old row versions, as a share of the new rows."""
FIRST_ID: Final = b""


class DiskTooSmall(StartRefused):
    """The new vectors would not fit."""

    code = "disk_too_small"


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a re-embedding is expected to take. `done` memories have their new vector already.

    `free_bytes` is None where the database's disk is not this machine's.
    """

    old_model: str
    new_model: str
    rows: int
    done: int
    characters: int
    seconds: float
    bytes: int
    free_bytes: int | None

    @property
    def fits(self) -> bool:
        """Whether the disk has room for it."""
        return self.free_bytes is None or self.bytes <= self.free_bytes


@dataclass(frozen=True, slots=True)
class Step:
    """How far a run is; `seconds_left` by the pace of this run."""

    done: int
    total: int
    seconds_left: float


async def estimate(db: Database, embedder: Embedder, folder: Path | None) -> Estimate | None:
    """What is to be done, measured on some of the texts; None when no memory needs it.

    `folder` holds the database when it is this node's own. Raises Conflict when vectors of more
    than two models are stored.
    """
    old = await _old_model(db, embedder.model_id)
    if old is None:
        return None
    left = await db.read(reembedding.left, old, embedder.model_id)
    stored = await db.read(reembedding.models)
    sample = await db.read(reembedding.page, old, embedder.model_id, FIRST_ID, TRIED)
    pace = 0.0
    if sample:
        begun = time.perf_counter()
        for start in range(0, len(sample), BATCH):
            await embedder.embed([text for _, text in sample[start : start + BATCH]])
        characters = max(sum(len(text) for _, text in sample), 1)
        pace = (time.perf_counter() - begun) / characters
    row = 2 * embedder.dimension + ROW_BYTES
    return Estimate(
        old_model=old,
        new_model=embedder.model_id,
        rows=left.rows,
        done=stored.get(embedder.model_id, 0),
        characters=left.characters,
        seconds=pace * left.characters + left.rows * 0.0005,
        bytes=int(left.rows * row * (1 + LOG_SHARE)),
        free_bytes=shutil.disk_usage(folder).free if folder is not None else None,
    )


async def reembed(
    db: Database,
    embedder: Embedder,
    plan: Estimate,
    wall: Callable[[], datetime],
    tell: Callable[[Step], None],
    *,
    batch: int = BATCH,
    between: Callable[[], Awaitable[None]] | None = None,
) -> int:
    """Give every memory its new vector, then swap; how many this run embedded.

    Raises DiskTooSmall before anything is written, and what the embedder raises; what is done
    stays done. `between` is awaited behind each batch; tests use it.
    """
    if not plan.fits:
        raise DiskTooSmall(
            f"about {plan.bytes >> 20} MiB are needed, {(plan.free_bytes or 0) >> 20} MiB are free"
        )
    total = plan.rows + plan.done
    await db.transact(reembedding.begin, Progress(plan.old_model, plan.new_model, total, wall()))
    begun, written = time.perf_counter(), 0
    after: MemoryId = FIRST_ID
    while True:
        rows = await db.read(reembedding.page, plan.old_model, plan.new_model, after, batch)
        if not rows:
            if await db.transact(reembedding.swap, plan.old_model, plan.new_model):
                return written
            after = FIRST_ID
            continue
        vectors = await embedder.embed([text for _, text in rows])
        pairs = [(memory_id, vector) for (memory_id, _), vector in zip(rows, vectors, strict=True)]
        await db.transact(reembedding.put, plan.new_model, pairs)
        after, written = rows[-1][0], written + len(rows)
        pace = (time.perf_counter() - begun) / written
        left = max(plan.rows - written, 0)
        tell(Step(plan.done + written, total, pace * left))
        if between is not None:
            await between()


async def _old_model(db: Database, new_model: str) -> str | None:
    unfinished = await db.read(reembedding.progress)
    if unfinished is not None:
        return unfinished.old_model if unfinished.old_model != new_model else None
    stored = await db.read(memories.stored_model)
    if stored is None or stored == new_model:
        return None
    others = set(await db.read(reembedding.models)) - {stored, new_model}
    if others:
        raise Conflict(f"vectors of other models are stored too: {', '.join(sorted(others))}")
    return stored
