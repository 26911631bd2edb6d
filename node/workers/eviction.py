"""Eviction: idle memories leave the hot graph a batch at a time; their rows stay.

Also rebuilds the graph when too many of its slots are dead, and writes down how often memories
were recalled, so that the warmest are resident first after a restart. All work on a large graph
happens in a thread.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final

import trio

from node.memory.residency import Residency
from node.telemetry.metrics import EvictionMetrics
from node.workers.periodic import every
from storage import memories
from storage.pool import Database

INTERVAL_S: Final = 60.0
INLINE_RESIDENTS: Final = 2_000
"""Planning over so many residents takes well below a millisecond."""


class Eviction:
    """One batch at a time out of the graph of `residency`."""

    def __init__(
        self,
        residency: Residency,
        db: Database,
        wall: Callable[[], datetime],
        metrics: EvictionMetrics | None = None,
    ) -> None:
        self._residency = residency
        self._db = db
        self._wall = wall
        self._metrics = metrics

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """A pass every minute until cancelled."""
        await every(lambda: INTERVAL_S, self.tick, name="eviction", task_status=task_status)

    async def tick(self) -> int:
        """Evict one batch, rebuild if asked for, note accesses; how many memories left."""
        started = trio.current_time()
        if len(self._residency.graph) <= INLINE_RESIDENTS:
            left = self._evict()
        else:
            left = await trio.to_thread.run_sync(self._evict)
        if self._metrics is not None:
            self._metrics.seconds.observe(trio.current_time() - started)
            self._metrics.evicted_total.labels("idle").inc(left)
        if self._residency.graph.needs_rebuild():
            await trio.to_thread.run_sync(self._residency.graph.rebuild)
        await self._note_accesses()
        return left

    def _evict(self) -> int:
        now_ms = int(self._wall().timestamp() * 1000)
        return self._residency.evict(self._residency.graph.plan_eviction(now_ms))

    async def _note_accesses(self) -> None:
        accesses = self._residency.take_accesses()
        if not accesses:
            return
        try:
            await self._db.transact(memories.count_access, accesses)
        except BaseException:
            self._residency.note_accesses(accesses)
            raise
