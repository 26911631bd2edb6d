"""Signed records: one byte form, bound to their purpose, strict about every field."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from storage import canonical, clock, records
from storage.canonical import NonCanonical
from storage.keyring import public_bytes
from storage.records import (
    AclBody,
    AclNode,
    AgentCard,
    BadSignature,
    ContentRef,
    DiffBody,
    DiffMeta,
    FenceBody,
    InvalidRecord,
    NodeCard,
    Sealed,
    TombstoneBody,
)

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = public_bytes(KEY)

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
id16 = st.binary(min_size=16, max_size=16)
id32 = st.binary(min_size=32, max_size=32)
stamp = st.integers(0, clock.from_millis(clock.MAX_MILLIS) - 1).map(clock.to_bytes)
epoch = st.integers(0, 2**31 - 1)
mkind = st.sampled_from(["cell", "l1", "l2", "beacon", "agent"])
label = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)

metas = st.builds(
    DiffMeta,
    type=text,
    tags=st.lists(text, max_size=4).map(tuple),
    who=st.none() | text,
    importance_ppm=st.integers(0, 1_000_000),
    pinned=st.booleans(),
    created_ms=st.integers(0, 2**47),
    expires_ms=st.none() | st.integers(0, 2**47),
    scope_label=st.none() | text,
)
diffs = st.builds(
    DiffBody,
    kind=st.sampled_from(["add", "update", "promote"]),
    project=id16,
    agent=id16,
    origin=id16,
    agent_epoch=epoch,
    project_epoch=epoch,
    hlc=stamp,
    nonce=id16,
    memory=id16,
    mkind=mkind,
    model=label,
    emb=st.lists(st.floats(0.125, 128, width=16), min_size=1, max_size=16).map(
        lambda values: np.array(values, "<f2").tobytes()
    ),
    content=text,
    meta=metas,
    parents=st.lists(id16, max_size=3).map(tuple),
    e0_milli=st.integers(0, 10**9),
    ttl_ms=st.integers(1, 86_400_000),
    hop_max=st.integers(1, 64),
)
tombstones = st.builds(
    TombstoneBody,
    project=st.none() | id16,
    agent=id16,
    origin=id16,
    home=id16,
    agent_epoch=epoch,
    project_epoch=epoch,
    hlc=stamp,
    nonce=id16,
    target=id16,
    mkind=mkind,
    cause=st.sampled_from(["forget", "supersede"]),
    route_ref=st.none() | id16,
)
fences = st.builds(
    FenceBody,
    scope_kind=st.sampled_from(["agent", "project"]),
    scope_handle=id32,
    epoch_floor=st.integers(1, 2**31 - 1),
    hlc_floor=stamp,
    hlc=stamp,
    origin=id16,
    nonce=id16,
    erasure_id=st.text("abc_", min_size=4, max_size=20),
)
cards = st.builds(AgentCard, agent=id16, project=id16, home=id16, public=id32, hlc=stamp)
node_cards = st.builds(NodeCard, node=id16, erasure=id32, ledger=id32, hlc=stamp)
acls = st.builds(
    AclBody,
    mesh=label,
    project=id16,
    name=label,
    version=st.integers(1, 2**31 - 1),
    nodes=st.lists(
        st.builds(AclNode, certificate=st.binary(min_size=64, max_size=80), addr=text, domain=text),
        max_size=3,
    ).map(tuple),
    operators=st.lists(id32, max_size=2).map(tuple),
    retired=st.lists(id16, max_size=2).map(tuple),
)
any_record = diffs | tombstones | fences | cards | node_cards | acls


def a_diff(**changes: Any) -> DiffBody:
    fields: dict[str, Any] = {
        "kind": "add",
        "project": bytes(16),
        "agent": bytes(16),
        "origin": bytes(16),
        "agent_epoch": 1,
        "project_epoch": 1,
        "hlc": bytes(8),
        "nonce": bytes(16),
        "memory": bytes(16),
        "mkind": "cell",
        "model": "m@2#0",
        "emb": np.array([1, 2], "<f2").tobytes(),
        "content": "text",
        "meta": DiffMeta(created_ms=1),
        "e0_milli": 1,
        "ttl_ms": 1,
        "hop_max": 1,
    }
    return DiffBody(**{**fields, **changes})


@given(any_record)
def test_a_record_is_read_back_equal(record: msgspec.Struct) -> None:
    data = records.encode(record)
    assert records.decode(data, type(record)) == record
    assert records.encode(records.decode(data, type(record))) == data


@given(any_record, st.data())
def test_a_changed_byte_is_never_signed(record: msgspec.Struct, data: st.DataObject) -> None:
    body = records.encode(record)
    signature = records.sign(KEY, records.DOMAIN_DIFF, body)
    assert records.verified(PUBLIC, records.DOMAIN_DIFF, body, signature)
    at = data.draw(st.integers(0, len(body) - 1))
    flip = data.draw(st.integers(1, 255))
    changed = body[:at] + bytes([body[at] ^ flip]) + body[at + 1 :]
    assert not records.verified(PUBLIC, records.DOMAIN_DIFF, changed, signature)


@given(any_record)
def test_a_record_of_one_kind_is_none_of_another(record: msgspec.Struct) -> None:
    data = records.encode(record)
    for kind in (DiffBody, TombstoneBody, FenceBody, AgentCard, NodeCard, AclBody, Sealed):
        if kind is not type(record):
            with pytest.raises(InvalidRecord):
                records.decode(data, kind)


@given(st.binary(max_size=200))
def test_any_bytes_are_no_record(data: bytes) -> None:
    for kind in (DiffBody, TombstoneBody, FenceBody, AgentCard, NodeCard, AclBody, Sealed):
        with pytest.raises((InvalidRecord, NonCanonical)):
            records.decode(data, kind)


def test_a_signature_for_one_purpose_counts_for_no_other() -> None:
    body = records.encode(a_diff())
    signature = records.sign(KEY, records.DOMAIN_DIFF, body)
    for domain in (
        records.DOMAIN_TOMBSTONE,
        records.DOMAIN_FENCE,
        records.DOMAIN_CARD,
        records.DOMAIN_ACL,
    ):
        assert not records.verified(PUBLIC, domain, body, signature)
        assert records.record_id(domain, body) != records.record_id(records.DOMAIN_DIFF, body)


def test_a_field_left_out_or_added_makes_another_byte_form() -> None:
    value = canonical.decode_map(records.encode(a_diff()))
    without = {name: each for name, each in value.items() if name != "parents"}
    with pytest.raises(NonCanonical):
        records.decode(canonical.encode(without), DiffBody)
    with pytest.raises(InvalidRecord):
        records.decode(canonical.encode({**value, "extra": 1}), DiffBody)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("v", 2),
        ("kind", "tombstone"),
        ("project", bytes(15)),
        ("agent", "text of sixteen."),
        ("agent_epoch", -1),
        ("agent_epoch", True),
        ("hlc", bytes(9)),
        ("mkind", "cells"),
        ("model", ""),
        ("model", "m" * 201),
        ("emb", b"\x00"),
        ("emb", bytes(16_385)),
        ("emb_dtype", "f64"),
        ("content", "x" * 16_385),
        ("enc", 1),
        ("parents", [bytes(16)] * 65),
        ("e0_milli", 10**9 + 1),
        ("ttl_ms", 0),
        ("ttl_ms", 86_400_001),
        ("hop_max", 0),
        ("hop_max", 65),
    ],
)
def test_a_field_out_of_bounds_is_refused(name: str, value: Any) -> None:
    raw = canonical.decode_map(records.encode(a_diff()))
    with pytest.raises(InvalidRecord, match="not a DiffBody"):
        records.decode_diff(canonical.encode({**raw, name: value}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"content": None}, "either content or a content reference"),
        ({"content_ref": ContentRef(digest=bytes(32), length=1)}, "either content or"),
        ({"content": "é" * 8_193}, "inline content above"),
        ({"emb": b"\x00\x3c\x00"}, "the embedding is cut"),
        ({"emb": np.array([0, 0], "<f2").tobytes()}, "not a usable vector"),
        ({"emb": np.array([1, np.inf], "<f2").tobytes()}, "not a usable vector"),
        ({"emb": np.array([1, np.nan], "<f4").tobytes(), "emb_dtype": "f32"}, "not a usable"),
    ],
)
def test_parts_of_a_diff_must_fit_one_another(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRecord, match=message):
        records.decode_diff(records.encode(a_diff(**changes)))


def test_the_largest_own_diff_is_within_the_limit() -> None:
    diff = a_diff(
        content="x" * records.INLINE_BYTES,
        emb=np.ones(4_000, "<f2").tobytes(),
        meta=DiffMeta(
            type="😀" * 64,
            tags=("😀" * 128,) * 32,
            who="😀" * 256,
            created_ms=1,
            scope_label="😀" * 256,
        ),
    )
    assert records.decode_diff(records.encode(diff)) == diff


def test_the_vector_is_what_was_sent() -> None:
    sent = np.array([0.5, -0.25], np.float32)
    for dtype, kind in (("<f2", "f16"), ("<f4", "f32")):
        diff = a_diff(emb=sent.astype(dtype).tobytes(), emb_dtype=kind)
        got = records.vector(diff)
        assert got.dtype == np.float32
        np.testing.assert_array_equal(got, sent)


@given(cards)
def test_a_wrapper_opens_for_its_signer_alone(card: AgentCard) -> None:
    wire = records.seal(KEY, records.DOMAIN_CARD, card)
    assert records.unseal(wire, AgentCard, records.DOMAIN_CARD, PUBLIC) == card
    other = public_bytes(Ed25519PrivateKey.from_private_bytes(bytes(32)))
    with pytest.raises(BadSignature):
        records.unseal(wire, AgentCard, records.DOMAIN_CARD, other)
    with pytest.raises(BadSignature):
        records.unseal(wire, AgentCard, records.DOMAIN_ACL, PUBLIC)
    sealed = records.open_sealed(wire)
    cut = records.encode(msgspec.structs.replace(sealed, s=bytes(64)))
    with pytest.raises(BadSignature):
        records.unseal(cut, AgentCard, records.DOMAIN_CARD, PUBLIC)


def test_a_wrapper_is_bounded() -> None:
    wire = records.seal(KEY, records.DOMAIN_CARD, a_diff(content="x" * 5_000))
    with pytest.raises(NonCanonical, match="more than 2048 bytes"):
        records.open_sealed(wire, max_bytes=2048)


def test_tombstones_and_fences_have_no_place_for_text_or_vectors() -> None:
    names = {
        field.name for kind in (TombstoneBody, FenceBody) for field in msgspec.structs.fields(kind)
    }
    assert names.isdisjoint({"content", "emb", "meta", "q8", "vector", "text", "reason"})
