"""halfvec in pgvector's binary form."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import InvalidInput
from storage.vectors import decode_halfvec, encode_halfvec

halves = st.floats(width=16, allow_nan=False, allow_infinity=False)


@given(st.lists(halves, min_size=1, max_size=64))
def test_always_a_half_precision_vector_survives(values: list[float]) -> None:
    vector = np.array(values, dtype=np.float32)
    assert np.array_equal(decode_halfvec(encode_halfvec(vector)), vector)


def test_the_bytes_are_those_of_pgvector() -> None:
    assert encode_halfvec([1.0, -2.0]) == bytes.fromhex("0002 0000 3c00 c000")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e6])
def test_what_float16_cannot_hold_is_refused(value: float) -> None:
    with pytest.raises(InvalidInput, match="embedding"):
        encode_halfvec([0.0, value])


@pytest.mark.parametrize("shape", [(), (0,), (2, 2)])
def test_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInput, match="embedding"):
        encode_halfvec(np.zeros(shape))
