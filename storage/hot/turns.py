"""Turns of readers and writers: a stream of writes must neither starve nor delay a search.

`threading.Lock` lets a thread that releases and at once takes again win every time. Here whoever
waits holds the door: the next writer queues behind it. How much a writer does in its turn follows
from how long that took, and from whether anybody searches.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Final

FEW: Final = 4
"""Rows of a turn while others search: a few milliseconds at most."""
MOST: Final = 64
HOLD_S: Final = 0.004
"""A turn that nobody seems to wait for takes about so long: a search may come in the middle."""


class TurnLock:
    """Context manager; not re-entrant."""

    def __init__(self) -> None:
        self._door = threading.Lock()
        self._room = threading.Lock()

    def __enter__(self) -> None:
        with self._door:
            self._room.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._room.release()


class Pace:
    """How many rows the next turn of a writer takes; the graph's lock guards it."""

    def __init__(self) -> None:
        self._seen = 0
        self._next = FEW

    def rows(self, searches: int) -> int:
        """Few when there were searches since the last turn; `searches` counts them all."""
        quiet, self._seen = searches == self._seen, searches
        return self._next if quiet else FEW

    @contextmanager
    def of(self, rows: int) -> Iterator[None]:
        """Time a turn of so many rows."""
        begun = time.perf_counter()
        yield
        taken = time.perf_counter() - begun
        if rows:
            self._next = max(FEW, min(MOST, 2 * rows, int(rows * HOLD_S / max(taken, 1e-6))))
