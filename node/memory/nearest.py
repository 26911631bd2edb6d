"""The residents nearest to questions: the one place where recall meets the hot graph.

Takes all questions that came together in one call. Runs inline: a search takes a fraction of a
millisecond. Many at once, and what a filter leaves few of, are searched in a thread, see
`nearest_filtered`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import trio
from numpy.typing import NDArray

from node.memory.context import MemoryContext
from storage.filters import NO_FILTERS, Filters, passes
from storage.hot.classes import Verdicts
from storage.hot.reports import Hit
from storage.hot.searching import Asked
from storage.hot.serving import Asking
from storage.model import AgentId, MemoryKind, Reader, ReadPolicy, Resident
from storage.visibility import visible


@dataclass(frozen=True, slots=True, eq=False)
class Search:
    """A unit vector of shape (dim,), how many hits are wanted, and for whom."""

    vector: NDArray[np.float32]
    wanted: int
    reader: Reader
    filters: Filters
    superseded: bool


def hits_of(context: MemoryContext, searches: Sequence[Search]) -> list[list[Hit]]:
    """The hits that answers from residents alone hold, searched in one call; for any thread.

    The searches have no filters beyond agents.
    """
    return answerable(context, nearest(context, searches))


def answerable(context: MemoryContext, found: Iterable[Iterable[Hit]]) -> list[list[Hit]]:
    """Of each list the hits that are near enough for an answer and did not leave meanwhile.

    They count as recalled.
    """
    alpha, least = context.settings.alpha, context.settings.min_score
    has_left = context.residency.has_left
    kept = [
        [
            hit
            for hit in hits
            if alpha * max(hit.score, 0.0) >= least and not has_left(hit.resident.id)
        ]
        for hits in found
    ]
    recalled = [hit.resident.id for hits in kept for hit in hits]
    if recalled:
        context.residency.touch(recalled, int(context.now().timestamp() * 1000))
    return kept


def near_enough(context: MemoryContext) -> float:
    """The least cosine of a hit that is an answer by its meaning alone."""
    alpha, least = context.settings.alpha, context.settings.min_score
    if least <= 0:
        return -1.0
    return least / alpha if alpha else 2.0


def asking(context: MemoryContext, search: Search, verdicts: Verdicts) -> Asking:
    """Who asks, for answers from residents alone without filters beyond agents."""
    return Asking(
        k=search.wanted,
        verdicts=verdicts,
        agents=_agents(search),
        least=near_enough(context),
        now_ms=int(context.now().timestamp() * 1000),
        gone=context.residency.leaving,
    )


def verdicts(search: Search) -> Verdicts:
    """What the search takes, by the access classes of residents."""
    return Verdicts(_Accept(search, 0))


def lacking(context: MemoryContext) -> tuple[str, ...]:
    """What an answer from residents alone lacks now."""
    return ("hot: being filled",) if context.residency.degraded else ()


def nearest(context: MemoryContext, searches: Sequence[Search]) -> list[list[Hit]]:
    """The hits of each search, by falling cosine; all of them may be seen by their reader."""
    now_ms = int(context.now().timestamp() * 1000)
    return context.residency.graph.search_many([_asked(search, now_ms) for search in searches])


async def nearest_filtered(context: MemoryContext, search: Search) -> list[Hit]:
    """As `nearest` for one search, in a thread when its filters may make it a long one.

    Others that ask at the same moment share one call into the graph.
    """
    if not search.filters.beyond_agents:
        now_ms = int(context.now().timestamp() * 1000)
        return await context.residency.questions.ask(_asked(search, now_ms))
    found = await trio.to_thread.run_sync(nearest, context, [search], abandon_on_cancel=True)
    return found[0]


def accepts(search: Search, now: datetime) -> Callable[[Resident], bool]:
    """Whether a resident may be a hit of this search."""
    return _Accept(search, int(now.timestamp() * 1000))


def _asked(search: Search, now_ms: int) -> Asked:
    return Asked(search.vector, search.wanted, _agents(search), _Accept(search, now_ms))


class _Accept:
    """Whether a search takes a resident; plain attribute reads, as it runs for each candidate."""

    __slots__ = ("_filters", "_now_ms", "_reader", "_superseded")

    def __init__(self, search: Search, now_ms: int) -> None:
        self._reader = search.reader
        self._filters = None if search.filters == NO_FILTERS else search.filters
        self._superseded = search.superseded
        self._now_ms = now_ms

    def __call__(self, memory: Resident) -> bool:
        if memory.kind is MemoryKind.AGENT:
            return False
        if self._filters is not None and not passes(memory, self._filters):
            return False
        return visible(memory, self._reader, self._now_ms, superseded=self._superseded)


def _agents(search: Search) -> frozenset[AgentId] | None:
    """Whose memories can be among the hits; None for everybody's."""
    reader = search.reader
    if reader.policy is ReadPolicy.SHARED:
        return search.filters.agents or None
    own = frozenset([reader.agent_id])
    readable = own | reader.group if reader.policy is ReadPolicy.GROUP else own
    return readable & search.filters.agents if search.filters.agents else readable
