"""Vectors of `halfvec` and `vector` columns as numpy arrays, in pgvector's binary form.

The form: big-endian dimension (uint16), two zero bytes, big-endian values of float16 or float32.
Values of a memory are rounded to float16 here, and nodes round the same way before they hash, so
hot, cold and wire copies of a vector are equal. Means of memories are `vector`.
"""

from __future__ import annotations

import struct
from typing import Any

import asyncpg
import numpy as np
import numpy.typing as npt

from storage.errors import InvalidInput

_HEAD = struct.Struct(">HH")
MAX_DIMENSION = 16_000


def encode_halfvec(vector: npt.ArrayLike) -> bytes:
    """Bytes of a vector of shape (dim,); InvalidInput unless it is finite as float16."""
    array = np.asarray(vector, dtype=np.float32)
    if array.ndim != 1 or not 1 <= array.size <= MAX_DIMENSION:
        raise InvalidInput("embedding: a vector of one dimension is needed")
    with np.errstate(over="ignore"):
        half = array.astype(">f2")
    if not np.isfinite(half).all():
        raise InvalidInput("embedding: every value must be finite and at most 65504")
    return _HEAD.pack(array.size, 0) + half.tobytes()


def decode_halfvec(data: Any) -> npt.NDArray[np.float32]:
    """The vector, float32 of shape (dim,)."""
    return np.frombuffer(data, dtype=">f2", offset=_HEAD.size).astype(np.float32)


def encode_vector(vector: npt.ArrayLike) -> bytes:
    """Bytes of a vector of shape (dim,); InvalidInput unless it is finite as float32."""
    array = np.asarray(vector, dtype=np.float32)
    if array.ndim != 1 or not 1 <= array.size <= MAX_DIMENSION:
        raise InvalidInput("centroid: a vector of one dimension is needed")
    if not np.isfinite(array).all():
        raise InvalidInput("centroid: every value must be finite")
    return _HEAD.pack(array.size, 0) + array.astype(">f4").tobytes()


def decode_vector(data: Any) -> npt.NDArray[np.float32]:
    """The vector, float32 of shape (dim,)."""
    return np.frombuffer(data, dtype=">f4", offset=_HEAD.size).astype(np.float32)


async def register_vectors(connection: asyncpg.Connection, *, schema: str = "public") -> None:
    """Teach a connection the types `halfvec` and `vector` of pgvector in this schema."""
    await connection.set_type_codec(
        "vector",
        schema=schema,
        encoder=encode_vector,
        decoder=decode_vector,
        format="binary",
    )
    await connection.set_type_codec(
        "halfvec",
        schema=schema,
        encoder=encode_halfvec,
        decoder=decode_halfvec,
        format="binary",
    )
