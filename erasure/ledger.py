"""Entries, heads and proofs of a node's ledger, as values.

The ledger is one append-only log per node: each payload names the leaf before it, and a signed
tree head states size and root. This module decides the bytes; the rows, the file copy and the
locks around an append belong to the journal. It keeps no state and does no IO.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from erasure import canonical, merkle
from erasure.canonical import Json
from erasure.envelope import HEAD_PAYLOAD, Envelope, keyid, public_bytes, sign
from storage.errors import InvalidInput, MnemeshError

FIRST_PREV = bytes(32)
_RESERVED = frozenset({"v", "seq", "kind", "at", "prev"})
_TOKEN = re.compile(r"[0-9A-Za-z_.:/\-]{1,128}", re.ASCII)


class LedgerKind(StrEnum):
    LOG_OPENED = "log_opened"
    INTENT = "intent"
    CERTIFICATE = "certificate"
    RECEIPT = "receipt"
    CLOSURE = "closure"
    ADDENDUM = "addendum"
    ABSENCE = "absence"
    HOLD_PLACED = "hold_placed"
    HOLD_RELEASED = "hold_released"
    OPENED = "opened"
    REOPENED = "reopened"
    KEY_ROTATED = "key_rotated"
    KEY_REVOKED = "key_revoked"
    KEY_DESTROYED = "key_destroyed"
    REFUSED = "refused"
    EXPELLED = "expelled"
    DECOMMISSIONED = "decommissioned"
    RESTORED = "restored"
    PRUNED = "pruned"


class InvalidEntry(InvalidInput):
    """The ledger entry is not valid."""

    code = "invalid_entry"


class LedgerBroken(MnemeshError):
    """The ledger does not continue itself."""

    code = "ledger_broken"


@dataclass(frozen=True, slots=True)
class LogState:
    """Where a log ends: what is needed to append and to sign the head.

    `prev` is the leaf of the newest entry, 32 zero bytes for an empty log; `frontier` holds the
    peaks largest first, as the column of the same name.
    """

    prev: bytes = FIRST_PREV
    frontier: merkle.Frontier = field(default_factory=merkle.Frontier)

    @property
    def size(self) -> int:
        return self.frontier.size

    @property
    def root(self) -> bytes:
        return self.frontier.root


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry: its number from 1, canonical payload, leaf hash and the leaf before it."""

    seq: int
    kind: LedgerKind
    payload: bytes
    leaf: bytes
    prev: bytes


def append(
    state: LogState, kind: LedgerKind, at: datetime, fields: Mapping[str, int | str | bytes | None]
) -> tuple[Entry, LogState]:
    """The next entry of the log and the state behind it.

    `fields` are kind-specific: digests as bytes (written in lower hex), ids and words as tokens
    without spaces, so that no text of a memory can slip in. Raises InvalidEntry.
    """
    seq = state.size + 1
    payload = _payload(seq, kind, at, state.prev, fields)
    leaf = merkle.leaf_hash(payload)
    return (
        Entry(seq, kind, payload, leaf, state.prev),
        LogState(leaf, state.frontier.append(leaf)),
    )


def replay(payloads: Sequence[bytes], state: LogState | None = None) -> LogState:
    """State after entries that were read back, from the start or from `state`.

    Raises LedgerBroken when a payload is not canonical, out of number or names another
    predecessor.
    """
    now = state or LogState()
    for payload in payloads:
        seq = now.size + 1
        try:
            entry = canonical.decode(payload)
        except canonical.Malformed as error:
            raise LedgerBroken(f"ledger entry {seq} is not canonical") from error
        if not isinstance(entry, dict) or entry.get("seq") != seq:
            raise LedgerBroken(f"ledger entry {seq} does not carry its number")
        if entry.get("prev") != now.prev.hex():
            raise LedgerBroken(f"ledger entry {seq} does not name the entry before it")
        leaf = merkle.leaf_hash(payload)
        now = LogState(leaf, now.frontier.append(leaf))
    return now


def log_id(key: Ed25519PrivateKey) -> str:
    """Id of the log that this key signs."""
    return keyid(public_bytes(key))


def head_payload(log: str, size: int, root: bytes, at: datetime) -> bytes:
    """Canonical payload of a tree head; witnesses sign the same bytes."""
    return canonical.encode(
        {"at": stamp(at), "log_id": log, "root": root.hex(), "size": size, "v": 1}
    )


def tree_head(state: LogState, at: datetime, key: Ed25519PrivateKey) -> Envelope:
    """The signed head of the log at this state."""
    payload = head_payload(log_id(key), state.size, state.root, at)
    return Envelope(payload, HEAD_PAYLOAD, (sign(HEAD_PAYLOAD, payload, key),))


def cosign(head: Envelope, key: Ed25519PrivateKey) -> bytes:
    """A witness's 64-byte signature over a head that it has checked."""
    return sign(HEAD_PAYLOAD, head.payload, key).sig


def proof(
    payload: bytes, leaves: Sequence[bytes], *, witnessed: Sequence[int] = ()
) -> dict[str, Json]:
    """The file that shows the verifier where an entry stands in the log.

    `leaves` are the leaf hashes of the log up to the head that goes with the proof, in order;
    `witnessed` are smaller sizes that witnesses have signed, each joined to the head by a
    consistency proof. Raises InvalidEntry when the entry or a size is not in the log.
    """
    wanted = merkle.leaf_hash(payload)
    if wanted not in leaves:
        raise InvalidEntry("the entry is not in this log")
    index = leaves.index(wanted)
    sizes = sorted(set(witnessed) - {len(leaves)})
    if any(not 0 < size < len(leaves) for size in sizes):
        raise InvalidEntry("a witnessed size is not in this log")
    return {
        "consistency": [
            {
                "from": size,
                "path": [one.hex() for one in merkle.consistency_path(leaves, size)],
                "to": len(leaves),
            }
            for size in sizes
        ],
        "entry": payload.decode("utf-8"),
        "inclusion": {
            "index": index,
            "path": [one.hex() for one in merkle.inclusion_path(leaves, index)],
            "size": len(leaves),
        },
        "v": 1,
    }


def stamp(at: datetime) -> str:
    """UTC in whole seconds, as all documents write it. Raises InvalidEntry without a zone."""
    if at.tzinfo is None:
        raise InvalidEntry("a time has no zone")
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _payload(
    seq: int,
    kind: LedgerKind,
    at: datetime,
    prev: bytes,
    fields: Mapping[str, int | str | bytes | None],
) -> bytes:
    if _RESERVED.intersection(fields):
        raise InvalidEntry("a field has a reserved name")
    entry: dict[str, Any] = {
        "v": 1,
        "seq": seq,
        "kind": kind.value,
        "at": stamp(at),
        "prev": prev.hex(),
    }
    for name, value in fields.items():
        if isinstance(value, str) and not _TOKEN.fullmatch(value):
            raise InvalidEntry(f"field {name} is not a token")
        entry[name] = value.hex() if isinstance(value, bytes) else value
    try:
        return canonical.encode(entry)
    except canonical.Malformed as error:
        raise InvalidEntry(f"the entry cannot be written: {error}") from error
