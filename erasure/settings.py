"""The knobs of erasure with their bounds; frozen, checked when built.

`node/config.py` fills it from the file's section `erasure`. A running erasure keeps the values
that it started with. `RELOADABLE` names the fields that the next run takes over without a
restart. Durations are milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from storage.errors import InvalidInput

SECOND_MS: Final = 1_000
DAY_MS: Final = 86_400 * SECOND_MS
YEAR_MS: Final = 365 * DAY_MS

RELOADABLE: Final = frozenset(
    {
        "batch_rows",
        "quiesce_timeout_ms",
        "graph",
        "k_min",
        "backup_window_ms",
        "max_offline_ms",
        "due_ms",
        "audit_until_ms",
    }
)


@dataclass(frozen=True, slots=True)
class ErasureSettings:
    """How an erasure proceeds and what its certificate promises.

    `batch_rows` rows go in one transaction. `quiesce_timeout_ms` bounds the wait for running
    work. `graph` rebuilds the hot graph aside or overwrites slots in place. An aggregate of
    fewer than `k_min` sources is dropped. `backup_window_ms` is how long the operator's backups
    live, None when nothing is said about them. A peer silent for `max_offline_ms` is reported
    absent; `due_ms` is the promised end; ledger leaves are kept for `audit_until_ms`.
    Raises InvalidInput naming the key.
    """

    batch_rows: int = 500
    quiesce_timeout_ms: int = 30 * SECOND_MS
    graph: Literal["rebuild", "overwrite"] = "rebuild"
    k_min: int = 5
    backup_window_ms: int | None = None
    max_offline_ms: int = 30 * DAY_MS
    due_ms: int = 30 * DAY_MS
    audit_until_ms: int = 6 * YEAR_MS
    mode: Literal["clear"] = "clear"

    def __post_init__(self) -> None:
        _within("batch_rows", self.batch_rows, 1, 10_000, "1", "10000")
        _within("quiesce_timeout", self.quiesce_timeout_ms, SECOND_MS, 600_000, "1s", "10m")
        _within("k_min", self.k_min, 2, 100, "2", "100")
        if self.backup_window_ms is not None:
            _within("backup_window", self.backup_window_ms, 0, 10 * YEAR_MS, "0d", "10y")
        _within("max_offline", self.max_offline_ms, DAY_MS, 1000 * YEAR_MS, "1d", "1000y")
        _within("due", self.due_ms, DAY_MS, 90 * DAY_MS, "1d", "90d")
        _within("audit_until", self.audit_until_ms, YEAR_MS, 1000 * YEAR_MS, "1y", "1000y")
        if self.graph not in ("rebuild", "overwrite"):
            raise InvalidInput("erasure.graph: expected rebuild or overwrite")
        if self.mode != "clear":
            raise InvalidInput("erasure.mode: expected clear")


def _within(key: str, value: int, low: int, high: int, low_text: str, high_text: str) -> None:
    if not low <= value <= high:
        raise InvalidInput(f"erasure.{key}: must be between {low_text} and {high_text}")
