"""The reading half of the hot graph: one question at a time, or all that wait in one call.

Takes the graph's lock for a few operations at a time. Which index and rows serve can change
between two of them; a memory that left meanwhile is skipped, never returned.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from storage.errors import InvalidInput
from storage.hot import filter as filters
from storage.hot.codes import BLOCK_ROWS
from storage.hot.index import LabelIndex
from storage.hot.reports import Hit
from storage.hot.residents import Residents
from storage.hot.rows import Rows
from storage.hot.settings import HotSettings
from storage.hot.turns import TurnLock
from storage.hot.vectors import unit_queries, unit_query
from storage.model import Resident

MAX_K = 1_000
SETTLE_ROWS: Final = 32
"""Vectors that one hold of the lock reads out of the index: a fraction of a millisecond."""
DOUBTFUL: Final = 4
SPARE: Final = 256
"""At most DOUBTFUL * k + SPARE candidates are compared by their vectors, however close they are."""

HEAD: Final = 2
"""Neighbours beyond `k` that a search of everything looks at first."""
FIRST: Final = 64
"""Best of a comparison that are put in order before the others."""
_ONE: Final = np.float32(1)

Accept: TypeAlias = Callable[[Resident], bool]
Near: TypeAlias = tuple[list[Resident | None], list[float]]


class Asked(msgspec.Struct, frozen=True, eq=False):
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
        unit = unit_query(query, self._dim)
        _check(k)
        with self._lock:
            self._searches += 1
            tries = self._tries(k, agents, accept is not None)
            near = self._near(unit[np.newaxis, :], tries[0]) if tries else None
        if tries is None:
            return []
        asked = Asked(query, k, agents, accept)
        if near is None:
            return self._exactly(asked, unit)
        return self._filtered(asked, unit, near[0], near[1], tries)

    def search_many(self, questions: Sequence[Asked]) -> list[list[Hit]]:
        """The answers of `search` to each question; the graph is asked once for those alike.

        More than four questions a thread go to all threads of the settings. Raises InvalidInput
        before any search.
        """
        for asked in questions:
            _check(asked.k)
        units = unit_queries([asked.query for asked in questions], self._dim)
        answers: list[list[Hit]] = [[] for _ in questions]
        for (plain, tries), positions in self._alike(questions).items():
            if not tries:
                for position in positions:
                    answers[position] = self._exactly(questions[position], units[position])
                continue
            head = _head(questions[position] for position in positions)
            with self._lock:
                found = self._index.nearest(
                    units[positions], tries[0], self._settings.ef, self._settings.threads
                )
                records = (
                    [] if found is None else self._residents.records(found[0][:, :head].ravel())
                )
            if found is None or not records:
                for position in positions:
                    answers[position] = self._retried(questions[position], units[position], tries)
                continue
            labels, cosines = found[0], within(found[1])
            scores = cosines[:, :head].ravel().tolist()
            count = len(records) // len(positions)
            if plain and count == tries[0] and None not in records:
                hits = list(map(Hit, records, scores))  # type: ignore[arg-type]
                for row, position in enumerate(positions):
                    answers[position] = hits[row * count : (row + 1) * count]
                continue
            for row, position in enumerate(positions):
                part = slice(row * count, (row + 1) * count)
                asked = questions[position]
                hits = _hits(asked, records[part], scores[part])
                if len(hits) < asked.k and count < labels.shape[1]:
                    hits += self._further(asked, labels[row, count:], cosines[row, count:], hits)
                if len(hits) < asked.k:
                    left = _left(tries, len(hits), asked.k)
                    hits = self._retried(asked, units[position], left)
                answers[position] = hits
        return answers

    def _alike(self, questions: Sequence[Asked]) -> dict[tuple[bool, tuple[int, ...]], list[int]]:
        """Positions of the questions that somebody may pass, by whether all do, and by tries."""
        alike: dict[tuple[bool, tuple[int, ...]], list[int]] = {}
        known: dict[int, list[int] | None] = {}
        with self._lock:
            self._searches += len(questions)
            for position, asked in enumerate(questions):
                plain = asked.agents is None and asked.accept is None
                if plain and asked.k in known:
                    tries = known[asked.k]
                else:
                    tries = self._tries(asked.k, asked.agents, asked.accept is not None)
                    if plain:
                        known[asked.k] = tries
                if tries is not None:
                    alike.setdefault((plain, tuple(tries)), []).append(position)
        return alike

    def _tries(self, k: int, agents: frozenset[bytes] | None, filtered: bool) -> list[int] | None:
        """How many neighbours to fetch, try by try; None when nobody can pass."""
        live = len(self._residents)
        scope = None if agents is None else self._residents.scope_size(agents)
        if live == 0 or scope == 0:
            return None
        return filters.fetches(k, live, scope, filtered, self._settings.exact_limit)

    def _near(self, units: NDArray[np.float32], count: int) -> Near | None:
        """Records and cosines of `count` neighbours of each question, one after the other.

        None when the graph cannot reach that many.
        """
        settings = self._settings
        found = self._index.nearest(units, count, settings.ef, settings.threads)
        if found is None:
            return None
        labels, cosines = found
        return self._residents.records(labels.ravel()), within(cosines).ravel().tolist()

    def _further(
        self,
        asked: Asked,
        labels: NDArray[np.int64],
        cosines: NDArray[np.float32],
        hits: Sequence[Hit],
    ) -> list[Hit]:
        """What these neighbours add to the hits of nearer ones."""
        with self._lock:
            records = self._residents.records(labels)
        want = asked.k - len(hits)
        return filters.passing(records, cosines.tolist(), want, asked.agents, asked.accept)

    def _filtered(
        self,
        asked: Asked,
        unit: NDArray[np.float32],
        records: list[Resident | None],
        scores: list[float],
        tries: Sequence[int],
    ) -> list[Hit]:
        """The hits among the neighbours of the first try, or of a later one when too few pass."""
        hits = _hits(asked, records, scores)
        if len(hits) == asked.k:
            return hits
        return self._retried(asked, unit, _left(tries, len(hits), asked.k))

    def _retried(self, asked: Asked, unit: NDArray[np.float32], tries: Sequence[int]) -> list[Hit]:
        while tries:
            with self._lock:
                near = self._near(unit[np.newaxis, :], tries[0])
            if near is None:
                break
            hits = _hits(asked, *near)
            if len(hits) == asked.k:
                return hits
            tries = _left(tries, len(hits), asked.k)
        return self._exactly(asked, unit)

    def _exactly(self, asked: Asked, unit: NDArray[np.float32]) -> list[Hit]:
        """Compare all in scope by their codes, and by their vectors those that may be the best."""
        labels, cosines, errors = self._compared(asked.agents, unit)
        best: list[float] = []
        doubtful: list[int] = []
        most = DOUBTFUL * asked.k + SPARE
        is_cut = False
        for label, cosine, error in self._passing(asked, labels, cosines, errors):
            full = len(best) == asked.k
            if full and (cosine + error < best[0] or len(doubtful) == most):
                is_cut = True
                break
            doubtful.append(label)
            if not full:
                heapq.heappush(best, cosine - error)
            elif cosine - error > best[0]:
                heapq.heapreplace(best, cosine - error)
        hits = self._settled(doubtful, unit, asked.k)
        if is_cut and len(hits) < asked.k:  # some left meanwhile, and others have their place
            return self._exactly(asked, unit)
        return hits

    def _compared(
        self, agents: frozenset[bytes] | None, unit: NDArray[np.float32]
    ) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]:
        """Labels, coded cosines and their possible errors of all rows in scope."""
        with self._lock:
            rows = None if agents is None else self._residents.scope_rows(agents)
            count = self._rows.used if rows is None else len(rows)
        parts = []
        for start in range(0, count, BLOCK_ROWS):
            stop = min(start + BLOCK_ROWS, count)
            with self._lock:
                part = slice(start, stop) if rows is None else rows[start:stop]
                parts.append(self._rows.compare(unit, part))
        if not parts:
            return np.empty(0, np.int64), np.empty(0, np.float32), np.empty(0, np.float32)
        labels, cosines, errors = (np.concatenate(each) for each in zip(*parts, strict=True))
        return labels, cosines, errors

    def _passing(
        self,
        asked: Asked,
        labels: NDArray[np.int64],
        cosines: NDArray[np.float32],
        errors: NDArray[np.float32],
    ) -> Iterator[tuple[int, float, float]]:
        """Label, coded cosine and error of those that pass, by falling possible cosine."""
        for block in filters.descending(cosines + errors, max(2 * asked.k, FIRST)):
            with self._lock:
                records = self._residents.records(labels[block])
            columns = (labels[block].tolist(), cosines[block].tolist(), errors[block].tolist())
            for record, label, cosine, error in zip(records, *columns, strict=True):
                if record is not None and filters.passes(record, asked.agents, asked.accept):
                    yield label, cosine, error

    def _settled(self, labels: Sequence[int], unit: NDArray[np.float32], k: int) -> list[Hit]:
        """The k best of these labels by their vectors."""
        hits: list[Hit] = []
        for start in range(0, len(labels), SETTLE_ROWS):
            part = np.array(labels[start : start + SETTLE_ROWS], np.int64)
            with self._lock:
                live, vectors = self._residents.gather(part, self._index)
                records = self._residents.records(np.array(live, np.int64))
            scores = within(vectors @ unit).tolist()
            hits += [Hit(r, s) for r, s in zip(records, scores, strict=True) if r is not None]
        hits.sort(key=_by_score)
        return hits[:k]


def _head(questions: Iterable[Asked]) -> int | None:
    """How many neighbours of each question are looked at first; None: all.

    Readers of everything may see nearly all of it, so the others are seldom needed, and most
    records are in no cache of the processor when they are looked at.
    """
    most = 0
    for asked in questions:
        if asked.agents is not None:
            return None
        most = max(most, asked.k)
    return most + HEAD


def _check(k: int) -> None:
    if not 1 <= k <= MAX_K:
        raise InvalidInput(f"k must be between 1 and {MAX_K}")


def _hits(asked: Asked, records: list[Resident | None], scores: list[float]) -> list[Hit]:
    plain = asked.agents is None and asked.accept is None
    if plain and len(records) == asked.k and None not in records:
        return list(map(Hit, records, scores))  # type: ignore[arg-type]
    return filters.passing(records, scores, asked.k, asked.agents, asked.accept)


def within(cosines: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rounding may take a cosine beyond 1; changed in place."""
    np.minimum(cosines, _ONE, out=cosines)
    np.maximum(cosines, -_ONE, out=cosines)
    return cosines


def _by_score(hit: Hit) -> float:
    return -hit.score


def _left(tries: Sequence[int], passed: int, k: int) -> Sequence[int]:
    """The tries after the first, from that on which should do by the share that passed.

    None is left when even twice the last would not do.
    """
    least = tries[0] * k // max(passed, 1)
    if least > 2 * tries[-1]:
        return ()
    return [count for count in tries[1:-1] if count >= least] + list(tries[1:][-1:])
