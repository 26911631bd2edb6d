"""Published vectors and the worked example come out byte for byte."""

from __future__ import annotations

from hashlib import sha256

import pytest

from erasure import canonical, envelope, leaves, ledger, merkle
from erasure.certificates import seal
from erasure.forms import Doc
from tests.unit.erasure import example
from tests.unit.erasure.example import EXAMPLE, VECTORS

BUILT = {
    "C": (example.certificate, "erasure_origin"),
    "N": (example.notice, "erasure_origin"),
    "R_b": (example.receipt_b, "erasure_peer_b"),
    "R_c": (example.receipt_c, "erasure_peer_c"),
    "Z": (example.closure, "erasure_origin"),
    "P_1": (example.addendum_1, "erasure_origin"),
    "P_2": (example.addendum_2, "erasure_origin"),
}


def test_statement_has_the_published_canonical_digest() -> None:
    data = canonical.encode(VECTORS["statement"])
    assert (
        sha256(data).hexdigest()
        == VECTORS["canonical_sha256"]
        == "05c9dee38f49e0cc6b0d75f6bd5e3189f2fddb7f50be39b87fb715db0d449ef6"
    )


def test_tier_roots_and_removal_root_are_the_published_ones() -> None:
    k_cert = bytes.fromhex(VECTORS["k_cert_hex"])
    tiers = {
        name: leaves.tier_root(leaves.leaf(k_cert, name, rid) for rid in rids)
        for name, rids in VECTORS["items"].items()
    }
    assert {name: {"n": n, "root": root.hex()} for name, (n, root) in tiers.items()} == (
        VECTORS["tier_roots"]
    )
    assert (
        leaves.top_root(tiers).hex()
        == VECTORS["removal_root"]
        == "e633cb21fc6e34bd5af1712f7bbb32fecbe49f6e212f6ab53976c1029215acde"
    )


def test_opening_of_m3_is_the_published_one() -> None:
    k_cert = bytes.fromhex(VECTORS["k_cert_hex"])
    all_leaves = [leaves.leaf(k_cert, "pg.memory", rid) for rid in VECTORS["items"]["pg.memory"]]
    opened = leaves.open_record(k_cert, "pg.memory", "m3", all_leaves).as_json()
    assert {name: opened[name] for name in VECTORS["inclusion_m3"]} == VECTORS["inclusion_m3"]


def test_envelope_of_the_first_vector_is_signed_alike() -> None:
    key = example.key("erasure_origin")
    assert envelope.seal(VECTORS["statement"], key).as_json() == VECTORS["envelope"]


def test_tree_over_seven_entries_has_the_published_roots_and_proof() -> None:
    vector = VECTORS["ledger7"]
    hashes = [merkle.leaf_hash(entry.encode()) for entry in vector["entries"]]
    assert merkle.EMPTY_ROOT.hex() == vector["empty_root"]
    assert merkle.root_of_hashes(hashes[:3]).hex() == vector["root3"]
    assert merkle.root_of_hashes(hashes).hex() == vector["root7"]
    assert [one.hex() for one in merkle.consistency_path(hashes, 3)] == vector["consistency_3_7"]


def test_handle_and_erasure_id_are_the_published_ones() -> None:
    assert EXAMPLE["scope_handle"] == example.HANDLE.hex()
    assert leaves.erasure_id(EXAMPLE["mesh_id"], example.HANDLE, 1) == EXAMPLE["erasure_id"]


@pytest.mark.parametrize("name", BUILT)
def test_builder_gives_the_published_document(name: str) -> None:
    build, key = BUILT[name]
    sealed = seal(build(), example.key(key))
    assert canonical.decode(sealed.payload) == EXAMPLE["statements"][name]
    assert sealed.sha256.hex() == EXAMPLE["sha256"][name]
    assert sealed.as_json() == EXAMPLE["envelopes"][name]


def test_certificate_has_the_digest_and_signature_of_the_design() -> None:
    sealed = seal(example.certificate(), example.key("erasure_origin"))
    assert sealed.sha256.hex() == "79a0053984b5c3cb7a67931f4eaa99d688caeac5f6597f089b1562ccf3b48f07"
    assert sealed.as_json()["signatures"] == [
        {
            "keyid": "56475aa75463474c0285df5dbf2bcab73da651358839e9b77481b2eab107708c",
            "sig": "+Or32hnYaLRkvE0LIWdBBT7mpGVINvuZEuAYI9SyCou3GJJZY/fBrawWACatNdnOBv1LYisr"
            "m2TWm99uyv+eAA==",
        }
    ]


def test_certificate_stays_small() -> None:
    assert len(seal(example.certificate(), example.key("erasure_origin")).payload) < 8 * 1024


def test_ledger_payloads_leaves_and_roots_are_the_published_ones() -> None:
    entries = example.ledger_entries()
    assert [entry.payload.decode() for entry in entries] == EXAMPLE["ledger"]["payloads"]
    assert [entry.leaf.hex() for entry in entries] == EXAMPLE["ledger"]["leaves"]
    states = [ledger.replay([entry.payload for entry in entries[:size]]) for size in (5, 8)]
    assert [state.root.hex() for state in states] == [
        EXAMPLE["ledger"]["root_5"],
        EXAMPLE["ledger"]["root_8"],
    ]


@pytest.mark.parametrize("size, when", [(5, "2026-12-30T09:00:00Z"), (8, "2027-03-13T02:10:01Z")])
def test_tree_head_is_the_published_one(size: int, when: str) -> None:
    state = ledger.replay([entry.payload for entry in example.ledger_entries()[:size]])
    head = ledger.tree_head(state, example.at(when), example.key("ledger_origin"))
    assert head.as_json() == EXAMPLE["ledger"][f"head_{size}"]


def test_ledger_proof_holds_the_published_paths() -> None:
    entries = example.ledger_entries()
    hashes = [entry.leaf for entry in entries]
    shown = ledger.proof(entries[2].payload, hashes, witnessed=[5])
    assert shown["inclusion"] == EXAMPLE["ledger"]["inclusion_certificate_in_8"]
    assert shown["consistency"] == [
        {"from": 5, "path": EXAMPLE["ledger"]["consistency_5_8"], "to": 8}
    ]


def test_opening_of_mem_3_is_the_published_one() -> None:
    k_cert = bytes.fromhex(EXAMPLE["k_cert_origin_hex"])
    removed = set(EXAMPLE["items_found"]["pg.memories"]) - {"mem-6"}
    opened = leaves.open_record(
        k_cert,
        "pg.memories",
        "mem-3",
        (leaves.leaf(k_cert, "pg.memories", rid) for rid in removed),
    )
    assert opened.as_json() == EXAMPLE["opening_mem3"]


def test_predicate_types_are_the_frozen_ones() -> None:
    assert {doc.name: doc.predicate_type for doc in Doc} == {
        "CERTIFICATE": "urn:mnemesh:erasure-certificate:v1",
        "RECEIPT": "urn:mnemesh:erasure-receipt:v1",
        "CLOSURE": "urn:mnemesh:erasure-closure:v1",
        "ADDENDUM": "urn:mnemesh:erasure-addendum:v1",
        "NOTICE": "urn:mnemesh:erasure-notice:v1",
        "ABSENCE": "urn:mnemesh:erasure-absence:v1",
    }
