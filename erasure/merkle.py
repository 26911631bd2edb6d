"""Merkle trees after RFC 9162 section 2.1: the shape behind every root that mnemesh signs.

Used twice: over leaves sorted by value (certificates) and over entries in sequence order
(ledger). Verification follows the iterative procedures of RFC 9162 2.1.3.2 and 2.1.4.2. Part of
the offline verifier: plain functions over bytes, no IO.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest

HASH_BYTES = 32
EMPTY_ROOT = sha256(b"").digest()
MAX_SIZE = 1 << 53


def leaf_hash(entry: bytes) -> bytes:
    """Hash of one entry as a leaf of the tree."""
    return sha256(b"\x00" + entry).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Hash of an inner node over its two children."""
    return sha256(b"\x01" + left + right).digest()


@dataclass(frozen=True, slots=True)
class Frontier:
    """The right edge of a growing tree: roots of its perfect subtrees, largest first.

    Holds what is needed to append and to state the root, at most 53 hashes for any size.
    Immutable, so that a caller can build the next state and drop it if its commit fails.
    """

    size: int = 0
    peaks: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        if self.size < 0 or len(self.peaks) != self.size.bit_count():
            raise ValueError("a frontier holds one hash for each set bit of its size")

    def append(self, hashed: bytes) -> Frontier:
        """The frontier after one more leaf, given by its `leaf_hash`."""
        peaks = list(self.peaks)
        peaks.append(hashed)
        carry = self.size
        while carry & 1:
            right = peaks.pop()
            peaks.append(node_hash(peaks.pop(), right))
            carry >>= 1
        return Frontier(self.size + 1, tuple(peaks))

    @property
    def root(self) -> bytes:
        """Root of the tree at the present size, 32 bytes."""
        if not self.peaks:
            return EMPTY_ROOT
        total = self.peaks[-1]
        for peak in reversed(self.peaks[:-1]):
            total = node_hash(peak, total)
        return total


def root(entries: Iterable[bytes]) -> bytes:
    """Root over entries in the given order; memory does not grow with their number."""
    return root_of_hashes(leaf_hash(entry) for entry in entries)


def root_of_hashes(hashes: Iterable[bytes]) -> bytes:
    """Root over leaves that are already hashed."""
    frontier = Frontier()
    for hashed in hashes:
        frontier = frontier.append(hashed)
    return frontier.root


def inclusion_path(hashes: Sequence[bytes], index: int) -> list[bytes]:
    """Sibling hashes, lowest first, that lead from leaf `index` to the root.

    Raises IndexError when there is no such leaf.
    """
    if not 0 <= index < len(hashes):
        raise IndexError("no such leaf")
    path: list[bytes] = []
    low, high = 0, len(hashes)
    while high - low > 1:
        middle = low + _split(high - low)
        if index < middle:
            path.append(root_of_hashes(hashes[middle:high]))
            high = middle
        else:
            path.append(root_of_hashes(hashes[low:middle]))
            low = middle
    path.reverse()
    return path


def consistency_path(hashes: Sequence[bytes], first: int) -> list[bytes]:
    """Proof that the tree over the first `first` leaves is a prefix of the tree over all.

    Raises IndexError unless 0 < first <= number of leaves. Empty when the sizes are equal.
    """
    if not 0 < first <= len(hashes):
        raise IndexError("no such size")
    path: list[bytes] = []
    low, high, whole = 0, len(hashes), True
    while high != first:
        middle = low + _split(high - low)
        if first <= middle:
            path.append(root_of_hashes(hashes[middle:high]))
            high = middle
        else:
            path.append(root_of_hashes(hashes[low:middle]))
            low = middle
            whole = False
    if not whole:
        path.append(root_of_hashes(hashes[low:high]))
    path.reverse()
    return path


def root_from_inclusion(
    hashed: bytes, index: int, size: int, path: Sequence[bytes]
) -> bytes | None:
    """The root that the path leads to, or None when it does not fit index and size."""
    if not 0 <= index < size <= MAX_SIZE:
        return None
    position, last, total = index, size - 1, hashed
    for sibling in path:
        if last == 0:
            return None
        if position & 1 or position == last:
            total = node_hash(sibling, total)
            while not position & 1 and position:
                position >>= 1
                last >>= 1
        else:
            total = node_hash(total, sibling)
        position >>= 1
        last >>= 1
    return total if last == 0 else None


def verify_inclusion(
    hashed: bytes, index: int, size: int, path: Sequence[bytes], expected: bytes
) -> bool:
    """Whether leaf `index`, given by its `leaf_hash`, is in the tree of `size` with this root."""
    found = root_from_inclusion(hashed, index, size, path)
    return found is not None and compare_digest(found, expected)


def verify_consistency(
    first: int, second: int, first_root: bytes, second_root: bytes, path: Sequence[bytes]
) -> bool:
    """Whether the tree of size `first` is a prefix of the tree of size `second`.

    A tree of size 0 is the start of every tree but proves nothing, so it is refused.
    """
    if not 0 < first <= second <= MAX_SIZE:
        return False
    if first == second:
        return not path and compare_digest(first_root, second_root)
    hashes = list(path)
    if first & (first - 1) == 0:
        hashes.insert(0, first_root)
    if not hashes:
        return False
    position, last = first - 1, second - 1
    while position & 1:
        position >>= 1
        last >>= 1
    old = new = hashes[0]
    for hashed in hashes[1:]:
        if last == 0:
            return False
        if position & 1 or position == last:
            old = node_hash(hashed, old)
            new = node_hash(hashed, new)
            while not position & 1 and position:
                position >>= 1
                last >>= 1
        else:
            new = node_hash(new, hashed)
        position >>= 1
        last >>= 1
    return last == 0 and compare_digest(old, first_root) and compare_digest(new, second_root)


def _split(size: int) -> int:
    return 1 << ((size - 1).bit_length() - 1)
