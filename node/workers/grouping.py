"""How near memories are grouped: pure numpy, no IO, the same answer for the same input.

Clusters stay small, because small ones lead a search to the right rows with fewer read. They grow
by taking in what is nearest to them and are cut in parts when they are twice as large as wanted;
then rows nearby that belong to a part rather than to their own cluster change over, as in the
LIRE protocol of SPFresh (Xu et al., 2023).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Places = NDArray[np.intp]

WANTED: Final = 64
"""Members of a cluster."""
MOST: Final = 2 * WANTED
ROUNDS: Final = 6
BLOCK: Final = 4_096
PER_PARENT: Final = 8
"""Clusters of the lowest level under one of the second."""


def units(vectors: Floats) -> Floats:
    """Rows of length 1; a zero row stays zero."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled: Floats = (vectors / np.maximum(lengths, 1e-12)).astype(np.float32)
    return scaled


def nearest(vectors: Floats, centroids: Floats) -> Places:
    """For each vector the place of the centroid with the largest cosine, shape (n,)."""
    directions = units(centroids).T
    parts = [
        np.argmax(vectors[start : start + BLOCK] @ directions, axis=1)
        for start in range(0, len(vectors), BLOCK)
    ]
    return np.concatenate(parts) if parts else np.empty(0, np.intp)


def parts(vectors: Floats, count: int, seed: int = 0) -> Places:
    """Which of `count` groups each vector falls into: spherical k-means, shape (n,).

    Some groups may stay empty; equal vectors share one.
    """
    if count <= 1 or len(vectors) <= 1:
        return np.zeros(len(vectors), np.intp)
    directions = units(vectors)
    rng = np.random.default_rng(seed)
    centroids = directions[rng.choice(len(vectors), min(count, len(vectors)), replace=False)]
    for _ in range(ROUNDS):
        chosen = nearest(directions, centroids)
        sums = np.zeros_like(centroids)
        np.add.at(sums, chosen, directions)
        kept = np.bincount(chosen, minlength=len(centroids)) > 0
        centroids = sums[kept]
    return nearest(directions, centroids)


def plan_placing(vectors: Floats, centroids: Floats) -> tuple[Places, int]:
    """Where unplaced vectors go: places below `len(centroids)` are existing clusters, those from
    there on are new ones, whose number comes second.

    While the newcomers are many against what stands, they form clusters of their own.
    """
    standing = len(centroids)
    if len(vectors) >= MOST * max(standing, 1) or not standing:
        groups = parts(vectors, max(1, len(vectors) // WANTED))
        used, dense = np.unique(groups, return_inverse=True)
        return dense.astype(np.intp) + standing, len(used)
    return nearest(vectors, centroids), 0


def plan_splitting(vectors: Floats) -> Places:
    """The part of each member of a cluster that is too large; part 0 keeps the cluster.

    All in part 0 when they cannot be told apart.
    """
    groups = parts(vectors, max(2, round(len(vectors) / WANTED)))
    used, dense = np.unique(groups, return_inverse=True)
    return dense.astype(np.intp) if len(used) > 1 else np.zeros(len(vectors), np.intp)


def plan_moves(
    vectors: Floats,
    own: Sequence[int],
    centroids: dict[int, Floats],
    *,
    gain: float = 0.0,
    fewest: int = 1,
) -> dict[int, int]:
    """Which vectors (by place) are nearer to another cluster than to their own, and to which.

    Only those count whose cosine grows by more than `gain`, and only together with at least
    `fewest` that leave the same cluster, so that refining comes to an end.
    """
    ids = list(centroids)
    places = {each: place for place, each in enumerate(ids)}
    scores = vectors @ units(np.stack([centroids[each] for each in ids])).T
    mine = np.array([places[each] for each in own])
    rows = np.arange(len(vectors))
    best = np.argmax(scores, axis=1)
    leaving = scores[rows, best] - scores[rows, mine] > gain
    counts = np.bincount(mine[leaving], minlength=len(ids))
    leaving &= counts[mine] >= fewest
    return {int(place): ids[best[place]] for place in np.flatnonzero(leaving)}


def plan_parents(centroids: Floats) -> list[list[int]]:
    """Places of clusters that belong under one of the level above; groups of one are left out."""
    if len(centroids) < 2:
        return []
    groups = parts(centroids, max(1, round(len(centroids) / PER_PARENT)))
    return [
        members
        for group in np.unique(groups)
        if len(members := np.flatnonzero(groups == group).tolist()) > 1
    ]
