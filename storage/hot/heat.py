"""How warm a memory is, and which memories leave the hot graph first.

Pure functions over arrays: no lock, no graph, no clock.

Heat is recency and frequency in one number by forward decay (Cormode, Shkapenyuk, Srivastava and
Xu, "Forward Decay", ICDE 2009): each access at time t adds 2^(t / half-life), and the base-2
logarithm of the sum is kept. The order of two memories then never changes by waiting, so nothing
has to be recomputed as time passes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def first_heat(now_ms: int, half_life_ms: int) -> float:
    """Heat of a memory that is used for the first time."""
    return now_ms / half_life_ms


def warmed(heat: float, now_ms: int, half_life_ms: int) -> float:
    """Heat after one more access."""
    return float(np.logaddexp2(heat, now_ms / half_life_ms))


def warmed_each(
    heat: NDArray[np.float64], accesses: NDArray[np.intp], now_ms: int, half_life_ms: int
) -> NDArray[np.float64]:
    """Heats after so many more accesses each."""
    return np.logaddexp2(heat, now_ms / half_life_ms + np.log2(accesses))


def plan(
    heat: NDArray[np.float64],
    last_ms: NDArray[np.int64],
    evictable: NDArray[np.bool_],
    *,
    excess: int,
    idle_until_ms: int | None,
    cap: int,
) -> NDArray[np.intp]:
    """Rows to evict, coldest first, at most `cap`.

    The `excess` coldest, and every row whose last access is at or before `idle_until_ms`. Rows
    that are not evictable never appear; fewer than `excess` come back when there are not enough.
    """
    open_rows = np.flatnonzero(evictable)
    chosen = _coldest(open_rows, heat, min(excess, cap))
    if idle_until_ms is not None:
        idle = open_rows[last_ms[open_rows] <= idle_until_ms]
        chosen = np.union1d(chosen, idle)
    return _coldest(chosen, heat, cap)


def _coldest(rows: NDArray[np.intp], heat: NDArray[np.float64], count: int) -> NDArray[np.intp]:
    if count <= 0:
        return rows[:0]
    if count < len(rows):
        rows = rows[np.argpartition(heat[rows], count - 1)[:count]]
    return rows[np.argsort(heat[rows], kind="stable")]
