"""Coded vectors: how near they are, what is left of one that went, growing while written to."""

from __future__ import annotations

import numpy as np
import pytest

from storage.hot.codes import BLOCK_ROWS, Codes, reach


def units(rng, count, dim):
    vectors = rng.normal(size=(count, dim)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def coded(vectors):
    codes = Codes(vectors.shape[1], len(vectors))
    codes.put(np.arange(len(vectors)), vectors)
    return codes


@pytest.mark.parametrize("dim", [1, 3, 8, 64, 256])
def test_coded_cosines_are_within_their_errors(rng, dim):
    vectors = units(rng, 2_000, dim)
    vectors[:dim] = np.eye(dim)
    codes = coded(vectors)
    for query in units(rng, 10, dim):
        cosines, errors = codes.cosines(query, slice(0, 2_000))
        assert (np.abs(cosines - vectors @ query) <= errors).all()


def test_a_coded_cosine_of_a_usual_vector_is_right_to_two_digits(rng):
    _, errors = coded(units(rng, 1_000, 256)).cosines(units(rng, 1, 256)[0], slice(0, 1_000))
    assert errors.max() < 0.006


def test_the_possible_error_is_the_worst_case_while_that_is_small(rng):
    assert reach(np.eye(1, 8, dtype=np.float32)[0]) == 0.5
    assert reach(units(rng, 1, 256)[0]) == pytest.approx(6 / 12**0.5, rel=1e-5)


def test_rows_of_a_list_have_the_same_cosines_as_all(rng):
    codes = coded(units(rng, 100, 16))
    query = units(rng, 1, 16)[0]
    chosen = np.array([7, 3, 99])
    all_cosines, _ = codes.cosines(query, slice(0, 100))
    some, _ = codes.cosines(query, chosen)
    np.testing.assert_allclose(some, all_cosines[chosen], atol=1e-6)


def test_a_cleared_row_is_zero_and_its_neighbours_are_not(rng):
    codes = coded(units(rng, 3, 16))
    codes.clear(1)
    assert codes.codes.any(axis=1).tolist() == [True, False, True]
    assert (codes.scales > 0).tolist() == [True, False, True]


def test_a_vector_that_was_lost_has_the_code_of_nothing(rng):
    codes = coded(np.zeros((1, 16), np.float32))
    assert (codes.codes.any(), codes.scales[0]) == (False, 0)
    assert not codes.agrees(0, units(rng, 1, 16)[0])


def test_a_vector_agrees_with_its_own_code_only(rng):
    vectors = units(rng, 50, 32)
    codes = coded(vectors)
    assert all(codes.agrees(row, vector) for row, vector in enumerate(vectors))
    assert not any(codes.agrees(row, vectors[row - 1]) for row in range(50))
    assert not codes.agrees(0, np.zeros(32, np.float32))


def test_what_changes_while_growing_is_in_the_larger_array(rng):
    count = BLOCK_ROWS + 10
    vectors = units(rng, count, 8)
    codes = coded(vectors)
    codes.begin_growth(2 * count)
    assert codes.copy_block(0, count) == BLOCK_ROWS
    codes.clear(0)
    codes.put(np.array([1, count - 1]), vectors[[2, 3]])
    assert codes.copy_block(BLOCK_ROWS, count) == count
    assert codes.copy_block(count, count) is None
    assert codes.finish_growth() == 2 * count
    assert not codes.codes[0].any()
    assert codes.agrees(1, vectors[2])
    assert codes.agrees(count - 1, vectors[3])
    assert codes.agrees(BLOCK_ROWS, vectors[BLOCK_ROWS])
    assert not codes.codes[count:].any()


def test_a_growth_that_is_dropped_changes_nothing(rng):
    codes = coded(units(rng, 4, 8))
    codes.begin_growth(9)
    codes.drop_growth()
    assert (codes.finish_growth(), len(codes.codes), codes.copy_block(0, 4)) == (0, 4, None)
