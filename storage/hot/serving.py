"""The shortest way from questions to what is answered: rows, scores and the bytes kept for them.

No record is looked at but those whose bytes are not kept yet: an answer of ten would otherwise
wait a hundred times for memory that is in no cache of the processor. Everything happens in one
hold of the graph's lock, so that rows, verdicts and bytes belong together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from storage.hot.attached import Attached
from storage.hot.classes import HIDDEN, UNTIL, Verdicts
from storage.hot.rows import ROW_MASK
from storage.hot.searching import Searching
from storage.model import Resident


@dataclass(frozen=True, slots=True)
class Asking:
    """Who asks, and for how much: up to `k` residents that `verdicts` let pass.

    `agents` is whose memories can be among them, None for everybody's. Hits below the cosine
    `least` are left out. `gone` tells of ids that are about to leave, None while there are none.
    """

    k: int
    verdicts: Verdicts
    agents: frozenset[bytes] | None
    least: float
    now_ms: int
    gone: Callable[[bytes], bool] | None = None


@dataclass(frozen=True, slots=True)
class Served:
    """The hits of questions one after the other, those of question i at bounds[i] : bounds[i + 1].

    `values` is what is kept for each hit; where nothing is, `missing` has the record. `short`
    names the questions that another search must answer: more may pass than were looked at.
    """

    bounds: list[int]
    cosines: NDArray[np.float32]
    values: list[bytes | None]
    missing: dict[int, Resident]
    short: list[int]


class Serving(Searching):
    """Searches whose answers are bytes kept beside the graph; it makes and replaces the parts."""

    _attached: list[Attached]

    def attach(self, limit: int) -> Attached:
        """A place for bytes that belong to residents; what leaves or changes takes them along."""
        attached = Attached(limit)
        with self._lock:
            self._attached.append(attached)
        return attached

    def keep(self, attached: Attached, made: Iterable[tuple[Resident, bytes]]) -> None:
        """Keep bytes that were made of records, but not of such that left or changed meanwhile."""
        with self._lock:
            for resident, value in made:
                row = self._residents.row_of(resident.id)
                if row is not None and self._residents.record_at(row) is resident:
                    attached.put(row, value)

    def detach_all(self, attached: Attached) -> None:
        """Keep none of them any longer."""
        with self._lock:
            attached.clear()

    def serve(self, units: NDArray[np.float32], asking: Asking, attached: Attached) -> Served:
        """The hits of unit vectors of shape (n, dim) for one who asks; they count as accesses."""
        everything = list(range(len(units)))
        with self._lock:
            tries = self._tries(asking.k, asking.agents, True)
            if tries is None:
                self._searches += len(units)
                return _nothing(len(units), short=[])
            settings = self._settings
            found = (
                self._index.nearest(units, tries[0], settings.ef, settings.threads)
                if tries
                else None
            )
            if found is None:
                return _nothing(len(units), short=everything)
            self._searches += len(units)
            labels, cosines = found
            rows = labels & ROW_MASK
            passed = self._passed(labels, rows, asking)
            rank = np.cumsum(passed, axis=1)
            short = np.flatnonzero(rank[:, -1] < asking.k).tolist()
            passed &= rank <= asking.k
            passed &= cosines >= asking.least
            if short:
                passed[short] = False
            taken = rows[passed]
            values = attached.at(taken.tolist())
            missing = self._missing(taken, values) if None in values else {}
            self._residents.touch_rows(taken, asking.now_ms, settings.half_life_ms)
        bounds = [0, *np.cumsum(np.count_nonzero(passed, axis=1)).tolist()]
        near = np.clip(cosines[passed], -1, 1)
        return Served(bounds, near, values, missing, short)

    def _missing(
        self, rows: NDArray[np.int64], values: Sequence[bytes | None]
    ) -> dict[int, Resident]:
        record_at = self._residents.record_at
        records = {
            at: record_at(row)
            for at, (row, value) in enumerate(zip(rows.tolist(), values, strict=True))
            if value is None
        }
        return {at: record for at, record in records.items() if record is not None}

    def _passed(
        self, labels: NDArray[np.int64], rows: NDArray[np.int64], asking: Asking
    ) -> NDArray[np.bool_]:
        passed: NDArray[np.bool_] = self._rows.at(rows) == labels
        verdicts = asking.verdicts.of(self._residents.classes)
        judged = verdicts[self._rows.classes.take(rows, mode="clip")]
        passed &= judged != HIDDEN
        doubtful = passed if asking.gone is not None else passed & (judged == UNTIL)
        if doubtful.any():
            for question, place in zip(*np.nonzero(doubtful), strict=True):
                record = self._residents.record_at(int(rows[question, place]))
                passed[question, place] = record is not None and _stays(record, asking)
        return passed


def _stays(record: Resident, asking: Asking) -> bool:
    if record.expires_ms is not None and record.expires_ms <= asking.now_ms:
        return False
    return asking.gone is None or not asking.gone(record.id)


def _nothing(count: int, *, short: list[int]) -> Served:
    return Served([0] * (count + 1), np.empty(0, np.float32), [], {}, short)
