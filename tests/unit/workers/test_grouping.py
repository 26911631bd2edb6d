"""How near memories are grouped, without a database."""

from __future__ import annotations

import numpy as np

from node.workers import grouping

AXES = dict(enumerate(np.eye(4, dtype=np.float32)))


def between(first: int, second: int, share: float) -> grouping.Floats:
    """A unit vector that is turned from one axis towards another."""
    turned = np.cos(share) * AXES[first] + np.sin(share) * AXES[second]
    return np.asarray(turned, np.float32)


def test_a_vector_moves_to_the_cluster_that_it_is_nearest_to() -> None:
    vectors = np.stack([between(0, 1, 0.1), between(1, 0, 0.1)])
    assert grouping.plan_moves(vectors, [0, 0], AXES) == {1: 1}


def test_a_small_gain_moves_nothing() -> None:
    vectors = np.stack([between(0, 1, np.pi / 4 + 0.001), between(0, 1, np.pi / 3)])
    assert grouping.plan_moves(vectors, [0, 0], AXES, gain=0.01) == {1: 1}


def test_few_that_would_leave_a_cluster_stay() -> None:
    vectors = np.stack([between(1, 0, 0.1)] * 3)
    assert grouping.plan_moves(vectors, [0, 0, 2], AXES, fewest=2) == {0: 1, 1: 1}
    assert grouping.plan_moves(vectors, [0, 0, 2], AXES, fewest=3) == {}


def test_moving_until_nothing_moves_comes_to_an_end_and_groups_what_is_near() -> None:
    rng = np.random.default_rng(3)
    topic = np.arange(120) % 4
    vectors = grouping.units(
        np.eye(4, dtype=np.float32)[topic] + 0.1 * rng.standard_normal((120, 4)).astype(np.float32)
    )
    own = rng.integers(4, size=120)
    for _ in range(50):
        centroids = {each: vectors[own == each].mean(axis=0) for each in np.unique(own).tolist()}
        moves = grouping.plan_moves(vectors, own.tolist(), centroids)
        if not moves:
            break
        for place, target in moves.items():
            own[place] = target
    assert not moves
    assert all(len(np.unique(own[topic == each])) == 1 for each in range(4))


def test_equal_vectors_are_never_told_apart() -> None:
    vectors = np.ones((200, 4), np.float32)
    assert not grouping.plan_splitting(vectors).any()
