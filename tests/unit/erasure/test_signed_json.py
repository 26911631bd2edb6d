"""Canonical JSON and envelopes: one byte form, strict reading, deterministic signatures."""

from __future__ import annotations

import json
import string
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from erasure import canonical, envelope
from erasure.canonical import Malformed

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
NAMES = st.text(string.printable, max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-canonical.MAX_INTEGER, canonical.MAX_INTEGER) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=20,
)


@given(VALUES)
def test_what_is_written_reads_back(value: Any) -> None:
    assert canonical.decode(canonical.encode(value)) == value


@given(VALUES)
def test_only_the_canonical_form_is_decoded(value: Any) -> None:
    data = canonical.encode(value)
    with pytest.raises(Malformed):
        canonical.decode(data + b"\n")
    assert canonical.read(data + b"\n") == value


@given(st.binary(max_size=200))
def test_reading_any_bytes_gives_a_value_or_malformed(data: bytes) -> None:
    try:
        value = canonical.read(data)
    except Malformed:
        return
    assert value == json.loads(data)


@pytest.mark.parametrize(
    "value",
    [
        1.0,
        float("nan"),
        canonical.MAX_INTEGER + 1,
        -canonical.MAX_INTEGER - 1,
        {"ä": 1},
        {1: 1},
        "\ud800",
        b"bytes",
        {"set": {1}},
    ],
)
def test_values_outside_the_domain_are_not_written(value: Any) -> None:
    with pytest.raises(Malformed):
        canonical.encode({"inner": [value]})


@pytest.mark.parametrize(
    "data",
    [
        b'{"a":1,"a":1}',
        b'{"a":{"b":1,"b":2}}',
        b"1.5",
        b"1e3",
        b"NaN",
        b"-Infinity",
        b"9007199254740992",
        b"9" * 5000,
        b'"\\ud800"',
        b'{"\xc3\xa4":1}',
        b'"\xff"',
        b"\xef\xbb\xbf1",
        b"",
        b"[1,]",
        b'["unterminated',
    ],
)
def test_bytes_outside_the_domain_are_not_read(data: bytes) -> None:
    with pytest.raises(Malformed):
        canonical.read(data)


@pytest.mark.parametrize("data", [b"-0", b'{"b":1,"a":1}', b'"\\u0041"', b"[ ]", b'"\\/"'])
def test_second_forms_of_a_value_are_not_decoded(data: bytes) -> None:
    canonical.read(data)
    with pytest.raises(Malformed):
        canonical.decode(data)


def test_depth_is_bounded_at_sixteen_both_ways() -> None:
    deep: Any = []
    for _ in range(canonical.MAX_DEPTH - 1):
        deep = [deep]
    data = canonical.encode(deep)
    assert canonical.decode(data) == deep
    with pytest.raises(Malformed, match="deeper"):
        canonical.encode([deep])
    with pytest.raises(Malformed, match="deeper"):
        canonical.read(b"[" + data + b"]")


def test_brackets_inside_text_are_not_depth() -> None:
    assert canonical.decode(canonical.encode(["[" * 99 + '\\"{'])) == ["[" * 99 + '\\"{']


@pytest.mark.parametrize("unit", [b"[", b'{"a":', b'\\"', b'"', b"\\"])
def test_a_mebibyte_of_hostile_bytes_is_refused(unit: bytes) -> None:
    with pytest.raises(Malformed):
        canonical.read(unit * (canonical.MAX_BYTES // len(unit)))


def test_more_than_a_mebibyte_is_neither_read_nor_written() -> None:
    with pytest.raises(Malformed, match="more than"):
        canonical.read(b" " * (canonical.MAX_BYTES + 1))
    with pytest.raises(Malformed, match="more than"):
        canonical.encode("x" * canonical.MAX_BYTES)


def test_pre_authentication_encoding_counts_bytes() -> None:
    assert envelope.pae("text/ä", b"hi") == b"DSSEv1 7 text/\xc3\xa4 2 hi"


def test_envelope_reads_back_and_verifies() -> None:
    sealed = envelope.seal({"a": 1}, KEY)
    assert envelope.Envelope.from_bytes(sealed.to_bytes()) == sealed
    [signature] = sealed.signatures
    public = envelope.public_bytes(KEY)
    assert signature.keyid == envelope.keyid(public)
    assert envelope.verify(public, sealed.payload_type, sealed.payload, signature.sig)


def test_signature_for_one_type_does_not_hold_for_another() -> None:
    sealed = envelope.seal({"a": 1}, KEY)
    assert not envelope.verify(
        envelope.public_bytes(KEY),
        envelope.HEAD_PAYLOAD,
        sealed.payload,
        sealed.signatures[0].sig,
    )


@given(st.binary(max_size=70), st.binary(max_size=70))
def test_verification_answers_for_any_key_and_signature(public: bytes, sig: bytes) -> None:
    assert envelope.verify(public, "type", b"payload", sig) is False


@pytest.mark.parametrize("payload", ["QQ=", "QR==", "Q Q==", "QQ==\n", 7, None])
def test_base64_has_one_form(payload: Any) -> None:
    told = envelope.seal({"a": 1}, KEY).as_json() | {"payload": payload}
    with pytest.raises(Malformed):
        envelope.Envelope.from_json(told)
