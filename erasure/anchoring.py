"""Whether the certificate stands in a ledger head that somebody else has seen.

A chain does not notice that its newest entries were cut off; only a head held by another node
shows it. So an inclusion proof alone is never called complete: it must lead to a head with a
witness's signature, directly or over a consistency proof. Part of the offline verifier.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from erasure import canonical, envelope, merkle, shapes
from erasure.canonical import Json, Malformed
from erasure.envelope import HEAD_PAYLOAD, Envelope
from erasure.report import PendingKind, Report, Verdict
from erasure.trust import Role, Trust

_DIGEST = shapes.hexadecimal(32)
_PATH = shapes.sequence(_DIGEST)
_HEAD = shapes.record(
    {
        "v": shapes.whole(1),
        "log_id": _DIGEST,
        "size": shapes.whole(1),
        "root": _DIGEST,
        "at": shapes.time,
    }
)
_PROOF = shapes.record(
    {
        "v": shapes.whole(1),
        "entry": shapes.text,
        "inclusion": shapes.record(
            {"index": shapes.whole(), "size": shapes.whole(1), "path": _PATH}
        ),
        "consistency": shapes.sequence(
            shapes.record({"from": shapes.whole(1), "to": shapes.whole(1), "path": _PATH})
        ),
    }
)


@dataclass(frozen=True, slots=True)
class Head:
    """A tree head whose signature held; `witnessed` when another node signed it."""

    size: int
    root: bytes
    at: str
    witnessed: bool


@dataclass(slots=True)
class Anchoring:
    """The heads of one certificate's log, and the certificate's place in them."""

    log_id: str
    entry: int
    node_id: str
    document: str
    erasure_id: str
    trust: Trust
    report: Report
    heads: dict[int, Head] = field(default_factory=dict)
    joined: list[tuple[int, int]] = field(default_factory=list)

    def take_head(self, signed: Envelope) -> None:
        """Judge a tree head file of the certificate's log."""
        if signed.payload_type != HEAD_PAYLOAD:
            self._blame(Verdict.MALFORMED, "head", "is not a tree head")
            return
        value = _shaped(signed.payload, _HEAD, "head", self.report)
        if value is None:
            return
        if value["log_id"] != self.log_id:
            self._blame(Verdict.LEDGER, "head", "belongs to another log than the certificate")
            return
        self.trust.judge(
            signed,
            "head",
            self.report,
            roles=(Role.LEDGER,),
            node_id=self.node_id,
            at=value["at"],
            only=self.log_id,
        )
        witnessed = any(
            self._is_witness(one.keyid, value["at"])
            and envelope.verify(
                self.trust.keys[one.keyid].public, HEAD_PAYLOAD, signed.payload, one.sig
            )
            for one in signed.signatures
        )
        if value["size"] < self.entry:
            self._blame(Verdict.LEDGER, "head", "is smaller than the certificate's entry number")
        self._add(value["size"], bytes.fromhex(value["root"]), value["at"], witnessed, "head")

    def take_witness(self, told: dict[str, Any]) -> None:
        """Judge a witness entry of the closure."""
        label = f"closure witness {told['node_id']}"
        if told["log_id"] != self.log_id:
            self.report.notes.append(f"{label}: speaks about another log")
            return
        key = self.trust.keys.get(told["keyid"])
        if key is None:
            self._blame(Verdict.KEY, label, f"key {told['keyid']} is unknown")
            return
        try:
            sig = envelope.signature_from_text(told["sig"])
        except Malformed as error:
            self._blame(Verdict.MALFORMED, label, str(error))
            return
        payload = canonical.encode(
            {"v": 1} | {name: told[name] for name in ("at", "log_id", "root", "size")}
        )
        if not envelope.verify(key.public, HEAD_PAYLOAD, payload, sig):
            self._blame(Verdict.WRONG, label, "the signature does not hold")
            return
        objection = key.objection(told["at"])
        if objection is None and (
            key.role not in (Role.LEDGER, Role.WITNESS)
            or key.node_id != told["node_id"]
            or key.node_id == self.node_id
        ):
            objection = f"key {key.keyid} is not a witness's key of another node"
        if objection is not None:
            self._blame(Verdict.KEY, label, objection)
            return
        self._add(told["size"], bytes.fromhex(told["root"]), told["at"], True, label)

    def conclude(self, proof: Json) -> None:
        """Judge the proof file, None when there is none, and say what is still open."""
        self._compare_heads()
        if proof is None:
            self._open("no proof of the certificate's entry was given")
            return
        value = _formed(proof, _PROOF, "proof", self.report)
        if value is None:
            return
        size = self._place(value)
        if size is None:
            return
        for step in value["consistency"]:
            self._join(step)
        reached = {size}
        while True:
            more = {b for a, b in self.joined if a in reached} | {
                a for a, b in self.joined if b in reached
            }
            if more <= reached:
                break
            reached |= more
        if not any(
            head.witnessed and head.size in reached and head.size >= self.entry
            for head in self.heads.values()
        ):
            unjoined = [str(head.size) for head in self.heads.values() if head.witnessed]
            self._open(
                f"no consistency proof joins the head with the witnessed size {', '.join(unjoined)}"
                if unjoined
                else "no other node has signed a head with this entry"
            )

    def _place(self, proof: dict[str, Any]) -> int | None:
        payload = proof["entry"].encode("utf-8")
        try:
            entry = canonical.decode(payload)
        except Malformed as error:
            self._blame(Verdict.MALFORMED, "proof", f"entry: {error}")
            return None
        inclusion = proof["inclusion"]
        wanted = {
            "document": self.document,
            "erasure_id": self.erasure_id,
            "kind": "certificate",
            "seq": self.entry,
        }
        if not isinstance(entry, dict) or {name: entry.get(name) for name in wanted} != wanted:
            self._blame(Verdict.LEDGER, "proof", "the entry is not that of this certificate")
            return None
        if inclusion["index"] != self.entry - 1:
            self._blame(Verdict.LEDGER, "proof", "the index is not that of the entry")
            return None
        size = int(inclusion["size"])
        root = merkle.root_from_inclusion(
            merkle.leaf_hash(payload),
            inclusion["index"],
            size,
            [bytes.fromhex(one) for one in inclusion["path"]],
        )
        if root is None:
            self._blame(Verdict.LEDGER, "proof", "the inclusion path does not fit index and size")
            return None
        head = self.heads.get(size)
        if head is None:
            self._open(f"no trusted head of size {size} was given")
            return None
        if head.root != root:
            self._blame(Verdict.LEDGER, "proof", "the entry is not in the head")
            return None
        return size

    def _join(self, step: dict[str, Any]) -> None:
        first, second = self.heads.get(step["from"]), self.heads.get(step["to"])
        if first is None or second is None:
            self.report.notes.append(
                f"proof: consistency {step['from']} to {step['to']} names a head that is not here"
            )
            return
        path = [bytes.fromhex(one) for one in step["path"]]
        if merkle.verify_consistency(first.size, second.size, first.root, second.root, path):
            self.joined.append((first.size, second.size))
        else:
            self._blame(
                Verdict.LEDGER,
                "proof",
                f"the head of size {second.size} does not continue that of size {first.size}",
            )

    def _add(self, size: int, root: bytes, at: str, witnessed: bool, label: str) -> None:
        known = self.heads.get(size)
        if known is not None and known.root != root:
            self._blame(Verdict.LEDGER, label, f"two heads of size {size} have different roots")
            return
        seen = witnessed or (known is not None and known.witnessed)
        self.heads[size] = Head(size, root, at if known is None else min(at, known.at), seen)

    def _compare_heads(self) -> None:
        ordered = sorted(self.heads.values(), key=lambda head: head.size)
        for smaller, larger in pairwise(ordered):
            if smaller.at > larger.at:
                self._blame(
                    Verdict.LEDGER,
                    "head",
                    f"a head of size {smaller.size} is later than one of size {larger.size}",
                )

    def _is_witness(self, keyid: str, at: str) -> bool:
        key = self.trust.keys.get(keyid)
        return (
            key is not None
            and key.role in (Role.LEDGER, Role.WITNESS)
            and key.node_id not in (None, self.node_id)
            and key.objection(at) is None
        )

    def _blame(self, verdict: Verdict, label: str, message: str) -> None:
        self.report.blame(verdict, label, message)

    def _open(self, why: str) -> None:
        self.report.leave_open(PendingKind.WITNESS, f"tail not witnessed: {why}")


def _shaped(
    payload: bytes, form: shapes.Check, label: str, report: Report
) -> dict[str, Any] | None:
    try:
        value = canonical.decode(payload)
    except Malformed as error:
        report.blame(Verdict.MALFORMED, label, str(error))
        return None
    return _formed(value, form, label, report)


def _formed(value: Json, form: shapes.Check, label: str, report: Report) -> dict[str, Any] | None:
    found = shapes.Findings()
    form(value, label, found)
    faults = found.faults + [f"{name} is not a known field" for name in found.unknown]
    if not faults and isinstance(value, dict) and value["v"] != 1:
        faults.append(f"{label}.v is not 1")
    report.blame_all(Verdict.MALFORMED, label, faults)
    return value if isinstance(value, dict) and not faults else None
