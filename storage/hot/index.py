"""One hnswlib index and who last lived in its dead slots.

The only importer of hnswlib, so that its traps are met in one place: `k` above the live count
raises, a deleted label that is added again may live on as a ghost, NaN is accepted, a deleted
vector keeps its bytes. Labels are given by the caller, rise, and are never used twice. Not
thread-safe: the graph's lock guards it. Never resized: a larger index is built aside.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import hnswlib
import numpy as np
from numpy.typing import NDArray

from storage.errors import MnemeshError
from storage.hot.settings import HotSettings

POINTER_AND_LOCK_BYTES = 48


class IndexFault(MnemeshError):
    """The vector index failed; the memories are in PostgreSQL and can be loaded again."""

    code = "internal"
    retryable = True


class LabelIndex:
    """Vectors by label, with deletion in two strengths.

    `bury` hides a vector and remembers its occupant, since the bytes stay until the slot is
    reused; `wipe` overwrites the bytes too. hnswlib chooses which dead slot an insert reuses and
    does not tell, so a remembered label is checked against the index when it is asked for.
    """

    def __init__(self, dim: int, capacity: int, settings: HotSettings) -> None:
        self.capacity = capacity
        self.live = 0
        self._dim = dim
        self._slot_bytes = _slot_bytes(dim, settings)
        self._buried: dict[int, bytes] = {}
        self._graves: dict[bytes, tuple[int, ...]] = {}
        self._order: deque[int] = deque()
        self.hnsw = hnswlib.Index(space="ip", dim=dim)
        self.hnsw.init_index(
            max_elements=capacity,
            M=settings.m,
            ef_construction=settings.ef_construction,
            random_seed=settings.seed,
            allow_replace_deleted=True,
        )

    @classmethod
    def restored(cls, state: dict[str, Any], live: int, settings: HotSettings) -> LabelIndex:
        """An index from its serialised state, with so many live labels and clean dead slots."""
        index = cls.__new__(cls)
        index.capacity = state["max_elements"]
        index.live = live
        index._dim = state["dim"]
        index._slot_bytes = _slot_bytes(state["dim"], settings)
        index._buried, index._graves, index._order = {}, {}, deque()
        index.hnsw = hnswlib.Index.__new__(hnswlib.Index)
        index.hnsw.__setstate__((state,))
        return index

    def state(self) -> dict[str, Any]:
        """The serialised state: scalars by name and arrays; holds the interpreter meanwhile."""
        state: dict[str, Any] = self.hnsw.__getstate__()[0]
        return state

    @property
    def nbytes(self) -> int:
        """Allocated bytes; pages of slots never used yet cost no memory."""
        return self.capacity * self._slot_bytes

    @property
    def dead(self) -> int:
        """Slots that hold no live vector and wait for reuse."""
        return int(self.hnsw.get_current_count()) - self.live

    def add(self, labels: Sequence[int], vectors: NDArray[np.float32], threads: int = 1) -> None:
        """Insert unit vectors under fresh labels, dead slots first.

        Raises IndexFault; then none of the labels is searchable.
        """
        if not labels:
            return
        try:
            self.hnsw.add_items(
                vectors, np.asarray(labels, np.int64), num_threads=threads, replace_deleted=True
            )
        except RuntimeError as error:
            for label in labels:
                with contextlib.suppress(RuntimeError):  # not every label got in
                    self.hnsw.mark_deleted(label)
                    self._wipe_dead(label)
            raise IndexFault from error
        self.live += len(labels)
        self._forget_reused(len(labels))

    def bury(self, label: int, occupant: bytes) -> None:
        """Take a live label out of every search; its bytes stay until the slot is reused."""
        self.hnsw.mark_deleted(label)
        self.live -= 1
        self._buried[label] = occupant
        self._graves[occupant] = (*self._graves.get(occupant, ()), label)
        self._order.append(label)

    def wipe(self, label: int) -> None:
        """Take a live label out of every search and overwrite its vector with zeros.

        Raises IndexFault with the label still live.
        """
        self._overwrite([label])
        self.hnsw.mark_deleted(label)
        self.live -= 1

    def graves(self, occupant: bytes) -> list[int]:
        """Labels of dead slots that still hold bytes of this memory."""
        found = []
        for label in self._graves.get(occupant, ()):
            if self._open(label):
                self.hnsw.mark_deleted(label)
                found.append(label)
            else:
                self._unlist(label)
        return found

    def wipe_graves(self, occupants: Iterable[bytes], threads: int = 1) -> int:
        """Overwrite every dead slot of these memories; how many memories had any.

        Raises IndexFault, after which all of them may still have some.
        """
        labels = [
            (label, occupant) for occupant in occupants for label in self._graves.get(occupant, ())
        ]
        held: dict[int, bytes] = {}
        for label, occupant in labels:
            if self._open(label):
                held[label] = occupant
        try:
            if held:
                self._overwrite(list(held), threads)
        finally:
            for label in held:
                self.hnsw.mark_deleted(label)
        for label, _ in labels:
            self._unlist(label)
        return len(set(held.values()))

    def nearest(
        self, queries: NDArray[np.float32], count: int, ef: int, threads: int = 1
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]] | None:
        """Labels and cosines of up to `count` neighbours of each query, best first.

        Queries have the shape (n, dim), both answers (n, count). hnswlib spreads more than four
        queries a thread over the threads. None when the graph cannot reach that many from its
        entry point: compare exactly then.
        """
        count = min(count, self.live)
        if count == 0:
            return np.empty((len(queries), 0), np.int64), np.empty((len(queries), 0), np.float32)
        self.hnsw.set_ef(ef)  # hnswlib raises it to the count by itself
        try:
            labels, distances = self.hnsw.knn_query(queries, k=count, num_threads=threads)
        except RuntimeError:
            return None
        return labels.view(np.int64), np.float32(1) - distances

    def vector(self, label: int) -> NDArray[np.float32] | None:
        """The vector under a live label, None when there is none; holds the interpreter."""
        try:
            vector: NDArray[np.float32] = self.vectors([label])[0]
        except IndexFault:
            return None
        return vector

    def vectors(self, labels: Sequence[int]) -> NDArray[np.float32]:
        """Copies of the vectors under live labels, of shape (n, dim); ask for few at a time.

        Holds the interpreter for 6 microseconds each. Raises IndexFault for a label that is not
        live.
        """
        if not labels:
            return np.empty((0, self._dim), np.float32)
        try:
            return np.array(self.hnsw.get_items(labels, return_type="list"), np.float32)
        except RuntimeError as error:
            raise IndexFault from error

    def labels(self) -> list[int]:
        """All labels that have a slot, live and dead."""
        return [int(label) for label in self.hnsw.get_ids_list()]

    def is_live(self, label: int) -> bool:
        """Whether a label has a slot that searches can find."""
        if self._open(label):
            self.hnsw.mark_deleted(label)
            return False
        return self.vector(label) is not None

    def wipe_ghost(self, label: int) -> None:
        """Overwrite and hide a live label that nobody counted."""
        self._overwrite([label])
        self.hnsw.mark_deleted(label)

    def _open(self, label: int) -> bool:
        """Make a dead label live for a moment; False when its slot was reused."""
        try:
            self.hnsw.unmark_deleted(label)
        except RuntimeError:
            return False
        return True

    def _wipe_dead(self, label: int) -> bool:
        if not self._open(label):
            return False
        try:
            self._overwrite([label])
        finally:
            self.hnsw.mark_deleted(label)
        return True

    def _overwrite(self, labels: Sequence[int], threads: int = 1) -> None:
        zeros = np.zeros((len(labels), self._dim), np.float32)
        try:
            self.hnsw.add_items(zeros, np.asarray(labels, np.int64), num_threads=threads)
        except RuntimeError as error:
            raise IndexFault from error

    def _unlist(self, label: int) -> None:
        occupant = self._buried.pop(label)
        left = tuple(each for each in self._graves[occupant] if each != label)
        if left:
            self._graves[occupant] = left
        else:
            del self._graves[occupant]

    def _forget_reused(self, count: int) -> None:
        """Keep the list of occupants in proportion to the dead slots that exist.

        Two of the list are looked at for each slot that an insert may have reused, in turns, so
        that it is never longer than twice the dead slots and no insert does much of the work.
        """
        if self.dead == 0:
            self._buried.clear()
            self._graves.clear()
            self._order.clear()
            return
        for _ in range(min(2 * count, len(self._order))):
            label = self._order.popleft()
            if label not in self._buried:
                continue
            if self._open(label):
                self.hnsw.mark_deleted(label)
                self._order.append(label)
            else:
                self._unlist(label)


def _slot_bytes(dim: int, settings: HotSettings) -> int:
    return 4 * dim + 8 * settings.m + 4 + 8 + POINTER_AND_LOCK_BYTES
