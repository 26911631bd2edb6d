"""The reading half of the hot graph: one question at a time, or all that wait in one call.

Takes the graph's lock for a few operations at a time. Which index and rows serve can change
between two of them; a memory that left meanwhile is skipped, never returned.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from storage.errors import InvalidInput
from storage.hot import filter as filters
from storage.hot.index import LabelIndex
from storage.hot.reports import Hit
from storage.hot.residents import Residents
from storage.hot.settings import HotSettings
from storage.hot.turns import TurnLock
from storage.hot.vectors import Rows, unit_query
from storage.model import Resident

MAX_K = 1_000

Accept: TypeAlias = Callable[[Resident], bool]


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """One question: up to `k` residents of these agents that `accept` takes; see `search`."""

    query: NDArray[np.float32]
    k: int
    agents: frozenset[bytes] | None = None
    accept: Accept | None = None


class Searching:
    """Searches over what the graph holds; the graph makes and replaces the parts."""

    _dim: int
    _settings: HotSettings
    _lock: TurnLock
    _index: LabelIndex
    _rows: Rows
    _residents: Residents
    _searches: int

    def search(
        self,
        query: NDArray[np.float32],
        k: int,
        *,
        agents: frozenset[bytes] | None = None,
        accept: Accept | None = None,
    ) -> list[Hit]:
        """Up to `k` residents by falling cosine, of these agents and accepted by `accept`.

        Fewer come back only when fewer pass. `accept` runs outside the lock and may call the
        graph. Raises InvalidInput for a bad query and for `k` outside 1 to MAX_K.
        """
        asked = Asked(query, k, agents, accept)
        unit = self._checked(asked)
        with self._lock:
            tries = self._tries(asked)
            candidates = self._near(unit, tries[0]) if tries else None
        if tries is None:
            return []
        if candidates is None:
            return self._exactly(asked, unit)
        passed = _passing(candidates, asked)
        if len(passed) == k:
            return [Hit(*pair) for pair in passed]
        return self._answer(asked, unit, _left(tries, len(passed), k))

    def search_many(self, questions: Sequence[Asked]) -> list[list[Hit]]:
        """The answers of `search` to each question; the graph is asked once for those alike.

        More than four questions a thread go to all threads of the settings. Raises InvalidInput
        before any search.
        """
        units = [self._checked(asked) for asked in questions]
        alike: dict[int, list[int]] = {}
        answers: list[list[Hit]] = [[] for _ in questions]
        with self._lock:
            all_tries = [self._tries(asked) for asked in questions]
        for position, tries in enumerate(all_tries):
            if tries:
                alike.setdefault(tries[0], []).append(position)
            elif tries is not None:
                answers[position] = self._exactly(questions[position], units[position])
        for count, positions in alike.items():
            with self._lock:
                near = self._index.nearest_of_each(
                    np.stack([units[position] for position in positions]),
                    count,
                    self._settings.ef,
                    self._settings.threads,
                )
                found = [] if near is None else self._residents.resolve_each(*near)
            for at, position in enumerate(positions):
                asked, tries = questions[position], all_tries[position] or []
                passed = _passing(found[at], asked) if found else []
                left = _left(tries, len(passed), asked.k) if found else tries
                answers[position] = (
                    [Hit(*pair) for pair in passed]
                    if len(passed) == asked.k
                    else self._answer(asked, units[position], left)
                )
        return answers

    def _checked(self, asked: Asked) -> NDArray[np.float32]:
        unit = unit_query(asked.query, self._dim)
        if not 1 <= asked.k <= MAX_K:
            raise InvalidInput(f"k must be between 1 and {MAX_K}")
        return unit

    def _tries(self, asked: Asked) -> list[int] | None:
        """How many neighbours to fetch, try by try; None when nobody can pass."""
        self._searches += 1
        live = len(self._residents)
        scope = None if asked.agents is None else self._residents.scope_size(asked.agents)
        if live == 0 or scope == 0:
            return None
        filtered = asked.accept is not None
        return filters.fetches(asked.k, live, scope, filtered, self._settings.exact_limit)

    def _answer(self, asked: Asked, unit: NDArray[np.float32], tries: Sequence[int]) -> list[Hit]:
        while tries:
            with self._lock:
                candidates = self._near(unit, tries[0])
            if candidates is None:
                break
            passed = _passing(candidates, asked)
            if len(passed) == asked.k:
                return [Hit(*pair) for pair in passed]
            tries = _left(tries, len(passed), asked.k)
        return self._exactly(asked, unit)

    def _near(self, unit: NDArray[np.float32], count: int) -> list[tuple[Resident, float]] | None:
        near = self._index.nearest(unit, count, self._settings.ef)
        return None if near is None else self._residents.resolve(*near)

    def _exactly(self, asked: Asked, unit: NDArray[np.float32]) -> list[Hit]:
        with self._lock:
            rows: Collection[int] | None = None
            if asked.agents is not None:
                rows = self._residents.scope_rows(asked.agents)
            labels, scores = self._rows.scores(unit, rows)
        hits: list[Hit] = []
        for block in filters.descending(scores, max(2 * asked.k, 64)):
            with self._lock:
                candidates = self._residents.resolve(labels[block], scores[block])
            passed = filters.passing(candidates, asked.k - len(hits), asked.agents, asked.accept)
            hits.extend(Hit(*pair) for pair in passed)
            if len(hits) == asked.k:
                break
        return hits


def _passing(
    candidates: Sequence[tuple[Resident, float]], asked: Asked
) -> list[tuple[Resident, float]]:
    if asked.agents is None and asked.accept is None:
        return list(candidates[: asked.k])
    return filters.passing(candidates, asked.k, asked.agents, asked.accept)


def _left(tries: Sequence[int], passed: int, k: int) -> Sequence[int]:
    """The tries after the first, from that on which should do by the share that passed.

    None is left when even twice the last would not do.
    """
    least = tries[0] * k // max(passed, 1)
    if least > 2 * tries[-1]:
        return ()
    return [count for count in tries[1:-1] if count >= least] + list(tries[1:][-1:])
