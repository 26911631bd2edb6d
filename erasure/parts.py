"""The values that the signed documents are made of: counts, kept items, recipients, witnesses.

Each writes its own part of a document in the one accepted form (lower hex, UTC seconds, sorted
lists), so that the builders only arrange parts. Plain values: no clock, no key, no database.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime

from erasure import leaves, merkle
from erasure.canonical import Json
from erasure.forms import METHOD, Graph, RecipientStatus
from erasure.ledger import stamp
from storage.errors import InvalidInput
from storage.model import ScopeKind

NOT_COVERED = (
    "copies made by users",
    "freed file system blocks",
    "nodes outside the mesh",
    "operating system swap",
    "process heap copies",
    "storage device remapping",
)
"""What no certificate of this version speaks about."""


class InvalidDocument(InvalidInput):
    """The document contradicts itself and is not signed."""

    code = "invalid_document"


@dataclass(frozen=True, slots=True)
class Software:
    """The program that did the work; `schema` is the number of the last migration."""

    version: str
    commit: str
    schema: int
    name: str = "mnemesh"

    def as_json(self) -> dict[str, Json]:
        return {
            "commit": self.commit,
            "name": self.name,
            "schema": self.schema,
            "version": self.version,
        }


@dataclass(frozen=True, slots=True)
class ScopeRef:
    """A scope as documents name it: 32-byte handle and the closed epoch."""

    kind: ScopeKind
    handle: bytes
    epoch: int

    def __post_init__(self) -> None:
        if self.epoch < 1:
            raise InvalidDocument("epochs start at 1")

    def as_json(self) -> dict[str, Json]:
        return {"epoch": self.epoch, "handle": self.handle.hex(), "kind": self.kind.value}


@dataclass(frozen=True, slots=True)
class Tier:
    """Counts of one tier. `root` covers removed, recomputed and dropped; `plan_root` all found.

    `after` is what the verify phase still counted, independent of the run's own counting.
    """

    found: int
    removed: int
    recomputed: int
    dropped: int
    retained: int
    after: int
    level: str
    how: str
    root: bytes
    plan_root: bytes

    def __post_init__(self) -> None:
        if self.n < 0 or min(self.found, self.retained) < 0:
            raise InvalidDocument("a tier has a negative count")

    @classmethod
    def empty(cls, level: str, how: str, *, after: int = 0) -> Tier:
        """A registered tier in which nothing was found."""
        none = merkle.EMPTY_ROOT
        return cls(0, 0, 0, 0, 0, after, level, how, none, none)

    @classmethod
    def of(
        cls,
        *,
        level: str,
        how: str,
        after: int,
        removed: Iterable[bytes] = (),
        recomputed: Iterable[bytes] = (),
        dropped: Iterable[bytes] = (),
        retained: Iterable[bytes] = (),
    ) -> Tier:
        """Counts and roots from keyed leaves, in any order. Raises InvalidDocument on a repeat.

        For tiers too large for memory, feed two `leaves.SortedRoot` from the database and use
        the constructor.
        """
        groups = [list(group) for group in (removed, recomputed, dropped, retained)]
        gone = [one for group in groups[:3] for one in group]
        n, root = leaves.tier_root(gone)
        found, plan_root = leaves.tier_root(gone + groups[3])
        if n != len(gone) or found != n + len(groups[3]):
            raise InvalidDocument("a leaf is counted twice in one tier")
        removals, updates, drops, kept = (len(group) for group in groups)
        return cls(found, removals, updates, drops, kept, after, level, how, root, plan_root)

    @property
    def n(self) -> int:
        return self.found - self.retained

    def as_json(self) -> dict[str, Json]:
        return {
            "after": self.after,
            "dropped": self.dropped,
            "found": self.found,
            "how": self.how,
            "level": self.level,
            "n": self.n,
            "recomputed": self.recomputed,
            "removed": self.removed,
            "retained": self.retained,
            "root": self.root.hex(),
        }


@dataclass(frozen=True, slots=True)
class Retained:
    """Something kept on purpose: how many, why, on which ground, until when."""

    what: str
    n: int
    why: str
    ground: str
    until: str

    def as_json(self) -> dict[str, Json]:
        return {
            "ground": self.ground,
            "n": self.n,
            "until": self.until,
            "what": self.what,
            "why": self.why,
        }


@dataclass(frozen=True, slots=True)
class Pending:
    """What is unreachable but not gone: kinds of database bytes, and backups until a date."""

    physical: tuple[str, ...] = ()
    stance: str = "none"
    clear_after: date | None = None

    def as_json(self) -> dict[str, Json]:
        return {
            "backups": {"clear_after": day_text(self.clear_after), "stance": self.stance},
            "physical": sorted(set(self.physical)),
        }


@dataclass(frozen=True, slots=True)
class Verification:
    """What the verify phase did: read paths tried, probes made, hits, places scanned, residue."""

    paths: int
    probes: int
    hits: int
    residue: int
    scanned: tuple[str, ...]

    def as_json(self) -> dict[str, Json]:
        return {
            "hits": self.hits,
            "paths": self.paths,
            "probes": self.probes,
            "residue": self.residue,
            "scanned": sorted(set(self.scanned)),
        }


@dataclass(frozen=True, slots=True)
class LedgerRef:
    """The entry that carries the document: `log_id` in hex and the number of the entry."""

    log_id: str
    entry: int

    def as_json(self) -> dict[str, Json]:
        return {"entry": self.entry, "log_id": self.log_id}


@dataclass(frozen=True, slots=True)
class Request:
    """Who asked for what reason. `id_digest` is `leaves.request_digest`; keys as 32-byte ids."""

    id_digest: bytes
    basis: str
    requested_at: datetime
    due_by: datetime
    requester: bytes | None = None
    approver: bytes | None = None

    def as_json(self) -> dict[str, Json]:
        return {
            "approver": key_text(self.approver),
            "basis": self.basis,
            "due_by": stamp(self.due_by),
            "id_digest": self.id_digest.hex(),
            "requested_at": stamp(self.requested_at),
            "requester": key_text(self.requester),
        }


@dataclass(frozen=True, slots=True)
class Run:
    """What C and R have in common: one node's own run over its own copies."""

    mesh_id: str
    node_id: bytes
    scope: ScopeRef
    software: Software
    started_at: datetime
    completed_at: datetime
    tiers: Mapping[str, Tier]
    graph: Graph
    retained: tuple[Retained, ...]
    pending: Pending
    verification: Verification
    ledger: LedgerRef
    not_covered: tuple[str, ...] = NOT_COVERED
    mode: str = "clear"

    @property
    def erasure_id(self) -> str:
        return leaves.erasure_id(self.mesh_id, self.scope.handle, self.scope.epoch)

    @property
    def removal_root(self) -> bytes:
        return leaves.top_root({name: (tier.n, tier.root) for name, tier in self.tiers.items()})

    @property
    def plan_root(self) -> bytes:
        return leaves.top_root(
            {name: (tier.found, tier.plan_root) for name, tier in self.tiers.items()}
        )

    def as_json(self) -> dict[str, Json]:
        return {
            "completed_at": stamp(self.completed_at),
            "erasure_id": self.erasure_id,
            "graph": self.graph.value,
            "ledger": self.ledger.as_json(),
            "mesh_id": self.mesh_id,
            "method": METHOD,
            "mode": self.mode,
            "node_id": self.node_id.hex(),
            "not_covered": sorted(set(self.not_covered)),
            "pending": self.pending.as_json(),
            "plan_root": self.plan_root.hex(),
            "removal_root": self.removal_root.hex(),
            "retained": [
                one.as_json()
                for one in sorted(
                    self.retained, key=lambda one: (one.what, one.why, one.ground, one.until)
                )
            ],
            "scope": self.scope.as_json(),
            "software": self.software.as_json(),
            "started_at": stamp(self.started_at),
            "tiers": {name: tier.as_json() for name, tier in self.tiers.items()},
            "verification": self.verification.as_json(),
        }


@dataclass(frozen=True, slots=True)
class Recipient:
    """How one recipient ended; `until` only for `unreachable`: the day of its expulsion."""

    node_id: bytes
    status: RecipientStatus
    receipt_sha256: bytes | None
    at: datetime
    until: datetime | date | None = None

    def as_json(self) -> dict[str, Json]:
        until = self.until
        return {
            "at": stamp(self.at),
            "node_id": self.node_id.hex(),
            "receipt_sha256": hex_text(self.receipt_sha256),
            "status": self.status.value,
            "until": stamp(until) if isinstance(until, datetime) else day_text(until),
        }


@dataclass(frozen=True, slots=True)
class Witness:
    """A witness's signature over one of the origin's tree heads; `at` is the head's time."""

    node_id: bytes
    keyid: str
    log_id: str
    size: int
    root: bytes
    at: datetime
    sig: bytes

    def as_json(self) -> dict[str, Json]:
        return {
            "at": stamp(self.at),
            "keyid": self.keyid,
            "log_id": self.log_id,
            "node_id": self.node_id.hex(),
            "root": self.root.hex(),
            "sig": b64encode(self.sig).decode("ascii"),
            "size": self.size,
        }


@dataclass(frozen=True, slots=True)
class LevelChange:
    """A tier that reached another level, and by which work."""

    before: str
    after: str
    how: str

    def as_json(self) -> dict[str, Json]:
        return {"from": self.before, "how": self.how, "to": self.after}


@dataclass(frozen=True, slots=True)
class Evidence:
    """One observation behind an addendum, in the order in which it is told."""

    what: str
    object: str
    at: datetime
    value: str

    def as_json(self) -> dict[str, Json]:
        return {
            "at": stamp(self.at),
            "object": self.object,
            "value": self.value,
            "what": self.what,
        }


def key_text(keyid: bytes | None) -> str | None:
    """A 32-byte key id as the documents name a requester."""
    return None if keyid is None else f"key:{keyid.hex()}"


def hex_text(digest: bytes | None) -> str | None:
    """A digest in lower hex, or null."""
    return None if digest is None else digest.hex()


def day_text(day: date | None) -> str | None:
    """A date as the documents write it, or null."""
    return None if day is None else day.isoformat()
