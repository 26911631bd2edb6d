"""Who is resident: records by id and label, rows by agent, and how many are exempt.

Keeps these maps and the rows in step with each other. It knows no index and decides no limit.
Not thread-safe: the graph's lock guards it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from storage.hot import heat
from storage.hot.vectors import Rows
from storage.model import EXEMPT_KINDS, Resident


@dataclass(slots=True)
class Entry:
    """A resident record with its label in the index and its row."""

    resident: Resident
    label: int
    row: int


class Residents:
    """Entries by memory id; labels are those of the serving index."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.exempt = 0
        self._entries: dict[bytes, Entry] = {}
        self._labels: dict[int, Entry] = {}
        self._scopes: dict[bytes, set[int]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, memory_id: object) -> bool:
        return memory_id in self._entries

    def __iter__(self) -> Iterator[Resident]:
        return (entry.resident for entry in self._entries.values())

    def get(self, memory_id: bytes) -> Entry | None:
        """The entry of a resident memory, or None."""
        return self._entries.get(memory_id)

    def add(
        self, resident: Resident, label: int, unit: NDArray[np.float32], warmth: float, now_ms: int
    ) -> None:
        """Take in a memory that is not resident; there must be a free row."""
        row = self.rows.put(label, unit)
        self.rows.heat[row] = warmth
        self.rows.last_ms[row] = now_ms
        entry = Entry(resident, label, row)
        self._entries[resident.id] = entry
        self._labels[label] = entry
        self._enscope(entry)

    def adopt(self, resident: Resident, label: int) -> None:
        """Take in a memory whose vector is in the next row already."""
        rows = self.rows
        entry = Entry(resident, label, rows.used)
        rows.labels[rows.used] = label
        rows.used += 1
        self._entries[resident.id] = entry
        self._labels[label] = entry
        self._enscope(entry)

    def holder(self, label: int) -> bytes | None:
        """Whose label this is; None for one that nobody has."""
        entry = self._labels.get(label)
        return entry.resident.id if entry else None

    def entries(self) -> Iterator[Entry]:
        """All entries, in the order in which they came."""
        return iter(self._entries.values())

    def remove(self, entry: Entry) -> None:
        """Let a memory go and zero its row."""
        self._unscope(entry)
        self.rows.clear(entry.row)
        del self._entries[entry.resident.id], self._labels[entry.label]

    def replace(self, entry: Entry, resident: Resident) -> None:
        """Change the record of an entry, its agent and kind included."""
        self._unscope(entry)
        entry.resident = resident
        self._enscope(entry)

    def touch(self, memory_id: bytes, now_ms: int, half_life_ms: int) -> None:
        """Warm a memory by one access, if it is resident."""
        entry = self._entries.get(memory_id)
        if entry is not None:
            rows, row = self.rows, entry.row
            rows.heat[row] = heat.warmed(float(rows.heat[row]), now_ms, half_life_ms)
            rows.last_ms[row] = max(int(rows.last_ms[row]), now_ms)

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
        known = self._labels
        return [known[label].resident.id for label in labels.tolist() if label in known]

    def labels(self) -> NDArray[np.int64]:
        """A copy of all live labels."""
        return np.fromiter(self._labels, np.int64, len(self._labels))

    def resolve(
        self, labels: NDArray[np.int64], scores: NDArray[np.float32]
    ) -> list[tuple[Resident, float]]:
        """Records and cosines; a memory that left since the labels were read is skipped."""
        return self.resolve_each(labels[np.newaxis, :], scores[np.newaxis, :])[0]

    def resolve_each(
        self, labels: NDArray[np.int64], scores: NDArray[np.float32]
    ) -> list[list[tuple[Resident, float]]]:
        """`resolve` for each row of arrays of shape (n, count)."""
        known = self._labels
        within = np.minimum(np.maximum(scores, -1), 1).tolist()
        return [
            [
                (known[label].resident, score)
                for label, score in zip(*row, strict=True)
                if label in known
            ]
            for row in zip(labels.tolist(), within, strict=True)
        ]

    def gather(self, labels: Sequence[int]) -> tuple[list[int], NDArray[np.float32]]:
        """Those labels that are live, and a copy of their vectors."""
        live = [label for label in labels if label in self._labels]
        rows = [self._labels[label].row for label in live]
        return live, self.rows.vectors[rows]

    def scope_rows(self, agents: Iterable[bytes]) -> list[int]:
        """Rows of the memories of these agents."""
        return [row for agent in agents for row in self._scopes.get(agent, ())]

    def scope_size(self, agents: Iterable[bytes]) -> int:
        """How many memories of these agents are resident."""
        return sum(len(self._scopes.get(agent, ())) for agent in agents)

    def _enscope(self, entry: Entry) -> None:
        exempt = entry.resident.kind in EXEMPT_KINDS
        self.exempt += exempt
        self.rows.evictable[entry.row] = not exempt
        self._scopes.setdefault(entry.resident.agent_id, set()).add(entry.row)

    def _unscope(self, entry: Entry) -> None:
        self.exempt -= entry.resident.kind in EXEMPT_KINDS
        agent_id = entry.resident.agent_id
        rows = self._scopes[agent_id]
        rows.discard(entry.row)
        if not rows:
            del self._scopes[agent_id]
