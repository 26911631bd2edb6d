"""Retention: rows that are provably of no further use go, step by step, in small transactions.

`cutoffs` and `steps_due` decide, the steps do. A step that fails is named in the report and the
others still run, except that the three about one set of soft-deleted memories stop together.
Nothing live is removed, and no live row changes but one that has expired.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

import trio

from node.memory.hiding import hide_expired
from node.memory.residency import Residency
from node.telemetry.metrics import RetentionMetrics
from node.workers.periodic import every
from node.workers.settings import RetentionSettings
from storage import outbox
from storage import retention as rows
from storage.access import LiveAccess
from storage.errors import MnemeshError
from storage.local import LocalNode
from storage.model import MemoryId
from storage.pool import Database, Tx

log = logging.getLogger(__name__)

EXPIRED: Final = "expired_memories"
EMBEDDINGS: Final = "embeddings"
SOFT_DELETED: Final = "soft_deleted"
LIFECYCLE: Final = (
    EXPIRED,
    EMBEDDINGS,
    SOFT_DELETED,
    "history",
    "jobs_completed",
    "jobs_dead",
)
MESH: Final = ("diffs", "deliveries", "a2a_tasks", "tombstone_records", "outbox")
ALL: Final = (*LIFECYCLE, *MESH)
RESULT_NAMES: Final = {
    "graph_links": "graphLinksPurged",
    "entities": "entitiesOrphaned",
    EMBEDDINGS: "embeddingsPurged",
    SOFT_DELETED: "softDeletedPurged",
    "history": "historyPurged",
    "jobs_completed": "completedJobsPurged",
    "jobs_dead": "deadJobsPurged",
    EXPIRED: "memoriesExpired",
    "diffs": "diffsPurged",
    "deliveries": "deliveriesPurged",
    "a2a_tasks": "a2aTasksPurged",
    "recall_qa": "recallQaPurged",
    "tombstone_records": "tombstoneRecordsPurged",
    "outbox": "outboxPurged",
}


@dataclass(frozen=True, slots=True)
class Cutoffs:
    """Rows older than these go; computed once for all steps of a run."""

    now: datetime
    soft_deleted: datetime
    history: datetime
    completed_jobs: datetime
    dead_jobs: datetime
    deliveries: datetime
    a2a_tasks: datetime
    tombstones: datetime
    outbox: datetime


def cutoffs(settings: RetentionSettings, now: datetime) -> Cutoffs:
    """The moments before which something must have happened for its row to go."""

    def ago(ms: int) -> datetime:
        return now - timedelta(milliseconds=ms)

    return Cutoffs(
        now=now,
        soft_deleted=ago(settings.soft_deleted_ttl_ms),
        history=ago(settings.history_ttl_ms),
        completed_jobs=ago(settings.completed_job_ttl_ms),
        dead_jobs=ago(settings.dead_job_ttl_ms),
        deliveries=ago(settings.delivery_ttl_ms),
        a2a_tasks=ago(settings.a2a_task_ttl_ms),
        tombstones=ago(settings.tombstone_ttl_ms),
        outbox=ago(settings.outbox_ttl_ms),
    )


def steps_due(
    settings: RetentionSettings, now: datetime, last_lifecycle: datetime | None
) -> tuple[str, ...]:
    """The steps of a tick: those about mesh rows always, the others at their longer interval."""
    interval = timedelta(milliseconds=settings.lifecycle_interval_ms)
    if last_lifecycle is None or now - last_lifecycle >= interval:
        return ALL
    return MESH


@dataclass(slots=True)
class Report:
    """What a run removed by step, which steps failed, and how many due rows are held back."""

    removed: dict[str, int] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    deferred: int = 0

    def as_dict(self) -> dict[str, object]:
        """The form of the manual sweep's answer and of the log."""
        counts = {name: self.removed.get(step, 0) for step, name in RESULT_NAMES.items()}
        return {**counts, "deferred": self.deferred, "failedSteps": list(self.failed)}


class Retention:
    """The steps of this node and when each last succeeded."""

    def __init__(
        self,
        node: LocalNode,
        db: Database,
        residency: Residency,
        access: LiveAccess,
        settings: Callable[[], RetentionSettings],
        metrics: RetentionMetrics | None = None,
    ) -> None:
        self.last_success: dict[str, datetime] = {}
        self._node = node
        self._db = db
        self._residency = residency
        self._access = access
        self._settings = settings
        self._metrics = metrics
        self._last_lifecycle: datetime | None = None
        self._one_run = trio.Lock()
        self._due_ids: list[MemoryId] = []
        self._steps: dict[str, Callable[[Cutoffs], Awaitable[int]]] = {
            EXPIRED: self._expire,
            EMBEDDINGS: self._drop_vectors,
            SOFT_DELETED: self._drop_deleted,
            "history": lambda at: self._run(rows.drop_history, at.history),
            "jobs_completed": lambda at: self._run(rows.drop_completed_jobs, at.completed_jobs),
            "jobs_dead": lambda at: self._run(rows.drop_dead_jobs, at.dead_jobs),
            "diffs": lambda at: self._run(rows.drop_diffs, at.now),
            "deliveries": lambda at: self._run(rows.compact_deliveries, at.deliveries),
            "a2a_tasks": lambda at: self._run(rows.drop_a2a_tasks, at.a2a_tasks),
            "tombstone_records": self._collect_tombstones,
            "outbox": lambda at: self._run(outbox.drop_done, at.outbox),
        }

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Tick at the configured interval, first after one interval, until cancelled."""
        await every(
            lambda: self._settings().interval_ms / 1000,
            self.tick,
            name="retention",
            on_failure=lambda: self._count_run("error"),
            task_status=task_status,
        )

    async def tick(self) -> dict[str, object]:
        """The steps that are due now."""
        now = self._node.wall()
        return await self._work(steps_due(self._settings(), now, self._last_lifecycle), now)

    async def sweep(self) -> dict[str, object]:
        """All steps now, as the configuration stands."""
        return await self._work(ALL, self._node.wall())

    async def _work(self, steps: Sequence[str], now: datetime) -> dict[str, object]:
        async with self._one_run:
            started = trio.current_time()
            report = Report()
            at = cutoffs(self._settings(), now)
            broken = False
            if EMBEDDINGS in steps:
                self._last_lifecycle = now
                broken = not await self._select(at, report)
            for step in steps:
                if broken and step in (EMBEDDINGS, SOFT_DELETED):
                    continue
                if not await self._step(step, at, report):
                    broken = broken or step in (EMBEDDINGS, SOFT_DELETED)
            self._due_ids = []
            self._count_run("partial" if report.failed else "ok")
            if self._metrics is not None:
                self._metrics.seconds.observe(trio.current_time() - started)
            answer = report.as_dict()
            log.info("retention: %s", answer)
            return answer

    async def _select(self, at: Cutoffs, report: Report) -> bool:
        try:
            self._due_ids = await self._db.transact(rows.deleted, at.soft_deleted, self._limit)
            report.deferred = await self._db.read(
                rows.count_deferred,
                deleted_before=at.soft_deleted,
                expired_before=at.now,
                limit=self._limit,
            )
        except MnemeshError as error:
            self._failed(EMBEDDINGS, error, report)
            return False
        return True

    async def _step(self, step: str, at: Cutoffs, report: Report) -> bool:
        try:
            removed = await self._steps[step](at)
        except MnemeshError as error:
            self._failed(step, error, report)
            return False
        report.removed[step] = removed
        self.last_success[step] = self._node.wall()
        if self._metrics is not None:
            self._metrics.removed_total.labels(step).inc(removed)
            self._metrics.last_success_timestamp_seconds.labels(step).set(
                self.last_success[step].timestamp()
            )
        return True

    def _failed(self, step: str, error: MnemeshError, report: Report) -> None:
        log.warning("retention: step %s failed: %s (%s)", step, error, error.code)
        report.failed.append(step)
        if self._metrics is not None:
            self._metrics.failed_steps_total.labels(step).inc()

    def _count_run(self, result: str) -> None:
        if self._metrics is not None:
            self._metrics.runs_total.labels(result).inc()

    @property
    def _limit(self) -> int:
        return self._settings().batch_limit

    async def _run(
        self, work: Callable[[Tx, datetime, int], Awaitable[int]], before: datetime
    ) -> int:
        removed: int = await self._db.transact(work, before, self._limit)
        return removed

    async def _expire(self, at: Cutoffs) -> int:
        hidden: list[MemoryId] = await self._db.transact(self._hide_lapsed, at.now, self._limit)
        with trio.CancelScope(shield=True):
            await self._residency.hide(hidden)
        return len(hidden)

    async def _hide_lapsed(self, tx: Tx, before: datetime, limit: int) -> list[MemoryId]:
        lapsed = await rows.lapsed(tx, before, limit)
        return await hide_expired(tx, self._node, self._access.current, lapsed, actor="retention")

    async def _drop_vectors(self, at: Cutoffs) -> int:
        await self._residency.forget(self._due_ids)
        removed: int = await self._db.transact(rows.drop_vectors, self._due_ids, at.soft_deleted)
        return removed

    async def _drop_deleted(self, at: Cutoffs) -> int:
        gone: list[MemoryId] = await self._db.transact(
            rows.drop_deleted, self._due_ids, at.soft_deleted, at.now
        )
        return len(gone)

    async def _collect_tombstones(self, at: Cutoffs) -> int:
        gone: list[MemoryId] = await self._db.transact(
            rows.collect_tombstones, self._node.node_id, at.tombstones, at.now, self._limit
        )
        return len(gone)
