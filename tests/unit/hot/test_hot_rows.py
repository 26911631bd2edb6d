"""Rows and the labels that name them."""

from __future__ import annotations

import numpy as np
import pytest

from storage.hot.rows import FREE, ROW_MASK, Rows, label_of


@pytest.fixture
def rows(rng):
    """Room for eight, of which the first four are taken by serials 1 to 4."""
    made = Rows(4, 8)
    put(made, rng, 1, 4)
    return made


def put(rows, rng, serial, count):
    labels = [label_of(serial + n, row) for n, row in enumerate(rows.next_free(count))]
    vectors = rng.normal(size=(count, 4)).astype(np.float32)
    rows.put(labels, vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    return labels


def test_a_label_names_its_row_and_rises_with_every_write():
    labels = [label_of(1, 9), label_of(2, 0), label_of(3, ROW_MASK)]
    assert [label & ROW_MASK for label in labels] == [9, 0, ROW_MASK]
    assert labels == sorted(labels)
    assert label_of(2**36 - 1, ROW_MASK) < 2**63


def test_freed_rows_are_taken_first(rows, rng):
    rows.clear(1)
    rows.clear(3)
    assert rows.next_free(0) == []
    assert rows.next_free(3) == [3, 1, 4]
    assert [label & ROW_MASK for label in put(rows, rng, 5, 3)] == [3, 1, 4]
    assert (rows.next_free(1), rows.used) == ([5], 5)


def test_a_row_has_its_latest_label_only(rows, rng):
    old = int(rows.labels[2])
    rows.clear(2)
    assert not rows.have(np.array([old])).any()
    (new,) = put(rows, rng, 5, 1)
    assert new & ROW_MASK == old & ROW_MASK
    assert rows.have(np.array([old, new])).tolist() == [False, True]


def test_nobody_has_a_label_of_a_row_that_there_is_not(rows):
    assert not rows.have(np.array([10**9, label_of(1, 8), label_of(2**35, 0)])).any()


def test_the_living_are_those_of_taken_rows(rows):
    rows.clear(0)
    assert rows.living().tolist() == [label_of(serial, serial - 1) for serial in (2, 3, 4)]
    labels, cosines, errors = rows.compare(np.eye(1, 4, dtype=np.float32)[0], slice(0, 4))
    assert (labels.tolist(), len(cosines), len(errors)) == (rows.living().tolist(), 3, 3)


def test_adopted_labels_leave_the_rows_between_them_free(rng):
    rows = Rows(4, 8)
    rows.adopt(np.array([label_of(7, 5), label_of(9, 1)]))
    assert (rows.used, sorted(rows.next_free(4))) == (6, [0, 2, 3, 4])
    assert rows.labels[[1, 5]].tolist() == [label_of(9, 1), label_of(7, 5)]


def test_all_columns_grow_and_keep_what_they_hold(rows):
    before = rows.labels.copy()
    rows.heat[3], rows.last_ms[3], rows.evictable[3], rows.places[3] = 1.5, 9, True, 2
    rows.codes.begin_growth(20)
    rows.codes.copy_block(0, rows.used)
    rows.finish_growth()
    assert rows.capacity == 20
    assert rows.labels.tolist() == before.tolist() + [FREE] * 12
    assert (rows.heat[3], rows.last_ms[3], rows.evictable[3], rows.places[3]) == (1.5, 9, True, 2)
