"""Whether a node wants a vector, computed so that every machine gets the same answer.

Sender, receiver and repair server each decide by themselves who wants a diff; a disagreement of
one unit would make repair find differences for ever. Vectors are therefore quantised once, from
their wire bytes, and everything after that is integer arithmetic. Only `tau`, which a node
publishes as a number, may use floating point.

Called by the walk, by profiles and by repair. Never ranks memories for a local recall: that is
the hot graph's work on the full vectors.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isqrt, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from storage.errors import InvalidInput

PPM = 1_000_000
Q_MAX = 127
MAX_DIM = 4096
"""Keeps |q|^2 |c|^2 of two int8 vectors far below 2^63."""

TAU_FLOOR = 0.30
TAU_PAIRS = 2_048
TAU_MIN_VECTORS = 256
TAU_SPREAD = 2.5

_WIRE: dict[str, np.dtype[Any]] = {"f16": np.dtype("<f2"), "f32": np.dtype("<f4")}


@dataclass(frozen=True, slots=True, eq=False)
class Quantised:
    """A direction as int8 components (shape (d,)) and the exact square of their norm."""

    values: NDArray[np.int8]
    norm2: int

    @property
    def raw(self) -> bytes:
        """One byte per component: the form inside profiles and rows."""
        return self.values.tobytes()


def quantise(vector: NDArray[np.floating]) -> Quantised:
    """Scale the largest component to 127 and round half to even.

    The division runs in float64, where a float16 or float32 times 127 is exact, so the result
    depends on nothing but the bits of the vector. Raises InvalidInput for an empty, oversized,
    non-finite or zero vector: none of them has a direction.
    """
    wide = np.asarray(vector, dtype=np.float64)
    if wide.ndim != 1 or not 0 < wide.size <= MAX_DIM:
        raise InvalidInput(f"embedding: expected one row of 1 to {MAX_DIM} components")
    if not np.isfinite(wide).all():
        raise InvalidInput("embedding: a component is not finite")
    largest = float(np.abs(wide).max())
    if largest == 0.0:
        raise InvalidInput("embedding: a zero vector has no direction")
    return _measured(np.rint(wide * Q_MAX / largest).astype(np.int8))


def quantise_wire(raw: bytes, dtype: str) -> Quantised:
    """`quantise` of an embedding as it stands in a diff: raw little-endian f16 or f32."""
    if dtype not in _WIRE:
        raise InvalidInput("emb_dtype: expected f16 or f32")
    if len(raw) % _WIRE[dtype].itemsize:
        raise InvalidInput("emb: not a whole number of components")
    return quantise(np.frombuffer(raw, dtype=_WIRE[dtype]))


def quantised(raw: bytes) -> Quantised:
    """An already quantised vector from its bytes. Raises InvalidInput as `quantise` does."""
    if not 0 < len(raw) <= MAX_DIM:
        raise InvalidInput(f"q: expected 1 to {MAX_DIM} components")
    values = np.frombuffer(raw, dtype=np.int8)
    if not values.any():
        raise InvalidInput("q: a zero vector has no direction")
    return _measured(values)


def _measured(values: NDArray[np.int8]) -> Quantised:
    wide = values.astype(np.int64)
    return Quantised(values, int(wide @ wide))


@dataclass(frozen=True, slots=True, eq=False)
class Interests:
    """What a node cares about: up to 16 directions, each with a bias of at most 0 ppm."""

    directions: tuple[Quantised, ...]
    biases_ppm: tuple[int, ...]
    _matrix: NDArray[np.int64] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if len(self.directions) != len(self.biases_ppm):
            raise InvalidInput("entries: each direction needs one bias")
        if len({d.values.size for d in self.directions}) > 1:
            raise InvalidInput("entries: directions differ in their dimension")
        rows = [d.values for d in self.directions]
        matrix = np.array(rows, dtype=np.int64) if rows else np.zeros((0, 0), dtype=np.int64)
        object.__setattr__(self, "_matrix", matrix)

    @property
    def dim(self) -> int | None:
        """Components per direction; None without any direction."""
        return self.directions[0].values.size if self.directions else None


def cos_ppm(a: Quantised, b: Quantised) -> int:
    """Cosine in millionths, rounded down; may exceed a million by the rounding of the norms."""
    return _ratio(int(a.values.astype(np.int64) @ b.values.astype(np.int64)), a.norm2, b.norm2)


def affinity(interests: Interests, q: Quantised) -> int:
    """The best biased cosine over all interests, in ppm; a million below 0 without interests.

    A vector of another dimension is not comparable and gets that same lowest value.
    """
    if interests.dim != q.values.size:
        return -PPM
    dots: list[int] = (interests._matrix @ q.values.astype(np.int64)).tolist()
    return max(
        _ratio(dot, direction.norm2, q.norm2) + bias
        for dot, direction, bias in zip(
            dots, interests.directions, interests.biases_ppm, strict=True
        )
    )


def distance(affinity_ppm: int) -> int:
    """How far a node is from a vector: 0 (wants exactly this) to a million, in ppm."""
    return min(max((PPM - affinity_ppm) // 2, 0), PPM)


def wants(interests: Interests, q: Quantised, tau_ppm: int) -> bool:
    """Whether a node with these interests and this threshold stores the vector."""
    return interests.dim == q.values.size and affinity(interests, q) >= tau_ppm


def _ratio(dot: int, norm2_a: int, norm2_b: int) -> int:
    return PPM * dot // isqrt(norm2_a * norm2_b)


def tau(vectors: Sequence[NDArray[np.floating]], rng: random.Random) -> float:
    """The threshold above which a vector is unusually near: mean + 2.5 sd of random cosines.

    `vectors` are the local vectors of one model. Too few of them say nothing about the spread,
    so below 256 the floor is the answer.
    """
    if len(vectors) < TAU_MIN_VECTORS:
        return TAU_FLOOR
    cosines = []
    for _ in range(TAU_PAIRS):
        first, second = rng.sample(range(len(vectors)), 2)
        a = np.asarray(vectors[first], dtype=np.float64)
        b = np.asarray(vectors[second], dtype=np.float64)
        norm = sqrt(float(a @ a) * float(b @ b))
        cosines.append(float(a @ b) / norm if norm > 0.0 else 0.0)
    mean = sum(cosines) / TAU_PAIRS
    spread = sqrt(sum((c - mean) ** 2 for c in cosines) / TAU_PAIRS)
    return min(max(TAU_FLOOR, mean + TAU_SPREAD * spread), 1.0)
