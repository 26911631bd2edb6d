"""Which memories are resident: the hot graph and the flag that tells whether rows are cold.

Use cases call this after their commit; a graph that lags behind the database for a moment hides
nothing, because rows are searched too while any of them is cold.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import trio
from numpy.typing import NDArray

from node.memory.gathering import Gathering
from storage import memories
from storage.errors import MnemeshError
from storage.hot.graph import HotGraph
from storage.hot.index import IndexFault
from storage.hot.reports import InsertReport
from storage.local import LocalNode
from storage.memories import Stored
from storage.model import Hlc, Memory, MemoryId, Scope, ScopeKind
from storage.pool import Database

log = logging.getLogger(__name__)

LOAD_PAGE = 2_000
INLINE_ROWS = 4
"""Up to so many rows are inserted without a thread: a thread hop costs more than the insert."""
DEPARTED = 20_000
"""How many of the memories that left for good are remembered, against an insertion on its way."""


class Residency:
    """The hot graph of this node and its relation to the rows behind it.

    `has_cold` is False only while every live row with a vector is known to be resident. A memory
    that was hidden or forgotten is not taken in any more, also not by an insertion that was
    decided before and comes late.
    """

    def __init__(self, graph: HotGraph, node: LocalNode, model: str) -> None:
        self.graph = graph
        self.questions = Gathering(graph)
        self.model = model
        self.has_cold = False
        self.degraded: str | None = None
        self.forgotten_total = 0
        self.accesses_taken = 0
        """How many rows were touched to write accesses down."""
        self.reloaded_total = 0
        self.resident_max = 0
        self._node = node
        self._limiter = trio.CapacityLimiter(1)
        self._departed: dict[MemoryId, None] = {}
        self._fences: dict[Scope, Hlc] = {}
        self._accesses: Counter[MemoryId] = Counter()
        self._leaving: set[MemoryId] = set()

    async def load(self, db: Database) -> int:
        """Fill the graph from the database, warmest first, up to the ceiling; how many.

        May run while the node serves: what is resident already is newer and stays.
        """
        ceiling = self.graph.stats().ceiling
        offset = 0
        while offset < ceiling:
            page = await db.read(
                memories.warmest_page,
                self.model,
                self._node.wall(),
                limit=min(LOAD_PAGE, ceiling - offset),
                offset=offset,
            )
            if not page:
                break
            await self._insert(page, only_absent=True)
            if self.degraded:
                await self._drop_stale(db, page)
            offset += len(page)
        if self.degraded or offset >= ceiling:
            self.has_cold = await db.read(memories.count_live) > len(self.graph)
        self.degraded = None
        return len(self.graph)

    def degrade(self, reason: str) -> None:
        """The graph lacks memories until `load` has ended; the rows answer for them."""
        self.degraded = reason
        self.has_cold = True

    async def refresh(
        self, db: Database, ids: Sequence[MemoryId], *, only_others: bool = False
    ) -> int:
        """Read memories again from their rows, resident or not; how many are live.

        With `only_others` what is resident just as its row says stays untouched: to put a vector
        in again costs many times what it costs to look at it.
        """
        rows = await db.read(memories.with_vectors, ids, self.model)
        others = await trio.to_thread.run_sync(self._others, rows) if only_others else rows
        await self._insert_as_they_stay(db, others)
        alive = {row.memory.id for row in rows}
        await self.forget([each for each in ids if each not in alive and each in self.graph])
        return len(rows)

    async def add(self, rows: Sequence[tuple[Memory, NDArray[np.float32]]]) -> None:
        """Make freshly stored memories resident. Not cancellable.

        When the graph cannot take them they are found as cold rows.
        """
        try:
            with trio.CancelScope(shield=True):
                await self._insert([Stored(memory, vector) for memory, vector in rows])
        except IndexFault as error:
            self.has_cold = True
            log.warning("%d stored memories stay cold: %s", len(rows), error)

    async def reload(self, db: Database, ids: Sequence[MemoryId]) -> int:
        """Make cold memories resident again, as their rows are now; how many."""
        wanted = [memory_id for memory_id in ids if memory_id not in self.graph]
        if not wanted:
            return 0
        rows = await db.read(memories.with_vectors, wanted, self.model)
        await self._insert_as_they_stay(db, rows, only_absent=True)
        self.reloaded_total += len(rows)
        return len(rows)

    async def warm(self, db: Database, ids: Sequence[MemoryId], patience_s: float) -> None:
        """`reload` for the sake of later readers: one that fails or takes too long is given up."""
        try:
            with trio.move_on_after(patience_s):
                await self.reload(db, ids)
        except MnemeshError as error:
            log.warning("%d memories stay cold: %s (%s)", len(ids), error, error.code)

    async def readmit(self, db: Database, memory_id: MemoryId, patience_s: float) -> None:
        """Make a recovered memory resident, if its row is still live."""
        self._departed.pop(memory_id, None)
        self.has_cold = True
        await self.warm(db, [memory_id], patience_s)

    async def hide(self, ids: Sequence[MemoryId]) -> None:
        """Take soft-deleted memories out of every search. Not cancellable."""
        await self._take_out(self.graph.hide, ids)

    async def forget(self, ids: Sequence[MemoryId]) -> None:
        """Take memories out and overwrite their vectors. Not cancellable."""
        self.forgotten_total += len(ids)
        await self._take_out(self.graph.forget, ids)

    async def doubt(self, ids: Sequence[MemoryId]) -> None:
        """Leave it to the rows whether these memories still exist. Not cancellable."""
        self.has_cold = True
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self.graph.hide, list(ids), limiter=self._limiter)

    def has_left(self, memory_id: MemoryId) -> bool:
        """Whether a memory was hidden or forgotten lately."""
        return memory_id in self._departed

    @property
    def leaving(self) -> Callable[[MemoryId], bool] | None:
        """Whether a memory is being hidden or forgotten now; None while none is."""
        return self.has_left if self._leaving else None

    def fence(self, scope: Scope) -> None:
        """Take a closed scope out of every search, also what was stored just before."""
        self._fences[scope] = self._node.clock.last
        self.graph.hide(
            resident.id
            for resident in self.graph.residents()
            if scope.id in (resident.agent_id, resident.project_id)
        )

    def touch(self, ids: Sequence[MemoryId], now_ms: int) -> None:
        """Note that memories were recalled."""
        self.graph.touch(ids, now_ms)

    def note_accesses(self, accesses: Mapping[MemoryId, int]) -> None:
        """Take accesses back that could not be written down."""
        self._accesses.update(accesses)

    def take_accesses(self) -> dict[MemoryId, int]:
        """How often memories were recalled since the last call."""
        taken, self._accesses = self._accesses, Counter()
        taken.update(self.graph.take_accesses())
        self.accesses_taken += len(taken)
        return dict(taken)

    def evict(self, ids: Sequence[MemoryId]) -> int:
        """Take memories out; their rows stay and are cold from now on."""
        if ids:
            self.has_cold = True
        return self.graph.evict(ids)

    async def _insert_as_they_stay(
        self, db: Database, rows: Sequence[Stored], *, only_absent: bool = False
    ) -> None:
        """Insert rows; those that became others or went meanwhile do not stay resident."""
        if not rows:
            return
        await self._insert(rows, only_absent=only_absent)
        try:
            await self._drop_stale(db, rows)
        except BaseException:
            await self.doubt([row.memory.id for row in rows])
            raise

    async def _drop_stale(self, db: Database, rows: Sequence[Stored]) -> None:
        """What changed between its reading and its insertion is cold, what went is forgotten.

        A change that comes after this look is inserted by whoever made it.
        """
        ids = [row.memory.id for row in rows]
        now = {row.memory.id: row for row in await db.read(memories.with_vectors, ids, self.model)}
        dead = [memory_id for memory_id in ids if memory_id not in now]
        changed = [
            row.memory.id
            for row in rows
            if row.memory.id in now and not self._equal(row, now[row.memory.id])
        ]
        if changed:
            await self.doubt(changed)
        if dead:
            await self.forget(dead)

    def _others(self, rows: Sequence[Stored]) -> list[Stored]:
        """The rows that are not resident as they are."""
        holds, node_id = self.graph.holds, self._node.node_id
        return [
            row for row in rows if not holds(memories.resident(row.memory, node_id), row.vector)
        ]

    def _equal(self, one: Stored, other: Stored) -> bool:
        """Whether both make the same resident."""
        records = [memories.resident(row.memory, self._node.node_id) for row in (one, other)]
        return records[0] == records[1] and np.array_equal(one.vector, other.vector)

    async def _take_out(
        self, take: Callable[[Sequence[MemoryId]], object], ids: Sequence[MemoryId]
    ) -> None:
        """In a thread, not cancellable; no answer has them from now on."""
        chosen = list(ids)
        self._depart(chosen)
        self._leaving.update(chosen)
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(take, chosen, limiter=self._limiter)
        self._leaving.difference_update(chosen)

    def _depart(self, ids: Sequence[MemoryId]) -> None:
        self._departed.update(dict.fromkeys(ids))
        for oldest in list(self._departed)[: max(len(self._departed) - DEPARTED, 0)]:
            del self._departed[oldest]

    async def _insert(self, rows: Sequence[Stored], *, only_absent: bool = False) -> None:
        if not rows:
            return
        if len(rows) <= INLINE_ROWS:
            report = self._insert_now(rows, only_absent)
        else:
            report = await trio.to_thread.run_sync(
                self._insert_now, rows, only_absent, limiter=self._limiter
            )
        if report.evicted or report.refused:
            self.has_cold = True
        self.resident_max = max(self.resident_max, len(self.graph))

    def _insert_now(self, rows: Sequence[Stored], only_absent: bool) -> InsertReport:
        """In one thread at a time with `hide` and `forget`, so the check holds to the end."""
        staying = [row for row in rows if not self._is_over(row.memory)]
        if not staying:
            return InsertReport(0, 0, (), ())
        return self.graph.insert(
            [memories.resident(row.memory, self._node.node_id) for row in staying],
            np.stack([row.vector for row in staying]),
            only_absent=only_absent,
        )

    def _is_over(self, memory: Memory) -> bool:
        if memory.id in self._departed:
            return True
        scopes = [Scope(ScopeKind.AGENT, memory.agent_id)]
        if memory.project_id is not None:
            scopes.append(Scope(ScopeKind.PROJECT, memory.project_id))
        return any(memory.hlc <= self._fences.get(scope, -1) for scope in scopes)
