"""Unit vectors and the contiguous rows that hold those of the residents.

The rows serve exact search and rebuilds; the HNSW index keeps its own copy. Not thread-safe: the
graph's lock guards it. Growing copies block by block into larger arrays while the old ones serve,
so that no lock is held for the whole copy.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import ArrayLike, NDArray

from storage.errors import InvalidInput

FREE = -1
UNIT_SLACK = 1e-5
BLOCK_ROWS = 2_048


def unit_rows(vectors: ArrayLike, dim: int, name: str = "vectors") -> NDArray[np.float32]:
    """A normalised float32 copy of shape (n, dim).

    Raises InvalidInput for another shape or dimension, for NaN, infinity and a zero vector.
    """
    try:
        wide = np.asarray(vectors, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{name} must be numbers") from error
    if wide.ndim != 2:
        raise InvalidInput(f"{name} must have the shape (n, {dim})")
    if wide.shape[1] != dim:
        raise InvalidInput(f"{name} have dimension {wide.shape[1]}, the graph has dimension {dim}")
    if not np.isfinite(wide).all():
        raise InvalidInput(f"{name} of dimension {dim} must be finite")
    # Scaling by the largest component first keeps the squares inside float64.
    peak = np.abs(wide).max(axis=1, keepdims=True)
    if not peak.all():
        raise InvalidInput(f"{name} of dimension {dim} must not be zero")
    scaled = wide / peak
    scaled /= np.linalg.norm(scaled, axis=1, keepdims=True)
    unit: NDArray[np.float32] = scaled.astype(np.float32)
    return unit


def unit_query(query: ArrayLike, dim: int) -> NDArray[np.float32]:
    """Normalised float32 of shape (dim,), the query itself if it is; refuses what `unit_rows` does.

    The square of the norm tells at once that a vector is finite and of unit length.
    """
    if isinstance(query, np.ndarray) and query.dtype == np.float32 and query.shape == (dim,):
        given: NDArray[np.float32] = query
        if abs(float(given @ given) - 1) < UNIT_SLACK:
            return given
    try:
        wide = np.asarray(query, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInput("query must be numbers") from error
    if wide.ndim != 1:
        raise InvalidInput(f"query must have the shape ({dim},)")
    unit: NDArray[np.float32] = unit_rows(wide[np.newaxis, :], dim, "query")[0]
    return unit


class Rows:
    """Parallel arrays by row: vector, label, heat, last access, may-be-evicted.

    A freed row is zeroed at once, so no vector outlives its resident here. Rows keep their
    number for as long as their memory is resident, across growth too.
    """

    def __init__(self, dim: int, capacity: int) -> None:
        self.vectors = np.zeros((capacity, dim), np.float32)
        self.labels = np.full(capacity, FREE, np.int64)
        self.heat = np.zeros(capacity, np.float64)
        self.last_ms = np.zeros(capacity, np.int64)
        self.evictable = np.zeros(capacity, np.bool_)
        self.used = 0
        self._free: list[int] = []
        self._larger: NDArray[np.float32] | None = None

    @property
    def capacity(self) -> int:
        return len(self.labels)

    @property
    def nbytes(self) -> int:
        arrays = (self.vectors, self.labels, self.heat, self.last_ms, self.evictable)
        return sum(array.nbytes for array in arrays)

    def put(self, label: int, vector: NDArray[np.float32]) -> int:
        """The row that now holds this vector; the caller has made sure there is room."""
        if self._free:
            row = self._free.pop()
        else:
            row = self.used
            self.used += 1
        self._write(row, vector)
        self.labels[row] = label
        return row

    def clear(self, row: int) -> None:
        """Free a row and zero its vector."""
        self._write(row, np.float32(0))
        self.labels[row] = FREE
        self.evictable[row] = False
        self._free.append(row)

    def scores(
        self, query: NDArray[np.float32], rows: Collection[int] | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Labels and cosines, in no order, of the given rows or of all residents."""
        if rows is None:
            labels = self.labels[: self.used]
            taken = labels != FREE
            return labels[taken], (self.vectors[: self.used] @ query)[taken]
        chosen = np.fromiter(rows, dtype=np.intp, count=len(rows))
        scores = np.empty(len(chosen), np.float32)
        for start in range(0, len(chosen), BLOCK_ROWS):
            part = slice(start, start + BLOCK_ROWS)
            scores[part] = self.vectors[chosen[part]] @ query
        return self.labels[chosen], scores

    def begin_growth(self, capacity: int) -> None:
        """Start to copy into arrays of `capacity` rows; writes go to both until the end."""
        self._larger = np.zeros((capacity, self.vectors.shape[1]), np.float32)

    def copy_block(self, start: int) -> int | None:
        """Copy one block; the start of the next, or None at the end."""
        if self._larger is None or start >= self.used:
            return None
        part = slice(start, min(start + BLOCK_ROWS, self.used))
        self._larger[part] = self.vectors[part]
        return part.stop

    def finish_growth(self) -> None:
        """Serve from the larger arrays. Without a growth under way this changes nothing."""
        if self._larger is None:
            return
        more = len(self._larger) - self.capacity
        self.vectors, self._larger = self._larger, None
        self.labels = np.concatenate([self.labels, np.full(more, FREE, np.int64)])
        self.heat = np.concatenate([self.heat, np.zeros(more, np.float64)])
        self.last_ms = np.concatenate([self.last_ms, np.zeros(more, np.int64)])
        self.evictable = np.concatenate([self.evictable, np.zeros(more, np.bool_)])

    def drop_growth(self) -> None:
        """Give up a growth that failed."""
        self._larger = None

    def _write(self, row: int, vector: NDArray[np.float32] | np.float32) -> None:
        self.vectors[row] = vector
        if self._larger is not None:
            self._larger[row] = vector
