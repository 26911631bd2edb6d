"""Vectors as one signed byte a number and a scale a row: a quarter of their bytes.

The vectors themselves are in the HNSW index, where reading many of them is slow. A comparison
with all rows of a scope reads these codes instead, and the order of the best is settled with the
vectors. Symmetric scalar quantisation: a number is its code times the scale of its row, at most
half a scale away. Not thread-safe: the graph's lock guards it. Growing copies block by block into
larger arrays while the old ones serve, so that no lock is held for the whole copy.
"""

from __future__ import annotations

import math
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from storage.hot.pages import untouched

Number = TypeVar("Number", bound=np.generic)

LARGEST: Final = 127
BLOCK_ROWS: Final = 2_048
SIGMAS: Final = 6.0
"""Rounding errors are uniform and independent, their sum over a vector is close to normal."""
ROUNDING: Final = 1e-6
"""Of single precision, in a cosine and in a component."""


class Codes:
    """Coded vectors by row; a freed row is zeroed at once, so no vector outlives its resident."""

    def __init__(self, dim: int, capacity: int) -> None:
        self.codes: NDArray[np.int8] = untouched(np.int8, capacity, dim)
        self.scales: NDArray[np.float32] = untouched(np.float32, capacity)
        self._larger: NDArray[np.int8] | None = None

    @property
    def nbytes(self) -> int:
        """Allocated bytes; pages of rows never used yet cost no memory."""
        return self.codes.nbytes + self.scales.nbytes

    def put(self, rows: NDArray[np.intp], units: NDArray[np.float32]) -> None:
        """Code vectors of shape (n, dim) into these rows; a damaged one may be zero."""
        scales = np.abs(units).max(axis=1) / np.float32(LARGEST)
        steps = np.where(scales > 0, scales, np.float32(1))
        coded = np.rint(units / steps[:, np.newaxis]).astype(np.int8)
        self.codes[rows] = coded
        self.scales[rows] = scales
        if self._larger is not None:
            self._larger[rows] = coded

    def clear(self, row: int) -> None:
        """Zero a row."""
        self.codes[row] = 0
        self.scales[row] = 0
        if self._larger is not None:
            self._larger[row] = 0

    def cosines(
        self, query: NDArray[np.float32], rows: slice | NDArray[np.intp]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Cosines of some rows to a unit query, and how far the true ones may be from them."""
        scales = self.scales[rows]
        cosines = (self.codes[rows].astype(np.float32) @ query) * scales
        return cosines, scales * np.float32(reach(query)) + np.float32(ROUNDING)

    def agrees(self, row: int, vector: NDArray[np.float32]) -> bool:
        """Whether this vector, of shape (dim,), has the code of this row."""
        scale = float(self.scales[row])
        apart = np.abs(self.codes[row].astype(np.float32) * np.float32(scale) - vector)
        return float(apart.max()) <= 0.5 * scale + ROUNDING

    def begin_growth(self, capacity: int) -> None:
        """Start to copy into an array of `capacity` rows; writes go to both until the end."""
        self._larger = untouched(np.int8, capacity, self.codes.shape[1])

    def copy_block(self, start: int, used: int) -> int | None:
        """Copy one block of the used rows; the start of the next, or None at the end."""
        if self._larger is None or start >= used:
            return None
        part = slice(start, min(start + BLOCK_ROWS, used))
        self._larger[part] = self.codes[part]
        return part.stop

    def finish_growth(self) -> int:
        """Serve from the larger array; how many rows there are, 0 without a growth under way."""
        if self._larger is None:
            return 0
        self.codes, self._larger = self._larger, None
        self.scales = grown(self.scales, len(self.codes))
        return len(self.codes)

    def drop_growth(self) -> None:
        """Give up a growth that failed."""
        self._larger = None


def grown(column: NDArray[Number], capacity: int) -> NDArray[Number]:
    """A copy of a column with so many rows, the new ones zero."""
    larger: NDArray[Number] = untouched(column.dtype, capacity)
    larger[: len(column)] = column
    return larger


def reach(query: NDArray[np.float32]) -> float:
    """How far a coded cosine to this query may be from the true one, in scales of the row.

    Half a scale in every component at the worst; with many components SIGMAS standard deviations
    of the sum, which one row in 500 million exceeds.
    """
    worst = 0.5 * float(np.abs(query).sum())
    return min(worst, SIGMAS / math.sqrt(12) * float(np.linalg.norm(query)))
