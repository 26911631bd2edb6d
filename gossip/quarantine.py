"""When a node must not hand out content: it may have missed a deletion.

After a long stop, a jump of the clock, five minutes without tombstone sync or a healed partition
a node keeps its copies to itself until it has exchanged tombstones with enough peers. Receiving,
tombstones and their repair, and local writes go on, so a mesh whose nodes all restart at once
frees itself.

One state per project, pure; the driver makes `ModeChanged` durable and feeds it back at start.
It never syncs, and it does not decide about reset, which drops foreign content.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from gossip.moment import Moment
from gossip.settings import QuarantineSettings
from storage.model import NodeId

HEAL_WINDOW_MS = 60_000
HEAL_SHARE = 10


class Cause(StrEnum):
    """Why a node went into quarantine."""

    DOWN = "down"
    NO_SYNC = "no_sync"
    CLOCK_JUMP = "clock_jump"
    HEALED = "healed"


@dataclass(frozen=True, slots=True)
class Started:
    """The node starts: how long it was down, whom it knows, who of them was last dead.

    `cause` is the durable one, when the node stopped in quarantine.
    """

    down_ms: int
    alive: frozenset[NodeId] = frozenset()
    dead: frozenset[NodeId] = frozenset()
    cause: Cause | None = None


@dataclass(frozen=True, slots=True)
class Synced:
    """A tombstone sync with a peer ended in success."""

    peer: NodeId


@dataclass(frozen=True, slots=True)
class ClockJump:
    """The wall clock moved by so much more, or less, than the monotonic one."""

    by_ms: int


@dataclass(frozen=True, slots=True)
class MemberChanged:
    """A member was seen alive or dead; a suspect still counts as alive."""

    peer: NodeId
    alive: bool


@dataclass(frozen=True, slots=True)
class MemberGone:
    """A member left for good: decommissioned, expelled or no longer admitted."""

    peer: NodeId


@dataclass(frozen=True, slots=True)
class NoMembers:
    """The project has no other member, so nobody could know of a deletion that we missed."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed; once a second is enough."""


@dataclass(frozen=True, slots=True)
class ModeChanged:
    """Make this durable, then act by it. `cause` None: content may be sent again."""

    cause: Cause | None


Event: TypeAlias = Started | Synced | ClockJump | MemberChanged | MemberGone | NoMembers | Tick
Effect: TypeAlias = ModeChanged


@dataclass(slots=True)
class Quarantine:
    """The gate of one project for everything that carries content."""

    settings: QuarantineSettings
    cause: Cause | None = None
    _alive: set[NodeId] = field(default_factory=set)
    _dead: set[NodeId] = field(default_factory=set)
    _synced: set[NodeId] = field(default_factory=set)
    _healed: set[NodeId] = field(default_factory=set)
    _returns: deque[tuple[int, NodeId]] = field(default_factory=deque)
    _last_sync_ms: int = 0

    @property
    def may_send_content(self) -> bool:
        """Whether copies, bodies and answers to content repair may leave."""
        return self.cause is None

    @property
    def members(self) -> int:
        """Other members that are known, dead ones included."""
        return len(self._alive) + len(self._dead)

    def handle(self, event: Event, now: Moment) -> list[Effect]:
        """The change of mode that an event brings, if any."""
        before = event.cause if isinstance(event, Started) else self.cause
        match event:
            case Started():
                self._start(event, now)
            case Synced():
                self._sync(event.peer, now)
            case ClockJump():
                if abs(event.by_ms) > self.settings.jump_s * 1_000:
                    self._enter(Cause.CLOCK_JUMP)
            case MemberChanged():
                self._change(event, now)
            case MemberGone():
                self._forget(event.peer)
            case NoMembers():
                for peer in (*self._alive, *self._dead):
                    self._forget(peer)
            case Tick():
                if now.mono_ms - self._last_sync_ms > self.settings.sync_s * 1_000:
                    self._enter(Cause.NO_SYNC)
        self._leave_if_done()
        return [] if self.cause == before else [ModeChanged(self.cause)]

    def _start(self, event: Started, now: Moment) -> None:
        self._alive, self._dead = set(event.alive), set(event.dead)
        self._last_sync_ms = now.mono_ms
        if event.cause is not None:
            self._enter(event.cause)
        elif event.down_ms > self.settings.down_s * 1_000:
            self._enter(Cause.DOWN)

    def _sync(self, peer: NodeId, now: Moment) -> None:
        self._last_sync_ms = now.mono_ms
        if self.cause is not None:
            self._synced.add(peer)

    def _change(self, event: MemberChanged, now: Moment) -> None:
        if not event.alive:
            self._alive.discard(event.peer)
            self._dead.add(event.peer)
            return
        if not self.members:
            self._last_sync_ms = now.mono_ms
        returned = event.peer in self._dead
        self._dead.discard(event.peer)
        self._alive.add(event.peer)
        if returned:
            self._returns.append((now.mono_ms, event.peer))
            self._heal(now)

    def _heal(self, now: Moment) -> None:
        while now.mono_ms - self._returns[0][0] > HEAL_WINDOW_MS:
            self._returns.popleft()
        back = {peer for _, peer in self._returns}
        if len(back) * HEAL_SHARE >= self.members:
            self._enter(Cause.HEALED)
            self._healed |= back
            self._synced -= back

    def _enter(self, cause: Cause) -> None:
        """A new cause makes earlier syncs worthless; the same again changes nothing."""
        if not self.members or self.cause == cause:
            return
        if self.cause is None or cause is not Cause.NO_SYNC:
            self._synced.clear()
            self.cause = cause

    def _forget(self, peer: NodeId) -> None:
        for group in (self._alive, self._dead, self._synced, self._healed):
            group.discard(peer)

    def _leave_if_done(self) -> None:
        if self.cause is None:
            return
        if self.members:
            needed = min(self.settings.peers, len(self._alive))
            if needed == 0 or len(self._synced & self._alive) < needed:
                return
            healed = self._healed & self._alive
            if healed and not healed & self._synced:
                return
        self.cause = None
        self._synced.clear()
        self._healed.clear()
        self._returns.clear()
