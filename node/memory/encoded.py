"""Residents in the bytes of an answer, encoded once and kept for the answers to come.

A record that many questions find is turned into bytes once for each form in which answers leave.
The bytes stay no longer than the record stays in the hot graph: the graph itself tells at once
when a record leaves or changes, whoever asked for it (a change, a forget, an eviction, an
erasure). An answer as a whole is never kept.

For any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, TypeAlias

from storage.hot.graph import HotGraph
from storage.model import MemoryId, Resident

LIMIT: Final = 32 << 20
"""Bytes of one form that are kept: the pieces, and `_COST` for each record."""
LARGEST: Final = 64 << 10
"""A record with longer pieces is encoded anew each time."""
_COST: Final = 300
"""Bytes of bookkeeping for one record: the tuple, the entry, two headers."""

Pieces: TypeAlias = tuple[bytes, bytes]
"""What stands before the scores of a hit, and what stands behind them."""
Encode: TypeAlias = Callable[[Resident, str, str | None], Pieces]


class EncodedRecords:
    """The pieces of a graph's records in one form.

    `encode` makes them from a record and the names that its agent and its project have here.
    """

    def __init__(self, encode: Encode, graph: HotGraph, limit: int = LIMIT) -> None:
        self._encode = encode
        self._graph = graph
        self._limit = limit
        self._size = 0
        self._held: dict[MemoryId, tuple[Resident, str, str | None, Pieces]] = {}
        self._lock = threading.Lock()
        graph.on_leave(self._leave)

    def __len__(self) -> int:
        return len(self._held)

    @property
    def size(self) -> int:
        """Bytes that are kept."""
        return self._size

    def pieces(self, resident: Resident, agent: str, project: str | None) -> Pieces:
        """The pieces of a record whose agent and project have these names now."""
        held = self._held.get(resident.id)
        if held is not None and held[0] is resident and held[1] == agent and held[2] == project:
            return held[3]
        made = self._encode(resident, agent, project)
        if sum(map(len, made)) <= LARGEST:
            with self._lock:
                self._keep(resident, agent, project, made)
            # It may have left after it was found and before it was kept: then nobody told.
            if self._graph.get(resident.id) is not resident:
                self._leave(resident.id)
        return made

    def _keep(self, resident: Resident, agent: str, project: str | None, made: Pieces) -> None:
        self._drop(resident.id)
        self._held[resident.id] = (resident, agent, project, made)
        self._size += _cost(made)
        if self._size > self._limit:
            for oldest in list(self._held)[: len(self._held) // 8 + 1]:
                self._drop(oldest)

    def _leave(self, memory_id: MemoryId) -> None:
        if memory_id in self._held:
            with self._lock:
                self._drop(memory_id)

    def _drop(self, memory_id: MemoryId) -> None:
        held = self._held.pop(memory_id, None)
        if held is not None:
            self._size -= _cost(held[3])


def _cost(pieces: Pieces) -> int:
    return _COST + len(pieces[0]) + len(pieces[1])
