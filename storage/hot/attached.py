"""Bytes that belong to residents: kept by row for as long as the record there stays as it is.

The graph drops them when a record leaves or changes; it never reads them. Not thread-safe: the
graph's lock guards it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

COST: Final = 200
"""Bytes of bookkeeping for one row: the entry, the number, the header."""


class Attached:
    """At most `limit` bytes, bookkeeping included; what was attached first goes first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._held: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._held)

    @property
    def size(self) -> int:
        """Bytes that are kept."""
        return self._size

    def get(self, row: int) -> bytes | None:
        """What is kept for a row."""
        return self._held.get(row)

    def at(self, rows: Iterable[int]) -> list[bytes | None]:
        """What is kept for each of these rows."""
        return list(map(self._held.get, rows))

    def put(self, row: int, value: bytes) -> None:
        """Keep this for the row, in place of what was kept for it."""
        self.drop(row)
        self._held[row] = value
        self._size += COST + len(value)
        if self._size > self._limit:
            for oldest in list(self._held)[: len(self._held) // 8 + 1]:
                self.drop(oldest)

    def drop(self, row: int) -> None:
        """Keep nothing for the row."""
        value = self._held.pop(row, None)
        if value is not None:
            self._size -= COST + len(value)

    def clear(self) -> None:
        """Keep nothing."""
        self._held.clear()
        self._size = 0
