"""When the workers run and what they remove, in milliseconds; built from the configuration."""

from __future__ import annotations

from dataclasses import dataclass

from node.config import Config

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


@dataclass(frozen=True, slots=True)
class RetentionSettings:
    """How old each kind of row gets. One step of one run removes at most `batch_limit` rows."""

    interval_ms: int = HOUR_MS
    lifecycle_interval_ms: int = 6 * HOUR_MS
    soft_deleted_ttl_ms: int = 30 * DAY_MS
    history_ttl_ms: int = 180 * DAY_MS
    completed_job_ttl_ms: int = 14 * DAY_MS
    dead_job_ttl_ms: int = 30 * DAY_MS
    delivery_ttl_ms: int = 30 * DAY_MS
    a2a_task_ttl_ms: int = 30 * DAY_MS
    tombstone_ttl_ms: int = 90 * DAY_MS
    outbox_ttl_ms: int = 7 * DAY_MS
    batch_limit: int = 500


def retention_settings(config: Config) -> RetentionSettings:
    """From the sections `retention`, `a2a` and `erasure`.

    A tombstone outlives every backup that may be restored, so that a restore meets it.
    """
    section = config.retention
    return RetentionSettings(
        interval_ms=section.interval,
        lifecycle_interval_ms=section.lifecycle_interval,
        soft_deleted_ttl_ms=section.soft_deleted_ttl,
        history_ttl_ms=section.history_ttl,
        completed_job_ttl_ms=section.completed_job_ttl,
        dead_job_ttl_ms=section.dead_job_ttl,
        delivery_ttl_ms=section.delivery_retention_d * DAY_MS,
        a2a_task_ttl_ms=config.a2a.task_retention_days * DAY_MS,
        tombstone_ttl_ms=max(
            section.tomb_min_retention_d * DAY_MS, config.erasure.backup_window or 0
        ),
        batch_limit=section.batch_limit,
    )
