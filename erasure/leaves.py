"""How records, tiers, recipients and erasures become digests.

Everything that a certificate counts is named here by a keyed leaf or a root, so that the
document shows amounts and nothing about content. The labels are frozen: another label is
another format. Shared by the builders and the offline verifier, therefore free of IO and of
the database.
"""

from __future__ import annotations

import hmac
from base64 import b32encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256

from erasure import merkle

_ERASURE_LABEL = b"mnemesh/erasure/v1"
_LEAF_LABEL = b"mnemesh/erasure/leaf/v1"
_REQUEST_LABEL = b"mnemesh/erasure/request/v1"


def lp(*parts: bytes) -> bytes:
    """Parts joined with a 4-byte big-endian length before each: no two lists collide."""
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def erasure_id(mesh_id: str, handle: bytes, epoch: int) -> str:
    """The id that every node gives to the erasure of this scope (32-byte handle) and epoch."""
    digest = sha256(
        lp(_ERASURE_LABEL, mesh_id.encode("utf-8"), handle, epoch.to_bytes(8, "big"))
    ).digest()
    return "er_" + b32encode(digest).decode("ascii").rstrip("=").lower()


def leaf(k_cert: bytes, tier: str, rid: str) -> bytes:
    """Keyed leaf of one record; `rid` is the key as text, lower hex for byte keys."""
    return hmac.digest(k_cert, lp(_LEAF_LABEL, tier.encode("utf-8"), rid.encode("utf-8")), "sha256")


def request_digest(k_cert: bytes, request_id: str) -> bytes:
    """Keyed digest under which a certificate names the request that caused it."""
    return hmac.digest(k_cert, lp(_REQUEST_LABEL, request_id.encode("utf-8")), "sha256")


@dataclass(slots=True)
class SortedRoot:
    """Root over distinct values that arrive in ascending order, in constant memory.

    Made for leaves read in batches with ORDER BY: the number may be any.
    """

    _frontier: merkle.Frontier = field(default_factory=merkle.Frontier)
    _last: bytes | None = None

    def add(self, value: bytes) -> None:
        """Take the next value; raises ValueError when it is not above the one before."""
        if self._last is not None and value <= self._last:
            raise ValueError("leaves are added in ascending order, each once")
        self._last = value
        self._frontier = self._frontier.append(merkle.leaf_hash(value))

    @property
    def n(self) -> int:
        return self._frontier.size

    @property
    def root(self) -> bytes:
        return self._frontier.root


def tier_root(leaves: Iterable[bytes]) -> tuple[int, bytes]:
    """Number of distinct leaves and their root; the order given does not matter."""
    total = SortedRoot()
    for value in sorted(set(leaves)):
        total.add(value)
    return total.n, total.root


def top_root(tiers: Mapping[str, tuple[int, bytes]]) -> bytes:
    """Root over all tiers, each given as (n, root): `removal_root` and `plan_root`."""
    return merkle.root(
        lp(name.encode("utf-8"), n.to_bytes(8, "big"), root)
        for name, (n, root) in sorted(tiers.items())
    )


def id_set_root(ids: Iterable[str]) -> bytes:
    """Root over distinct ids as ASCII text, sorted: recipients of C, ids of N."""
    return merkle.root(sorted({value.encode("utf-8") for value in ids}))


def receipts_root(recipients: Iterable[tuple[str, str, bytes | None]]) -> bytes:
    """Root over (node id in hex, status, receipt digest or None), sorted by node id."""
    return merkle.root(
        lp(node_id.encode("utf-8"), status.encode("utf-8"), digest or b"")
        for node_id, status, digest in sorted(recipients, key=lambda entry: entry[0])
    )


@dataclass(frozen=True, slots=True)
class Opening:
    """Evidence that one record is under the root of its tier."""

    tier: str
    record_id: str
    leaf: bytes
    index: int
    size: int
    path: tuple[bytes, ...]

    def as_json(self) -> dict[str, object]:
        """The form of the file that the verifier reads; digests in lower hex."""
        return {
            "index": self.index,
            "leaf": self.leaf.hex(),
            "path": [sibling.hex() for sibling in self.path],
            "record_id": self.record_id,
            "size": self.size,
            "tier": self.tier,
        }


def open_record(k_cert: bytes, tier: str, rid: str, leaves: Iterable[bytes]) -> Opening:
    """Opening of `rid` against all removed leaves of its tier.

    Raises LookupError when the record is not among them.
    """
    ordered = sorted(set(leaves))
    wanted = leaf(k_cert, tier, rid)
    if wanted not in ordered:
        raise LookupError("the record is not under this root")
    index = ordered.index(wanted)
    path = merkle.inclusion_path([merkle.leaf_hash(value) for value in ordered], index)
    return Opening(tier, rid, wanted, index, len(ordered), tuple(path))
