"""Which peers answer: alive, suspect, then dead, from pings and from links going up and down.

Each node judges by its own pings alone; there is no rumour to refute. A peer is suspect when it
was silent for `suspect_s` or its link broke, dead after `dead_s` more, and alive again with the
first sign of life. Nobody is ever removed by a timer here.

Pure: the driver pings, feeds what it hears and ticks. Changes go to quarantine and to the walk,
which picks no peer that has been suspect for more than 10 s.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from gossip.moment import Moment
from gossip.settings import MembershipSettings
from storage.model import NodeId

WALK_SUSPECT_MS = 10_000


class Life(StrEnum):
    ALIVE = "alive"
    SUSPECT = "suspect"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class LinkUp:
    """A link to the peer passed its handshake."""

    peer: NodeId


@dataclass(frozen=True, slots=True)
class LinkDown:
    """The last link to the peer ended."""

    peer: NodeId


@dataclass(frozen=True, slots=True)
class Heard:
    """A pong, or any frame, came from the peer."""

    peer: NodeId


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed; twice a second is enough."""


@dataclass(frozen=True, slots=True)
class SendPing:
    """Ping the peer over its link."""

    peer: NodeId
    seq: int


@dataclass(frozen=True, slots=True)
class LifeChanged:
    """The judgement of a peer changed."""

    peer: NodeId
    before: Life
    after: Life


Event: TypeAlias = LinkUp | LinkDown | Heard | Tick
Effect: TypeAlias = SendPing | LifeChanged


@dataclass(slots=True)
class _Peer:
    life: Life
    heard_ms: int
    since_ms: int
    linked: bool = False
    pinged_ms: int | None = None
    seq: int = 0


class Liveness:
    """The judgement of all members that this node may talk to."""

    def __init__(self, settings: MembershipSettings) -> None:
        self._ping_ms = round(settings.ping_s * 1_000)
        self._suspect_ms = round(settings.suspect_s * 1_000)
        self._dead_ms = round(settings.dead_s * 1_000)
        self._peers: dict[NodeId, _Peer] = {}

    def add(self, peer: NodeId, now: Moment, life: Life = Life.SUSPECT) -> None:
        """Watch a member. Unheard of it is suspect: present in rows, not yet on a link."""
        if peer not in self._peers:
            self._peers[peer] = _Peer(life, now.mono_ms, now.mono_ms)

    def watches(self, peer: NodeId) -> bool:
        """Whether the member is watched."""
        return peer in self._peers

    def remove(self, peer: NodeId) -> None:
        """Stop watching a member that left for good."""
        self._peers.pop(peer, None)

    def life(self, peer: NodeId) -> Life:
        """The judgement of a peer; a stranger is dead."""
        known = self._peers.get(peer)
        return known.life if known else Life.DEAD

    def live(self) -> frozenset[NodeId]:
        """Members that are not dead."""
        return frozenset(p for p, state in self._peers.items() if state.life is not Life.DEAD)

    def unwalkable(self, now: Moment) -> frozenset[NodeId]:
        """Live members that have been suspect for so long that no copy goes to them."""
        return frozenset(
            peer
            for peer, state in self._peers.items()
            if state.life is Life.SUSPECT and now.mono_ms - state.since_ms > WALK_SUSPECT_MS
        )

    def handle(self, event: Event, now: Moment) -> list[Effect]:
        """Pings that are due and judgements that changed."""
        if isinstance(event, Tick):
            return [effect for peer in sorted(self._peers) for effect in self._tick(peer, now)]
        state = self._peers.get(event.peer)
        if state is None:
            return []
        if isinstance(event, LinkDown):
            state.linked = False
            return self._become(event.peer, Life.SUSPECT, now) if state.life is Life.ALIVE else []
        if isinstance(event, LinkUp):
            state.linked = True
            state.pinged_ms = None
        state.heard_ms = now.mono_ms
        return self._become(event.peer, Life.ALIVE, now)

    def _tick(self, peer: NodeId, now: Moment) -> list[Effect]:
        state = self._peers[peer]
        effects: list[Effect] = []
        if state.linked and (
            state.pinged_ms is None or now.mono_ms - state.pinged_ms >= self._ping_ms
        ):
            state.pinged_ms = now.mono_ms
            state.seq += 1
            effects.append(SendPing(peer, state.seq))
        if state.life is Life.ALIVE and now.mono_ms - state.heard_ms > self._suspect_ms:
            effects += self._become(peer, Life.SUSPECT, now)
        elif state.life is Life.SUSPECT and now.mono_ms - state.since_ms > self._dead_ms:
            effects += self._become(peer, Life.DEAD, now)
        return effects

    def _become(self, peer: NodeId, life: Life, now: Moment) -> list[Effect]:
        state = self._peers[peer]
        before = state.life
        if before is life:
            return []
        state.life, state.since_ms = life, now.mono_ms
        return [LifeChanged(peer, before, life)]
