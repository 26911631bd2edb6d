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

BUILD_ROWS = 512
FEW = 16
ROUNDS = 8

Gather: TypeAlias = Callable[[Sequence[int]], tuple[list[int], NDArray[np.float32]]]
"""The labels that are still live, and their vectors copied; called under the graph's lock."""


class Aside:
    """The index under construction and the journal of writes that it has not seen."""

    def __init__(self, index: LabelIndex, threads: int) -> None:
        self.index = index
        self._threads = threads
        self._built: set[int] = set()
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
        for start in range(0, len(labels), BUILD_ROWS):
            with lock:
                live, vectors = gather(labels[start : start + BUILD_ROWS].tolist())
            self._build(live, vectors)
        for _ in range(ROUNDS):
            if len(self._added) + len(self._gone) <= FEW:
                break
            self.catch_up(gather, lock)

    def catch_up(self, gather: Gather, lock: AbstractContextManager[None]) -> None:
        """Replay the journal; the lock is held only while it is read."""
        with lock:
            added, gone = self._added, self._gone
            self._added, self._gone = [], []
            live, vectors = gather(added)
        self._drop(gone)
        for start in range(0, len(live), BUILD_ROWS):
            part = slice(start, start + BUILD_ROWS)
            self._build(live[part], vectors[part])

    def _build(self, labels: Sequence[int], vectors: NDArray[np.float32]) -> None:
        self.index.add(labels, vectors, self._threads)
        self._built.update(labels)

    def _drop(self, labels: Iterable[int]) -> None:
        """Overwrite what left meanwhile: a fresh index starts without remembered occupants."""
        for label in labels:
            if label in self._built:
                self.index.wipe(label)
                self._built.discard(label)
