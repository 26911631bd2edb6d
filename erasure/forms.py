"""Vocabulary and form of the documents of an erasure: which fields, of which type and order.

The field tables of certificate, receipt, closure, addendum, notice and absence, and the words
that they may use. What the numbers must add up to is in `documents`. Part of the offline
verifier.
"""

from __future__ import annotations

from enum import StrEnum

from erasure.canonical import Json
from erasure.envelope import STATEMENT_TYPE
from erasure.shapes import (
    Check,
    Findings,
    day,
    flag,
    hexadecimal,
    matching,
    moment,
    one_of,
    optional,
    ordered,
    record,
    sequence,
    table,
    text,
    time,
    whole,
)

VERSION = 1
METHOD = "protocol/1"
KNOWN_CRIT: frozenset[str] = frozenset()

LEVELS = ("L0", "L1", "L2", "L3")
HOW = frozenset(
    {
        "row-delete",
        "recompute",
        "rebuild",
        "overwrite",
        "rewrite",
        "unlink",
        "drop",
        "drain",
        "key",
    }
)
PHYSICAL = frozenset({"pg.heap", "pg.index", "pg.toast", "pg.statistic", "pg.wal", "pg.log"})
BASES = frozenset(
    {f"gdpr-17-1-{letter}" for letter in "abcdef"} | {"contract", "retention", "other"}
)


class Doc(StrEnum):
    """The kinds of document; the value is the type suffix."""

    CERTIFICATE = "erasure-certificate"
    RECEIPT = "erasure-receipt"
    CLOSURE = "erasure-closure"
    ADDENDUM = "erasure-addendum"
    NOTICE = "erasure-notice"
    ABSENCE = "erasure-absence"

    @property
    def predicate_type(self) -> str:
        return f"urn:mnemesh:{self.value}:v{VERSION}"

    @property
    def subject(self) -> str:
        return _SUBJECTS[self]


_SUBJECTS = {
    Doc.CERTIFICATE: "erasure:removals",
    Doc.RECEIPT: "erasure:peer-removals",
    Doc.CLOSURE: "erasure:receipts",
    Doc.ADDENDUM: "erasure:certificate",
    Doc.NOTICE: "erasure:scope",
    Doc.ABSENCE: "erasure:scope",
}
BY_TYPE = {doc.predicate_type: doc for doc in Doc}


class AddendumKind(StrEnum):
    SUPPLEMENT = "supplement"
    HOLD_RELEASE = "hold_release"
    LATE_RECEIPT = "late_receipt"
    RECIPIENT_EXPELLED = "recipient_expelled"
    RESTORE_REPLAY = "restore_replay"
    PHYSICAL = "physical"
    TIMESTAMP = "timestamp"


class RecipientStatus(StrEnum):
    """How a recipient ended. `unreachable` is the only one that leaves something open."""

    ACKED = "acked"
    NEVER_HAD = "never_had"
    EXPELLED = "expelled"
    UNREACHABLE = "unreachable"


class ReceiptStatus(StrEnum):
    APPLIED = "applied"
    NEVER_HAD = "never_had"
    PARTIAL = "partial"


class Graph(StrEnum):
    """What was done to the hot graph, since repaired links tell that a vector was there."""

    REBUILT = "rebuilt"
    OVERWRITTEN = "overwritten"
    UNTOUCHED = "untouched"


def _exactly(expected: int | str) -> Check:
    def check(value: Json, at: str, found: Findings) -> None:
        if isinstance(value, bool) or value != expected:
            found.faults.append(f"{at} is not {expected}")

    return check


def _subjects(value: Json, at: str, found: Findings) -> None:
    if not isinstance(value, list) or len(value) != 1:
        found.faults.append(f"{at} is not a list of one")
    else:
        _SUBJECT(value[0], f"{at}[0]", found)


def _any_object(value: Json, at: str, found: Findings) -> None:
    if not isinstance(value, dict):
        found.faults.append(f"{at} is not an object")


_DIGEST = hexadecimal(32)
_NODE = hexadecimal(16)
_TIER_NAME = matching(r"[a-z0-9][a-z0-9_.\-]{0,99}", "the name of a tier")
_KEY = matching(r"key:[0-9a-f]{64}", "key: and 64 hex digits")
_ERASURE_ID = matching(r"er_[a-z2-7]{52}", "an erasure id")

_SUBJECT = record({"name": text, "digest": record({"sha256": _DIGEST})})
STATEMENT = record(
    {
        "_type": _exactly(STATEMENT_TYPE),
        "predicateType": text,
        "subject": _subjects,
        "predicate": _any_object,
    }
)
_SCOPE = {"kind": one_of({"agent", "project"}), "handle": _DIGEST}
_SOFTWARE = record({"name": text, "version": text, "commit": text, "schema": whole()})
_LEDGER = record({"log_id": _DIGEST, "entry": whole(1)})
_COUNTS = ("found", "removed", "recomputed", "dropped", "retained", "after", "n")
_TIERS = table(
    _TIER_NAME,
    record(
        {name: whole() for name in _COUNTS}
        | {"level": one_of(LEVELS), "how": one_of(HOW), "root": _DIGEST}
    ),
)
_RETAINED = ordered(
    record({"what": text, "n": whole(), "why": text, "ground": text, "until": text}),
    by=("what", "why", "ground", "until"),
)
_PENDING = record(
    {
        "physical": ordered(one_of(PHYSICAL)),
        "backups": record(
            {
                "stance": one_of({"beyond-use", "ciphertext", "none"}),
                "clear_after": optional(day),
            }
        ),
    }
)
_VERIFICATION = record(
    {name: whole() for name in ("paths", "probes", "hits", "residue")} | {"scanned": ordered(text)}
)
_RECIPIENTS = ordered(
    record(
        {
            "node_id": _NODE,
            "status": one_of(RecipientStatus),
            "receipt_sha256": optional(_DIGEST),
            "at": time,
            "until": optional(moment),
        }
    ),
    by=("node_id",),
)
_COMMON: dict[str, Check] = {
    "v": _exactly(VERSION),
    "crit": ordered(text),
    "mesh_id": text,
    "node_id": _NODE,
}
_RUN: dict[str, Check] = {
    "erasure_id": _ERASURE_ID,
    "software": _SOFTWARE,
    "mode": one_of({"clear", "sealed"}),
    "scope": record(_SCOPE | {"epoch": whole(1)}),
    "started_at": time,
    "completed_at": time,
    "tiers": _TIERS,
    "graph": one_of(Graph),
    "removal_root": _DIGEST,
    "plan_root": _DIGEST,
    "retained": _RETAINED,
    "pending": _PENDING,
    "not_covered": ordered(text),
    "method": _exactly(METHOD),
    "verification": _VERIFICATION,
    "ledger": _LEDGER,
}
FORMS: dict[Doc, Check] = {
    Doc.CERTIFICATE: record(
        _COMMON
        | _RUN
        | {
            "previous": optional(_DIGEST),
            "request": record(
                {
                    "id_digest": _DIGEST,
                    "basis": one_of(BASES),
                    "requested_at": time,
                    "due_by": time,
                    "requester": optional(_KEY),
                    "approver": optional(_KEY),
                }
            ),
            "intent_seq": whole(1),
            "clock": record({"source": one_of({"ntp", "unsynced"}), "uncertainty_ms": whole()}),
            "recipients": record({"n": whole(), "set_root": _DIGEST}),
            "beyond_use": optional(
                record(
                    {
                        "not_used_for_decisions": flag,
                        "not_disclosed": flag,
                        "secured": flag,
                        "deleted_by": optional(day),
                    }
                )
            ),
        }
    ),
    Doc.RECEIPT: record(
        _COMMON
        | _RUN
        | {
            "notice_sha256": _DIGEST,
            "certificate_sha256": optional(_DIGEST),
            "status": one_of(ReceiptStatus),
            "forwarded_to": ordered(_NODE),
            "unsupported": ordered(_TIER_NAME),
        }
    ),
    Doc.CLOSURE: record(
        _COMMON
        | {
            "erasure_id": _ERASURE_ID,
            "certificate_sha256": _DIGEST,
            "closed_at": time,
            "recipients": _RECIPIENTS,
            "recipients_n": whole(),
            "receipts_root": _DIGEST,
            "added_after_certificate": ordered(_NODE),
            "witnesses": ordered(
                record(
                    {
                        "node_id": _NODE,
                        "keyid": _DIGEST,
                        "log_id": _DIGEST,
                        "size": whole(1),
                        "root": _DIGEST,
                        "at": time,
                        "sig": text,
                    }
                ),
                by=("node_id", "keyid", "size"),
            ),
            "ledger": _LEDGER,
        }
    ),
    Doc.ADDENDUM: record(
        _COMMON
        | {
            "erasure_id": _ERASURE_ID,
            "certificate_sha256": optional(_DIGEST),
            "previous": optional(_DIGEST),
            "n": whole(1),
            "kind": one_of(AddendumKind),
            "cause": text,
            "software": _SOFTWARE,
            "at": time,
            "removed": table(_TIER_NAME, record({"n": whole(1), "root": _DIGEST})),
            "removal_root": _DIGEST,
            "levels": table(
                _TIER_NAME, record({"from": one_of(LEVELS), "to": one_of(LEVELS), "how": text})
            ),
            "evidence": sequence(record({"what": text, "object": text, "at": time, "value": text})),
            "recipients": _RECIPIENTS,
            "pending": _PENDING,
            "ledger": _LEDGER,
        }
    ),
    Doc.NOTICE: record(
        _COMMON
        | {
            "erasure_id": _ERASURE_ID,
            "scope": record(_SCOPE | {"epoch": whole(1)}),
            "hlc_floor": hexadecimal(8),
            "ids_n": whole(),
            "ids_root": _DIGEST,
            "certificate_sha256": optional(_DIGEST),
            "issued_at": time,
        }
    ),
    Doc.ABSENCE: record(
        _COMMON
        | {
            "scope": record(_SCOPE),
            "software": _SOFTWARE,
            "mode": one_of({"clear", "sealed"}),
            "requester": optional(_KEY),
            "searched_at": time,
            "searched": ordered(_TIER_NAME),
            "not_covered": ordered(text),
            "method": _exactly(METHOD),
            "verification": _VERIFICATION,
            "ledger": _LEDGER,
        }
    ),
}
