"""What the offline verifier found, for programs and for people.

A report is filled during one verification and then only read. Text that comes from documents
is shown with control characters replaced, since it ends on terminals.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from erasure.canonical import Json

MAX_CAUSES = 500


class Verdict(IntEnum):
    """Outcome of a verification; the value is the exit code."""

    COMPLETE = 0
    WRONG = 1
    PENDING = 2
    KEY = 3
    MALFORMED = 4
    LEDGER = 5


_PRECEDENCE = (Verdict.MALFORMED, Verdict.KEY, Verdict.WRONG, Verdict.LEDGER, Verdict.PENDING)
_HEADLINES = {
    Verdict.COMPLETE: "valid and complete",
    Verdict.WRONG: "WRONG: a signature, digest, count or proof does not hold",
    Verdict.PENDING: "valid, with something pending",
    Verdict.KEY: "NOT TRUSTED: a key is unknown, revoked or outside its validity",
    Verdict.MALFORMED: "REFUSED: malformed, too large, not canonical or of an unknown version",
    Verdict.LEDGER: "LEDGER INCONSISTENT",
}


class PendingKind(StrEnum):
    """Why a valid set of documents is not complete.

    `recipient`: a node has not settled. `receipt`: it has, but its receipt is not among the
    files. `physical`: bytes in database files. `backup`: copies in backups. `closure`: no
    closure among the files. `witness`: nobody else has vouched for the end of the ledger.
    """

    RECIPIENT = "recipient"
    RECEIPT = "receipt"
    PHYSICAL = "physical"
    BACKUP = "backup"
    CLOSURE = "closure"
    WITNESS = "witness"


@dataclass(frozen=True, slots=True)
class Cause:
    """One reason against the documents: which verdict, in which file, and what is amiss."""

    verdict: Verdict
    document: str
    message: str

    def as_json(self) -> dict[str, Json]:
        return {
            "document": self.document,
            "exit": int(self.verdict),
            "message": self.message,
            "name": self.verdict.name.lower(),
        }


@dataclass(frozen=True, slots=True)
class PendingItem:
    """One open matter: where (node id in hex, or None), what, and until when if that is known."""

    kind: PendingKind
    what: str
    node_id: str | None = None
    until: str | None = None

    def as_json(self) -> dict[str, Json]:
        return {
            "kind": self.kind.value,
            "node_id": self.node_id,
            "until": self.until,
            "what": self.what,
        }


@dataclass(slots=True)
class Report:
    """Causes, open matters, remarks and the facts that the certificate states."""

    causes: list[Cause] = field(default_factory=list)
    pending: list[PendingItem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    facts: dict[str, Json] = field(default_factory=dict)

    def blame(self, verdict: Verdict, document: str, message: str) -> None:
        """Add a cause; beyond the first 500 they are not kept."""
        if len(self.causes) < MAX_CAUSES:
            self.causes.append(Cause(verdict, document, message))

    def blame_all(self, verdict: Verdict, document: str, messages: Iterable[str]) -> None:
        """Add one cause for each message."""
        for message in messages:
            self.blame(verdict, document, message)

    def leave_open(
        self,
        kind: PendingKind,
        what: str,
        *,
        node_id: str | None = None,
        until: str | None = None,
    ) -> None:
        """Add an open matter."""
        self.pending.append(PendingItem(kind, what, node_id, until))

    @property
    def verdict(self) -> Verdict:
        """The gravest: malformed, then key, wrong, ledger, pending."""
        found = {cause.verdict for cause in self.causes}
        if self.pending:
            found.add(Verdict.PENDING)
        return next((verdict for verdict in _PRECEDENCE if verdict in found), Verdict.COMPLETE)

    @property
    def exit_code(self) -> int:
        return int(self.verdict)

    def as_json(self) -> dict[str, Json]:
        """The whole report as plain JSON."""
        return {
            "causes": [cause.as_json() for cause in self.causes],
            "certificate": self.facts,
            "exit": self.exit_code,
            "notes": list(self.notes),
            "pending": [item.as_json() for item in self.pending],
            "result": self.verdict.name.lower(),
        }

    def lines(self) -> list[str]:
        """The report for a person, one line each, without line ends."""
        said = [f"result: {_HEADLINES[self.verdict]} (exit {self.exit_code})"]
        said.extend(f"{name}: {value}" for name, value in self.facts.items())
        said.extend(f"cause: {cause.document}: {cause.message}" for cause in self.causes)
        for item in self.pending:
            where = f" at node {item.node_id}" if item.node_id else ""
            until = f", until {item.until}" if item.until else ""
            said.append(f"pending {item.kind.value}{where}: {item.what}{until}")
        said.extend(f"note: {note}" for note in self.notes)
        return [printable(line) for line in said]


def printable(text: str) -> str:
    """`text` with everything replaced that could steer a terminal."""
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text)
