"""Residents in the bytes of an answer, encoded once and kept for the answers to come.

A record that many questions find is turned into bytes once for each form in which answers leave.
The bytes live no longer than the record itself: they are held beside a weak reference to it, so
whatever takes a memory out of the hot graph (a change, a forget, an eviction, an erasure) takes
them along at once, and nobody has to tell this module. An answer itself is never kept.

For any thread.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Final, TypeAlias

from storage.model import Resident

LIMIT: Final = 32 << 20
"""Bytes of one form that are kept, by `_COST` and the pieces themselves."""
LARGEST: Final = 64 << 10
"""A record with longer pieces is encoded anew each time."""
_COST: Final = 400
"""Bytes of bookkeeping for one record: the weak reference, the tuple, the entry."""

Pieces: TypeAlias = tuple[bytes, bytes]
"""What stands before the scores of a hit, and what stands behind them."""
Encode: TypeAlias = Callable[[Resident, str, str | None], Pieces]


class EncodedRecords:
    """The pieces of records in one form; `encode` makes them from a record and its names here."""

    def __init__(self, encode: Encode, limit: int = LIMIT) -> None:
        self._encode = encode
        self._limit = limit
        self._size = 0
        self._held: dict[
            int, tuple[weakref.ReferenceType[Resident], str, str | None, bytes, bytes]
        ] = {}
        # A dying record may end in any thread, also while that thread is in here.
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def size(self) -> int:
        """Bytes that are kept."""
        return self._size

    def pieces(self, resident: Resident, agent: str, project: str | None) -> Pieces:
        """The pieces of a record whose agent and project have these names now."""
        held = self._held.get(id(resident))
        if held is not None and held[0]() is resident and held[1] == agent and held[2] == project:
            return held[3:]
        made = self._encode(resident, agent, project)
        if sum(map(len, made)) <= LARGEST:
            self._keep(resident, agent, project, made)
        return made

    def _keep(self, resident: Resident, agent: str, project: str | None, made: Pieces) -> None:
        key = id(resident)
        reference = weakref.ref(resident, lambda gone: self._drop(key))
        with self._lock:
            self._drop(key)
            self._held[key] = (reference, agent, project, *made)
            self._size += _cost(made)
            if self._size > self._limit:
                for oldest in list(self._held)[: len(self._held) // 8 + 1]:
                    self._drop(oldest)

    def _drop(self, key: int) -> None:
        with self._lock:
            held = self._held.pop(key, None)
            if held is not None:
                self._size -= _cost(held[3:])


def _cost(pieces: Pieces) -> int:
    return _COST + len(pieces[0]) + len(pieces[1])
