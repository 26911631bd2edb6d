import random
from math import isqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossip.affinity import (
    Interests,
    affinity,
    cos_ppm,
    distance,
    quantise,
    quantise_wire,
    quantised,
    tau,
    wants,
)
from storage.errors import InvalidInput

component = st.integers(-127, 127)


@st.composite
def int8_rows(draw, count):
    dim = draw(st.integers(1, 64))
    nonzero = st.integers(1, 127) | st.integers(-127, -1)
    rest = st.lists(component, min_size=dim - 1, max_size=dim - 1)
    return [[draw(nonzero), *draw(rest)] for _ in range(count)]


def packed(row):
    return quantised(np.array(row, dtype=np.int8).tobytes())


def plain_cos(a, b):
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return 1_000_000 * dot // isqrt(sum(x * x for x in a) * sum(y * y for y in b))


@given(int8_rows(2))
def test_cosine_equals_that_of_plain_integers(rows):
    assert plain_cos(*rows) == cos_ppm(packed(rows[0]), packed(rows[1]))


@given(int8_rows(5), st.lists(st.integers(-200_000, 0), min_size=4, max_size=4), st.integers())
def test_affinity_and_want_equal_those_of_plain_integers(rows, biases, tau_ppm):
    vector, *entries = rows
    expected = max(plain_cos(vector, e) + b for e, b in zip(entries, biases, strict=True))
    interests = Interests(tuple(packed(e) for e in entries), tuple(biases))
    assert expected == affinity(interests, packed(vector))
    assert (expected >= tau_ppm) == wants(interests, packed(vector), tau_ppm)


def test_the_largest_vectors_do_not_overflow():
    row = [127] * 4096
    assert plain_cos(row, row) == cos_ppm(packed(row), packed(row))


finite16 = st.floats(width=16, allow_nan=False, allow_infinity=False)
nonzero16 = st.sampled_from([1.0, -0.5, 65_504.0, 2.0**-24, -(2.0**-24)])
vectors16 = st.tuples(st.lists(finite16, max_size=40), nonzero16, st.lists(finite16, max_size=20))
vectors16 = vectors16.map(lambda parts: [*parts[0], parts[1], *parts[2]])


@given(vectors16, st.sampled_from(["f16", "f32"]))
def test_wire_bytes_and_the_stored_vector_quantise_alike(values, dtype):
    stored = np.array(values, dtype=np.float32)
    wire = stored.astype("<f2" if dtype == "f16" else "<f4").tobytes()
    assert quantise(stored).raw == quantise_wire(wire, dtype).raw


@given(vectors16)
def test_sender_receiver_and_repair_server_agree_on_want(values):
    wire = np.array(values, dtype="<f2").tobytes()
    entry = quantise(np.array(values[::-1], dtype=np.float32))
    answers = {
        wants(Interests((quantised(entry.raw),), (0,)), quantise_wire(wire, "f16"), 300_000)
        for _ in ("sender", "receiver", "repair server")
    }
    assert len(answers) == 1
    assert quantised(quantise_wire(wire, "f16").raw).norm2 == quantise_wire(wire, "f16").norm2


@given(st.integers(-3_000_000, 3_000_000))
def test_distance_stays_between_zero_and_a_million(affinity_ppm):
    assert 0 <= distance(affinity_ppm) <= 1_000_000


@pytest.mark.parametrize("raw", [b"", b"\0\0\0\0", b"\0\x7c\0\0", b"\0\x7e\0\0", b"\1"], ids=str)
def test_a_vector_without_direction_is_refused(raw):
    with pytest.raises(InvalidInput):
        quantise_wire(raw, "f16")


def test_rounding_is_half_to_even():
    assert quantise(np.array([254, 1, 3, -127.0])).values.tolist() == [127, 0, 2, -64]


def test_another_dimension_is_never_wanted():
    assert not wants(Interests((packed([1, 2]),), (0,)), packed([1, 2, 3]), -2_000_000)


def test_tau_of_few_vectors_is_the_floor():
    assert tau([np.ones(4, dtype=np.float32)] * 255, random.Random(1)) == 0.30


def test_tau_rises_with_the_likeness_of_local_vectors():
    rng = np.random.default_rng(7)
    vectors = list((rng.normal(size=(300, 8)) + 1.0).astype(np.float32))
    assert 0.30 < tau(vectors, random.Random(1)) <= 1.0


def test_tau_with_one_seed_is_one_number():
    vectors = list(np.random.default_rng(3).normal(size=(300, 8)).astype(np.float32))
    assert tau(vectors, random.Random(5)) == tau(vectors, random.Random(5))
