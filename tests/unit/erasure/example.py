"""The worked example, built again from its raw inputs by the product's own builders."""

from __future__ import annotations

import json
from base64 import b64decode
from datetime import date, datetime
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from erasure import leaves, ledger
from erasure.certificates import Addendum, Certificate, Closure, Notice, Receipt
from erasure.envelope import Envelope
from erasure.forms import AddendumKind, Graph, ReceiptStatus, RecipientStatus
from erasure.ledger import LedgerKind
from erasure.parts import (
    Evidence,
    LedgerRef,
    LevelChange,
    Pending,
    Recipient,
    Request,
    Retained,
    Run,
    ScopeRef,
    Software,
    Tier,
    Verification,
    Witness,
)
from storage.model import ScopeKind, scope_handle

VECTORS: dict[str, Any] = json.loads(Path(__file__).with_name("vectors.json").read_text("utf-8"))
EXAMPLE: dict[str, Any] = VECTORS["worked_example"]

SOFTWARE = Software("1.0.0", "0" * 40, 17)
PHYSICAL = ("pg.heap", "pg.index", "pg.toast", "pg.statistic", "pg.wal")
HANDLE = scope_handle(
    bytes.fromhex(EXAMPLE["k_handle_hex"]), ScopeKind.AGENT, EXAMPLE["agent_id"].encode()
)
SCOPE = ScopeRef(ScopeKind.AGENT, HANDLE, EXAMPLE["epoch"])
MESH = EXAMPLE["mesh_id"]
TREATMENT = {
    "agg.l1": ("L1", "recompute"),
    "agg.l2": ("L1", "recompute"),
    "file.export": ("L2", "unlink"),
    "file.snapshot": ("L2", "rewrite"),
    "hnsw.slot": ("L2", "rebuild"),
    "mem.cache": ("L1", "drop"),
    "mem.gossip": ("L1", "drain"),
    "mem.queue": ("L1", "drain"),
    "mem.vector": ("L2", "overwrite"),
}
FENCE = Retained(
    "fence and scope handle", 1, "refuses the erased epoch", "legitimate-interest", "permanent"
)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def key(name: str) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(EXAMPLE["keys"][name]["seed_hex"]))


def node(letter: str) -> bytes:
    return bytes.fromhex(EXAMPLE["nodes"][letter])


def digest(name: str) -> bytes:
    return bytes.fromhex(EXAMPLE["sha256"][name])


def envelope(name: str) -> Envelope:
    return Envelope.from_json(EXAMPLE["envelopes"][name])


def tiers(
    k_cert: bytes, found: dict[str, list[str]], retained: dict[str, list[str]], dropped: set[str]
) -> dict[str, Tier]:
    built = {}
    for name in EXAMPLE["items_found"]:
        level, how = TREATMENT.get(name, ("L1", "row-delete"))
        kept = set(retained.get(name, []))
        groups: dict[str, list[bytes]] = {"removed": [], "recomputed": [], "dropped": []}
        for rid in found.get(name, []):
            if rid in kept:
                continue
            done = "removed" if how != "recompute" else "recomputed"
            groups["dropped" if rid in dropped else done].append(leaves.leaf(k_cert, name, rid))
        built[name] = Tier.of(
            level=level,
            how=how,
            after=len(kept),
            retained=[leaves.leaf(k_cert, name, rid) for rid in sorted(kept)],
            **groups,
        )
    return built


def verification(probes: int) -> Verification:
    return Verification(14, probes, 0, 0, ("file.snapshot", "tombstone", "ledger", "outbox", "log"))


def certificate() -> Certificate:
    k_cert = bytes.fromhex(EXAMPLE["k_cert_origin_hex"])
    request = EXAMPLE["statements"]["C"]["predicate"]["request"]
    run = Run(
        mesh_id=MESH,
        node_id=node("a"),
        scope=SCOPE,
        software=SOFTWARE,
        started_at=at("2026-11-30T09:00:01Z"),
        completed_at=at("2026-11-30T09:00:09Z"),
        tiers=tiers(k_cert, EXAMPLE["items_found"], EXAMPLE["items_retained"], {"l1-3"}),
        graph=Graph.REBUILT,
        retained=(
            FENCE,
            Retained(
                "holder and delivery rows of peers",
                8,
                "address the notices",
                "gdpr-19",
                "tombstones stable",
            ),
            Retained("held records", 1, "hold LH-7", "gdpr-17-3-e", "release"),
        ),
        pending=Pending(PHYSICAL, "beyond-use", date(2027, 1, 30)),
        verification=verification(70),
        ledger=LedgerRef(EXAMPLE["keys"]["ledger_origin"]["keyid"], 3),
    )
    return Certificate(
        run=run,
        request=Request(
            leaves.request_digest(k_cert, EXAMPLE["request_id"]),
            "gdpr-17-1-b",
            at("2026-11-30T08:58:00Z"),
            at("2026-12-30T08:58:00Z"),
            bytes.fromhex(request["requester"].removeprefix("key:")),
        ),
        intent_seq=2,
        recipients=tuple(node(letter) for letter in "dbc"),
        clock_source="ntp",
        clock_uncertainty_ms=50,
    )


def notice() -> Notice:
    ids = EXAMPLE["notice_ids"]
    return Notice(
        mesh_id=MESH,
        node_id=node("a"),
        scope=SCOPE,
        hlc_floor=0x01A22BAEBA680000,
        ids_n=len(ids),
        ids_root=leaves.id_set_root(ids),
        certificate_sha256=digest("C"),
        issued_at=at("2026-11-30T09:00:09Z"),
    )


def receipt_b() -> Receipt:
    run = Run(
        mesh_id=MESH,
        node_id=node("b"),
        scope=SCOPE,
        software=SOFTWARE,
        started_at=at("2026-11-30T09:00:11Z"),
        completed_at=at("2026-11-30T09:00:14Z"),
        tiers=tiers(
            bytes.fromhex(EXAMPLE["k_cert_peer_b_hex"]), EXAMPLE["items_found_peer_b"], {}, set()
        ),
        graph=Graph.REBUILT,
        retained=(FENCE,),
        pending=Pending(PHYSICAL, "beyond-use", date(2027, 1, 30)),
        verification=verification(28),
        ledger=LedgerRef(EXAMPLE["keys"]["ledger_peer_b"]["keyid"], 88),
    )
    return Receipt(run, ReceiptStatus.APPLIED, digest("N"), digest("C"))


def receipt_c() -> Receipt:
    ledger_ref = EXAMPLE["statements"]["R_c"]["predicate"]["ledger"]
    run = Run(
        mesh_id=MESH,
        node_id=node("c"),
        scope=SCOPE,
        software=SOFTWARE,
        started_at=at("2026-11-30T09:00:11Z"),
        completed_at=at("2026-11-30T09:00:11Z"),
        tiers=tiers(bytes.fromhex(EXAMPLE["k_cert_peer_c_hex"]), {}, {}, set()),
        graph=Graph.UNTOUCHED,
        retained=(FENCE,),
        pending=Pending(),
        verification=verification(0),
        ledger=LedgerRef(ledger_ref["log_id"], ledger_ref["entry"]),
    )
    return Receipt(run, ReceiptStatus.NEVER_HAD, digest("N"), digest("C"))


def closure() -> Closure:
    log = EXAMPLE["keys"]["ledger_origin"]["keyid"]
    head = Envelope.from_json(EXAMPLE["ledger"]["head_5"])
    return Closure(
        erasure_id=EXAMPLE["erasure_id"],
        certificate_sha256=digest("C"),
        mesh_id=MESH,
        node_id=node("a"),
        closed_at=at("2026-12-30T09:00:01Z"),
        recipients=(
            Recipient(node("d"), RecipientStatus.EXPELLED, None, at("2026-12-30T09:00:00Z")),
            Recipient(node("b"), RecipientStatus.ACKED, digest("R_b"), at("2026-11-30T09:00:15Z")),
            Recipient(
                node("c"), RecipientStatus.NEVER_HAD, digest("R_c"), at("2026-11-30T09:00:12Z")
            ),
        ),
        ledger=LedgerRef(log, 6),
        witnesses=(
            Witness(
                node("b"),
                EXAMPLE["keys"]["ledger_peer_b"]["keyid"],
                log,
                5,
                bytes.fromhex(EXAMPLE["ledger"]["root_5"]),
                at("2026-12-30T09:00:00Z"),
                ledger.cosign(head, key("ledger_peer_b")),
            ),
        ),
    )


def addendum_1() -> Addendum:
    k_cert = bytes.fromhex(EXAMPLE["k_cert_origin_hex"])
    held = [leaves.leaf(k_cert, "pg.memories", "mem-6")]
    return Addendum(
        erasure_id=EXAMPLE["erasure_id"],
        about_sha256=digest("C"),
        certificate_sha256=digest("C"),
        previous=None,
        n=1,
        kind=AddendumKind.HOLD_RELEASE,
        cause="hold LH-7 released",
        mesh_id=MESH,
        node_id=node("a"),
        software=SOFTWARE,
        at=at("2027-01-10T07:30:00Z"),
        pending=Pending(PHYSICAL, "beyond-use", date(2027, 3, 12)),
        ledger=LedgerRef(EXAMPLE["keys"]["ledger_origin"]["keyid"], 7),
        removed={"pg.memories": leaves.tier_root(held)},
    )


def addendum_2() -> Addendum:
    told = EXAMPLE["statements"]["P_2"]["predicate"]
    return Addendum(
        erasure_id=EXAMPLE["erasure_id"],
        about_sha256=digest("C"),
        certificate_sha256=digest("C"),
        previous=digest("P_1"),
        n=2,
        kind=AddendumKind.PHYSICAL,
        cause="maintenance window",
        mesh_id=MESH,
        node_id=node("a"),
        software=SOFTWARE,
        at=at("2027-03-13T02:10:00Z"),
        pending=Pending(),
        ledger=LedgerRef(EXAMPLE["keys"]["ledger_origin"]["keyid"], 8),
        levels={
            name: LevelChange("L1", "L2", "vacuum-full")
            for name in EXAMPLE["items_found"]
            if name.startswith(("agg.", "pg."))
        },
        evidence=tuple(
            Evidence(one["what"], one["object"], at(one["at"]), one["value"])
            for one in told["evidence"]
        ),
    )


def peer_physical_addendum() -> Addendum:
    """The step that the example names but does not print: node b's own physical addendum."""
    return Addendum(
        erasure_id=EXAMPLE["erasure_id"],
        about_sha256=digest("R_b"),
        certificate_sha256=digest("C"),
        previous=None,
        n=1,
        kind=AddendumKind.PHYSICAL,
        cause="maintenance window",
        mesh_id=MESH,
        node_id=node("b"),
        software=SOFTWARE,
        at=at("2027-03-14T02:10:00Z"),
        pending=Pending(),
        ledger=LedgerRef(EXAMPLE["keys"]["ledger_peer_b"]["keyid"], 101),
        levels={"pg.memories": LevelChange("L1", "L2", "vacuum-full")},
    )


def ledger_entries() -> list[ledger.Entry]:
    steps: list[tuple[LedgerKind, str, dict[str, int | str | bytes | None]]] = [
        (
            LedgerKind.LOG_OPENED,
            "2026-11-01T08:00:00Z",
            {"log_id": EXAMPLE["keys"]["ledger_origin"]["keyid"]},
        ),
        (
            LedgerKind.INTENT,
            "2026-11-30T09:00:01Z",
            {"erasure_id": EXAMPLE["erasure_id"], "scope_handle": HANDLE, "epoch": 1},
        ),
    ]
    for kind, name, when in (
        (LedgerKind.CERTIFICATE, "C", "2026-11-30T09:00:09Z"),
        (LedgerKind.RECEIPT, "R_c", "2026-11-30T09:00:12Z"),
        (LedgerKind.RECEIPT, "R_b", "2026-11-30T09:00:15Z"),
        (LedgerKind.CLOSURE, "Z", "2026-12-30T09:00:01Z"),
        (LedgerKind.ADDENDUM, "P_1", "2027-01-10T07:30:00Z"),
        (LedgerKind.ADDENDUM, "P_2", "2027-03-13T02:10:00Z"),
    ):
        steps.append((kind, when, {"document": digest(name), "erasure_id": EXAMPLE["erasure_id"]}))
    state, entries = ledger.LogState(), []
    for kind, when, fields in steps:
        entry, state = ledger.append(state, kind, at(when), fields)
        entries.append(entry)
    return entries


def payload_of(name: str) -> bytes:
    return b64decode(EXAMPLE["envelopes"][name]["payload"])
