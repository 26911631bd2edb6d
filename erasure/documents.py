"""Inner arithmetic of the documents of an erasure: C, R, Z, P, N and absence.

One place for both sides: the builders refuse to sign what the rules here refuse, and the
offline verifier refuses it from others. Only what a single document can tell about itself is
judged here; signatures and cross-references belong to the verifier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from erasure import leaves, merkle
from erasure.canonical import Json
from erasure.forms import (
    BY_TYPE,
    FORMS,
    KNOWN_CRIT,
    STATEMENT,
    AddendumKind,
    Doc,
    ReceiptStatus,
    RecipientStatus,
)
from erasure.shapes import Findings


@dataclass(frozen=True, slots=True)
class Examined:
    """What one statement says about itself.

    `malformed` faults are of form, version or unknown critical names, `wrong` ones of
    arithmetic; `unknown` names fields that decide nothing. `wrong` is empty when malformed.
    """

    doc: Doc | None
    predicate: dict[str, Any]
    subject: str
    malformed: tuple[str, ...]
    wrong: tuple[str, ...]
    unknown: tuple[str, ...]


def examine(statement: Json) -> Examined:
    """Judge the form and the sums of a statement. Never raises for values of canonical JSON."""
    found = Findings()
    STATEMENT(statement, "statement", found)
    if found.faults or not isinstance(statement, dict):
        return Examined(None, {}, "", tuple(found.faults), (), tuple(found.unknown))
    doc = BY_TYPE.get(statement["predicateType"])
    predicate: dict[str, Any] = statement["predicate"]
    if doc is None:
        fault = "statement.predicateType is no document of this version"
        return Examined(None, predicate, "", (fault,), (), tuple(found.unknown))
    subject = statement["subject"][0]
    FORMS[doc](predicate, doc.value, found)
    if subject["name"] != doc.subject:
        found.faults.append(f"statement.subject is not named {doc.subject}")
    if not found.faults:
        unknown = [name for name in predicate["crit"] if name not in KNOWN_CRIT]
        found.faults.extend(f"crit names an unknown extension: {name}" for name in unknown)
    digest: str = subject["digest"]["sha256"]
    wrong = () if found.faults else tuple(_RULES[doc](predicate, digest))
    return Examined(doc, predicate, digest, tuple(found.faults), wrong, tuple(found.unknown))


def removed_by_tier(tiers: dict[str, Any]) -> dict[str, tuple[int, bytes]]:
    """(n, root) of each tier entry of C, R or P, ready for `leaves.top_root`."""
    return {name: (entry["n"], bytes.fromhex(entry["root"])) for name, entry in tiers.items()}


def receipts_root_of(recipients: list[dict[str, Any]]) -> bytes:
    """Root over the recipient entries of Z."""
    return leaves.receipts_root(
        (
            entry["node_id"],
            entry["status"],
            None if entry["receipt_sha256"] is None else bytes.fromhex(entry["receipt_sha256"]),
        )
        for entry in recipients
    )


def _run_rules(run: dict[str, Any], subject: str) -> Iterator[str]:
    retained = 0
    if not run["tiers"]:
        yield "tiers is empty, so nothing is said about any place"
    for name, entry in run["tiers"].items():
        parts = sum(entry[part] for part in ("removed", "recomputed", "dropped", "retained"))
        retained += entry["retained"]
        if entry["found"] != parts:
            yield f"tiers.{name}: found is not removed + recomputed + dropped + retained"
        if entry["n"] != entry["found"] - entry["retained"]:
            yield f"tiers.{name}: n is not found - retained"
        if entry["after"] != entry["retained"]:
            yield f"tiers.{name}: after is not retained"
        if (entry["n"] == 0) != (entry["root"] == merkle.EMPTY_ROOT.hex()):
            yield f"tiers.{name}: root and n do not agree about being empty"
        if (entry["level"] == "L3" or entry["how"] == "key") and run["mode"] != "sealed":
            yield f"tiers.{name}: claims a destroyed key outside mode sealed"
    if leaves.top_root(removed_by_tier(run["tiers"])).hex() != run["removal_root"]:
        yield "removal_root is not the root over the tiers"
    if run["removal_root"] != subject:
        yield "the subject digest is not removal_root"
    if (run["plan_root"] == run["removal_root"]) != (retained == 0):
        yield "plan_root equals removal_root exactly when nothing is retained"
    if retained > sum(entry["n"] for entry in run["retained"]):
        yield "the tiers retain more than the list retained explains"
    if run["completed_at"] < run["started_at"]:
        yield "completed_at is before started_at"
    scope = run["scope"]
    if run["erasure_id"] != leaves.erasure_id(
        run["mesh_id"], bytes.fromhex(scope["handle"]), scope["epoch"]
    ):
        yield "erasure_id does not follow from mesh, scope and epoch"


def _certificate_rules(predicate: dict[str, Any], subject: str) -> Iterator[str]:
    yield from _run_rules(predicate, subject)
    verification, request = predicate["verification"], predicate["request"]
    if verification["hits"] or verification["residue"]:
        yield "verification found hits or residue"
    if request["due_by"] < request["requested_at"]:
        yield "request.due_by is before request.requested_at"
    if predicate["intent_seq"] >= predicate["ledger"]["entry"]:
        yield "intent_seq is not before ledger.entry"
    backups, beyond = predicate["pending"]["backups"], predicate["beyond_use"]
    if backups["stance"] == "beyond-use":
        if beyond is None:
            yield "beyond_use is missing for the stance beyond-use"
        elif not all(
            beyond[name] for name in ("not_used_for_decisions", "not_disclosed", "secured")
        ):
            yield "beyond_use denies one of its statements"
        elif beyond["deleted_by"] != backups["clear_after"]:
            yield "beyond_use.deleted_by is not pending.backups.clear_after"
    elif beyond is not None:
        yield "beyond_use is given without the stance beyond-use"


def _receipt_rules(predicate: dict[str, Any], subject: str) -> Iterator[str]:
    yield from _run_rules(predicate, subject)
    status, verification = predicate["status"], predicate["verification"]
    if (status == ReceiptStatus.PARTIAL) != bool(predicate["unsupported"]):
        yield "status partial and a list of unsupported tiers belong together"
    if status == ReceiptStatus.NEVER_HAD and any(
        entry["found"] for entry in predicate["tiers"].values()
    ):
        yield "status never_had, but a tier found something"
    if status != ReceiptStatus.PARTIAL and (verification["hits"] or verification["residue"]):
        yield "verification found hits or residue"
    if predicate["node_id"] in predicate["forwarded_to"]:
        yield "forwarded_to names the node itself"


def _closure_rules(predicate: dict[str, Any], subject: str) -> Iterator[str]:
    recipients = predicate["recipients"]
    if predicate["recipients_n"] != len(recipients):
        yield "recipients_n is not the number of recipients"
    yield from _recipient_rules(recipients)
    if receipts_root_of(recipients).hex() != predicate["receipts_root"]:
        yield "receipts_root is not the root over the recipients"
    if predicate["receipts_root"] != subject:
        yield "the subject digest is not receipts_root"
    named = {entry["node_id"] for entry in recipients}
    if not named.issuperset(predicate["added_after_certificate"]):
        yield "added_after_certificate names a node that is no recipient"
    if predicate["node_id"] in named:
        yield "the origin is its own recipient"


def _recipient_rules(recipients: list[dict[str, Any]]) -> Iterator[str]:
    for entry in recipients:
        at = f"recipient {entry['node_id']}"
        answered = entry["status"] in (RecipientStatus.ACKED, RecipientStatus.NEVER_HAD)
        if answered and entry["receipt_sha256"] is None:
            yield f"{at}: {entry['status']} without the digest of a receipt"
        if (entry["status"] == RecipientStatus.UNREACHABLE) != (entry["until"] is not None):
            yield f"{at}: until belongs to the status unreachable"


def _addendum_rules(predicate: dict[str, Any], subject: str) -> Iterator[str]:
    removed = leaves.top_root(removed_by_tier(predicate["removed"]))
    if removed.hex() != predicate["removal_root"]:
        yield "removal_root is not the root over removed"
    if any(entry["root"] == merkle.EMPTY_ROOT.hex() for entry in predicate["removed"].values()):
        yield "removed: a tier counts records under an empty root"
    if (predicate["n"] == 1) != (predicate["previous"] is None):
        yield "previous is null for the first addendum of a node, and only there"
    for name, change in predicate["levels"].items():
        if change["to"] < change["from"]:
            yield f"levels.{name}: falls"
    yield from _recipient_rules(predicate["recipients"])
    if predicate["kind"] in (AddendumKind.LATE_RECEIPT, AddendumKind.RECIPIENT_EXPELLED):
        if not predicate["recipients"]:
            yield f"recipients is empty in an addendum of kind {predicate['kind']}"
    elif predicate["recipients"]:
        yield f"recipients is filled in an addendum of kind {predicate['kind']}"


def _notice_rules(predicate: dict[str, Any], subject: str) -> Iterator[str]:
    scope = predicate["scope"]
    if subject != scope["handle"]:
        yield "the subject digest is not the scope handle"
    if (predicate["ids_n"] == 0) != (predicate["ids_root"] == merkle.EMPTY_ROOT.hex()):
        yield "ids_root and ids_n do not agree about being empty"
    if predicate["erasure_id"] != leaves.erasure_id(
        predicate["mesh_id"], bytes.fromhex(scope["handle"]), scope["epoch"]
    ):
        yield "erasure_id does not follow from mesh, scope and epoch"


def _absence_rules(predicate: dict[str, Any], subject: str) -> Iterator[str]:
    if subject != predicate["scope"]["handle"]:
        yield "the subject digest is not the scope handle"
    if predicate["verification"]["hits"] or predicate["verification"]["residue"]:
        yield "verification found hits or residue"


_RULES: dict[Doc, Callable[[dict[str, Any], str], Iterator[str]]] = {
    Doc.CERTIFICATE: _certificate_rules,
    Doc.RECEIPT: _receipt_rules,
    Doc.CLOSURE: _closure_rules,
    Doc.ADDENDUM: _addendum_rules,
    Doc.NOTICE: _notice_rules,
    Doc.ABSENCE: _absence_rules,
}
