"""Snapshots of the hot graph: when one is due, what it is known to contain, and the last of all.

A file is stamped with the database as it was a while before, so that whatever was committed
but still on its way into the graph counts as changed for whoever reads the file. Writing happens
in a forked child; this task only waits in a thread.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final

import trio

from node.memory import warmstart
from node.memory.residency import Residency
from node.memory.warmstart import Start
from node.telemetry.metrics import HotMetrics
from node.workers.periodic import every
from storage import residents
from storage.errors import MnemeshError
from storage.hot.snapshot import PATIENCE_S, SnapshotFailed, SnapshotFolder, Stamp, Written
from storage.local import LocalNode
from storage.pool import Database

log = logging.getLogger(__name__)

TICK_S: Final = 30.0
LAG_S: Final = 25.0
"""A commit reaches the graph within this; a younger stamp is not used."""
SOON_S: Final = 60.0
LATE_S: Final = 900.0
"""After so long any change is worth a write: what was forgotten is out of the file by then."""
CHANGES: Final = 1_000
STOP_S: Final = 2.0
RETRY_S: Final = 5.0


@dataclass(slots=True)
class _Mark:
    """How much had changed, and when, at the last write."""

    changes: int
    forgotten: int
    at: float
    accesses: int


class Snapshots:
    """The snapshot of `residency` in `folder`; `status` describes it for people."""

    def __init__(
        self,
        residency: Residency,
        db: Database,
        node: LocalNode,
        folder: SnapshotFolder,
        metrics: HotMetrics | None = None,
    ) -> None:
        self.start: Start | None = None
        self.last: Written | None = None
        self.last_at: datetime | None = None
        self.folder = folder
        self._residency = residency
        self._db = db
        self._node = node
        self._metrics = metrics
        self._stamps: deque[tuple[float, Stamp]] = deque()
        self._mark = _Mark(0, 0, 0.0, 0)

    async def load(self) -> Start:
        """Fill the graph at the start of the node, from the file if it is right."""
        stamp = await self._db.read(residents.stamp, self._node.clock.last)
        self._stamps.append((time.monotonic(), stamp))
        self.start = await warmstart.start(self._residency, self._db, self.folder, stamp)
        source = "refused" if self.start.refused else self.start.source
        self._gauge(source)
        log.info("%d residents from %s", self.start.residents, source)
        self._mark = self._now()
        if source != "snapshot" or self.start.reloaded:
            self._mark.changes -= 1  # an unchanged graph without an up-to-date file is worth one
        return self.start

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Finish a degraded start, then look twice a minute, until cancelled."""
        task_status.started()
        while self._residency.degraded:
            try:
                await self._residency.load(self._db)
            except MnemeshError as error:
                log.warning("the graph is not filled yet: %s (%s)", error, error.code)
                await trio.sleep(RETRY_S)
        self._gauge()
        await every(lambda: TICK_S, self.tick, name="snapshots")

    async def tick(self) -> bool:
        """Note where the database stands, and write if a write is due; whether it was."""
        stamp = await self._db.read(residents.stamp, self._node.clock.last)
        self._stamps.append((time.monotonic(), stamp))
        if not self._due():
            return False
        await self.write()
        return True

    async def write(self) -> Written:
        """Write now; cancelled, it gives the new file up. Raises SnapshotFailed."""
        check = trio.from_thread.check_cancelled
        return await trio.to_thread.run_sync(partial(self.write_now, check=check))

    async def last_write(self) -> None:
        """At a graceful stop, when nobody writes any more: what changed, if it is done in time.

        What is committed is in the graph by then, so the present state of the database is the
        stamp, and the next start has nothing to read again.
        """
        touched = self._residency.accesses_taken != self._mark.accesses
        if self._residency.degraded or not (touched or self._changed()):
            return
        try:
            stamp = await self._db.read(residents.stamp, self._node.clock.last)
            await trio.to_thread.run_sync(partial(self.write_now, STOP_S, stamp=stamp))
        except SnapshotFailed as error:
            log.warning("%s at the stop; the next start reads more rows", error)

    def write_now(
        self,
        patience_s: float = PATIENCE_S,
        check: Callable[[], object] | None = None,
        stamp: Stamp | None = None,
    ) -> Written:
        """`write` for a worker thread. Raises SnapshotFailed, and what `check` raises.

        Without a stamp the newest counts that is old enough for all commits to have arrived.
        """
        mark = self._now()
        stamp = stamp or self._settled()
        try:
            written = self.folder.write(self._residency.graph, stamp, patience_s, check)
        except SnapshotFailed:
            self._count("failed")
            raise
        self._mark, self.last, self.last_at = mark, written, self._node.wall()
        self._count("written")
        return written

    def status(self) -> dict[str, object]:
        """For the status page: whether the graph is whole, and the state of the file."""
        return {
            "degraded": self._residency.degraded,
            "started_from": self.start.source if self.start else None,
            "snapshot_refused": self.start.refused if self.start else None,
            "snapshot_at": self.last_at.isoformat() if self.last_at else None,
            "snapshot_bytes": self.last.size if self.last else None,
        }

    def _settled(self) -> Stamp:
        """The newest stamp that is old enough; the one of the start if none is."""
        until = time.monotonic() - LAG_S
        while len(self._stamps) > 1 and self._stamps[1][0] <= until:
            self._stamps.popleft()
        return self._stamps[0][1]

    def _due(self) -> bool:
        if self._residency.degraded or not self._changed():
            return False
        now = self._now()
        age = now.at - self._mark.at
        many = now.changes - self._mark.changes >= max(CHANGES, len(self._residency.graph) // 50)
        return age >= LATE_S or (many and age >= SOON_S)

    def _changed(self) -> bool:
        now = self._now()
        return (now.changes, now.forgotten) != (self._mark.changes, self._mark.forgotten)

    def _now(self) -> _Mark:
        stats = self._residency.graph.stats()
        residency = self._residency
        return _Mark(
            stats.changes_total,
            residency.forgotten_total,
            time.monotonic(),
            residency.accesses_taken,
        )

    def _count(self, result: str) -> None:
        if self._metrics is not None:
            self._metrics.snapshots_total.labels(result).inc()

    def _gauge(self, source: str | None = None) -> None:
        if self._metrics is not None:
            self._metrics.degraded.set(self._residency.degraded is not None)
            if source is not None:
                self._metrics.starts_total.labels(source).inc()
