"""Search of rows that may not be resident: routed by clusters where comparing all costs too much.

A reader with few rows is answered by comparing them all. Above `EXACT_ROWS` only the rows of the
nearest clusters are read, up to a budget that follows the recall which the node measures on its
own data. Whatever is in no known cluster yet is always looked through, so that a lagging
background pass costs time and hides nothing.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from storage import aggregates, memories
from storage.filters import NO_FILTERS, Filters
from storage.memories import Found
from storage.model import (
    AgentId,
    Memory,
    MemoryId,
    MemoryKind,
    Reader,
    ReadPolicy,
    Visibility,
)
from storage.pool import Database, Record, Tx
from storage.routing import Routes

log = logging.getLogger(__name__)

EXACT_ROWS: Final = 8_000
"""Comparing so many rows costs about as much as routing does."""
FIRST_BUDGET: Final = 4_096
LEAST_BUDGET: Final = 128
MOST_BUDGET: Final = 65_536
ENOUGH: Final = 0.955
"""Below this recall the row budget grows. The places that are asked for are harder than questions,
whose recall is better."""
PLENTY: Final = 0.97
"""Above this recall it shrinks."""
NEARLY_ALL: Final = 0.99
"""Above this recall it shrinks fast."""
OVERFETCH: Final = 2
MOST_TESTED: Final = 8
LEAST_TESTED: Final = 2
TESTED_ROWS: Final = 1_000_000
"""Rows that the self-test of one pass compares, at least for two questions."""
REMEMBERED: Final = 32
TOP: Final = 10


class ColdTier:
    """Routes to the rows of one model, and how many rows a search may read."""

    def __init__(self, exact_rows: int = EXACT_ROWS) -> None:
        self.routes = Routes()
        self.exact_rows = exact_rows
        self.budget = FIRST_BUDGET
        self._agents: Mapping[AgentId, int] = {}
        self._total = 0
        self._recalls: deque[float] = deque(maxlen=REMEMBERED)

    @property
    def measured_recall(self) -> float | None:
        """The mean recall at 10 of the last self-tests, None before the first."""
        return sum(self._recalls) / len(self._recalls) if self._recalls else None

    async def refresh(self, db: Database, model: str) -> None:
        """Take over the clusters and the numbers of rows as they are now."""
        self.routes, self._agents = await db.read(_read_routes, model)
        self._total = sum(self._agents.values())

    def cluster_for(self, memory: Memory, vector: NDArray[np.float32]) -> int | None:
        """Where a new memory belongs, None while nothing near is known."""
        if memory.kind is not MemoryKind.CELL:
            return None
        shared = memory.visibility is Visibility.GLOBAL
        return self.routes.nearest(vector, memory.project_id if shared else None)

    async def search(
        self,
        tx: Tx,
        vector: NDArray[np.float32],
        model: str,
        reader: Reader,
        now: datetime,
        *,
        limit: int,
        filters: Filters = NO_FILTERS,
        superseded: bool = False,
        known: Collection[MemoryId] = (),
    ) -> list[Found]:
        """The nearest visible rows among those that routing leads to, best first.

        Rows in `known` are left out, the caller has them. All rows are compared when a filter asks
        for more than agents, and when too few of the nearest turn out to be visible.
        """
        if not filters.beyond_agents:
            found = await self._nearest(
                tx, vector, model, reader, now, limit, filters.agents, superseded, known
            )
            if found is not None:
                return found
        return await memories.search_vectors(
            tx, vector, model, reader, now, limit=limit, filters=filters, superseded=superseded
        )

    async def _nearest(
        self,
        tx: Tx,
        vector: NDArray[np.float32],
        model: str,
        reader: Reader,
        now: datetime,
        limit: int,
        about: frozenset[AgentId],
        superseded: bool,
        known: Collection[MemoryId],
    ) -> list[Found] | None:
        """None when the nearest rows hold fewer than `limit` visible ones and may not be all."""
        agents = _readable(reader, about)
        routes = self.routes
        clusters = self._clusters(routes, vector, reader, agents)
        asked = {
            "vector": vector,
            "model": model,
            "agents": None if agents is None else sorted(agents),
            "projects": sorted(reader.projects),
        }
        judging = memories.seen_by(reader, now, superseded)
        if clusters is None:
            return await _among_all(tx, asked, judging, limit, known)
        await tx.fetch(aggregates.SQL.plan_once)
        rows = await tx.fetch(
            aggregates.SQL.near,
            clusters=clusters,
            newest=routes.newest,
            known=list(known),
            looked_at=limit * OVERFETCH,
            limit=limit,
            **asked | judging,
        )
        return _best(rows) if len(rows) >= limit else None

    async def test(self, db: Database, model: str, rng: random.Random) -> float | None:
        """Measure recall at 10 near some of the node's own vectors and let the budget follow.

        None while every search compares all rows anyway.
        """
        if self._total <= self.exact_rows or not len(self.routes):
            self._recalls.clear()
            return None
        self._recalls += await db.read(self._measure, model, rng.randbytes(16))
        recall = self.measured_recall
        if recall is not None:
            self._follow(recall)
        return recall

    def _follow(self, recall: float) -> None:
        before, sure = self.budget, len(self._recalls)
        if recall < ENOUGH and sure >= REMEMBERED // 2:
            self.budget = min(self.budget * 3 // 2, MOST_BUDGET)
        elif recall > PLENTY and sure == REMEMBERED:
            less = self.budget // 2 if recall > NEARLY_ALL else self.budget * 4 // 5
            self.budget = max(less, LEAST_BUDGET)
        if self.budget != before:
            self._recalls.clear()
            log.info("cold rows: recall %.3f, budget %d -> %d", recall, before, self.budget)

    async def _measure(self, tx: Tx, model: str, after: bytes) -> list[float]:
        await tx.execute(memories.SQL.plan_for_values)
        count = max(LEAST_TESTED, min(MOST_TESTED, TESTED_ROWS // self._total))
        recalls = []
        for row in await tx.fetch(
            aggregates.SQL.probe_vectors, model=model, after=after, limit=count
        ):
            vector = memories.as_vector(row["vector"])
            around = await self._routed(tx, vector, model)
            if not around:
                continue
            # Half as far from the stored vector as its tenth neighbour, on the other side: where
            # a question may fall, and no memory lies yet.
            probe = 1.5 * vector - 0.5 * memories.as_vector(around[-1]["vector"])
            probe /= max(float(np.linalg.norm(probe)), 1e-12)
            found = {each["memory_id"] for each in await self._routed(tx, probe, model)}
            exact = await tx.fetch(aggregates.SQL.probe_exact, vector=probe, model=model, limit=TOP)
            recalls.append(len(found & {each["memory_id"] for each in exact}) / len(exact))
        return recalls

    async def _routed(self, tx: Tx, vector: NDArray[np.float32], model: str) -> list[Record]:
        routes = self.routes
        return await tx.fetch(
            aggregates.SQL.probe_routed,
            clusters=routes.near(vector, None, self.budget),
            newest=routes.newest,
            vector=vector,
            model=model,
            limit=TOP,
        )

    def _clusters(
        self,
        routes: Routes,
        vector: NDArray[np.float32],
        reader: Reader,
        agents: frozenset[AgentId] | None,
    ) -> list[int] | None:
        """The clusters to look through, None when all rows in scope are compared instead."""
        rows = self._agents
        scope = self._total if agents is None else sum(rows.get(agent, 0) for agent in agents)
        if scope <= self.exact_rows or not len(routes):
            return None
        budget = self.budget * self._total // scope
        return None if budget >= scope else routes.near(vector, reader.projects, budget)


async def _among_all(
    tx: Tx,
    asked: Mapping[str, Any],
    judging: Mapping[str, Any],
    limit: int,
    known: Collection[MemoryId],
) -> list[Found] | None:
    """The nearest of all rows in scope; None when too few of those looked at are visible."""
    await tx.execute(memories.SQL.plan_for_values)
    rows = await tx.fetch(aggregates.SQL.near_all, limit=limit * OVERFETCH, **asked)
    distances = {row["memory_id"]: row["distance"] for row in rows}
    ranked, visible = list(distances), 0
    found: list[Found] = []
    for part in (ranked[:limit], ranked[limit:]):
        if not part or visible >= limit:
            continue
        unknown = [memory_id for memory_id in part if memory_id not in known]
        judged = await tx.fetch(aggregates.SQL.judged, ids=unknown, **judging)
        found += [Found(memories.from_row(row), -float(distances[row["id"]])) for row in judged]
        visible += len(judged) + len(part) - len(unknown)
    if visible < limit and len(rows) == limit * OVERFETCH:
        return None
    return _in_order(found)[:limit]


def _best(rows: Sequence[Record]) -> list[Found]:
    """Those that the caller does not know yet."""
    return _in_order(
        [
            Found(memories.from_row(row), -float(row["distance"]))
            for row in rows
            if row["id"] is not None
        ]
    )


def _in_order(found: list[Found]) -> list[Found]:
    return sorted(found, key=lambda each: (-(each.cosine or 0.0), each.memory.id))


def _readable(reader: Reader, about: frozenset[AgentId]) -> frozenset[AgentId] | None:
    """Whose rows can be among the hits; None for everybody's."""
    if reader.policy is ReadPolicy.SHARED:
        return about or None
    own = frozenset([reader.agent_id])
    readable = own | reader.group if reader.policy is ReadPolicy.GROUP else own
    return readable & about if about else readable


async def _read_routes(tx: Tx, model: str) -> tuple[Routes, dict[AgentId, int]]:
    clusters, dirty = await aggregates.routing(tx, model)
    rows = await aggregates.member_counts(tx, model)
    return Routes(clusters, dirty, rows), await aggregates.agent_counts(tx, model)
