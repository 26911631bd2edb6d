"""The vocabulary of the walk: what happens to a diff here, and what is to be done about it.

Plain values without behaviour. Drivers build the events from frames and rows and run the
effects; `gossip/walk.py` turns one into the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from gossip.affinity import Quantised
from gossip.limits import Conduct
from gossip.profile import Profile, View
from gossip.wire.messages import AckStatus, Hop
from storage.model import Hlc, MemoryId, NodeId


class Stop(StrEnum):
    """Why a walk ended here; the labels of `walk_stop_total`, and nothing else stops one."""

    EXPIRED_CLOCK = "expired_clock"
    EXPIRED_AGE = "expired_age"
    HOP_MAX = "hop_max"
    ENERGY = "energy"
    NO_CANDIDATE = "no_candidate"
    FANOUT_CAP = "fanout_cap"
    TOMBSTONED = "tombstoned"
    FENCED = "fenced"
    PATIENCE = "patience"
    INVALID = "invalid"
    ACL = "acl"
    RATE = "rate"
    QUARANTINED = "quarantined"


FINAL = frozenset({Stop.EXPIRED_CLOCK, Stop.EXPIRED_AGE, Stop.TOMBSTONED, Stop.FENCED})
"""Outcomes of a seen diff that no later copy undoes."""


class Refusal(StrEnum):
    """Why a copy is not taken; the text after `refused` in acks, rows and metrics."""

    NONCANONICAL = "noncanonical"
    MALFORMED = "malformed"
    SIGNATURE = "signature"
    ACL = "acl"
    FENCED = "fenced"
    TOMBSTONED = "tombstoned"
    SERVED_TOMBSTONED = "served_tombstoned"
    MODEL = "model"
    HOP_MAX = "hop_max"
    EXPIRED_AGE = "expired_age"
    EXPIRED_CLOCK = "expired_clock"
    DRIFT = "drift"
    RATE = "rate"


STOPS = {
    Refusal.ACL: Stop.ACL,
    Refusal.FENCED: Stop.FENCED,
    Refusal.TOMBSTONED: Stop.TOMBSTONED,
    Refusal.SERVED_TOMBSTONED: Stop.TOMBSTONED,
    Refusal.HOP_MAX: Stop.HOP_MAX,
    Refusal.EXPIRED_AGE: Stop.EXPIRED_AGE,
    Refusal.EXPIRED_CLOCK: Stop.EXPIRED_CLOCK,
    Refusal.RATE: Stop.RATE,
}
PENALTIES = {
    Refusal.NONCANONICAL: Conduct.BAD_SIGNATURE,
    Refusal.SIGNATURE: Conduct.BAD_SIGNATURE,
    Refusal.SERVED_TOMBSTONED: Conduct.SERVED_TOMBSTONED,
}
LATE = frozenset({Refusal.DRIFT, Refusal.RATE})
"""Judged after hop and expiry, as the order of checks has it."""


class Keep(StrEnum):
    """What the commit does with the bytes."""

    STORE = "store"
    RELAY = "relay"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True, eq=False)
class Diff:
    """What a walk needs to know of a diff; the limits are the signed ones of its body."""

    diff_id: bytes
    memory_id: MemoryId
    origin: NodeId
    q: Quantised
    body_bytes: int
    hlc: Hlc
    e0_milli: int
    ttl_ms: int
    hop_max: int


@dataclass(frozen=True, slots=True)
class Seen:
    """The row that makes a second copy a duplicate; energies in milli-units."""

    diff_id: bytes
    first_hlc: Hlc
    expires_ms: int
    energy_in: int = 0
    energy_out: int = 0
    sent: tuple[NodeId, ...] = ()
    senders: tuple[NodeId, ...] = ()
    outcome: str = ""

    @property
    def fanout(self) -> int:
        """Copies of this diff that this node has sent."""
        return len(self.sent)


@dataclass(frozen=True, slots=True)
class Facts:
    """What the driver read for one event.

    `own` is this node's profile in the diff's model, None when it has none and wants nothing.
    `members` counts live members of the project with this node. `refusal` is the verdict of the
    checks that need rows, keys or rates. `eps_ppm` None means the setting.
    """

    seen: Seen | None
    own: Profile | None
    view: View
    members: int
    stamp: Hlc
    may_send: bool = True
    refusal: Refusal | None = None
    eps_ppm: int | None = None


@dataclass(frozen=True, slots=True)
class LocalDiff:
    """A diff of a local agent that was just signed. A second one with a seen row does nothing."""

    diff: Diff
    facts: Facts


@dataclass(frozen=True, slots=True)
class CopyIn:
    """A copy from a peer. `read_ms`: monotonic time when it was read, if it waited since.

    A refused copy that could not be opened has no `diff`; it needs `diff_id` for the ack.
    """

    peer: NodeId
    diff_id: bytes
    hop: Hop
    diff: Diff | None
    facts: Facts
    read_ms: int | None = None


@dataclass(frozen=True, slots=True)
class AckIn:
    """A peer's answer, already bound to its channel by the driver."""

    peer: NodeId
    diff_id: bytes
    status: AckStatus
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Timer:
    """A timer set by `SetTimer` is due."""

    peer: NodeId
    diff_id: bytes


@dataclass(frozen=True, slots=True)
class Intent:
    """A delivery row `intent` and its holder row, written before the frame leaves."""

    peer: NodeId
    role: str


@dataclass(frozen=True, slots=True)
class Persist:
    """One transaction: gate again, then seen, memory or relay cache, intents and holders.

    Nothing after it in the list runs before its commit. When the gate or the database refuses,
    the driver drops the rest of the list and feeds `PersistRefused`.
    """

    diff_id: bytes
    memory_id: MemoryId
    seen: Seen
    keep: Keep
    intents: tuple[Intent, ...] = ()
    sender: NodeId | None = None


@dataclass(frozen=True, slots=True)
class PersistRefused:
    """The transaction of `persist` did not commit."""

    persist: Persist
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class RecordDelivery:
    """A further row about a copy that was sent: stored, relayed, dup, refused or timeout."""

    diff_id: bytes
    memory_id: MemoryId
    peer: NodeId
    role: str
    status: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Send:
    """Send the stored bytes of the diff with this header; the gate is asked again first.

    A driver that lets a frame wait adds the wait to `hop.age_ms`. `attempt` above 0 is a retry
    that was paid for already; it goes over the same link or not at all.
    """

    peer: NodeId
    diff_id: bytes
    hop: Hop
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Ack:
    """Answer the sender of a copy."""

    peer: NodeId
    diff_id: bytes
    status: AckStatus
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Score:
    """A conduct to book with `PeerLimits.note`."""

    peer: NodeId
    conduct: Conduct


@dataclass(frozen=True, slots=True)
class Metric:
    """Add `n` to a counter, or observe it where the name is a histogram."""

    name: str
    label: str = ""
    n: int = 1


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Feed `Timer(peer, diff_id)` at this monotonic time."""

    peer: NodeId
    diff_id: bytes
    at_ms: int


Event: TypeAlias = LocalDiff | CopyIn | AckIn | Timer | PersistRefused
Effect: TypeAlias = Persist | RecordDelivery | Send | Ack | Score | Metric | SetTimer
