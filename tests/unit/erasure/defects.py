"""Bad documents: the finished worked example with one defect each, and the exit code expected.

`python -m tests.unit.erasure.defects` writes them to `bad/` again; a test compares. Each file
replaces, or joins, the good file named as its place in `bad/index.json`.
"""

from __future__ import annotations

import dataclasses
import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from erasure import canonical, envelope, ledger
from erasure.certificates import seal
from tests.unit.erasure import example, files
from tests.unit.erasure.example import EXAMPLE

BAD = Path(__file__).with_name("bad")
STRANGER = example.Ed25519PrivateKey.from_private_bytes(b"\x77" * 32)


@dataclass(frozen=True)
class Defect:
    """One bad file: its name, where it goes, the exit code that it must cause."""

    name: str
    place: str
    exit_code: int
    data: bytes
    with_closure: bool = False

    @property
    def beside(self) -> list[str]:
        """The good files that lie beside it: no more than make the defect the only one."""
        first = ["cert.json", "keys.json"]
        if self.place == "cert.json":
            return first
        if self.place.startswith("receipts") and not self.with_closure:
            return [*first, "receipts"]
        good = sorted({name.split("/")[0] for name in files.complete()} - {"addenda"})
        chain = ["addenda/1.json", "addenda/2.json", "addenda/b1.json"]
        if self.place == "addenda/1.json":
            chain.remove("addenda/2.json")
        return good + chain


def _signed(name: str, key: str, change: Callable[[dict[str, Any]], object]) -> bytes:
    """A document changed and signed again with its own key, so that only the change is bad."""
    statement = json.loads(example.payload_of(name))
    change(statement["predicate"])
    return envelope.seal(statement, example.key(key)).to_bytes()


def _raw(payload: bytes, key: str = "erasure_origin") -> bytes:
    kind = envelope.STATEMENT_PAYLOAD
    signature = envelope.sign(kind, payload, example.key(key))
    return envelope.Envelope(payload, kind, (signature,)).to_bytes()


def _set(path: str, value: Any) -> Callable[[dict[str, Any]], object]:
    def change(predicate: dict[str, Any]) -> None:
        *parents, last = path.split("/")
        at: Any = predicate
        for name in parents:
            at = at[int(name) if isinstance(at, list) else name]
        at[int(last) if isinstance(at, list) else last] = value

    return change


def _drop(name: str) -> Callable[[dict[str, Any]], object]:
    return lambda predicate: predicate.pop(name)


def _envelope(name: str) -> dict[str, Any]:
    return json.loads(json.dumps(EXAMPLE["envelopes"][name]))


def _trust(change: Callable[[dict[str, dict[str, Any]]], object]) -> bytes:
    entries = files.trust_entries()
    change(entries)
    return canonical.encode(entries)


def _head(of: int, key: str = "ledger_origin", **replaced: Any) -> bytes:
    told = json.loads(b64decode(EXAMPLE["ledger"][f"head_{of}"]["payload"])) | replaced
    payload = canonical.encode(told)
    signature = envelope.sign(envelope.HEAD_PAYLOAD, payload, example.key(key))
    return envelope.Envelope(payload, envelope.HEAD_PAYLOAD, (signature,)).to_bytes()


def _proof(path: str, value: Any) -> bytes:
    shown = files.proof_value()
    _set(path, value)(shown)
    return canonical.encode(shown)


def _flipped(text: str) -> str:
    data = bytearray(b64decode(text))
    data[0] ^= 1
    return b64encode(bytes(data)).decode()


def _malformed_certificates() -> Iterator[tuple[str, bytes]]:
    payload = example.payload_of("C")
    told = _envelope("C")
    yield "empty", b""
    yield "not-json", b"not json"
    yield "not-an-envelope", b"[]"
    yield "cut-in-half", json.dumps(told).encode()[:4000]
    yield "extra-envelope-field", json.dumps(told | {"more": 1}).encode()
    yield "no-signature", json.dumps(told | {"signatures": []}).encode()
    yield "other-payload-type", json.dumps(told | {"payloadType": "text/plain"}).encode()
    yield "payload-not-base64", json.dumps(told | {"payload": "*"}).encode()
    yield (
        "repeated-envelope-key",
        json.dumps(told).replace('{"payload"', '{"payload": "", "payload"', 1).encode(),
    )
    yield "repeated-key", _raw(payload.replace(b'"v":1', b'"v":1,"v":1'))
    yield "spaced", _raw(payload.replace(b'"v":1', b'"v": 1'))
    reversed_keys = dict(reversed(json.loads(payload).items()))
    yield "unsorted-keys", _raw(json.dumps(reversed_keys, separators=(",", ":")).encode())
    yield "fraction", _raw(payload.replace(b'"paths":14', b'"paths":14.0'))
    yield "exponent", _raw(payload.replace(b'"paths":14', b'"paths":14e0'))
    yield "integer-too-large", _raw(payload.replace(b'"paths":14', b'"paths":9007199254740992'))
    yield "not-a-number", _raw(payload.replace(b'"paths":14', b'"paths":NaN'))
    yield "lone-surrogate", _raw(payload.replace(b'"ntp"', b'"\\ud800"'))
    yield "key-not-ascii", _raw(payload.replace(b'"v":1', '"v":1,"\u00e4":1'.encode()))
    yield "too-deep", _raw(b"[" * 17 + b"]" * 17)
    yield "list-for-statement", _raw(b"[]")
    statement = json.loads(payload)
    for name, changed in (
        ("unknown-predicate-type", {"predicateType": "urn:mnemesh:erasure-certificate:v2"}),
        ("unknown-statement-type", {"_type": "https://in-toto.io/Statement/v2"}),
        ("two-subjects", {"subject": statement["subject"] * 2}),
        (
            "subject-of-a-receipt",
            {"subject": [statement["subject"][0] | {"name": "erasure:peer-removals"}]},
        ),
    ):
        yield name, _raw(canonical.encode(statement | changed))
    for name, change in (
        ("version-2", _set("v", 2)),
        ("unknown-crit", _set("crit", ["sealed-v2"])),
        ("unknown-method", _set("method", "protocol/2")),
        ("without-tiers", _drop("tiers")),
        ("negative-count", _set("tiers/pg.memories/removed", -1)),
        ("boolean-count", _set("tiers/pg.outbox/found", True)),
        ("unknown-level", _set("tiers/pg.memories/level", "L4")),
        ("unknown-how", _set("tiers/pg.memories/how", "magic")),
        ("upper-case-hex", _set("removal_root", EXAMPLE["sha256"]["C"].upper())),
        ("short-node-id", _set("node_id", "ab")),
        ("local-time", _set("completed_at", "2026-11-30T09:00:09+01:00")),
        ("thirteenth-month", _set("completed_at", "2026-13-30T09:00:09Z")),
        ("unsorted-not-covered", _set("not_covered", ["b", "a"])),
        ("unknown-physical", _set("pending/physical", ["pg.moon"])),
        ("unknown-basis", _set("request/basis", "because")),
        ("requester-not-a-key", _set("request/requester", "alice")),
    ):
        yield name, _signed("C", "erasure_origin", change)
    yield "a-receipt-in-place-of-it", example.envelope("R_b").to_bytes()


def _wrong_certificates() -> Iterator[tuple[str, bytes]]:
    told = _envelope("C")
    payload = example.payload_of("C")
    signature = told["signatures"][0]
    bad = [signature | {"sig": _flipped(signature["sig"])}]
    yield "bad-signature", json.dumps(told | {"signatures": bad}).encode()
    edited = payload.replace(b'"found":6', b'"found":7', 1)
    yield (
        "edited-after-signing",
        json.dumps(told | {"payload": b64encode(edited).decode()}).encode(),
    )
    zero = "0" * 64
    empty = ledger.merkle.EMPTY_ROOT.hex()
    plan = EXAMPLE["statements"]["C"]["predicate"]["plan_root"]
    removal = EXAMPLE["statements"]["C"]["predicate"]["removal_root"]
    assert plan != removal
    for name, change in (
        ("sum-does-not-add-up", _set("tiers/pg.memories/found", 7)),
        ("n-is-not-found-minus-retained", _set("tiers/pg.memories/n", 6)),
        ("after-is-not-retained", _set("tiers/pg.memories/after", 0)),
        ("tier-root-replaced", _set("tiers/pg.memories/root", zero)),
        ("tier-root-empty", _set("tiers/pg.memories/root", empty)),
        ("tier-left-out", lambda told: told["tiers"].pop("pg.outbox")),
        ("no-tiers", _set("tiers", {})),
        ("removal-root-replaced", _set("removal_root", zero)),
        ("plan-root-hides-what-is-retained", _set("plan_root", removal)),
        ("retained-not-explained", _set("retained", [])),
        ("key-claim-in-clear-mode", _set("tiers/pg.memories/level", "L3")),
        ("completed-before-started", _set("completed_at", "2026-11-30T09:00:00Z")),
        ("hits-in-verification", _set("verification/hits", 1)),
        ("residue-in-verification", _set("verification/residue", 1)),
        ("due-before-requested", _set("request/due_by", "2026-11-30T08:57:59Z")),
        ("intent-after-certificate", _set("intent_seq", 3)),
        ("other-epoch", _set("scope/epoch", 2)),
        ("other-mesh", _set("mesh_id", "mesh-demo-2")),
        ("other-handle", _set("scope/handle", zero)),
        ("beyond-use-missing", _set("beyond_use", None)),
        ("beyond-use-denied", _set("beyond_use/secured", False)),
        ("beyond-use-other-date", _set("beyond_use/deleted_by", "2027-01-31")),
        ("beyond-use-without-stance", _set("pending/backups/stance", "none")),
    ):
        yield name, _signed("C", "erasure_origin", change)
    statement = json.loads(payload)
    statement["subject"][0]["digest"]["sha256"] = zero
    yield "subject-is-not-the-root", _raw(canonical.encode(statement))


def _other_documents() -> Iterator[Defect]:
    zero = "0" * 64
    peer, origin = "erasure_peer_b", "erasure_origin"

    def receipt(name: str, code: int, change: Callable[[dict[str, Any]], object]) -> Defect:
        return Defect(f"receipt-{name}", "receipts/b.json", code, _signed("R_b", peer, change))

    yield receipt("of-another-certificate", 1, _set("certificate_sha256", zero))
    yield receipt(
        "to-an-unknown-notice",
        1,
        lambda told: told.update(certificate_sha256=None, notice_sha256=zero),
    )
    yield receipt("never-had-with-counts", 1, _set("status", "never_had"))
    yield receipt("partial-without-tiers", 1, _set("status", "partial"))
    yield receipt("sum-does-not-add-up", 1, _set("tiers/pg.memories/found", 3))
    yield receipt("forwarded-to-itself", 1, _set("forwarded_to", [EXAMPLE["nodes"]["b"]]))
    yield receipt("unknown-status", 4, _set("status", "done"))
    yield receipt("of-another-node", 3, _set("node_id", EXAMPLE["nodes"]["d"]))
    yield Defect(
        "receipt-second-of-one-node",
        "receipts/b2.json",
        1,
        _signed("R_b", peer, _set("started_at", "2026-11-30T09:00:10Z")),
    )
    yield Defect(
        "receipt-not-the-one-in-the-closure",
        "receipts/b.json",
        1,
        _signed("R_b", peer, _set("started_at", "2026-11-30T09:00:10Z")),
        with_closure=True,
    )
    yield Defect(
        "receipt-by-a-stranger",
        "receipts/b.json",
        3,
        seal(example.receipt_b(), STRANGER).to_bytes(),
    )
    yield Defect("receipt-not-json", "receipts/x.json", 4, b"{")
    yield Defect(
        "notice-count-hides-ids", "receipts/notice.json", 1, _signed("N", origin, _set("ids_n", 0))
    )

    def closure(name: str, code: int, change: Callable[[dict[str, Any]], object]) -> Defect:
        return Defect(f"closure-{name}", "closure.json", code, _signed("Z", origin, change))

    expelled = EXAMPLE["statements"]["Z"]["predicate"]["recipients"][2]
    yield closure("of-another-certificate", 1, _set("certificate_sha256", zero))
    yield closure("root-replaced", 1, _set("receipts_root", zero))
    yield closure("recipient-left-out", 1, lambda told: told["recipients"].pop())
    yield closure("count-wrong", 1, _set("recipients_n", 4))
    yield closure("status-changed", 1, _set("recipients/2/status", "never_had"))
    yield closure("unreachable-without-date", 1, _set("recipients/2/status", "unreachable"))
    yield closure("added-but-no-recipient", 1, _set("added_after_certificate", ["ee" * 16]))
    yield closure("before-the-certificate", 1, _set("closed_at", "2026-11-30T09:00:08Z"))
    yield closure("recipients-unsorted", 4, lambda told: told["recipients"].reverse())
    yield closure("recipient-twice", 4, lambda told: told["recipients"].append(expelled))
    yield closure("entry-of-the-certificate", 5, _set("ledger/entry", 3))
    sig = EXAMPLE["statements"]["Z"]["predicate"]["witnesses"][0]["sig"]
    yield closure("witness-bad-signature", 1, _set("witnesses/0/sig", _flipped(sig)))
    yield closure("witness-other-size", 1, _set("witnesses/0/size", 6))
    yield closure("witness-unknown-key", 3, _set("witnesses/0/keyid", zero))
    yield closure("witness-sig-not-base64", 4, _set("witnesses/0/sig", "*"))
    yield closure("without-witness", 2, _set("witnesses", []))

    def addendum(
        name: str, code: int, change: Callable[[dict[str, Any]], object], n: int = 1
    ) -> Defect:
        data = _signed(f"P_{n}", origin, change)
        return Defect(f"addendum-{name}", f"addenda/{n}.json", code, data)

    yield addendum("gap", 1, _set("n", 3), 2)
    yield addendum("previous-wrong", 1, _set("previous", zero), 2)
    yield addendum("first-with-previous", 1, _set("previous", zero))
    yield addendum("level-falls", 1, _set("levels/pg.memories/to", "L0"), 2)
    yield addendum("level-from-elsewhere", 1, _set("levels/pg.memories/from", "L2"), 2)
    yield addendum(
        "level-of-no-tier",
        1,
        _set("levels", {"pg.none": {"from": "L1", "to": "L2", "how": "vacuum-full"}}),
        2,
    )
    yield addendum("root-replaced", 1, _set("removal_root", zero))
    yield addendum("of-another-certificate", 1, _set("certificate_sha256", zero))
    yield addendum("recipients-in-hold-release", 1, _set("recipients", [expelled]))
    yield addendum("unknown-kind", 4, _set("kind", "wish"))
    yield addendum("entry-taken", 5, _set("ledger/entry", 3), 2)
    root = EXAMPLE["statements"]["P_1"]["predicate"]["removed"]["pg.memories"]["root"]
    more = {"pg.memories": {"n": 2, "root": root}}
    top = ledger.merkle.root(
        [example.leaves.lp(b"pg.memories", (2).to_bytes(8, "big"), bytes.fromhex(root))]
    )
    yield addendum(
        "releases-more-than-held", 1, lambda told: told.update(removed=more, removal_root=top.hex())
    )


def _trust_and_ledger() -> Iterator[Defect]:
    origin = EXAMPLE["keys"]["erasure_origin"]["keyid"]
    log = EXAMPLE["keys"]["ledger_origin"]["keyid"]

    def trust(name: str, code: int, change: Callable[[dict[str, Any]], object]) -> Defect:
        return Defect(f"trust-{name}", "keys.json", code, _trust(change))

    yield trust("key-unknown", 3, lambda keys: keys.pop(origin))
    yield trust("key-revoked", 3, _set(f"{origin}/revoked_at", "2026-11-30T09:00:09Z"))
    yield trust("key-too-young", 3, _set(f"{origin}/not_before", "2026-11-30T09:00:10Z"))
    yield trust("key-too-old", 3, _set(f"{origin}/not_after", "2026-11-30T09:00:08Z"))
    yield trust("key-of-another-role", 3, _set(f"{origin}/role", "ledger"))
    yield trust("key-of-another-node", 3, _set(f"{origin}/node_id", EXAMPLE["nodes"]["b"]))
    yield trust("ledger-key-unknown", 3, lambda keys: keys.pop(log))
    yield trust("id-not-of-the-key", 4, _set(f"{origin}/public_hex", "00" * 32))
    yield trust("unknown-role", 4, _set(f"{origin}/role", "king"))
    yield Defect("trust-not-json", "keys.json", 4, b"keys")

    zero = "0" * 64
    shown = files.proof_value()
    entry = json.loads(shown["entry"])
    yield Defect("proof-path-wrong", "proof.json", 5, _proof("inclusion/path/0", zero))
    yield Defect("proof-path-short", "proof.json", 5, _proof("inclusion/path", []))
    yield Defect("proof-index-wrong", "proof.json", 5, _proof("inclusion/index", 3))
    yield Defect("proof-size-unknown", "proof.json", 2, _proof("inclusion/size", 7))
    yield Defect("proof-consistency-wrong", "proof.json", 5, _proof("consistency/0/path/0", zero))
    yield Defect("proof-without-consistency", "proof.json", 2, _proof("consistency", []))
    yield Defect(
        "proof-of-another-document",
        "proof.json",
        5,
        _proof("entry", canonical.encode(entry | {"document": zero}).decode()),
    )
    yield Defect(
        "proof-entry-of-another-time",
        "proof.json",
        5,
        _proof("entry", canonical.encode(entry | {"at": "2026-11-30T09:00:10Z"}).decode()),
    )
    yield Defect("proof-entry-spaced", "proof.json", 4, _proof("entry", json.dumps(entry)))
    yield Defect("proof-extra-field", "proof.json", 4, canonical.encode(shown | {"more": 1}))
    yield Defect("proof-version-2", "proof.json", 4, canonical.encode(shown | {"v": 2}))
    yield Defect("proof-not-json", "proof.json", 4, b"proof")

    root_5 = EXAMPLE["ledger"]["root_5"]
    yield Defect("head-other-root", "head.json", 5, _head(8, root=zero))
    yield Defect("head-fork-of-the-witnessed", "head.json", 5, _head(5, root=zero))
    yield Defect("head-too-small", "head.json", 5, _head(8, size=2))
    yield Defect(
        "head-older-than-a-smaller-one", "head.json", 5, _head(8, at="2026-12-29T09:00:00Z")
    )
    yield Defect("head-of-another-log", "head.json", 5, _head(8, log_id=zero))
    yield Defect("head-signed-by-a-peer", "head.json", 3, _head(8, key="ledger_peer_b"))
    yield Defect("head-root-not-hex", "head.json", 4, _head(8, root=root_5[:-1]))
    yield Defect("head-is-a-certificate", "head.json", 4, example.envelope("C").to_bytes())
    told = json.loads(json.dumps(EXAMPLE["ledger"]["head_8"]))
    told["signatures"][0]["sig"] = _flipped(told["signatures"][0]["sig"])
    yield Defect("head-bad-signature", "head.json", 1, json.dumps(told).encode())

    opened = EXAMPLE["opening_mem3"]
    for name, code, changed in (
        ("other-leaf", 1, {"leaf": zero}),
        ("other-index", 1, {"index": 2}),
        ("other-size", 1, {"size": 6}),
        ("other-tier", 1, {"tier": "pg.diffs"}),
        ("unknown-tier", 1, {"tier": "pg.none"}),
        ("short-path", 1, {"path": opened["path"][:2]}),
        ("leaf-not-hex", 4, {"leaf": "zz"}),
        ("extra-field", 4, {"more": 1}),
    ):
        yield Defect(f"opening-{name}", "opening.json", code, canonical.encode(opened | changed))


def defects() -> list[Defect]:
    """All defects, by name."""
    found = [
        Defect(f"certificate-{name}", "cert.json", 4, data)
        for name, data in _malformed_certificates()
    ]
    found += [
        Defect(f"certificate-{name}", "cert.json", 1, data) for name, data in _wrong_certificates()
    ]
    stranger = seal(example.certificate(), STRANGER).to_bytes()
    found.append(Defect("certificate-by-a-stranger", "cert.json", 3, stranger))
    by_peer = seal(example.certificate(), example.key("erasure_peer_b")).to_bytes()
    found.append(Defect("certificate-signed-by-a-peer", "cert.json", 3, by_peer))
    both = dataclasses.replace(
        example.envelope("C"),
        signatures=(
            *example.envelope("C").signatures,
            envelope.Signature(EXAMPLE["keys"]["erasure_peer_b"]["keyid"], bytes(64)),
        ),
    )
    found.append(Defect("certificate-second-signature-bad", "cert.json", 1, both.to_bytes()))
    found += [*_other_documents(), *_trust_and_ledger()]
    return sorted(found, key=lambda one: one.name)


def index(found: list[Defect]) -> bytes:
    """The list of all bad files with place and expected exit code."""
    told = {
        one.name: {"beside": one.beside, "exit": one.exit_code, "place": one.place} for one in found
    }
    return json.dumps(told, indent=1, sort_keys=True).encode() + b"\n"


def write() -> None:
    BAD.mkdir(exist_ok=True)
    for old in BAD.glob("*.json"):
        old.unlink()
    found = defects()
    for one in found:
        (BAD / f"{one.name}.json").write_bytes(one.data)
    (BAD / "index.json").write_bytes(index(found))


if __name__ == "__main__":
    write()
