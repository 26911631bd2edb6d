"""When the graph is built anew, and how a new index takes the place of the serving one.

Searches and writes go on meanwhile; the last of them are replayed with the lock held.
"""

from __future__ import annotations

import threading
from contextlib import nullcontext

import numpy as np
from numpy.typing import NDArray

from storage.hot.index import LabelIndex
from storage.hot.pages import give_back
from storage.hot.rebuild import Aside
from storage.hot.residents import Residents
from storage.hot.rows import Rows
from storage.hot.settings import HotSettings
from storage.hot.turns import TurnLock

UNLINKED_SHARE = 0.1
"""Dead slots without their vectors lead searches nowhere; recall falls below 0.99 above this."""
HOLLOW_SHARE = 1 / 3
"""With more dead slots than that, to link all anew costs less than to relink them one by one."""
MANY = 64
"""Rows of an insert that may wait for that."""
TIDY_ROWS = 8_192


class Building:
    """Rebuilds and growth of what the graph holds; the graph makes the parts and writes to them."""

    _dim: int
    _settings: HotSettings
    _limit: int
    _lock: TurnLock
    _writing: threading.Lock
    _building: threading.Lock
    _index: LabelIndex
    _rows: Rows
    _residents: Residents
    _aside: Aside | None
    _rebuilds: int
    _unlinked: bool
    _untidy: int

    def needs_rebuild(self) -> bool:
        """Whether too many slots are dead, or the graph should grow before an insert has to."""
        with self._lock:
            dead, live = self._index.dead, len(self._residents)
            share = UNLINKED_SHARE if self._unlinked else self._settings.dead_share
            return dead > share * (live + dead) or self._is_tight()

    def rebuild(self) -> None:
        """Build a new graph from the residents and swap; searches and writes go on meanwhile.

        Raises IndexFault; the old graph then still serves.
        """
        with self._building:
            self._rebuild(self._doubled() if self._is_tight() else self._rows.capacity)

    def _has_room(self, count: int) -> bool:
        capacity = self._rows.capacity
        return capacity == self._limit or len(self._residents) + count <= capacity

    def _is_tight(self) -> bool:
        capacity = self._rows.capacity
        return capacity < self._limit and len(self._residents) > capacity - capacity // 8

    def _grow(self, count: int) -> None:
        with self._building:
            if not self._has_room(count):
                self._rebuild(self._doubled())

    def _tidy(self, inserted: int) -> None:
        """Give back what the tables of the residents and of the index left when they grew."""
        self._untidy += inserted
        if self._untidy >= TIDY_ROWS and inserted >= MANY:
            self._untidy = 0
            give_back()

    def _relink(self) -> None:
        """Rebuild when so many slots are dead that reusing them would cost more."""
        if self._is_hollow():
            with self._building:
                if self._is_hollow():
                    self._rebuild(self._rows.capacity)

    def _is_hollow(self) -> bool:
        with self._lock:
            dead = self._index.dead
            return dead > MANY and dead > HOLLOW_SHARE * (dead + len(self._residents))

    def _gathered(self, labels: NDArray[np.int64]) -> tuple[list[int], NDArray[np.float32]]:
        return self._residents.gather(labels, self._index)

    def _doubled(self) -> int:
        return min(self._limit, 2 * self._rows.capacity)

    def _rebuild(self, capacity: int) -> None:
        settings = self._settings
        aside = Aside(LabelIndex(self._dim, capacity, settings), settings.threads)
        with self._lock:
            labels = self._rows.living()
            self._aside = aside
            if capacity > self._rows.capacity:
                self._rows.codes.begin_growth(capacity)
        try:
            block: int | None = 0
            while block is not None:
                with self._lock:
                    block = self._rows.codes.copy_block(block, self._rows.used)
            order = np.random.default_rng(settings.seed + self._rebuilds).permutation(labels)
            aside.fill(order, self._gathered, self._lock)
            with self._writing:
                aside.catch_up(self._gathered, self._lock)
                with self._lock:
                    aside.catch_up(self._gathered, nullcontext())
                    self._rows.finish_growth()
                    old, self._index = self._index, aside.index
                    self._unlinked = False
                    self._rebuilds += 1
        finally:
            with self._lock:
                self._aside = None
                self._rows.codes.drop_growth()
        del old
        give_back()
