"""What the documents of one erasure say about each other, and what they leave open.

Takes documents whose own form, sums and signatures were already judged, and looks at the
references between them: receipts against certificate and closure, addenda against the state
that they continue. Part of the offline verifier.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from erasure import leaves
from erasure.forms import AddendumKind, Doc, ReceiptStatus, RecipientStatus
from erasure.report import PendingKind, Report, Verdict

_SETTLED = frozenset({RecipientStatus.ACKED, RecipientStatus.NEVER_HAD, RecipientStatus.EXPELLED})
_ANSWERED = {
    RecipientStatus.ACKED: ReceiptStatus.APPLIED,
    RecipientStatus.NEVER_HAD: ReceiptStatus.NEVER_HAD,
}


@dataclass(frozen=True, slots=True)
class Signed:
    """A document that was read: file label, kind, predicate, subject and payload digest in hex."""

    label: str
    doc: Doc
    predicate: dict[str, Any]
    subject: str
    sha256: str

    @property
    def node_id(self) -> str:
        return str(self.predicate["node_id"])


@dataclass(slots=True)
class Crosscheck:
    """All documents of one erasure around its certificate."""

    certificate: Signed
    report: Report
    receipts: dict[str, Signed] = field(default_factory=dict)
    notices: dict[str, Signed] = field(default_factory=dict)
    addenda: dict[str, list[Signed]] = field(default_factory=dict)
    closure: Signed | None = None

    def take(self, signed: Signed) -> None:
        """Sort one more document in; what belongs to another erasure is a cause."""
        for name in ("erasure_id", "mesh_id"):
            if signed.predicate[name] != self.certificate.predicate[name]:
                self._wrong(signed, f"{name} is not that of the certificate")
                return
        scope = signed.predicate.get("scope")
        if scope is not None and scope != self.certificate.predicate["scope"]:
            self._wrong(signed, "scope is not that of the certificate")
            return
        if signed.doc is Doc.RECEIPT:
            known = self.receipts.setdefault(signed.node_id, signed)
            if known.sha256 != signed.sha256:
                self._wrong(signed, "is a second receipt of the same node")
        elif signed.doc is Doc.NOTICE:
            self.notices[signed.sha256] = signed
        elif signed.doc is Doc.ADDENDUM:
            chain = self.addenda.setdefault(signed.node_id, [])
            if all(known.sha256 != signed.sha256 for known in chain):
                chain.append(signed)
        elif signed.doc is Doc.CLOSURE:
            self.closure = signed

    def conclude(self) -> None:
        """Compare everything, then say what is pending."""
        for receipt in self.receipts.values():
            self._check_receipt(receipt)
        for notice in self.notices.values():
            self._check_notice(notice)
        if self.closure is not None:
            self._check_closure(self.closure)
        for node_id, chain in self.addenda.items():
            chain.sort(key=lambda one: int(one.predicate["n"]))
            self._check_chain(node_id, chain)
        self._check_entries()
        self._open_recipients()
        self._open_bytes()
        if self.closure is None:
            self.report.leave_open(PendingKind.CLOSURE, "no closure was given")

    def _check_receipt(self, receipt: Signed) -> None:
        told = receipt.predicate["certificate_sha256"]
        if receipt.node_id == self.certificate.node_id:
            self._wrong(receipt, "is by the node of the certificate itself")
        if told is None:
            if receipt.predicate["notice_sha256"] not in self.notices:
                self._wrong(
                    receipt, "answers a notice that does not lie beside it, and no certificate"
                )
        elif told != self.certificate.sha256:
            self._wrong(receipt, "refers to another certificate")

    def _check_notice(self, notice: Signed) -> None:
        if notice.node_id != self.certificate.node_id:
            self._wrong(notice, "is not by the node of the certificate")
        if notice.predicate["certificate_sha256"] not in (None, self.certificate.sha256):
            self._wrong(notice, "refers to another certificate")

    def _check_closure(self, closure: Signed) -> None:
        told, origin = closure.predicate, self.certificate.predicate
        if told["certificate_sha256"] != self.certificate.sha256:
            self._wrong(closure, "refers to another certificate")
        if closure.node_id != self.certificate.node_id:
            self._wrong(closure, "is not by the node of the certificate")
        if told["closed_at"] < origin["completed_at"]:
            self._wrong(closure, "closed_at is before the certificate's completed_at")
        first = {entry["node_id"] for entry in told["recipients"]} - set(
            told["added_after_certificate"]
        )
        if (
            len(first) != origin["recipients"]["n"]
            or leaves.id_set_root(first).hex() != origin["recipients"]["set_root"]
        ):
            self._wrong(closure, "recipients are not those that the certificate counted")
        for entry in told["recipients"]:
            self._compare_answer(closure, entry)

    def _compare_answer(self, source: Signed, entry: dict[str, Any]) -> None:
        receipt = self.receipts.get(entry["node_id"])
        if receipt is None or entry["receipt_sha256"] is None:
            return
        if receipt.sha256 != entry["receipt_sha256"]:
            self._wrong(source, f"recipient {entry['node_id']}: the receipt is another one")
        expected = _ANSWERED.get(entry["status"])
        if expected is not None and receipt.predicate["status"] != expected:
            self._wrong(
                source,
                f"recipient {entry['node_id']}: the receipt says {receipt.predicate['status']}",
            )

    def _check_chain(self, node_id: str, chain: list[Signed]) -> None:
        base = self.certificate if node_id == self.certificate.node_id else self._answer(node_id)
        about = base.sha256 if base is not None else self._answer_digest(node_id)
        tiers = base.predicate["tiers"] if base is not None else None
        levels = {name: entry["level"] for name, entry in (tiers or {}).items()}
        held = {name: entry["retained"] for name, entry in (tiers or {}).items()}
        previous: str | None = None
        for number, addendum in enumerate(chain, 1):
            told = addendum.predicate
            if told["n"] != number:
                self._wrong(addendum, f"is number {told['n']} where {number} was expected")
                break
            if told["previous"] != previous:
                self._wrong(addendum, "previous is not the addendum before")
            previous = addendum.sha256
            if about is not None and addendum.subject != about:
                self._wrong(addendum, "is about another document than this node's own")
            allowed = {self.certificate.sha256}
            if told["certificate_sha256"] not in (
                allowed if node_id == self.certificate.node_id else allowed | {None}
            ):
                self._wrong(addendum, "refers to another certificate")
            if tiers is not None:
                self._check_levels(addendum, levels)
                if told["kind"] == AddendumKind.HOLD_RELEASE:
                    self._check_release(addendum, held)
            for entry in told["recipients"]:
                self._compare_answer(addendum, entry)
        if about is None:
            self.report.leave_open(
                PendingKind.RECEIPT, "the receipt behind its addenda was not given", node_id=node_id
            )

    def _check_levels(self, addendum: Signed, levels: dict[str, str]) -> None:
        for name, change in addendum.predicate["levels"].items():
            if levels.get(name) != change["from"]:
                self._wrong(addendum, f"levels.{name}: does not start from the level reached")
            levels[name] = change["to"]

    def _check_release(self, addendum: Signed, held: dict[str, int]) -> None:
        for name, entry in addendum.predicate["removed"].items():
            held[name] = held.get(name, 0) - entry["n"]
            if held[name] < 0:
                self._wrong(addendum, f"removed.{name}: releases more than was held")

    def _check_entries(self) -> None:
        """Within one log, later documents stand behind earlier ones and never share an entry."""
        chains = [[self.certificate], *([receipt] for receipt in self.receipts.values())]
        for chain in chains:
            node_id = chain[0].node_id
            later = [*chain, *self.addenda.get(node_id, [])]
            if self.closure is not None and self.closure.node_id == node_id:
                later.append(self.closure)
            first = chain[0].predicate["ledger"]
            taken: set[int] = set()
            for one in later:
                told = one.predicate["ledger"]
                if told["log_id"] != first["log_id"]:
                    continue
                if told["entry"] in taken or told["entry"] < first["entry"]:
                    self.report.blame(
                        Verdict.LEDGER,
                        one.label,
                        f"entry {told['entry']} cannot carry this document",
                    )
                taken.add(told["entry"])

    def _open_recipients(self) -> None:
        settled, missing = self._statuses()
        for node_id, until in sorted(missing.items()):
            receipt = self._answer(node_id)
            partial = receipt is not None and receipt.predicate["status"] == ReceiptStatus.PARTIAL
            if receipt is not None and not partial:
                self.report.notes.append(f"node {node_id} answered after the closure")
                settled.add(node_id)
            else:
                unsupported = ", ".join(receipt.predicate["unsupported"]) if receipt else ""
                self.report.leave_open(
                    PendingKind.RECIPIENT,
                    f"cannot clean {unsupported}" if partial else "has not settled",
                    node_id=node_id,
                    until=until,
                )
        forwarded = {
            node for one in self.receipts.values() for node in one.predicate["forwarded_to"]
        }
        known = settled | set(missing) | set(self.receipts) | {self.certificate.node_id}
        for node_id in sorted(forwarded - known):
            self.report.leave_open(
                PendingKind.RECIPIENT, "was forwarded to and has not settled", node_id=node_id
            )

    def _statuses(self) -> tuple[set[str], dict[str, str | None]]:
        """Settled nodes, and unsettled ones with the day of their expulsion."""
        if self.closure is None:
            return self._statuses_by_receipts()
        entries = {entry["node_id"]: entry for entry in self.closure.predicate["recipients"]}
        for addendum in self.addenda.get(self.certificate.node_id, []):
            for entry in addendum.predicate["recipients"]:
                if entry["node_id"] not in entries:
                    self._wrong(addendum, f"recipient {entry['node_id']} is not in the closure")
                elif entries[entry["node_id"]]["status"] in _ANSWERED:
                    self._wrong(addendum, f"recipient {entry['node_id']} had answered before")
                else:
                    entries[entry["node_id"]] = entry
        settled: set[str] = set()
        missing: dict[str, str | None] = {}
        for node_id, entry in entries.items():
            if entry["status"] not in _SETTLED:
                missing[node_id] = entry["until"]
                continue
            settled.add(node_id)
            if entry["status"] in _ANSWERED and node_id not in self.receipts:
                self.report.leave_open(
                    PendingKind.RECEIPT, "the receipt was not given", node_id=node_id
                )
        return settled, missing

    def _statuses_by_receipts(self) -> tuple[set[str], dict[str, str | None]]:
        counted = self.certificate.predicate["recipients"]
        forwarded = {
            node for one in self.receipts.values() for node in one.predicate["forwarded_to"]
        }
        missing: dict[str, str | None] = {}
        settled = set()
        for node_id, receipt in self.receipts.items():
            if receipt.predicate["status"] == ReceiptStatus.PARTIAL:
                missing[node_id] = None
            else:
                settled.add(node_id)
        answered = set(self.receipts)
        complete = any(
            len(ids) == counted["n"] and leaves.id_set_root(ids).hex() == counted["set_root"]
            for ids in (answered, answered - forwarded)
        )
        if not complete:
            absent = max(counted["n"] - len(answered), 0)
            self.report.leave_open(
                PendingKind.RECEIPT,
                f"{absent} of {counted['n']} recipients have no receipt here"
                if absent
                else "the receipts are not those of the counted recipients",
            )
        return settled, missing

    def _open_bytes(self) -> None:
        for one in [self.certificate, *self.receipts.values()]:
            chain = self.addenda.get(one.node_id, [])
            pending = (chain[-1] if chain else one).predicate["pending"]
            if pending["physical"]:
                self.report.leave_open(
                    PendingKind.PHYSICAL, ", ".join(pending["physical"]), node_id=one.node_id
                )
            backups = pending["backups"]
            if backups["stance"] != "none":
                self.report.leave_open(
                    PendingKind.BACKUP,
                    backups["stance"],
                    node_id=one.node_id,
                    until=backups["clear_after"],
                )

    def _answer(self, node_id: str) -> Signed | None:
        return self.receipts.get(node_id)

    def _answer_digest(self, node_id: str) -> str | None:
        if self.closure is None:
            return None
        for entry in self.closure.predicate["recipients"]:
            if entry["node_id"] == node_id:
                digest: str | None = entry["receipt_sha256"]
                return digest
        return None

    def _wrong(self, signed: Signed, message: str) -> None:
        self.report.blame(Verdict.WRONG, signed.label, message)
