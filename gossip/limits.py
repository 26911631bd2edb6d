"""How much a peer or an agent may ask of this node, and what its conduct costs it.

Token buckets slow a peer down first and drop walk copies only when it keeps on; the score takes
away privileges step by step. Tombstones are only ever delayed: no rate and no score drops one,
or a slow peer could keep alive what must be gone.

Whole numbers throughout; time is passed in as monotonic milliseconds. Called by the session's
driver for each frame and by the walk's driver for `Score` effects. Never closes a link itself.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from enum import StrEnum

from gossip.energy import UNIT
from gossip.settings import LimitSettings
from storage.model import AgentId, NodeId

MILLI = 1_000
MAX_AGENTS = 4_096
MAX_PAUSE_MS = 10_000
MINUTE_MS = 60_000
DISCONNECT_MS = 600_000
MERIT_CAP = 50 * MILLI
NO_COPIES = -10 * MILLI
REPAIR_ONLY = -50 * MILLI
DISCONNECT = -100 * MILLI


class Conduct(StrEnum):
    """What a peer did that changes its score."""

    USEFUL = "useful"
    BAD_FRAME = "bad_frame"
    BAD_SIGNATURE = "bad_signature"
    ENERGY_VIOLATION = "energy_violation"
    BODY_WITHHELD = "body_withheld"
    IRRELEVANT = "irrelevant"
    SERVED_TOMBSTONED = "served_tombstoned"


_POINTS = {
    Conduct.USEFUL: 1,
    Conduct.BAD_FRAME: -10,
    Conduct.BAD_SIGNATURE: -10,
    Conduct.ENERGY_VIOLATION: -5,
    Conduct.BODY_WITHHELD: -5,
    Conduct.IRRELEVANT: -2,
    Conduct.SERVED_TOMBSTONED: -20,
}


class Standing(StrEnum):
    """What a peer's score still allows; tombstones flow in every standing."""

    FULL = "full"
    NO_COPIES = "no_copies"
    REPAIR_ONLY = "repair_only"
    DISCONNECT = "disconnect"


class Traffic(StrEnum):
    """The kinds of frame that limits tell apart."""

    WALK = "walk"
    TOMBSTONE = "tombstone"
    REPAIR = "repair"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Admission:
    """What to do with a frame: whether to handle it, and how long to stop reading after it."""

    accepted: bool
    pause_ms: int = 0


class TokenBucket:
    """`rate` tokens a second, at most `burst` saved up; a debt is paid off by waiting."""

    def __init__(self, rate: int, burst: int, mono_ms: int) -> None:
        self.rate = rate
        self.burst = burst
        self._milli = burst * MILLI
        self._at = mono_ms

    def take(self, tokens: int, mono_ms: int) -> bool:
        """Take the tokens if they are there; nothing is taken otherwise."""
        self._refill(mono_ms)
        if self._milli < tokens * MILLI:
            return False
        self._milli -= tokens * MILLI
        return True

    def charge(self, tokens: int, mono_ms: int) -> int:
        """Take the tokens anyway; milliseconds until the debt is paid."""
        self._refill(mono_ms)
        self._milli -= tokens * MILLI
        return max(0, -(self._milli // self.rate))

    def available(self, mono_ms: int) -> int:
        """Whole tokens that can be taken now."""
        self._refill(mono_ms)
        return max(0, self._milli // MILLI)

    def _refill(self, mono_ms: int) -> None:
        waited = max(0, mono_ms - self._at)
        self._milli = min(self.burst * MILLI, self._milli + waited * self.rate)
        self._at = max(self._at, mono_ms)


class PeerLimits:
    """One peer's rates and score. Not durable: a new link starts at `score_milli` of its row."""

    def __init__(self, settings: LimitSettings, mono_ms: int, score_milli: int = 0) -> None:
        self._diffs = TokenBucket(settings.peer_diffs_per_s, settings.peer_diffs_burst, mono_ms)
        self._bytes = TokenBucket(settings.peer_bytes_per_s, settings.peer_bytes_per_s, mono_ms)
        rate = settings.tombstones_per_s
        self._tombstones = TokenBucket(rate, rate, mono_ms)
        self._score = score_milli
        self._scored_at = mono_ms
        self._copies = 0
        self._irrelevant = 0
        self._parted_at: int | None = None

    def admit(self, traffic: Traffic, size: int, records: int, mono_ms: int) -> Admission:
        """Judge a frame of `size` bytes with so many diffs or tombstones in it.

        Walk copies beyond the burst are dropped; everything else is accepted and paid for by a
        pause in reading, of at most 10 s at a time.
        """
        pause = self._bytes.charge(size, mono_ms)
        accepted = True
        if traffic is Traffic.WALK:
            accepted = self._diffs.take(records, mono_ms)
            if not accepted:
                pause = max(pause, MILLI // self._diffs.rate)
        elif traffic is Traffic.TOMBSTONE:
            pause = max(pause, self._tombstones.charge(records, mono_ms))
        return Admission(accepted, min(pause, MAX_PAUSE_MS))

    def note(self, conduct: Conduct, mono_ms: int, explore_ppm: int = 0) -> int:
        """Book a conduct; the new score in thousandths.

        An irrelevant copy costs only above the share that exploring explains (`explore_ppm`).
        Below -100 the peer is to be disconnected for 10 minutes from now.
        """
        self._decay(mono_ms)
        points = _POINTS[conduct]
        if conduct in (Conduct.USEFUL, Conduct.IRRELEVANT):
            self._copies += 1
        if conduct is Conduct.IRRELEVANT:
            self._irrelevant += 1
            if self._irrelevant * 1_000_000 <= max(self._copies, 10) * explore_ppm:
                points = 0
        self._score = min(MERIT_CAP, self._score + points * MILLI)
        if self._score < DISCONNECT:
            self._parted_at = mono_ms
        return self._score

    def score(self, mono_ms: int) -> int:
        """The present score in thousandths."""
        self._decay(mono_ms)
        return self._score

    def standing(self, mono_ms: int) -> Standing:
        """What the peer may still get."""
        self._decay(mono_ms)
        if self._parted_at is not None and mono_ms - self._parted_at < DISCONNECT_MS:
            return Standing.DISCONNECT
        if self._score < REPAIR_ONLY:
            return Standing.REPAIR_ONLY
        if self._score < NO_COPIES:
            return Standing.NO_COPIES
        return Standing.FULL

    def _decay(self, mono_ms: int) -> None:
        """A tenth goes each minute, toward zero; the copy counts halve at a thousand."""
        minutes = max(0, mono_ms - self._scored_at) // MINUTE_MS
        for _ in range(min(minutes, 256)):
            self._score = abs(self._score) * 9 // 10 * (1 if self._score > 0 else -1)
        if minutes:
            self._scored_at += minutes * MINUTE_MS
        if self._copies >= 1_000:
            self._copies //= 2
            self._irrelevant //= 2


class AgentLimits:
    """What each agent may announce. Agents beyond the newest 4,096 start anew."""

    def __init__(self, settings: LimitSettings) -> None:
        self._settings = settings
        self._buckets: OrderedDict[AgentId, tuple[TokenBucket, TokenBucket]] = OrderedDict()

    def grant(self, agent: AgentId, e0_milli: int, mono_ms: int) -> int | None:
        """Milli-units that a new diff may start with; None when the agent must wait.

        The wish is cut to what the minute still has; less than the price of one copy is refused.
        """
        diffs, energy = self._of(agent, mono_ms)
        granted = min(e0_milli, energy.available(mono_ms))
        if granted < UNIT or not diffs.take(1, mono_ms):
            return None
        energy.charge(granted, mono_ms)
        return granted

    def _of(self, agent: AgentId, mono_ms: int) -> tuple[TokenBucket, TokenBucket]:
        held = self._buckets.get(agent)
        if held is None:
            per_s = self._settings.agent_diffs_per_s
            milli = self._settings.agent_energy_per_min * UNIT
            held = (
                TokenBucket(per_s, per_s, mono_ms),
                TokenBucket(max(1, milli // 60), milli, mono_ms),
            )
            self._buckets[agent] = held
            if len(self._buckets) > MAX_AGENTS:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(agent)
        return held


class LinkLimits:
    """The limits of every peer; a peer's score outlives its link."""

    def __init__(self, settings: LimitSettings) -> None:
        self._settings = settings
        self._peers: dict[NodeId, PeerLimits] = {}

    def of(self, peer: NodeId, mono_ms: int, score_milli: int = 0) -> PeerLimits:
        """The limits of a member, made on first use from its durable score."""
        if peer not in self._peers:
            self._peers[peer] = PeerLimits(self._settings, mono_ms, score_milli)
        return self._peers[peer]

    def forget(self, peer: NodeId) -> None:
        """Drop a member that left for good."""
        self._peers.pop(peer, None)

    def barred(self, mono_ms: int) -> frozenset[NodeId]:
        """Peers that no new walk copy goes to."""
        return frozenset(
            peer
            for peer, limits in self._peers.items()
            if limits.standing(mono_ms) is not Standing.FULL
        )
