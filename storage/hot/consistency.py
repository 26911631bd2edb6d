"""Whether every vector has the code of its row, and whether the index has labels of nobody.

A few rows at a time under the graph's lock: reading vectors out of the index holds the
interpreter, so it is an audit's work and no search's.
"""

from __future__ import annotations

from collections.abc import Iterable

from storage.hot.index import LabelIndex
from storage.hot.residents import Residents
from storage.hot.rows import Rows
from storage.hot.turns import TurnLock

CHECK_ROWS = 32


class Consistency:
    """Checks over what the graph holds; for worker threads."""

    _lock: TurnLock
    _index: LabelIndex
    _rows: Rows
    _residents: Residents

    def faulty(self, ids: Iterable[bytes]) -> list[bytes]:
        """Those residents whose vector is missing in the index or has not the code of their row."""
        chosen = list(ids)
        found: list[bytes] = []
        for start in range(0, len(chosen), CHECK_ROWS):
            with self._lock:
                for memory_id in chosen[start : start + CHECK_ROWS]:
                    entry = self._residents.get(memory_id)
                    if entry is None:
                        continue
                    held = self._index.vector(entry.label)
                    if held is None or not self._rows.codes.agrees(entry.row, held):
                        found.append(memory_id)
        return found

    def ghosts(self, *, drop: bool) -> int:
        """Labels that are live in the index and belong to no resident; `drop` wipes them."""
        with self._lock:
            labels = self._index.labels()
        count = 0
        for start in range(0, len(labels), CHECK_ROWS):
            with self._lock:
                for label in labels[start : start + CHECK_ROWS]:
                    if self._residents.holder(label) is None and self._index.is_live(label):
                        count += 1
                        if drop:
                            self._index.wipe_ghost(label)
        return count
