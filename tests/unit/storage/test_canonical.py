"""One value has one byte form, and nothing else passes the door."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import canonical
from storage.canonical import MAX_DEPTH, MAX_ITEMS, NonCanonical

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.binary(max_size=40)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"]), max_size=8), inner, max_size=5
        )
    ),
    max_leaves=15,
)


def depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max((depth(each) for each in value.values()), default=0)
    if isinstance(value, list):
        return 1 + max((depth(each) for each in value), default=0)
    return 0


@given(values)
def test_what_is_written_is_read_back(value: Any) -> None:
    if depth(value) > MAX_DEPTH:
        with pytest.raises(NonCanonical):
            canonical.encode(value)
        return
    data = canonical.encode(value)
    assert canonical.decode(data) == value
    assert canonical.encode(canonical.decode(data)) == data


@given(st.dictionaries(st.text("abcdefé東", max_size=5), st.integers(0, 9), max_size=8))
def test_the_order_of_keys_does_not_matter(value: dict[str, int]) -> None:
    turned = dict(reversed(value.items()))
    assert canonical.encode(value) == canonical.encode(turned)


@given(st.binary(max_size=80))
def test_any_bytes_are_refused_or_are_the_one_form_of_their_value(data: bytes) -> None:
    try:
        value = canonical.decode(data)
    except NonCanonical:
        return
    assert canonical.encode(value) == data


@pytest.mark.parametrize(
    "value",
    [
        1.5,
        {"a": 0.0},
        [float("nan")],
        {1: "a"},
        {b"a": 1},
        "\ud800",
        2**64,
        -(2**63) - 1,
        (1,),
        {1},
    ],
)
def test_what_has_no_canonical_form_is_not_written(value: Any) -> None:
    with pytest.raises(NonCanonical):
        canonical.encode(value)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("float", b"\xcb" + bytes(8)),
        ("long integer", b"\xcc\x05"),
        ("long text", b"\xd9\x01a"),
        ("long bytes", b"\xc5\x00\x01a"),
        ("long list", b"\xdc\x00\x01\x01"),
        ("unsorted keys", b"\x82\xa1b\x01\xa1a\x02"),
        ("double keys", b"\x82\xa1a\x01\xa1a\x01"),
        ("number as key", b"\x81\x01\x02"),
        ("extension", b"\xd4\x05\x00"),
        ("time stamp", b"\xd6\xff" + bytes(4)),
        ("surrogate", b"\xa3\xed\xa0\x80"),
        ("bytes behind", b"\x01\x01"),
        ("cut", b"\x92\x01"),
        ("nothing", b""),
        ("reserved", b"\xc1"),
    ],
)
def test_other_byte_forms_are_refused(name: str, data: bytes) -> None:
    with pytest.raises(NonCanonical):
        canonical.decode(data)


def test_size_depth_and_number_are_bounded() -> None:
    with pytest.raises(NonCanonical, match="more than 10 bytes"):
        canonical.decode(bytes(11), max_bytes=10)
    with pytest.raises(NonCanonical):
        canonical.decode(msgpack.packb([0] * (MAX_ITEMS + 1)))
    with pytest.raises(NonCanonical):
        canonical.decode(b"\x91" * (MAX_DEPTH + 1) + b"\x01")
    with pytest.raises(NonCanonical):
        canonical.decode(b"\x91" * 100_000)
    assert canonical.decode(b"\x91" * MAX_DEPTH + b"\x01") is not None


def test_a_declared_size_is_not_believed() -> None:
    for head in (b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"):
        with pytest.raises(NonCanonical):
            canonical.decode(head)


def test_a_record_is_a_map() -> None:
    assert canonical.decode_map(canonical.encode({"a": 1})) == {"a": 1}
    with pytest.raises(NonCanonical, match="not a map"):
        canonical.decode_map(canonical.encode([1]))
