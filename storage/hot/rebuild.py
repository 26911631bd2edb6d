"""A new index built beside the serving one, and the writes that happened meanwhile.

A rebuild removes bytes that deletion leaves behind, restores recall and latency after many
deletions, and is how the graph grows: hnswlib cannot be resized while it is searched. The graph
reports each write under its lock; the builder catches up in rounds without it, so that the last
round, under the lock, is small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from storage.hot.index import LabelIndex
from storage.hot.rows import ROW_MASK

BUILD_ROWS = 128
GATHER_ROWS = 64
"""Vectors that one hold of the lock reads out of the serving index: less than a millisecond."""
FEW = 16
ROUNDS = 8

Gather: TypeAlias = Callable[[NDArray[np.int64]], tuple[list[int], NDArray[np.float32]]]
"""The labels that are still live, and their vectors copied; called under the graph's lock."""


class Aside:
    """The index under construction and the journal of writes that it has not seen."""

    def __init__(self, index: LabelIndex, threads: int) -> None:
        self.index = index
        self._threads = threads
        self._built = np.zeros(index.capacity, np.int64)
        self._added: list[int] = []
        self._gone: list[int] = []
        self._gone_ids: set[bytes] = set()

    def note_added(self, label: int) -> None:
        """A label went live in the serving index."""
        self._added.append(label)

    def note_gone(self, label: int, occupant: bytes) -> None:
        """A label left the serving index, for whatever reason."""
        self._gone.append(label)
        self._gone_ids.add(occupant)

    def may_hold(self, occupant: bytes) -> bool:
        """Whether bytes of a memory that left meanwhile may still be in here."""
        return occupant in self._gone_ids

    def fill(
        self,
        labels: NDArray[np.int64],
        gather: Gather,
        lock: AbstractContextManager[None],
    ) -> None:
        """Insert the labels in the given order, then catch up until little is left."""
        self._copy(labels, gather, lock)
        for _ in range(ROUNDS):
            if len(self._added) + len(self._gone) <= FEW:
                break
            self.catch_up(gather, lock)

    def catch_up(self, gather: Gather, lock: AbstractContextManager[None]) -> None:
        """Replay the journal; the lock is held only while it is read."""
        with lock:
            added, gone = self._added, self._gone
            self._added, self._gone = [], []
        self._drop(gone)
        self._copy(np.array(added, np.int64), gather, lock)

    def _copy(
        self, labels: NDArray[np.int64], gather: Gather, lock: AbstractContextManager[None]
    ) -> None:
        """A label that leaves between the two is in the journal, and is dropped after that."""
        for start in range(0, len(labels), BUILD_ROWS):
            part = labels[start : start + BUILD_ROWS]
            live: list[int] = []
            vectors: list[NDArray[np.float32]] = []
            for at in range(0, len(part), GATHER_ROWS):
                with lock:
                    some, theirs = gather(part[at : at + GATHER_ROWS])
                live += some
                vectors.append(theirs)
            self._build(live, np.concatenate(vectors))

    def _build(self, labels: Sequence[int], vectors: NDArray[np.float32]) -> None:
        self.index.add(labels, vectors, self._threads)
        built = np.asarray(labels, np.int64)
        self._built[built & ROW_MASK] = built

    def _drop(self, labels: Iterable[int]) -> None:
        """Overwrite what left meanwhile: a fresh index starts without remembered occupants."""
        for label in labels:
            if self._built[label & ROW_MASK] == label:
                self.index.wipe(label)
                self._built[label & ROW_MASK] = 0
