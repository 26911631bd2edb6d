"""The keys that a verifier trusts, and whether a signature by one of them counts.

The list comes from a file that the person who verifies has obtained by another way than the
documents. A key counts only in its role, for its node and within its validity, judged by the
time that the document states.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from erasure import canonical, envelope, shapes
from erasure.canonical import Malformed
from erasure.envelope import Envelope
from erasure.report import Report, Verdict


class Role(StrEnum):
    ERASURE = "erasure"
    LEDGER = "ledger"
    WITNESS = "witness"
    AUDITOR = "auditor"


_FORM = shapes.table(
    shapes.hexadecimal(32),
    shapes.record(
        {
            "public_hex": shapes.hexadecimal(32),
            "role": shapes.one_of(Role),
            "node_id": shapes.optional(shapes.hexadecimal(16)),
            "not_before": shapes.optional(shapes.time),
            "not_after": shapes.optional(shapes.time),
            "revoked_at": shapes.optional(shapes.time),
        }
    ),
)


@dataclass(frozen=True, slots=True)
class TrustedKey:
    """One entry of the file; times as the documents write them, null for no limit."""

    keyid: str
    public: bytes
    role: Role
    node_id: str | None
    not_before: str | None
    not_after: str | None
    revoked_at: str | None

    def objection(self, at: str) -> str | None:
        """Why a signature dated `at` does not count, or None."""
        if self.revoked_at is not None and at >= self.revoked_at:
            return f"key {self.keyid} was revoked at {self.revoked_at}"
        if self.not_before is not None and at < self.not_before:
            return f"key {self.keyid} is valid only from {self.not_before}"
        if self.not_after is not None and at > self.not_after:
            return f"key {self.keyid} was valid only until {self.not_after}"
        return None


@dataclass(frozen=True, slots=True)
class Trust:
    """All trusted keys by key id."""

    keys: dict[str, TrustedKey] = field(default_factory=dict)

    @classmethod
    def from_bytes(cls, data: bytes) -> Trust:
        """Read the file. Raises Malformed with the first faults."""
        value: Any = canonical.read(data)
        found = shapes.Findings()
        _FORM(value, "keys", found)
        if found.faults:
            raise Malformed("; ".join(found.faults[:5]))
        keys = {}
        for keyid, entry in value.items():
            public = bytes.fromhex(entry["public_hex"])
            if envelope.keyid(public) != keyid:
                raise Malformed(f"keys.{keyid} is not the id of its public key")
            keys[keyid] = TrustedKey(
                keyid,
                public,
                Role(entry["role"]),
                entry["node_id"],
                entry["not_before"],
                entry["not_after"],
                entry["revoked_at"],
            )
        return cls(keys)

    def judge(
        self,
        signed: Envelope,
        label: str,
        report: Report,
        *,
        roles: Collection[Role],
        node_id: str,
        at: str,
        only: str | None = None,
    ) -> None:
        """Demand a good signature by a key of `node_id` in one of `roles`, valid at `at`.

        `only` narrows it to one key id. A bad signature by any known key is a cause as well;
        signatures by unknown keys beside a good one are noted and change nothing.
        """
        good, objections = False, []
        for signature in signed.signatures:
            key = self.keys.get(signature.keyid)
            if key is None:
                objections.append(f"key {signature.keyid} is unknown")
                continue
            if not envelope.verify(key.public, signed.payload_type, signed.payload, signature.sig):
                report.blame(
                    Verdict.WRONG, label, f"the signature by key {key.keyid} does not hold"
                )
                continue
            if (
                key.role not in roles
                or key.node_id != node_id
                or (only is not None and key.keyid != only)
            ):
                objections.append(
                    f"key {key.keyid} has role {key.role.value} at node {key.node_id}"
                )
                continue
            objection = key.objection(at)
            if objection is None:
                good = True
                if key.revoked_at is not None:
                    objections.append(f"key {key.keyid} was revoked after the stated time")
            else:
                objections.append(objection)
        if good:
            report.notes.extend(f"{label}: {objection}" for objection in objections)
        else:
            report.blame_all(Verdict.KEY, label, objections)
