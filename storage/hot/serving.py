"""The shortest way from questions to what is answered: rows, scores and the bytes kept for them.

No record is looked at but those whose bytes are not kept yet: an answer of ten would otherwise
wait a hundred times for memory that is in no cache of the processor. Everything happens in one
hold of the graph's lock, so that rows, verdicts and bytes belong together.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from storage.hot.attached import Attached
from storage.hot.classes import HIDDEN, UNTIL, Verdicts
from storage.hot.rows import ROW_MASK
from storage.hot.searching import HEAD, Searching, within
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

    `labels` names them for `count`.
    `values` is what is kept for each hit; where nothing is, `missing` has the record. `short`
    names the questions that another search must answer: more may pass than were looked at.
    """

    bounds: list[int]
    labels: NDArray[np.int64]
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
                row = self._row_of(resident)
                if row is not None:
                    attached.put(row, value)

    def kept(self, attached: Attached, residents: Iterable[Resident]) -> list[bytes | None]:
        """What is kept for each of these records, if it is the one that is resident."""
        with self._lock:
            rows = [self._row_of(resident) for resident in residents]
            return [None if row is None else attached.get(row) for row in rows]

    def detach_all(self, attached: Attached) -> None:
        """Keep none of them any longer."""
        with self._lock:
            attached.clear()

    def _row_of(self, resident: Resident) -> int | None:
        """The row of this very record; None when it left or changed."""
        row = self._residents.row_of(resident.id)
        here = row is not None and self._residents.record_at(row) is resident
        return row if here else None

    def serve(self, units: NDArray[np.float32], asking: Asking, attached: Attached) -> Served:
        """The hits of unit vectors of shape (n, dim) for one who asks; `count` warms them."""
        everything = list(range(len(units)))
        with self._lock:
            tries = self._tries(asking.k, asking.agents, True)
            if not tries:
                return _nothing(len(units), short=[] if tries is None else everything)
            settings = self._settings
            found = self._index.nearest(units, tries[0], settings.ef, settings.threads)
            if found is None:
                return _nothing(len(units), short=everything)
            self._searches += len(units)
            labels, cosines = found
            width = tries[0] if asking.agents is not None else min(asking.k + HEAD, tries[0])
            passed, least = self._passed(labels[:, :width], asking)
            if least < asking.k and width < tries[0]:
                width = tries[0]
                passed, least = self._passed(labels, asking)
            short = [] if least >= asking.k else _short(passed, asking.k)
            rank = passed.cumsum(axis=1)
            passed &= rank <= asking.k
            passed &= cosines[:, :width] >= asking.least
            passed[short] = False
            taken = labels[:, :width][passed]
            rows = (taken & ROW_MASK).tolist()
            values = attached.at(rows)
            missing = self._missing(rows, values) if None in values else {}
        counts = passed.sum(axis=1).tolist()
        bounds = [0, *itertools.accumulate(counts)]
        return Served(bounds, taken, within(cosines[:, :width][passed]), values, missing, short)

    def count(self, labels: NDArray[np.int64], now_ms: int) -> None:
        """One access for each time that a label was served; those that left are not warmed."""
        with self._lock:
            self._residents.touch_labels(labels, now_ms, self._settings.half_life_ms)

    def _passed(self, labels: NDArray[np.int64], asking: Asking) -> tuple[NDArray[np.bool_], int]:
        """Which neighbours pass, of shape (n, width), and how many of a question at least."""
        seen = self._rows.table.take(labels & ROW_MASK, mode="clip")
        verdicts = asking.verdicts.of(self._residents.classes)
        judged = verdicts.take(seen["of"], mode="clip")
        passed: NDArray[np.bool_] = seen["label"] == labels
        passed &= judged != HIDDEN
        if asking.gone is not None:
            doubtful = passed
        elif asking.verdicts.some_expire:
            doubtful = passed & (judged == UNTIL)
        else:
            return passed, int(passed.sum(axis=1).min())
        for question, place in zip(*np.nonzero(doubtful), strict=True):
            record = self._residents.record_at(int(labels[question, place]) & ROW_MASK)
            passed[question, place] = record is not None and _stays(record, asking)
        return passed, int(passed.sum(axis=1).min())

    def _missing(self, rows: list[int], values: list[bytes | None]) -> dict[int, Resident]:
        record_at = self._residents.record_at
        records = {
            at: record_at(row)
            for at, (row, value) in enumerate(zip(rows, values, strict=True))
            if value is None
        }
        return {at: record for at, record in records.items() if record is not None}


def _stays(record: Resident, asking: Asking) -> bool:
    if record.expires_ms is not None and record.expires_ms <= asking.now_ms:
        return False
    return asking.gone is None or not asking.gone(record.id)


def _short(passed: NDArray[np.bool_], k: int) -> list[int]:
    short: list[int] = np.flatnonzero(passed.sum(axis=1) < k).tolist()
    return short


def _nothing(count: int, *, short: list[int]) -> Served:
    return Served([0] * (count + 1), np.empty(0, np.int64), np.empty(0, np.float32), [], {}, short)
