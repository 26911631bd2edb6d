"""Vectors that look like embeddings, without a model: the same for every run.

Real embeddings lie near a few hundred directions, in clusters of very different size, and differ
inside a cluster in a few dozen directions only. Uniform noise would make every index look bad.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

SUBJECTS: Final = 300
SPREAD: Final = 32
"""Directions in which memories about one subject differ."""
SEED: Final = 11

Vectors: TypeAlias = NDArray[np.float32]


def corpus(count: int, dimension: int) -> Vectors:
    """Unit vectors of shape (count, dimension), of half precision as all sides keep them."""
    rng = np.random.default_rng(SEED)
    subjects = rng.standard_normal((SUBJECTS, dimension))
    spread = rng.standard_normal((SPREAD, dimension)) / np.sqrt(SPREAD)
    sizes = 1 / np.arange(1, SUBJECTS + 1)  # Zipf's law: the n-th largest has an n-th of the first
    owner = rng.choice(SUBJECTS, size=count, p=sizes / sizes.sum())
    rows = subjects[owner] + 1.5 * rng.standard_normal((count, SPREAD)) @ spread
    rows += 0.1 * rng.standard_normal((count, dimension))
    return unit(unit(rows.astype(np.float32)).astype(np.float16).astype(np.float32))


def questions(vectors: Vectors, count: int) -> Vectors:
    """Directions between two memories of the corpus, with some noise."""
    rng = np.random.default_rng(SEED + 1)
    picked = rng.choice(len(vectors), size=(count, 2))
    noise = 0.02 * rng.standard_normal((count, vectors.shape[1]))
    return unit((vectors[picked[:, 0]] + 0.4 * vectors[picked[:, 1]] + noise).astype(np.float32))


def nearest(vectors: Vectors, asked: Vectors, top: int) -> list[set[int]]:
    """Places of the truly nearest, by comparing with all."""
    found = []
    for start in range(0, len(asked), 64):
        scores = asked[start : start + 64] @ vectors.T
        best = np.argpartition(-scores, top, axis=1)[:, :top]
        found += [set(map(int, row)) for row in best]
    return found


def unit(rows: Vectors) -> Vectors:
    """Rows of length 1."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.ascontiguousarray(rows / lengths, dtype=np.float32)
