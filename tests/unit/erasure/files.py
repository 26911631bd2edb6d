"""The worked example as files on disk, complete or with parts replaced."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from erasure import canonical, ledger
from erasure.certificates import seal
from erasure.report import Report
from erasure.verify import verify_files
from tests.unit.erasure import example
from tests.unit.erasure.example import EXAMPLE

ROLES = {
    "erasure_origin": ("erasure", "a"),
    "erasure_peer_b": ("erasure", "b"),
    "erasure_peer_c": ("erasure", "c"),
    "ledger_origin": ("ledger", "a"),
    "ledger_peer_b": ("witness", "b"),
}


def trust_entries() -> dict[str, dict[str, Any]]:
    return {
        EXAMPLE["keys"][name]["keyid"]: {
            "public_hex": EXAMPLE["keys"][name]["public_hex"],
            "role": role,
            "node_id": EXAMPLE["nodes"][letter],
            "not_before": "2026-01-01T00:00:00Z",
            "not_after": None,
            "revoked_at": None,
        }
        for name, (role, letter) in ROLES.items()
    }


def proof_value() -> dict[str, Any]:
    entries = example.ledger_entries()
    return ledger.proof(entries[2].payload, [one.leaf for one in entries], witnessed=[5])


def complete() -> dict[str, bytes]:
    """Every file of the finished example by its place; together they end with 0."""
    files = {
        "cert.json": example.envelope("C").to_bytes(),
        "keys.json": canonical.encode(trust_entries()),
        "receipts/b.json": example.envelope("R_b").to_bytes(),
        "receipts/c.json": example.envelope("R_c").to_bytes(),
        "receipts/notice.json": example.envelope("N").to_bytes(),
        "closure.json": example.envelope("Z").to_bytes(),
        "addenda/1.json": example.envelope("P_1").to_bytes(),
        "addenda/2.json": example.envelope("P_2").to_bytes(),
        "proof.json": canonical.encode(proof_value()),
        "head.json": canonical.encode(EXAMPLE["ledger"]["head_8"]),
        "opening.json": canonical.encode(EXAMPLE["opening_mem3"]),
    }
    peer = seal(example.peer_physical_addendum(), example.key("erasure_peer_b"))
    files["addenda/b1.json"] = peer.to_bytes()
    return files


@dataclass
class Folder:
    """A directory of documents that can be verified as often as files come and go."""

    path: Path
    files: dict[str, bytes] = field(default_factory=complete)

    def verify(self, *, require_closed: bool = False) -> Report:
        for name, data in self.files.items():
            target = self.path / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)

        def given(name: str) -> Path | None:
            here = [one for one in self.files if one == name or one.startswith(f"{name}/")]
            return self.path / name if here else None

        return verify_files(
            self.path / "cert.json",
            self.path / "keys.json",
            given("receipts"),
            given("closure.json"),
            given("addenda"),
            given("proof.json"),
            given("head.json"),
            given("opening.json"),
            require_closed,
        )

    def keep(self, *names: str) -> Folder:
        self.files = {
            name: data
            for name, data in self.files.items()
            if name in names or name.split("/")[0] in names
        }
        return self
