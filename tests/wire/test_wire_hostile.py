"""Whatever arrives, the codec answers with a message or a WireError, and cheaply."""

from __future__ import annotations

import tracemalloc

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossip.wire.codec import (
    EmptyFrame,
    FrameTooLarge,
    Malformed,
    UnknownMessage,
    Unsendable,
    WireError,
    decode,
    encode,
)
from gossip.wire.messages import (
    MAX_FRAME,
    Bye,
    Cards,
    Content,
    Copy,
    Deliver,
    Fetch,
    Hop,
    Page,
    Ping,
    Tombs,
    Topic,
)
from tests.wire.wire_examples import DIGEST, EXAMPLES, NONCE, PROJECT, SIGNATURE

FRAMES = [encode(message) for message in EXAMPLES.values()]


def judged(frame: bytes) -> object:
    try:
        return decode(frame)
    except WireError as error:
        return error


@given(st.binary(max_size=512))
def test_random_bytes_are_a_message_or_a_wire_error(frame):
    judged(frame)


@given(st.sampled_from(FRAMES), st.data())
def test_mutated_frames_are_a_message_or_a_wire_error(frame, data):
    changed = bytearray(frame)
    for _ in range(data.draw(st.integers(1, 4))):
        where = data.draw(st.integers(0, len(changed) - 1))
        changed[where] = data.draw(st.integers(0, 255))
    judged(bytes(changed))


@given(st.sampled_from(FRAMES), st.data())
def test_a_cut_frame_is_malformed(frame, data):
    cut = data.draw(st.integers(1, len(frame) - 1))
    with pytest.raises(Malformed):
        decode(frame[:cut])


TREES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.binary(max_size=40)
    | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=20,
)


@given(st.integers(0, 60), st.lists(TREES, max_size=12))
def test_well_formed_msgpack_of_any_shape_is_a_message_or_a_wire_error(tag, fields):
    judged(msgspec.msgpack.encode([tag, *fields]))


@given(
    st.builds(
        Copy,
        st.binary(min_size=1, max_size=200),
        st.binary(min_size=64, max_size=64),
        st.builds(
            Hop,
            st.integers(0, 2**63 - 1),
            st.integers(0, 255),
            st.integers(0, 2**47 - 1),
            st.integers(0, 255),
            st.integers(-1_000_000, 1_000_000),
            st.lists(st.binary(min_size=4, max_size=4), max_size=32).map(tuple),
        ),
        st.booleans(),
    )
)
def test_copy_comes_back_equal(message):
    assert decode(encode(message)) == message


@pytest.mark.parametrize("frame", FRAMES)
def test_an_extra_field_is_malformed(frame):
    fields = msgspec.msgpack.decode(frame)
    with pytest.raises(Malformed):
        decode(msgspec.msgpack.encode([*fields, 1]))


def test_an_unknown_tag_is_an_unknown_message():
    with pytest.raises(UnknownMessage):
        decode(msgspec.msgpack.encode([9999, b"new"]))


def test_an_empty_frame_is_refused():
    with pytest.raises(EmptyFrame):
        decode(b"")


def test_a_frame_above_the_cap_is_refused():
    with pytest.raises(FrameTooLarge):
        decode(b"\xc4" * (MAX_FRAME + 1))


BOMBS = {
    "nested arrays": b"\x91" * MAX_FRAME,
    "nested in a field": b"\x92\x05" + b"\x91" * (MAX_FRAME - 2),
    "nested maps": b"\x81\xa1a" * (MAX_FRAME // 3),
    "array of 2^32-1": b"\xdd\xff\xff\xff\xff",
    "binary of 2^32-1": b"\x92\x2a\xc6\xff\xff\xff\xff",
    "many ids": b"\x92\x34\xdd\xff\xff\xff\xff" + b"\xc4\x20" * 1000,
    "empty lists": b"\xdc\x40\x00" + b"\x90" * 0x4000,
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS.keys())
def test_a_bomb_is_malformed_with_flat_memory(bomb):
    tracemalloc.start()
    try:
        with pytest.raises(Malformed):
            decode(bomb)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 256 * 1024


@pytest.mark.parametrize(
    "fields",
    [
        [5, 1.0],
        [5, "1"],
        [5, True],
        [5, -1],
        [5, 2**63],
        [2, NONCE[:15]],
        [2, NONCE + b"x"],
        [2, NONCE.decode()],
        [3, "x" * 65],
        [3, "line\nbreak"],
        [11, DIGEST, "evil", "", NONCE],
        [13, DIGEST, 4, 1, b"four"],
        [13, DIGEST, 4, 1, b""],
        [30, "other.topic", b"", 1, 0, b"x"],
        [30, "ledger.head", b"", 0, 0, b""],
        [42, b""],
        [52, [DIGEST] * 65],
    ],
)
def test_a_field_outside_its_type_or_bound_is_malformed(fields):
    with pytest.raises(Malformed):
        decode(msgspec.msgpack.encode(fields))


def test_error_text_names_the_place_and_not_the_value():
    with pytest.raises(Malformed, match=r"\[2\]") as caught:
        decode(msgspec.msgpack.encode([11, DIGEST, "secret text", "", NONCE]))
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_repr_of_a_message_shows_no_value():
    assert repr(Copy(b"secret", SIGNATURE, Hop(1, 1, 1, 1, 1, ()), False)) == "<Copy>"


@pytest.mark.parametrize(
    "message",
    [
        Ping(-1),
        Ping(2**70),
        Bye("x" * 65),
        Bye("\ud800"),
        Fetch((DIGEST,) * 65),
        Copy(b"body", b"short", Hop(1, 1, 1, 1, 1, ()), False),
        Cards((b"x" * 2048,) * 40),
        Tombs((b"x" * 4096,) * 20, 1),
    ],
)
def test_a_message_that_the_peer_would_refuse_is_not_encoded(message):
    with pytest.raises(Unsendable):
        encode(message)


def test_the_largest_messages_fit_a_frame():
    largest = (
        Copy(b"x" * 40 * 1024, SIGNATURE, Hop(1, 1, 1, 1, 1, (b"abcd",) * 32), True),
        Content(DIGEST, 1024 * 1024, 0, b"x" * 48 * 1024),
        Deliver(Topic.NOTICE, b"s" * 64, 1024 * 1024, 0, b"x" * 48 * 1024),
        Page(PROJECT, (DIGEST,) * 1024, b"n" * 40, False),
    )
    assert [decode(encode(message)) for message in largest] == list(largest)
