"""The traps of hnswlib, met by its wrapper."""

from __future__ import annotations

import numpy as np
import pytest

from storage.hot.index import IndexFault, LabelIndex
from storage.hot.settings import HotSettings


@pytest.fixture
def five(rng):
    """An index with labels 0 to 4, of which 0 and 1 are dead."""
    index = LabelIndex(8, 10, HotSettings())
    index.add(range(5), rng.normal(size=(5, 8)).astype(np.float32))
    index.bury(0, b"zero")
    index.bury(1, b"one")
    return index


def query(rng):
    return rng.normal(size=(1, 8)).astype(np.float32)


def test_more_neighbours_than_live_are_asked_for(five, rng):
    labels, _ = five.nearest(query(rng), 10, 64)
    assert sorted(labels[0].tolist()) == [2, 3, 4]


def test_more_neighbours_than_ef_are_found(rng):
    index = LabelIndex(8, 200, HotSettings())
    index.add(range(200), rng.normal(size=(200, 8)).astype(np.float32))
    assert len(index.nearest(query(rng), 150, 10)[0][0]) == 150


def test_an_empty_index_has_no_neighbours(rng):
    labels, cosines = LabelIndex(8, 10, HotSettings()).nearest(query(rng), 5, 64)
    assert (labels.tolist(), cosines.tolist()) == ([[]], [[]])


def test_too_few_reachable_neighbours_are_told_apart_from_none(five, rng):
    five.live = 4
    assert five.nearest(query(rng), 4, 64) is None


def test_dead_slots_are_counted_and_remember_who_was_there(five):
    assert (five.live, five.dead) == (3, 2)
    assert (five.graves(b"zero"), five.graves(b"one"), five.graves(b"?")) == ([0], [1], [])


def test_asking_for_a_grave_does_not_bring_it_back(five, rng):
    five.graves(b"zero")
    assert 0 not in five.nearest(query(rng), 10, 64)[0]


def test_inserts_reuse_dead_slots_before_new_ones(five, rng):
    five.add(range(5, 7), rng.normal(size=(2, 8)).astype(np.float32))
    assert (five.live, five.dead, five.hnsw.get_current_count()) == (5, 0, 5)
    assert (five.graves(b"zero"), five.graves(b"one")) == ([], [])


def test_a_full_index_takes_as_many_as_are_dead(rng):
    index = LabelIndex(8, 3, HotSettings())
    index.add(range(3), rng.normal(size=(3, 8)).astype(np.float32))
    index.bury(1, b"one")
    index.add([3], rng.normal(size=(1, 8)).astype(np.float32))
    assert sorted(index.nearest(query(rng), 3, 64)[0][0].tolist()) == [0, 2, 3]


def test_wiped_graves_are_dead_slots_without_an_occupant(five):
    assert (five.wipe_graves([b"zero"]), five.wipe_graves([b"zero"])) == (1, 0)
    assert (five.live, five.dead, five.graves(b"zero")) == (3, 2, [])


def test_graves_of_many_are_wiped_in_one_call_on_several_threads(rng):
    index = LabelIndex(8, 60, HotSettings())
    index.add(range(60), rng.normal(size=(60, 8)).astype(np.float32), threads=2)
    for label in range(40):
        index.bury(label, b"x%d" % (label // 2))
    assert index.wipe_graves([b"x%d" % n for n in range(15)] + [b"?"], threads=2) == 15
    assert (index.live, index.dead) == (20, 40)
    assert [index.graves(b"x%d" % n) for n in (14, 15)] == [[], [30, 31]]
    assert sorted(index.nearest(query(rng), 20, 64)[0][0].tolist()) == list(range(40, 60))


def test_vectors_are_copied_as_they_were_given(five, rng):
    vectors = rng.normal(size=(2, 8)).astype(np.float32)
    five.add([7, 8], vectors)
    np.testing.assert_array_equal(five.vectors([8, 7]), vectors[::-1])
    assert five.vectors([]).shape == (0, 8)


@pytest.mark.parametrize("label", [0, 99], ids=["dead", "unknown"])
def test_a_label_that_is_not_live_has_no_vector(five, label):
    assert five.vector(label) is None
    with pytest.raises(IndexFault):
        five.vectors([2, label])


def test_no_vector_is_ever_found_under_a_dead_label_after_much_reuse(rng):
    index = LabelIndex(8, 20, HotSettings())
    index.add(range(20), rng.normal(size=(20, 8)).astype(np.float32))
    living = list(range(20))
    for label in range(20, 220):
        gone = living.pop(int(rng.integers(20)))
        index.bury(gone, b"x%d" % gone)
        if label % 3 == 0:
            index.wipe_graves([b"x%d" % gone])
        index.add([label], rng.normal(size=(1, 8)).astype(np.float32))
        living.append(label)
        found = index.nearest(query(rng), 10, 64)[0][0].tolist()
        assert len(set(found)) == 10
        assert set(found) <= set(living)
