"""The offline verifier: files in, a report out, on any machine and without a node.

Reads the documents of one erasure and a list of trusted keys, and answers whether they hold
and what is still open. It never uses the network, a database or a node's configuration, and
every input leads to a report: what cannot be read is a cause in it, not an error. It attests
what was signed; it cannot see copies that nobody knows of.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from erasure import canonical, merkle, shapes
from erasure.anchoring import Anchoring
from erasure.canonical import MAX_BYTES, Json, Malformed
from erasure.crosscheck import Crosscheck, Signed
from erasure.documents import examine
from erasure.envelope import HEAD_PAYLOAD, STATEMENT_PAYLOAD, Envelope
from erasure.forms import Doc
from erasure.report import Report, Verdict
from erasure.trust import Role, Trust

MAX_FILES = 10_000

_TIME_FIELD = {
    Doc.CERTIFICATE: "completed_at",
    Doc.RECEIPT: "completed_at",
    Doc.CLOSURE: "closed_at",
    Doc.ADDENDUM: "at",
    Doc.NOTICE: "issued_at",
    Doc.ABSENCE: "searched_at",
}
_OPENING = shapes.record(
    {
        "tier": shapes.text,
        "record_id": shapes.text,
        "leaf": shapes.hexadecimal(32),
        "index": shapes.whole(),
        "size": shapes.whole(1),
        "path": shapes.sequence(shapes.hexadecimal(32)),
    }
)


def verify_files(
    cert: Path,
    trust: Path,
    receipts: Path | None = None,
    closure: Path | None = None,
    addenda: Path | None = None,
    proof: Path | None = None,
    head: Path | None = None,
    opening: Path | None = None,
    require_closed: bool = False,
) -> Report:
    """Verify a certificate with whatever else has arrived.

    `receipts` holds receipts and the notices that they answer, `addenda` the addenda of all
    nodes; each is a directory of *.json files, or one file. With `require_closed` a missing
    closure makes the outcome 1 instead of pending. Total: never raises for any content of the
    files; exit codes are those of `Verdict`.
    """
    return _Session(Report()).run(
        cert, trust, receipts, closure, addenda, proof, head, opening, require_closed
    )


class _Session:
    def __init__(self, report: Report) -> None:
        self.report = report
        self.trust = Trust()

    def run(
        self,
        cert: Path,
        trust: Path,
        receipts: Path | None,
        closure: Path | None,
        addenda: Path | None,
        proof: Path | None,
        head: Path | None,
        opening: Path | None,
        require_closed: bool,
    ) -> Report:
        self._load_trust(trust)
        certificate = self._load(cert, "certificate", Doc.CERTIFICATE)
        if require_closed and closure is None:
            self.report.blame(Verdict.WRONG, "closure", "is required and was not given")
        if certificate is None:
            return self.report
        self._state_facts(certificate)
        check = Crosscheck(certificate, self.report)
        for folder, label, wanted in (
            (receipts, "receipts", (Doc.RECEIPT, Doc.NOTICE)),
            (addenda, "addenda", (Doc.ADDENDUM,)),
        ):
            for path in self._files(folder, label):
                signed = self._load(path, f"{label}/{path.name}", *wanted, strict=False)
                if signed is not None:
                    check.take(signed)
        if closure is not None:
            signed = self._load(closure, "closure", Doc.CLOSURE)
            if signed is not None:
                check.take(signed)
        check.conclude()
        self._anchor(certificate, check.closure, proof, head)
        if opening is not None:
            self._open(certificate, opening)
        return self.report

    def _load_trust(self, path: Path) -> None:
        data = self._read(path, "trust")
        if data is None:
            return
        try:
            self.trust = Trust.from_bytes(data)
        except Malformed as error:
            self.report.blame(Verdict.MALFORMED, "trust", str(error))

    def _load(self, path: Path, label: str, *wanted: Doc, strict: bool = True) -> Signed | None:
        """Read, judge form, sums and signature. Not `strict`: other documents are only noted."""
        envelope = self._envelope(path, label)
        if envelope is None:
            return None
        if envelope.payload_type != STATEMENT_PAYLOAD:
            if not strict and envelope.payload_type == HEAD_PAYLOAD:
                self.report.notes.append(f"{label}: is a tree head and was not used here")
            else:
                self.report.blame(Verdict.MALFORMED, label, "has an unknown payload type")
            return None
        try:
            statement = canonical.decode(envelope.payload)
        except Malformed as error:
            self.report.blame(Verdict.MALFORMED, label, f"payload: {error}")
            return None
        judged = examine(statement)
        self.report.blame_all(Verdict.MALFORMED, label, judged.malformed)
        if judged.malformed or judged.doc is None:
            return None
        if judged.doc not in wanted:
            if strict:
                self.report.blame(Verdict.MALFORMED, label, f"is an {judged.doc.value} document")
            else:
                self.report.notes.append(f"{label}: is an {judged.doc.value}, not used here")
            return None
        self.report.blame_all(Verdict.WRONG, label, judged.wrong)
        self.report.notes.extend(f"{label}: unknown field {name}" for name in judged.unknown[:50])
        self.trust.judge(
            envelope,
            label,
            self.report,
            roles=(Role.ERASURE,),
            node_id=judged.predicate["node_id"],
            at=judged.predicate[_TIME_FIELD[judged.doc]],
        )
        return Signed(label, judged.doc, judged.predicate, judged.subject, envelope.sha256.hex())

    def _envelope(self, path: Path, label: str) -> Envelope | None:
        data = self._read(path, label)
        if data is None:
            return None
        try:
            return Envelope.from_bytes(data)
        except Malformed as error:
            self.report.blame(Verdict.MALFORMED, label, str(error))
            return None

    def _plain(self, path: Path, label: str) -> Json:
        data = self._read(path, label)
        if data is None:
            return None
        try:
            value = canonical.read(data)
        except Malformed as error:
            self.report.blame(Verdict.MALFORMED, label, str(error))
            return None
        if value is None:
            self.report.blame(Verdict.MALFORMED, label, "is empty")
        return value

    def _read(self, path: Path, label: str) -> bytes | None:
        try:
            if not path.is_file():
                self.report.blame(Verdict.MALFORMED, label, "is no readable file")
                return None
            with path.open("rb") as file:
                data = file.read(MAX_BYTES + 1)
        except (OSError, ValueError):
            self.report.blame(Verdict.MALFORMED, label, "is no readable file")
            return None
        if len(data) > MAX_BYTES:
            self.report.blame(Verdict.MALFORMED, label, f"is larger than {MAX_BYTES} bytes")
            return None
        return data

    def _files(self, folder: Path | None, label: str) -> Iterator[Path]:
        if folder is None:
            return
        try:
            if folder.is_dir():
                found = sorted(path for path in folder.iterdir() if path.suffix == ".json")
            else:
                found = [folder]
        except (OSError, ValueError):
            self.report.blame(Verdict.MALFORMED, label, "cannot be listed")
            return
        if len(found) > MAX_FILES:
            self.report.blame(Verdict.MALFORMED, label, f"holds more than {MAX_FILES} files")
            return
        yield from found

    def _anchor(
        self, certificate: Signed, closure: Signed | None, proof: Path | None, head: Path | None
    ) -> None:
        told = certificate.predicate
        anchoring = Anchoring(
            log_id=told["ledger"]["log_id"],
            entry=told["ledger"]["entry"],
            node_id=certificate.node_id,
            document=certificate.sha256,
            erasure_id=told["erasure_id"],
            trust=self.trust,
            report=self.report,
        )
        if head is not None:
            envelope = self._envelope(head, "head")
            if envelope is not None:
                anchoring.take_head(envelope)
        if closure is not None:
            for witness in closure.predicate["witnesses"]:
                anchoring.take_witness(witness)
        anchoring.conclude(None if proof is None else self._plain(proof, "proof"))

    def _open(self, certificate: Signed, path: Path) -> None:
        value: Any = self._plain(path, "opening")
        if value is None:
            return
        found = shapes.Findings()
        _OPENING(value, "opening", found)
        faults = found.faults + [f"{name} is not a known field" for name in found.unknown]
        if faults:
            self.report.blame_all(Verdict.MALFORMED, "opening", faults)
            return
        entry = certificate.predicate["tiers"].get(value["tier"])
        if entry is None:
            self.report.blame(Verdict.WRONG, "opening", "the certificate has no such tier")
            return
        holds = value["size"] == entry["n"] and merkle.verify_inclusion(
            merkle.leaf_hash(bytes.fromhex(value["leaf"])),
            value["index"],
            value["size"],
            [bytes.fromhex(one) for one in value["path"]],
            bytes.fromhex(entry["root"]),
        )
        if holds:
            self.report.notes.append(
                f"opening: the leaf for record {value['record_id']} is under {value['tier']}; "
                "that it belongs to this record is the word of the node"
            )
        else:
            self.report.blame(
                Verdict.WRONG, "opening", "the leaf is not under the root of its tier"
            )

    def _state_facts(self, certificate: Signed) -> None:
        told = certificate.predicate
        tiers = told["tiers"].values()
        self.report.facts = {
            "erasure": told["erasure_id"],
            "certificate sha256": certificate.sha256,
            "mesh": told["mesh_id"],
            "node": told["node_id"],
            "scope": f"{told['scope']['kind']} {told['scope']['handle']}, "
            f"epoch {told['scope']['epoch']}",
            "completed": told["completed_at"],
            "found": sum(entry["found"] for entry in tiers),
            "unreachable now": sum(entry["n"] for entry in tiers),
            "retained on purpose": sum(entry["retained"] for entry in tiers),
            "recipients": told["recipients"]["n"],
            "not covered": ", ".join(told["not_covered"]),
        }
        if told["mode"] == "clear":
            self.report.notes.append(
                "unreachable now (L1), bytes gone when pending.physical and pending.backups are "
                "empty"
            )
