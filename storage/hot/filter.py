"""How to search for the residents that pass a filter.

Pure decisions: compare a small scope exactly, fetch more than asked from the graph for a broad
one, fall back to exact when too few survive. hnswlib's own filter callback is not used: called
per visited node under the GIL, it costs a hundred times a search.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from storage.hot.reports import Hit
from storage.model import Resident

FETCH_LIMIT = 2_048
"""Above this many candidates an exact comparison is as fast as the graph."""
MARGIN = 1.5
BLOCK = 1_024


def fetches(k: int, live: int, scope: int | None, filtered: bool, exact_limit: int) -> list[int]:
    """How many neighbours to fetch from the graph, try by try; empty means: compare exactly.

    `scope` counts the residents of the agents asked for, None without such a limit. The caller
    compares exactly when the last try left fewer than `k`.
    """
    pool = live if scope is None else scope
    if pool <= exact_limit or 2 * k >= pool:
        return []
    if scope is None and not filtered:
        return [k]
    wanted = math.ceil(k * MARGIN * live / pool) + k
    limit = min(FETCH_LIMIT, live // 2)
    tries = []
    while wanted <= limit:
        tries.append(wanted)
        wanted *= 2
    return tries


def passing(
    records: Iterable[Resident | None],
    scores: Iterable[float],
    want: int,
    agents: frozenset[bytes] | None,
    accept: Callable[[Resident], bool] | None,
) -> list[Hit]:
    """The first `want` of the records that pass, in the order given; None stands for nobody."""
    passed: list[Hit] = []
    for resident, score in zip(records, scores, strict=True):
        if resident is None or not passes(resident, agents, accept):
            continue
        passed.append(Hit(resident, score))
        if len(passed) == want:
            break
    return passed


def passes(
    resident: Resident,
    agents: frozenset[bytes] | None,
    accept: Callable[[Resident], bool] | None,
) -> bool:
    """Whether a record is of one of these agents and accepted."""
    return (agents is None or resident.agent_id in agents) and (accept is None or accept(resident))


def descending(scores: NDArray[np.float32], first: int) -> Iterator[NDArray[np.intp]]:
    """Positions by falling score, in blocks; the first block costs no full sort."""
    positions = np.arange(len(scores))
    if len(scores) > 4 * first:
        head = np.argpartition(-scores, first)[:first]
        yield head[np.argsort(-scores[head], kind="stable")]
        left = np.ones(len(scores), np.bool_)
        left[head] = False
        positions = np.flatnonzero(left)
    order = positions[np.argsort(-scores[positions], kind="stable")]
    for start in range(0, len(order), BLOCK):
        yield order[start : start + BLOCK]
