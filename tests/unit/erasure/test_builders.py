"""Builders refuse to sign what contradicts itself; ledger entries carry no text."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from erasure import canonical, leaves, ledger, merkle
from erasure.certificates import Absence, Document, seal
from erasure.documents import examine
from erasure.forms import AddendumKind, ReceiptStatus, RecipientStatus
from erasure.ledger import InvalidEntry, LedgerBroken, LedgerKind, LogState
from erasure.parts import InvalidDocument, LedgerRef, Pending, Recipient, Tier
from storage.model import ScopeKind
from tests.unit.erasure import example

NOW = datetime(2026, 11, 30, 9, 0, 0, 999_999, tzinfo=UTC)
COUNTS = st.lists(st.binary(min_size=32, max_size=32), unique=True, max_size=12)


def changed_tier(**changes: Any) -> Document:
    certificate = example.certificate()
    tiers = dict(certificate.run.tiers)
    tiers["pg.memories"] = dataclasses.replace(tiers["pg.memories"], **changes)
    return dataclasses.replace(certificate, run=dataclasses.replace(certificate.run, tiers=tiers))


def changed_run(**changes: Any) -> Document:
    certificate = example.certificate()
    return dataclasses.replace(certificate, run=dataclasses.replace(certificate.run, **changes))


@pytest.mark.parametrize(
    "document",
    [
        changed_tier(found=7),
        changed_tier(removed=4),
        changed_tier(after=0),
        changed_tier(root=merkle.EMPTY_ROOT),
        changed_tier(level="L4"),
        changed_tier(level="L3"),
        changed_tier(how="prayer"),
        changed_run(tiers={}),
        changed_run(retained=()),
        changed_run(completed_at=example.at("2026-11-30T08:59:59Z")),
        changed_run(verification=dataclasses.replace(example.verification(1), hits=1)),
        changed_run(pending=Pending(("pg.moon",))),
        changed_run(node_id=b"short"),
        changed_run(ledger=LedgerRef("log", 3)),
        dataclasses.replace(example.certificate(), intent_seq=3),
        dataclasses.replace(example.receipt_b(), status=ReceiptStatus.NEVER_HAD),
        dataclasses.replace(example.receipt_b(), unsupported=("pg.new",)),
        dataclasses.replace(example.notice(), ids_n=0),
        dataclasses.replace(example.addendum_1(), previous=bytes(32)),
        dataclasses.replace(example.addendum_1(), n=2),
        dataclasses.replace(example.addendum_2(), kind=AddendumKind.LATE_RECEIPT),
        dataclasses.replace(
            example.closure(),
            recipients=(Recipient(example.node("b"), RecipientStatus.ACKED, None, NOW),),
        ),
        dataclasses.replace(
            example.closure(),
            recipients=(Recipient(example.node("b"), RecipientStatus.UNREACHABLE, None, NOW),),
        ),
    ],
)
def test_contradiction_is_not_signed(document: Document) -> None:
    with pytest.raises(InvalidDocument):
        seal(document, example.key("erasure_origin"))


def test_refusal_names_the_field() -> None:
    with pytest.raises(InvalidDocument, match=r"tiers\.pg\.memories: found is not removed"):
        seal(changed_tier(found=7), example.key("erasure_origin"))


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(InvalidEntry):
        seal(changed_run(started_at=datetime(2026, 1, 1)), example.key("erasure_origin"))


@given(COUNTS, st.data())
def test_tier_equations_hold_for_any_split(all_leaves: list[bytes], data: st.DataObject) -> None:
    groups: dict[str, list[bytes]] = {
        name: [] for name in ("removed", "recomputed", "dropped", "retained")
    }
    for one in all_leaves:
        groups[data.draw(st.sampled_from(sorted(groups)))].append(one)
    tier = Tier.of(level="L1", how="row-delete", after=len(groups["retained"]), **groups)
    assert tier.found == len(all_leaves)
    assert tier.n == tier.found - tier.retained
    assert (tier.root == tier.plan_root) == (tier.retained == 0)


def test_negative_counts_are_refused() -> None:
    with pytest.raises(InvalidDocument, match="negative"):
        changed_tier(found=-1)


def test_a_leaf_in_two_groups_is_refused() -> None:
    with pytest.raises(InvalidDocument):
        Tier.of(level="L1", how="drop", after=0, removed=[b"a" * 32], dropped=[b"a" * 32])


@given(COUNTS)
def test_root_over_batches_equals_root_over_all(all_leaves: list[bytes]) -> None:
    growing = leaves.SortedRoot()
    for one in sorted(all_leaves):
        growing.add(one)
    assert (growing.n, growing.root) == leaves.tier_root(all_leaves)


def test_root_over_batches_refuses_disorder_and_repetition() -> None:
    growing = leaves.SortedRoot()
    growing.add(b"b")
    for value in (b"a", b"b"):
        with pytest.raises(ValueError, match="ascending"):
            growing.add(value)


@given(COUNTS.filter(bool), st.randoms())
def test_order_of_leaves_does_not_change_a_root(all_leaves: list[bytes], random: Any) -> None:
    shuffled = list(all_leaves)
    random.shuffle(shuffled)
    assert leaves.tier_root(shuffled) == leaves.tier_root(all_leaves)


def test_missing_tier_and_empty_tier_have_different_roots() -> None:
    none = (0, merkle.EMPTY_ROOT)
    assert leaves.top_root({"a": none}) != leaves.top_root({"a": none, "b": none})


@given(st.lists(st.binary(max_size=6), max_size=4), st.lists(st.binary(max_size=6), max_size=4))
def test_length_prefix_never_joins_two_lists(left: list[bytes], right: list[bytes]) -> None:
    assert (leaves.lp(*left) == leaves.lp(*right)) == (left == right)


def test_opening_of_an_absent_record_is_refused() -> None:
    with pytest.raises(LookupError):
        leaves.open_record(b"k" * 32, "pg.memories", "mem-1", [])


def test_absence_is_a_document_of_its_own() -> None:
    absence = Absence(
        mesh_id=example.MESH,
        node_id=example.node("a"),
        kind=ScopeKind.AGENT,
        handle=example.HANDLE,
        software=example.SOFTWARE,
        requester=None,
        searched_at=NOW,
        searched=("pg.memories", "hnsw.slot"),
        verification=example.verification(0),
        ledger=LedgerRef(example.EXAMPLE["keys"]["ledger_origin"]["keyid"], 9),
    )
    judged = examine(canonical.decode(seal(absence, example.key("erasure_origin")).payload))
    assert (judged.malformed, judged.wrong, judged.unknown) == ((), (), ())
    assert judged.predicate["searched_at"] == "2026-11-30T09:00:00Z"


def test_unknown_fields_are_shown_and_not_judged() -> None:
    statement = example.certificate().statement()
    predicate = statement["predicate"]
    assert isinstance(predicate, dict)
    predicate["colour"] = "blue"
    judged = examine(statement)
    assert (judged.malformed, judged.wrong) == ((), ())
    assert judged.unknown == ("erasure-certificate.colour",)


@pytest.mark.parametrize(
    "fields",
    [
        {"note": "alice likes tea"},
        {"note": "é"},
        {"note": ""},
        {"note": "x" * 129},
        {"seq": 1},
        {"prev": "00"},
        {"n": 1 << 53},
    ],
)
def test_text_and_reserved_names_stay_out_of_the_ledger(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidEntry):
        ledger.append(LogState(), LedgerKind.REFUSED, NOW, fields)


def test_ledger_state_read_back_equals_the_state_after_appends() -> None:
    state, payloads = LogState(), []
    for number in range(9):
        entry, state = ledger.append(state, LedgerKind.OPENED, NOW, {"n": number})
        assert (entry.seq, entry.leaf) == (number + 1, state.prev)
        payloads.append(entry.payload)
    assert ledger.replay(payloads) == state
    assert ledger.replay(payloads[4:], ledger.replay(payloads[:4])) == state


@pytest.mark.parametrize("lost", [0, 3, 8])
def test_a_missing_inner_entry_breaks_the_chain(lost: int) -> None:
    state, payloads = LogState(), []
    for number in range(10):
        entry, state = ledger.append(state, LedgerKind.OPENED, NOW, {"n": number})
        payloads.append(entry.payload)
    with pytest.raises(LedgerBroken):
        ledger.replay(payloads[:lost] + payloads[lost + 1 :])


def test_a_changed_entry_breaks_the_chain() -> None:
    first, state = ledger.append(LogState(), LedgerKind.OPENED, NOW, {"n": 1})
    second, _ = ledger.append(state, LedgerKind.OPENED, NOW, {"n": 2})
    with pytest.raises(LedgerBroken):
        ledger.replay([first.payload.replace(b'"n":1', b'"n":3'), second.payload])


def test_proof_of_a_foreign_entry_or_size_is_refused() -> None:
    entry, state = ledger.append(LogState(), LedgerKind.OPENED, NOW, {})
    with pytest.raises(InvalidEntry):
        ledger.proof(b"{}", [entry.leaf])
    with pytest.raises(InvalidEntry):
        ledger.proof(entry.payload, [entry.leaf], witnessed=[2])
    assert state.size == 1
