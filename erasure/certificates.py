"""Builders of the signed documents: typed values in, in-toto statements out.

Called by the run of an erasure when it certifies, answers, closes or adds. Roots are computed
here from the tier counts, never handed in, and a statement whose sums do not hold is refused
before anybody can sign it. Nothing here reads a clock, a key store or the database.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from erasure import canonical, envelope, leaves
from erasure.canonical import Json
from erasure.documents import examine, receipts_root_of
from erasure.envelope import Envelope
from erasure.forms import METHOD, VERSION, AddendumKind, Doc, ReceiptStatus
from erasure.ledger import stamp
from erasure.parts import (
    NOT_COVERED,
    Evidence,
    InvalidDocument,
    LedgerRef,
    LevelChange,
    Pending,
    Recipient,
    Request,
    Run,
    ScopeRef,
    Software,
    Verification,
    Witness,
    day_text,
    hex_text,
    key_text,
)
from storage.model import ScopeKind


@dataclass(frozen=True, slots=True)
class Certificate:
    """C: the origin's own statement, minted once and never changed."""

    run: Run
    request: Request
    intent_seq: int
    recipients: tuple[bytes, ...]
    clock_source: str
    clock_uncertainty_ms: int
    previous: bytes | None = None

    def statement(self) -> dict[str, Json]:
        """The statement to sign. Raises InvalidDocument."""
        ids = {node.hex() for node in self.recipients}
        pending = self.run.pending
        predicate = self.run.as_json() | {
            "beyond_use": None
            if pending.stance != "beyond-use"
            else {
                "deleted_by": day_text(pending.clear_after),
                "not_disclosed": True,
                "not_used_for_decisions": True,
                "secured": True,
            },
            "clock": {"source": self.clock_source, "uncertainty_ms": self.clock_uncertainty_ms},
            "intent_seq": self.intent_seq,
            "previous": hex_text(self.previous),
            "recipients": {"n": len(ids), "set_root": leaves.id_set_root(ids).hex()},
            "request": self.request.as_json(),
        }
        return _statement(Doc.CERTIFICATE, self.run.removal_root, predicate)


@dataclass(frozen=True, slots=True)
class Receipt:
    """R: a peer's answer to a notice, over its own run."""

    run: Run
    status: ReceiptStatus
    notice_sha256: bytes
    certificate_sha256: bytes | None
    forwarded_to: tuple[bytes, ...] = ()
    unsupported: tuple[str, ...] = ()

    def statement(self) -> dict[str, Json]:
        """The statement to sign. Raises InvalidDocument."""
        predicate = self.run.as_json() | {
            "certificate_sha256": hex_text(self.certificate_sha256),
            "forwarded_to": _nodes(self.forwarded_to),
            "notice_sha256": self.notice_sha256.hex(),
            "status": self.status.value,
            "unsupported": sorted(set(self.unsupported)),
        }
        return _statement(Doc.RECEIPT, self.run.removal_root, predicate)


@dataclass(frozen=True, slots=True)
class Notice:
    """N: what a recipient is told. `ids_root` is `leaves.id_set_root` over the known ids."""

    mesh_id: str
    node_id: bytes
    scope: ScopeRef
    hlc_floor: int
    ids_n: int
    ids_root: bytes
    certificate_sha256: bytes | None
    issued_at: datetime

    def statement(self) -> dict[str, Json]:
        """The statement to sign. Raises InvalidDocument."""
        predicate: dict[str, Json] = {
            "certificate_sha256": hex_text(self.certificate_sha256),
            "erasure_id": leaves.erasure_id(self.mesh_id, self.scope.handle, self.scope.epoch),
            "hlc_floor": f"{self.hlc_floor:016x}",
            "ids_n": self.ids_n,
            "ids_root": self.ids_root.hex(),
            "issued_at": stamp(self.issued_at),
            "mesh_id": self.mesh_id,
            "node_id": self.node_id.hex(),
            "scope": self.scope.as_json(),
        }
        return _statement(Doc.NOTICE, self.scope.handle, predicate)


@dataclass(frozen=True, slots=True)
class Closure:
    """Z: how every recipient ended, once, for one certificate."""

    erasure_id: str
    certificate_sha256: bytes
    mesh_id: str
    node_id: bytes
    closed_at: datetime
    recipients: tuple[Recipient, ...]
    ledger: LedgerRef
    added_after_certificate: tuple[bytes, ...] = ()
    witnesses: tuple[Witness, ...] = ()

    def statement(self) -> dict[str, Json]:
        """The statement to sign. Raises InvalidDocument."""
        recipients: list[dict[str, Any]] = _recipients(self.recipients)
        root = receipts_root_of(recipients)
        predicate: dict[str, Any] = {
            "added_after_certificate": _nodes(self.added_after_certificate),
            "certificate_sha256": self.certificate_sha256.hex(),
            "closed_at": stamp(self.closed_at),
            "erasure_id": self.erasure_id,
            "ledger": self.ledger.as_json(),
            "mesh_id": self.mesh_id,
            "node_id": self.node_id.hex(),
            "receipts_root": root.hex(),
            "recipients": recipients,
            "recipients_n": len(recipients),
            "witnesses": [
                one.as_json()
                for one in sorted(
                    self.witnesses, key=lambda one: (one.node_id, one.keyid, one.size)
                )
            ],
        }
        return _statement(Doc.CLOSURE, root, predicate)


@dataclass(frozen=True, slots=True)
class Addendum:
    """P: what changed after C (at the origin) or R (at a peer).

    `about_sha256` is the payload digest of that node's own C or R; `pending` is the state
    behind this addendum; `removed` maps tiers to (n, root) of what went now.
    """

    erasure_id: str
    about_sha256: bytes
    certificate_sha256: bytes | None
    previous: bytes | None
    n: int
    kind: AddendumKind
    cause: str
    mesh_id: str
    node_id: bytes
    software: Software
    at: datetime
    pending: Pending
    ledger: LedgerRef
    removed: Mapping[str, tuple[int, bytes]] = field(default_factory=dict)
    levels: Mapping[str, LevelChange] = field(default_factory=dict)
    evidence: tuple[Evidence, ...] = ()
    recipients: tuple[Recipient, ...] = ()

    def statement(self) -> dict[str, Json]:
        """The statement to sign. Raises InvalidDocument."""
        predicate: dict[str, Any] = {
            "at": stamp(self.at),
            "cause": self.cause,
            "certificate_sha256": hex_text(self.certificate_sha256),
            "erasure_id": self.erasure_id,
            "evidence": [one.as_json() for one in self.evidence],
            "kind": self.kind.value,
            "ledger": self.ledger.as_json(),
            "levels": {name: change.as_json() for name, change in self.levels.items()},
            "mesh_id": self.mesh_id,
            "n": self.n,
            "node_id": self.node_id.hex(),
            "pending": self.pending.as_json(),
            "previous": hex_text(self.previous),
            "recipients": _recipients(self.recipients),
            "removal_root": leaves.top_root(self.removed).hex(),
            "removed": {
                name: {"n": count, "root": root.hex()}
                for name, (count, root) in self.removed.items()
            },
            "software": self.software.as_json(),
        }
        return _statement(Doc.ADDENDUM, self.about_sha256, predicate)


@dataclass(frozen=True, slots=True)
class Absence:
    """The statement that a scope was searched and nothing was found. Never a certificate."""

    mesh_id: str
    node_id: bytes
    kind: ScopeKind
    handle: bytes
    software: Software
    requester: bytes | None
    searched_at: datetime
    searched: tuple[str, ...]
    verification: Verification
    ledger: LedgerRef
    not_covered: tuple[str, ...] = NOT_COVERED
    mode: str = "clear"

    def statement(self) -> dict[str, Json]:
        """The statement to sign. Raises InvalidDocument."""
        predicate: dict[str, Json] = {
            "ledger": self.ledger.as_json(),
            "mesh_id": self.mesh_id,
            "method": METHOD,
            "mode": self.mode,
            "node_id": self.node_id.hex(),
            "not_covered": sorted(set(self.not_covered)),
            "requester": key_text(self.requester),
            "scope": {"handle": self.handle.hex(), "kind": self.kind.value},
            "searched": sorted(set(self.searched)),
            "searched_at": stamp(self.searched_at),
            "software": self.software.as_json(),
            "verification": self.verification.as_json(),
        }
        return _statement(Doc.ABSENCE, self.handle, predicate)


Document = Certificate | Receipt | Notice | Closure | Addendum | Absence


def seal(document: Document, key: Ed25519PrivateKey) -> Envelope:
    """Check and sign a document; the same values and key give the same bytes.

    Raises InvalidDocument.
    """
    return envelope.seal(document.statement(), key)


def _statement(doc: Doc, subject: bytes, predicate: Mapping[str, Json]) -> dict[str, Json]:
    whole: dict[str, Json] = {"crit": [], "v": VERSION, **predicate}
    statement = envelope.statement(doc.predicate_type, doc.subject, subject, whole)
    try:
        canonical.encode(statement)
    except canonical.Malformed as error:
        raise InvalidDocument(f"{doc.value}: {error}") from error
    judged = examine(statement)
    faults = judged.malformed + judged.wrong
    if faults:
        raise InvalidDocument(f"{doc.value}: {'; '.join(faults[:5])}")
    return statement


def _recipients(recipients: Iterable[Recipient]) -> list[dict[str, Any]]:
    return [one.as_json() for one in sorted(recipients, key=lambda one: one.node_id)]


def _nodes(nodes: Iterable[bytes]) -> list[Json]:
    return [node.hex() for node in sorted(set(nodes))]
