"""Unit vectors: what is taken in, and what is asked, is brought to length 1 or refused."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from storage.errors import InvalidInput

UNIT_SLACK = 1e-5
BLOCK_ROWS = 256


def unit_rows(vectors: ArrayLike, dim: int, name: str = "vectors") -> NDArray[np.float32]:
    """A normalised float32 copy of shape (n, dim).

    Raises InvalidInput for another shape or dimension, for NaN, infinity and a zero vector.
    """
    try:
        given = np.asarray(vectors)
        if given.dtype != np.float32:
            given = given.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{name} must be numbers") from error
    if given.ndim != 2:
        raise InvalidInput(f"{name} must have the shape (n, {dim})")
    if given.shape[1] != dim:
        raise InvalidInput(f"{name} have dimension {given.shape[1]}, the graph has dimension {dim}")
    units = np.empty(given.shape, np.float32)
    for start in range(0, len(given), BLOCK_ROWS):
        part = slice(start, start + BLOCK_ROWS)
        units[part] = _units(given[part].astype(np.float64), dim, name)
    return units


def _units(wide: NDArray[np.float64], dim: int, name: str) -> NDArray[np.float64]:
    if not np.isfinite(wide).all():
        raise InvalidInput(f"{name} of dimension {dim} must be finite")
    # Scaling by the largest component first keeps the squares inside float64.
    peak = np.abs(wide).max(axis=1, keepdims=True)
    if not peak.all():
        raise InvalidInput(f"{name} of dimension {dim} must not be zero")
    scaled: NDArray[np.float64] = wide / peak
    scaled /= np.linalg.norm(scaled, axis=1, keepdims=True)
    return scaled


def unit_query(query: ArrayLike, dim: int) -> NDArray[np.float32]:
    """Normalised float32 of shape (dim,), the query itself if it is; refuses what `unit_rows` does.

    The square of the norm tells at once that a vector is finite and of unit length.
    """
    if isinstance(query, np.ndarray) and query.dtype == np.float32 and query.shape == (dim,):
        given: NDArray[np.float32] = query
        if abs(float(given @ given) - 1) < UNIT_SLACK:
            return given
    try:
        wide = np.asarray(query, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInput("query must be numbers") from error
    if wide.ndim != 1:
        raise InvalidInput(f"query must have the shape ({dim},)")
    unit: NDArray[np.float32] = unit_rows(wide[np.newaxis, :], dim, "query")[0]
    return unit


def unit_queries(queries: Sequence[ArrayLike], dim: int) -> NDArray[np.float32]:
    """`unit_query` of each, as one array of shape (n, dim)."""
    if all(
        isinstance(query, np.ndarray) and query.dtype == np.float32 and query.shape == (dim,)
        for query in queries
    ):
        given: NDArray[np.float32] = np.concatenate(queries or [np.empty(0, np.float32)])
        given = given.reshape(len(queries), dim)
        squares = np.einsum("ij,ij->i", given, given)
        if (np.abs(squares - 1) < UNIT_SLACK).all():
            return given
    return np.stack([unit_query(query, dim) for query in queries])
