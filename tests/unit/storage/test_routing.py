"""Which clusters a search is led to, against ranking all of them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from storage.aggregates import Cluster
from storage.model import ProjectId
from storage.routing import Routes

DIM = 8
GROUPS: tuple[ProjectId | None, ...] = (None, b"p" * 16, b"q" * 16)


def made(seed: int, count: int) -> tuple[list[Cluster], dict[int | None, int]]:
    """Clusters of mixed groups with their numbers of rows; some have none."""
    rng = np.random.default_rng(seed)
    clusters = [
        Cluster(
            place + 1,
            GROUPS[rng.integers(len(GROUPS))],
            rng.normal(size=DIM).astype(np.float32),
            int(rng.integers(1, 100)),
        )
        for place in range(count)
    ]
    return clusters, {cluster.id: int(rng.integers(0, 100)) for cluster in clusters}


def ranked(
    clusters: list[Cluster], vector: np.ndarray, groups: frozenset[ProjectId | None]
) -> list[int]:
    cosines = {
        cluster.id: float(cluster.centroid @ vector) / float(np.linalg.norm(cluster.centroid))
        for cluster in clusters
        if cluster.project_id in groups
    }
    return sorted(cosines, key=lambda each: -cosines[each])


@given(
    seed=st.integers(0, 2**31),
    count=st.integers(0, 120),
    budget=st.integers(0, 3_000),
    projects=st.none() | st.frozensets(st.sampled_from(GROUPS[1:])),
)
def test_the_nearest_readable_clusters_are_taken_until_they_hold_the_budget(
    seed: int, count: int, budget: int, projects: frozenset[bytes] | None
) -> None:
    clusters, rows = made(seed, count)
    vector = np.random.default_rng(seed + 1).normal(size=DIM).astype(np.float32)
    chosen = Routes(clusters, (500,), rows).near(vector, projects, budget)
    groups = frozenset(GROUPS) if projects is None else projects | {None}
    order = ranked(clusters, vector, groups)
    taken = chosen[1:]
    assert chosen[0] == 500
    assert taken == order[: len(taken)]
    held = [rows[each] for each in taken]
    assert len(taken) == len(order) or sum(held) >= budget
    assert sum(held[:-1]) < max(budget, 1)


@given(seed=st.integers(0, 2**31), group=st.sampled_from(GROUPS))
def test_a_new_memory_belongs_to_the_nearest_cluster_of_its_group(
    seed: int, group: bytes | None
) -> None:
    clusters, rows = made(seed, 40)
    vector = np.random.default_rng(seed + 1).normal(size=DIM).astype(np.float32)
    order = ranked(clusters, vector, frozenset([group]))
    assert Routes(clusters, (), rows).nearest(vector, group) == (order[0] if order else None)
