"""One row for each resident: its coded vector, label, heat, last access, may-be-evicted, place.

A label names its row: the low bits are the row, the high bits a serial number that rises with
every write, so a label is never used twice and needs no map. Not thread-safe: the graph's lock
guards it.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage.hot.codes import Codes
from storage.hot.pages import untouched
from storage.hot.settings import MAX_CEILING

ROW_BITS: Final = (MAX_CEILING - 1).bit_length()
ROW_MASK: Final = (1 << ROW_BITS) - 1
FREE: Final = 0
"""The label of a row that nobody has; serial numbers start at 1."""


ROW: Final = np.dtype(
    {
        "names": ["label", "heat", "last_ms", "of", "accesses", "place", "evictable"],
        "formats": [np.int64, np.float64, np.int64, np.int32, np.uint32, np.int32, np.bool_],
        "itemsize": 40,
    },
)
"""What an answer needs of a row lies together: the processor fetches it at once."""


def label_of(serial: int, row: int) -> int:
    """The label of what is written into a row as the so-manieth write."""
    return serial << ROW_BITS | row


class Rows:
    """One record of fixed size by row, and its columns.

    Rows keep their number for as long as their memory is resident, across growth too. `places`
    belongs to the scopes of the residents, `classes` to their access classes; `accesses` counts
    those that nobody took yet.
    """

    def __init__(self, dim: int, capacity: int) -> None:
        self.codes = Codes(dim, capacity)
        self._serve_from(untouched(ROW, capacity))
        self.used = 0
        self._free = array("i")

    @property
    def capacity(self) -> int:
        """How many rows there are, taken and free."""
        return len(self.labels)

    @property
    def nbytes(self) -> int:
        """Allocated bytes."""
        return self.codes.nbytes + self.table.nbytes

    def next_free(self, count: int) -> list[int]:
        """The rows that the next `put` of so many takes; the caller has made sure of room."""
        again = self._free[: -count - 1 : -1].tolist() if count else []
        return again + list(range(self.used, self.used + count - len(again)))

    def put(self, labels: Sequence[int], units: NDArray[np.float32]) -> None:
        """Fill the next free rows; the labels name them in the order of `next_free`."""
        again = min(len(labels), len(self._free))
        if again:
            del self._free[-again:]
        self.used += len(labels) - again
        taken = np.asarray(labels, np.int64)
        rows = taken & ROW_MASK
        self.codes.put(rows, units)
        self.labels[rows] = taken

    def adopt(self, labels: NDArray[np.int64]) -> None:
        """Take the rows that these labels name, while nobody has any."""
        rows = labels & ROW_MASK
        self.labels[rows] = labels
        self.used = int(rows.max()) + 1 if len(rows) else 0
        self._free = array("i", np.flatnonzero(self.labels[: self.used] == FREE).tolist())

    def clear(self, row: int) -> None:
        """Free a row and zero its code."""
        self.codes.clear(row)
        self.labels[row] = FREE
        self.evictable[row] = False
        self._free.append(row)

    def living(self) -> NDArray[np.int64]:
        """A copy of all labels that a row has."""
        used = self.labels[: self.used]
        living: NDArray[np.int64] = used[used != FREE]
        return living

    def have(self, labels: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these labels a row has now."""
        known: NDArray[np.bool_] = self.at(labels & ROW_MASK) == labels
        return known

    def at(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The labels of these rows, also of such that there are not: those are nobody's."""
        found: NDArray[np.int64] = self.table.take(rows, mode="clip")["label"]
        return found

    def compare(
        self, query: NDArray[np.float32], rows: slice | NDArray[np.intp]
    ) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]:
        """Labels, coded cosines and their possible errors, in no order, of the rows taken."""
        labels = self.labels[rows]
        taken = labels != FREE
        cosines, errors = self.codes.cosines(query, rows)
        return labels[taken], cosines[taken], errors[taken]

    def finish_growth(self) -> None:
        """Serve from the larger arrays. Without a growth under way this changes nothing."""
        capacity = self.codes.finish_growth()
        if capacity:
            larger = untouched(ROW, capacity)
            larger[: len(self.table)] = self.table
            self._serve_from(larger)

    def _serve_from(self, table: NDArray[np.void]) -> None:
        self.table = table
        self.labels: NDArray[np.int64] = table["label"]
        self.heat: NDArray[np.float64] = table["heat"]
        self.last_ms: NDArray[np.int64] = table["last_ms"]
        self.classes: NDArray[np.int32] = table["of"]
        self.accesses: NDArray[np.uint32] = table["accesses"]
        self.places: NDArray[np.int32] = table["place"]
        self.evictable: NDArray[np.bool_] = table["evictable"]
