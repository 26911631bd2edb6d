"""What the verifier says while the files of an erasure arrive."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest

from erasure import canonical, envelope, leaves, ledger
from erasure.certificates import seal
from erasure.forms import AddendumKind, ReceiptStatus, RecipientStatus
from erasure.parts import Recipient, Tier
from erasure.report import PendingKind
from tests.unit.erasure import example, files
from tests.unit.erasure.example import EXAMPLE
from tests.unit.erasure.files import Folder

K = PendingKind
A, B, C, D = (EXAMPLE["nodes"][letter] for letter in "abcd")


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def open_kinds(report: Any) -> set[PendingKind]:
    return {item.kind for item in report.pending}


def test_certificate_alone_waits_for_receipts_bytes_backups_closure_and_witness(
    folder: Folder,
) -> None:
    report = folder.keep("cert.json", "keys.json").verify()
    assert report.causes == []
    assert report.exit_code == 2
    assert open_kinds(report) == {K.RECEIPT, K.PHYSICAL, K.BACKUP, K.CLOSURE, K.WITNESS}
    [receipt] = [item for item in report.pending if item.kind is K.RECEIPT]
    assert receipt.what == "3 of 3 recipients have no receipt here"


def test_receipts_and_closure_leave_only_bytes_and_backups(folder: Folder) -> None:
    report = folder.keep(
        "cert.json", "keys.json", "receipts", "closure.json", "proof.json", "head.json"
    ).verify()
    assert report.causes == []
    assert report.exit_code == 2
    assert {(item.kind, item.node_id) for item in report.pending} == {
        (K.PHYSICAL, A),
        (K.BACKUP, A),
        (K.PHYSICAL, B),
        (K.BACKUP, B),
    }


def test_own_addenda_leave_only_the_recipients_bytes(folder: Folder) -> None:
    del folder.files["addenda/b1.json"]
    report = folder.verify()
    assert report.causes == []
    assert report.exit_code == 2
    assert {(item.kind, item.node_id, item.until) for item in report.pending} == {
        (K.PHYSICAL, B, None),
        (K.BACKUP, B, "2027-01-30"),
    }


def test_all_documents_are_complete(folder: Folder) -> None:
    report = folder.verify()
    assert (report.exit_code, report.causes, report.pending) == (0, [], [])
    assert report.lines()[0] == "result: valid and complete (exit 0)"


def test_without_proof_the_tail_is_not_witnessed(folder: Folder) -> None:
    del folder.files["proof.json"]
    report = folder.verify()
    assert report.exit_code == 2
    assert [item.what for item in report.pending] == [
        "tail not witnessed: no proof of the certificate's entry was given"
    ]


def test_without_a_witness_the_tail_is_not_witnessed(folder: Folder) -> None:
    bare = dataclasses.replace(example.closure(), witnesses=())
    folder.files["closure.json"] = seal(bare, example.key("erasure_origin")).to_bytes()
    shown = files.proof_value() | {"consistency": []}
    folder.files["proof.json"] = canonical.encode(shown)
    del folder.files["addenda/1.json"], folder.files["addenda/2.json"]
    report = folder.verify()
    assert report.exit_code == 2
    assert "tail not witnessed: no other node has signed a head with this entry" in {
        item.what for item in report.pending
    }


def test_a_witness_may_sign_the_head_file_itself(folder: Folder) -> None:
    shown = files.proof_value() | {"consistency": []}
    folder.files["proof.json"] = canonical.encode(shown)
    head = envelope.Envelope.from_json(EXAMPLE["ledger"]["head_8"])
    witness = envelope.sign(head.payload_type, head.payload, example.key("ledger_peer_b"))
    both = dataclasses.replace(head, signatures=(*head.signatures, witness))
    folder.files["head.json"] = both.to_bytes()
    assert folder.verify().exit_code == 0


def test_a_proof_for_the_witnessed_size_needs_no_head_file(folder: Folder) -> None:
    entries = example.ledger_entries()[:5]
    shown = ledger.proof(entries[2].payload, [one.leaf for one in entries])
    folder.files["proof.json"] = canonical.encode(shown)
    del folder.files["head.json"]
    assert folder.verify().exit_code == 0


def test_fresh_certificate_with_all_receipts_waits_for_nothing_of_the_recipients(
    folder: Folder,
) -> None:
    two = dataclasses.replace(
        example.certificate(), recipients=(example.node("b"), example.node("c"))
    )
    sealed = seal(two, example.key("erasure_origin"))
    folder.keep("keys.json").files["cert.json"] = sealed.to_bytes()
    for name, build, key in (
        ("b", example.receipt_b, "erasure_peer_b"),
        ("c", example.receipt_c, "erasure_peer_c"),
    ):
        answer = dataclasses.replace(build(), certificate_sha256=sealed.sha256)
        folder.files[f"receipts/{name}.json"] = seal(answer, example.key(key)).to_bytes()
    report = folder.verify()
    assert report.causes == []
    assert report.exit_code == 2
    assert open_kinds(report) == {K.PHYSICAL, K.BACKUP, K.CLOSURE, K.WITNESS}


def test_a_receipt_to_a_notice_before_the_certificate_needs_the_notice(folder: Folder) -> None:
    folder.keep("cert.json", "keys.json")
    early = dataclasses.replace(example.notice(), certificate_sha256=None)
    sealed = seal(early, example.key("erasure_origin"))
    answer = dataclasses.replace(
        example.receipt_b(), certificate_sha256=None, notice_sha256=sealed.sha256
    )
    folder.files["receipts/b.json"] = seal(answer, example.key("erasure_peer_b")).to_bytes()
    assert folder.verify().exit_code == 1
    folder.files["receipts/notice.json"] = sealed.to_bytes()
    report = folder.verify()
    assert (report.exit_code, report.causes) == (2, [])


def test_required_closure_that_is_missing_is_refused(folder: Folder) -> None:
    del folder.files["closure.json"]
    folder.files = {k: v for k, v in folder.files.items() if not k.startswith("addenda")}
    assert folder.verify().exit_code == 2
    assert folder.verify(require_closed=True).exit_code == 1


def test_an_unreachable_recipient_is_pending_until_it_is_expelled(folder: Folder) -> None:
    told = example.closure()
    away = Recipient(
        example.node("d"),
        RecipientStatus.UNREACHABLE,
        None,
        example.at("2026-12-30T09:00:00Z"),
        example.at("2027-01-15T00:00:00Z"),
    )
    open_closure = dataclasses.replace(told, recipients=(away, *told.recipients[1:]))
    folder.files["closure.json"] = seal(open_closure, example.key("erasure_origin")).to_bytes()
    report = folder.verify()
    assert [(item.kind, item.node_id, item.until) for item in report.pending] == [
        (K.RECIPIENT, D, "2027-01-15T00:00:00Z")
    ]
    expelled = dataclasses.replace(
        example.addendum_2(),
        previous=example.digest("P_2"),
        n=3,
        kind=AddendumKind.RECIPIENT_EXPELLED,
        levels={},
        evidence=(),
        ledger=dataclasses.replace(example.addendum_2().ledger, entry=9),
        recipients=(dataclasses.replace(away, status=RecipientStatus.EXPELLED, until=None),),
    )
    folder.files["addenda/3.json"] = seal(expelled, example.key("erasure_origin")).to_bytes()
    assert (folder.verify().exit_code, folder.verify().causes) == (0, [])


def test_a_partial_receipt_is_pending_with_its_tiers(folder: Folder) -> None:
    folder.keep("cert.json", "keys.json")
    answer = dataclasses.replace(
        example.receipt_b(), status=ReceiptStatus.PARTIAL, unsupported=("agg.new",)
    )
    folder.files["receipts/b.json"] = seal(answer, example.key("erasure_peer_b")).to_bytes()
    report = folder.verify()
    assert [(item.node_id, item.what) for item in report.pending if item.kind is K.RECIPIENT] == [
        (B, "cannot clean agg.new")
    ]


def test_a_node_that_got_a_forward_is_pending(folder: Folder) -> None:
    folder.keep("cert.json", "keys.json")
    answer = dataclasses.replace(example.receipt_b(), forwarded_to=(b"\xee" * 16,))
    folder.files["receipts/b.json"] = seal(answer, example.key("erasure_peer_b")).to_bytes()
    report = folder.verify()
    assert "ee" * 16 in {item.node_id for item in report.pending if item.kind is K.RECIPIENT}


def test_receipts_that_the_closure_names_but_are_not_here_are_pending(folder: Folder) -> None:
    del folder.files["receipts/c.json"]
    report = folder.verify()
    assert [(item.kind, item.node_id) for item in report.pending] == [(K.RECEIPT, C)]


def test_es_27_a_count_changed_and_signed_with_the_right_key_is_wrong(folder: Folder) -> None:
    statement = json.loads(example.payload_of("C"))
    assert statement["predicate"]["tiers"]["pg.memories"]["retained"] == 1
    statement["predicate"]["tiers"]["pg.memories"]["found"] += 1
    edited = envelope.seal(statement, example.key("erasure_origin"))
    folder.files["cert.json"] = edited.to_bytes()
    assert folder.keep("cert.json", "keys.json").verify().exit_code == 1


def test_es_27_held_rows_are_counted_apart_from_removed_ones() -> None:
    rows = [leaves.leaf(b"k" * 32, "pg.memories", str(n)) for n in range(10)]
    tier = Tier.of(level="L1", how="row-delete", after=3, removed=rows[3:], retained=rows[:3])
    assert (tier.found, tier.removed, tier.retained, tier.n) == (10, 7, 3, 7)


@pytest.mark.parametrize("lost", [1, 5])
def test_es_25_a_shortened_ledger_is_found_with_one_witness(folder: Folder, lost: int) -> None:
    kept = [one.payload for one in example.ledger_entries()[: 8 - lost]]
    state = ledger.replay(kept)
    for _ in range(lost):
        _, state = ledger.append(
            state, ledger.LedgerKind.REFUSED, example.at("2027-03-01T00:00:00Z"), {}
        )
    head = ledger.tree_head(state, example.at("2027-04-01T00:00:00Z"), example.key("ledger_origin"))
    folder.files["head.json"] = head.to_bytes()
    assert folder.verify().exit_code == 5


def test_es_25_a_later_head_that_is_smaller_than_the_witnessed_one_is_inconsistent(
    folder: Folder,
) -> None:
    entries = example.ledger_entries()[:3]
    state = ledger.replay([one.payload for one in entries])
    head = ledger.tree_head(state, example.at("2027-04-01T00:00:00Z"), example.key("ledger_origin"))
    folder.files["head.json"] = head.to_bytes()
    shown = ledger.proof(entries[2].payload, [one.leaf for one in entries])
    folder.files["proof.json"] = canonical.encode(shown)
    assert folder.verify().exit_code == 5


def test_es_26_no_leaf_of_a_certificate_is_found_from_a_dictionary() -> None:
    shown = json.dumps(EXAMPLE["statements"]["C"]) + json.dumps(EXAMPLE["opening_mem3"])
    for guess in (f"mem-{n}" for n in range(10_000)):
        for key in (b"", bytes(32), example.HANDLE):
            assert leaves.leaf(key, "pg.memories", guess).hex() not in shown


def test_revoked_key_counts_only_before_its_revocation(folder: Folder) -> None:
    trust = files.trust_entries()
    entry = trust[EXAMPLE["keys"]["erasure_peer_c"]["keyid"]]
    entry["revoked_at"] = "2026-11-30T09:00:11Z"
    folder.files["keys.json"] = canonical.encode(trust)
    assert folder.verify().exit_code == 3
    entry["revoked_at"] = "2027-06-01T00:00:00Z"
    folder.files["keys.json"] = canonical.encode(trust)
    assert folder.verify().exit_code == 0


def test_an_auditor_may_sign_beside_the_node(folder: Folder) -> None:
    auditor = example.Ed25519PrivateKey.from_private_bytes(b"\x55" * 32)
    signed = example.envelope("C")
    second = envelope.sign(signed.payload_type, signed.payload, auditor)
    both = dataclasses.replace(signed, signatures=(*signed.signatures, second))
    folder.files["cert.json"] = both.to_bytes()
    assert folder.verify().exit_code == 0


def test_malformed_comes_before_key_before_wrong(folder: Folder) -> None:
    folder.files["opening.json"] = canonical.encode(EXAMPLE["opening_mem3"] | {"index": 2})
    assert folder.verify().exit_code == 1
    trust = files.trust_entries()
    del trust[EXAMPLE["keys"]["erasure_peer_c"]["keyid"]]
    folder.files["keys.json"] = canonical.encode(trust)
    assert folder.verify().exit_code == 3
    folder.files["proof.json"] = b"{"
    report = folder.verify()
    assert report.exit_code == 4
    assert {int(cause.verdict) for cause in report.causes} >= {1, 3, 4}


def test_missing_and_special_files_are_causes(folder: Folder, tmp_path: Path) -> None:
    del folder.files["cert.json"]
    assert folder.verify().exit_code == 4
    os.mkfifo(tmp_path / "cert.json")
    assert folder.verify().exit_code == 4


def test_an_oversized_file_is_malformed(folder: Folder) -> None:
    folder.files["cert.json"] = b" " * (canonical.MAX_BYTES + 1)
    assert folder.verify().exit_code == 4


def test_report_text_carries_no_control_characters(folder: Folder) -> None:
    statement = json.loads(example.payload_of("C"))
    statement["predicate"]["not_covered"] = ["\x1b[2Jclean"]
    folder.files["cert.json"] = envelope.seal(statement, example.key("erasure_origin")).to_bytes()
    report = folder.keep("cert.json", "keys.json").verify()
    assert all(line.isprintable() for line in report.lines())


def test_report_is_plain_json(folder: Folder) -> None:
    value = folder.keep("cert.json", "keys.json").verify().as_json()
    assert json.loads(json.dumps(value)) == value
    assert (value["exit"], value["result"]) == (2, "pending")
