"""Who is resident: records by row, rows by id and by agent, and how many are exempt.

Keeps these and the rows in step with each other. It decides no limit, and asks the index only for
vectors. Not thread-safe: the graph's lock guards it.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from storage.hot import heat
from storage.hot.classes import Classes
from storage.hot.index import LabelIndex
from storage.hot.rows import ROW_MASK, Rows
from storage.model import EXEMPT_KINDS, Resident

OBJECT_BYTES: Final = 320
"""Of a record without its text, its id, and their entries in the tables here; measured."""


class Entry(NamedTuple):
    """A resident record with its label in the index and its row."""

    resident: Resident
    label: int
    row: int


class _Scope:
    """The rows of one agent, in no order, and one object for each id that its records share."""

    __slots__ = ("agent_id", "project_id", "rows")

    def __init__(self, agent_id: bytes) -> None:
        self.agent_id = agent_id
        self.project_id: bytes | None = None
        self.rows = array("i")


def _counted(rows: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Each row once, and how often it was there; for the few of an answer `np.unique` is slow."""
    rows = np.sort(rows)
    first = np.empty(len(rows), np.bool_)
    first[:1] = True
    np.not_equal(rows[1:], rows[:-1], out=first[1:])
    places = first.nonzero()[0]
    if len(places) == len(rows):
        return rows, np.ones(len(rows), np.intp)
    return rows[places], np.diff(places, append=len(rows))


class Residents:
    """Records by memory id, label and row."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.exempt = 0
        self.classes = Classes()
        self._left: Counter[bytes] = Counter()
        self._records: list[Resident | None] = []
        self._rows_of: dict[bytes, int] = {}
        self._scopes: dict[bytes, _Scope] = {}

    def __len__(self) -> int:
        return len(self._rows_of)

    def __contains__(self, memory_id: object) -> bool:
        return memory_id in self._rows_of

    def __iter__(self) -> Iterator[Resident]:
        return (record for record in self._records if record is not None)

    def row_of(self, memory_id: bytes) -> int | None:
        """The row of a resident memory, or None."""
        return self._rows_of.get(memory_id)

    def get(self, memory_id: bytes) -> Entry | None:
        """What there is of a resident memory, or None."""
        row = self._rows_of.get(memory_id)
        if row is None:
            return None
        record = self._records[row]
        assert record is not None
        return Entry(record, int(self.rows.labels[row]), row)

    def add(
        self,
        residents: Sequence[Resident],
        labels: Sequence[int],
        units: NDArray[np.float32],
        warmth: Sequence[float],
        now_ms: int,
    ) -> None:
        """Take in memories that are not resident; the labels name the next free rows."""
        self.rows.put(labels, units)
        for resident, label, warm in zip(residents, labels, warmth, strict=True):
            row = label & ROW_MASK
            self.rows.heat[row] = warm
            self.rows.last_ms[row] = now_ms
            self._seat(resident, row)

    def adopt(self, residents: Iterable[Resident], labels: NDArray[np.int64]) -> None:
        """Take in memories at the rows that their labels name, while nobody is resident."""
        self.rows.adopt(labels)
        for resident, row in zip(residents, (labels & ROW_MASK).tolist(), strict=True):
            self._seat(resident, row)

    def holder(self, label: int) -> bytes | None:
        """Whose label this is; None for one that nobody has."""
        record = self.records(np.array([label], np.int64))[0]
        return record.id if record else None

    def remove(self, row: int) -> None:
        """Let a memory go and zero its row."""
        record = self._records[row]
        assert record is not None
        self._unscope(record, row)
        if self.rows.accesses[row]:
            self._left[record.id] += int(self.rows.accesses[row])
            self.rows.accesses[row] = 0
        self.rows.clear(row)
        self._records[row] = None
        del self._rows_of[record.id]

    def replace(self, row: int, resident: Resident) -> None:
        """Change the record of a memory, its agent and kind included."""
        record = self._records[row]
        assert record is not None
        self._unscope(record, row)
        self._records[row] = self._enscope(resident, row)

    def touch(self, ids: Iterable[bytes], now_ms: int, half_life_ms: int) -> None:
        """Warm the residents among these ids by one access for each time that they are named.

        Accesses of others are only counted.
        """
        known = self._rows_of
        rows = [known.get(each, each) for each in ids]
        resident = [row for row in rows if isinstance(row, int)]
        self._touch_rows(np.array(resident, np.intp), now_ms, half_life_ms)
        self._left.update(each for each in rows if isinstance(each, bytes))

    def touch_labels(self, labels: NDArray[np.int64], now_ms: int, half_life_ms: int) -> None:
        """Warm the residents with these labels by one access for each time that they are named."""
        self._touch_rows(labels[self.rows.have(labels)] & ROW_MASK, now_ms, half_life_ms)

    def _touch_rows(self, at: NDArray[np.intp], now_ms: int, half_life_ms: int) -> None:
        rows = self.rows
        at, times = _counted(at)
        rows.heat[at] = heat.warmed_each(rows.heat[at], times, now_ms, half_life_ms)
        rows.last_ms[at] = np.maximum(rows.last_ms[at], now_ms)
        rows.accesses[at] += times.astype(np.uint32)

    def take_accesses(self) -> dict[bytes, int]:
        """How often each memory was touched since the last call, also those that left meanwhile."""
        accesses = self.rows.accesses[: self.rows.used]
        at = np.flatnonzero(accesses)
        taken, self._left = self._left, Counter()
        for row, count in zip(at.tolist(), accesses[at].tolist(), strict=True):
            record = self._records[row]
            assert record is not None
            taken[record.id] += count
        accesses[at] = 0
        return dict(taken)

    def coldest(self, count: int) -> list[bytes]:
        """Up to `count` ids that may be evicted, coldest first."""
        used = self.rows.used
        chosen = heat.plan(
            self.rows.heat[:used],
            self.rows.last_ms[:used],
            self.rows.evictable[:used],
            excess=count,
            idle_until_ms=None,
            cap=count,
        )
        return self.ids(self.rows.labels[chosen])

    def ids(self, labels: NDArray[np.int64]) -> list[bytes]:
        """The ids of those labels that are live."""
        return [record.id for record in self.records(labels) if record is not None]

    def records(self, labels: NDArray[np.int64]) -> list[Resident | None]:
        """The record of each label of shape (n,), None for one that nobody has any more."""
        rows = labels & ROW_MASK
        at = self.rows.at(rows)
        if at.tobytes() == labels.tobytes():  # quicker than `all` for the few of one search
            return list(map(self._records.__getitem__, rows.tolist()))
        return [
            self._records[row] if known else None
            for row, known in zip(rows.tolist(), (at == labels).tolist(), strict=True)
        ]

    def record_at(self, row: int) -> Resident | None:
        """The record of a row, None for one that nobody has."""
        return self._records[row] if row < len(self._records) else None

    def gather(
        self, labels: NDArray[np.int64], index: LabelIndex
    ) -> tuple[list[int], NDArray[np.float32]]:
        """Those of the labels that are live, and copies of their vectors."""
        live = labels[self.rows.have(labels)].tolist()
        return live, index.vectors(live)

    def scope_rows(self, agents: Iterable[bytes]) -> NDArray[np.intp]:
        """Rows of the memories of these agents."""
        scopes = [self._scopes[agent] for agent in agents if agent in self._scopes]
        parts = [np.frombuffer(scope.rows, np.int32) for scope in scopes]
        return np.concatenate([np.empty(0, np.int32), *parts]).astype(np.intp)

    def scope_size(self, agents: Iterable[bytes]) -> int:
        """How many memories of these agents are resident."""
        scopes = self._scopes
        return sum(len(scopes[agent].rows) for agent in agents if agent in scopes)

    def _seat(self, resident: Resident, row: int) -> None:
        record = self._enscope(resident, row)
        records = self._records
        if row == len(records):
            records.append(record)
        else:
            records.extend([None] * (row + 1 - len(records)))
            records[row] = record
        self._rows_of[record.id] = row

    def _enscope(self, resident: Resident, row: int) -> Resident:
        """The record to keep: it shares the ids of its agent's other records."""
        exempt = resident.kind in EXEMPT_KINDS
        self.exempt += exempt
        self.rows.evictable[row] = not exempt
        self.rows.classes[row] = self.classes.enter(resident)
        scope = self._scopes.get(resident.agent_id)
        if scope is None:
            scope = self._scopes[resident.agent_id] = _Scope(resident.agent_id)
        if scope.project_id != resident.project_id:
            scope.project_id = resident.project_id
        self.rows.places[row] = len(scope.rows)
        scope.rows.append(row)
        if resident.agent_id is scope.agent_id and resident.project_id is scope.project_id:
            return resident
        return msgspec.structs.replace(
            resident, agent_id=scope.agent_id, project_id=scope.project_id
        )

    def _unscope(self, record: Resident, row: int) -> None:
        self.exempt -= record.kind in EXEMPT_KINDS
        self.classes.leave(int(self.rows.classes[row]))
        scope = self._scopes[record.agent_id]
        place, last = int(self.rows.places[row]), scope.rows.pop()
        if last != row:
            scope.rows[place] = last
            self.rows.places[last] = place
        if not scope.rows:
            del self._scopes[record.agent_id]
