"""The tree against a definition that recurses as RFC 9162 writes it."""

from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from erasure import merkle

LIMIT = 64
HASHES = [merkle.leaf_hash(b"entry%d" % n) for n in range(LIMIT)]


def defined_root(hashes: list[bytes]) -> bytes:
    if not hashes:
        return sha256(b"").digest()
    if len(hashes) == 1:
        return hashes[0]
    split = 1
    while split * 2 < len(hashes):
        split *= 2
    return sha256(b"\x01" + defined_root(hashes[:split]) + defined_root(hashes[split:])).digest()


ROOTS = [defined_root(HASHES[:size]) for size in range(LIMIT + 1)]


def test_root_equals_the_definition_for_every_size() -> None:
    assert [merkle.root_of_hashes(HASHES[:size]) for size in range(LIMIT + 1)] == ROOTS


def test_frontier_has_the_root_after_each_append() -> None:
    frontier, found = merkle.Frontier(), []
    for hashed in HASHES:
        found.append(frontier.root)
        frontier = merkle.Frontier(frontier.size, frontier.peaks).append(hashed)
    assert [*found, frontier.root] == ROOTS


def test_frontier_that_does_not_fit_its_size_is_refused() -> None:
    with pytest.raises(ValueError, match="one hash for each set bit"):
        merkle.Frontier(3, (bytes(32),))


def test_inclusion_holds_for_every_leaf_of_every_size_and_for_no_other() -> None:
    for size in range(1, LIMIT + 1):
        for index in range(size):
            path = merkle.inclusion_path(HASHES[:size], index)
            assert merkle.verify_inclusion(HASHES[index], index, size, path, ROOTS[size])
            assert not merkle.verify_inclusion(
                HASHES[(index + 1) % LIMIT], index, size, path, ROOTS[size]
            )
            assert not merkle.verify_inclusion(
                HASHES[index], index, size, path, ROOTS[(size + 1) % LIMIT]
            )


def test_consistency_holds_for_every_pair_of_sizes() -> None:
    for second in range(1, LIMIT + 1):
        for first in range(1, second + 1):
            path = merkle.consistency_path(HASHES[:second], first)
            assert merkle.verify_consistency(first, second, ROOTS[first], ROOTS[second], path)


def test_consistency_with_another_old_tree_never_holds() -> None:
    for second in range(1, LIMIT + 1):
        for first in range(1, second + 1):
            path = merkle.consistency_path(HASHES[:second], first)
            other = merkle.leaf_hash(ROOTS[first])
            assert not merkle.verify_consistency(first, second, other, ROOTS[second], path)
            assert not merkle.verify_consistency(first, second, ROOTS[first], other, path)


@given(st.data())
def test_a_changed_path_never_holds(data: st.DataObject) -> None:
    size = data.draw(st.integers(2, LIMIT))
    index = data.draw(st.integers(0, size - 1))
    path = merkle.inclusion_path(HASHES[:size], index)
    at = data.draw(st.integers(0, len(path) - 1))
    changed = [*path[:at], merkle.leaf_hash(path[at]), *path[at + 1 :]]
    for bad in (changed, path[:-1], [*path, path[0]]):
        assert not merkle.verify_inclusion(HASHES[index], index, size, bad, ROOTS[size])


@given(st.data())
def test_a_changed_consistency_path_never_holds(data: st.DataObject) -> None:
    second = data.draw(st.integers(2, LIMIT))
    first = data.draw(st.integers(1, second - 1))
    path = merkle.consistency_path(HASHES[:second], first)
    at = data.draw(st.integers(0, len(path) - 1))
    changed = [*path[:at], merkle.leaf_hash(path[at]), *path[at + 1 :]]
    for bad in (changed, path[:-1], [*path, path[0]]):
        assert not merkle.verify_consistency(first, second, ROOTS[first], ROOTS[second], bad)


@given(
    st.integers(-3, 1 << 60),
    st.integers(-3, 1 << 60),
    st.lists(st.binary(min_size=32, max_size=32), max_size=70),
)
def test_verification_answers_for_any_numbers(first: int, second: int, path: list[bytes]) -> None:
    root = bytes(32)
    assert merkle.verify_inclusion(root, first, second, path, root) is False
    same = 0 < first == second and not path
    assert merkle.verify_consistency(first, second, root, root, path) is (
        same and second <= merkle.MAX_SIZE
    )


def test_proofs_outside_the_tree_are_refused() -> None:
    with pytest.raises(IndexError):
        merkle.inclusion_path(HASHES[:3], 3)
    for first in (0, 4):
        with pytest.raises(IndexError):
            merkle.consistency_path(HASHES[:3], first)
