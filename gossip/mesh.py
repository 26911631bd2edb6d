"""The state of one node's gossip, and what upper layers may ask of it.

The cores decide, the drivers beside this file act;
this object is what they share. One trio run owns it. It never blocks and never opens a link.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, TypeAlias

import numpy as np
import trio
from numpy.typing import NDArray

from erasure.context import ErasureContext
from gossip import energy
from gossip.affinity import quantised
from gossip.channel import PeerChannel
from gossip.copies import Send
from gossip.limits import Conduct, LinkLimits, Standing
from gossip.links import Links
from gossip.liveness import Life, Liveness
from gossip.moment import Moment
from gossip.outgoing import Outgoing
from gossip.profile import Interest, KnownProfiles, Profile, View
from gossip.quarantine import Quarantine
from gossip.relay import RelayCache
from gossip.settings import GossipSettings
from gossip.walk import Walk
from gossip.wire.messages import Message
from storage.access import LiveAccess
from storage.local import LocalNode
from storage.memories import Stored
from storage.model import Memory, MemoryId, NodeId, ProjectId
from storage.pool import Database, Tx

StoredHook: TypeAlias = Callable[[Sequence[Stored]], Awaitable[None]]
ForgottenHook: TypeAlias = Callable[[Sequence[MemoryId]], Awaitable[None]]
HandHook: TypeAlias = Callable[[Tx, Memory, bytes, bytes], Awaitable[None]]
InterestSource: TypeAlias = Callable[[], Awaitable["Interests"]]


class Counters(Protocol):
    """Where events are counted; the composition root maps the names to collectors."""

    def __call__(self, name: str, label: str = "", n: int = 1) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class Interests:
    """What this node cares about now: one (memory id, unit vector) for each agent's position,
    a sample of local vectors, shape (n, dim), for the threshold, and aggregates."""

    positions: tuple[tuple[MemoryId, NDArray[np.float32]], ...]
    sample: Sequence[NDArray[np.float32]]
    aggregates: tuple[Interest, ...] = ()


async def nobody(tx: Tx, memory: Memory, diff_id: bytes, q8: bytes) -> None:
    """Hand a peer's memory to no agent."""


@dataclass(frozen=True, slots=True)
class MeshHooks:
    """What happens above when a peer's word took effect below.

    `hand` runs inside the transaction that stores a peer's memory, the others after a commit.
    """

    stored: StoredHook
    forgotten: ForgottenHook
    interests: InterestSource
    count: Counters
    hand: HandHook = nobody


@dataclass(frozen=True, slots=True)
class MemberView:
    """A member as an operator sees it."""

    node_id: NodeId
    address: str
    status: str
    projects: tuple[str, ...]
    linked: bool
    last_contact: datetime | None
    score: int
    profile_entries: int


@dataclass(slots=True)
class Mesh:
    """Everything that gossip knows and owns. `model` is the embedding model's id."""

    node: LocalNode
    db: Database
    access: LiveAccess
    erasure: ErasureContext
    settings: GossipSettings
    hooks: MeshHooks
    model: str
    dim: int
    mono_ms: Callable[[], int]
    rng: random.Random
    links: Links
    liveness: Liveness
    limits: LinkLimits
    walk: Walk
    profiles: KnownProfiles = field(default_factory=KnownProfiles)
    own_profile: Profile | None = None
    own_profile_wire: tuple[bytes, bytes] | None = None
    own_profile_at: int = 0
    quarantines: dict[ProjectId, Quarantine] = field(default_factory=dict)
    relay: RelayCache = field(default_factory=RelayCache)
    outgoing: dict[NodeId, Outgoing] = field(default_factory=dict)
    announced: trio.Event = field(default_factory=trio.Event)
    dial_due: trio.Event = field(default_factory=trio.Event)
    outbox_due: trio.Event = field(default_factory=trio.Event)
    repair_due: trio.Event = field(default_factory=trio.Event)
    diff_grace_h: int = 24
    bound: tuple[str, ...] = ()
    announced_again: dict[tuple[NodeId, ProjectId], int] = field(default_factory=dict)
    caught_up: dict[tuple[NodeId, ProjectId], int] = field(default_factory=dict)
    quarantines_kept: dict[ProjectId, str] = field(default_factory=dict)
    lives_due: dict[NodeId, Life] = field(default_factory=dict)
    last_contact: dict[NodeId, datetime] = field(default_factory=dict)

    def now(self) -> Moment:
        """Both clocks."""
        return Moment(int(self.node.wall().timestamp() * 1000), self.mono_ms())

    def wake(self) -> None:
        """Own announcements or outbox rows were committed."""
        self.announced.set()
        self.wake_outbox()

    def address(self) -> str:
        """Where peers reach this node; empty when it does not listen."""
        if self.settings.advertise is not None:
            return self.settings.advertise
        return self.bound[0] if self.bound else self.settings.listen or ""

    def wake_outbox(self) -> None:
        """Outbox rows wait to be carried."""
        self.outbox_due.set()
        self.outbox_due = trio.Event()

    def dial_again(self) -> None:
        """Members or addresses are new."""
        self.dial_due.set()
        self.dial_due = trio.Event()

    def post(self, peer: NodeId, item: Message | Send) -> bool:
        """Have something sent to a peer without waiting; False when it has no link or no room."""
        outgoing = self.outgoing.get(peer)
        if outgoing is None:
            self.hooks.count("send_failed_total", "no_link")
            return False
        return outgoing.post(item)

    def note(self, peer: NodeId, conduct: Conduct) -> None:
        """Book a peer's conduct."""
        mono = self.mono_ms()
        explore = self.settings.eps_ppm
        self.limits.of(peer, mono).note(conduct, mono, explore)

    def standing(self, peer: NodeId) -> Standing:
        """What a peer's conduct still allows it."""
        mono = self.mono_ms()
        return self.limits.of(peer, mono).standing(mono)

    def repair_again(self) -> None:
        """Something changed that repair should look at before its period ends."""
        self.repair_due.set()
        self.repair_due = trio.Event()

    def channel(self, peer: NodeId) -> PeerChannel | None:
        """An open link to a peer."""
        live = self.links.live(peer)
        return live[0] if live else None

    def others(self, project: ProjectId) -> frozenset[NodeId]:
        """Members of a project beside this node."""
        access = self.access.current.projects.get(project)
        return frozenset(access.nodes) - {self.node.node_id} if access else frozenset()

    def view(self, project: ProjectId) -> View:
        """Whom a walk in a project may pick now."""
        now = self.now()
        barred = self.liveness.unwalkable(now) | self.limits.barred(now.mono_ms)
        barred |= {each.peer_id for each in self.links.live() if each.tombstones_only}
        live = self.others(project) & self.liveness.live()
        return self.profiles.view(live, self.model, now.mono_ms, barred)

    def live_members(self, project: ProjectId) -> int:
        """Live members of a project, this node included."""
        return 1 + len(self.others(project) & self.liveness.live())

    def walk_energy(self, project: ProjectId, q8: bytes) -> int:
        """Milli-units that a new diff about this vector starts with."""
        members = self.live_members(project)
        wanting, asked = self.view(project).sample(quantised(q8))
        return energy.budget(
            self.settings.kappa, energy.interested(members, wanting, asked), members
        )

    def may_send_content(self, project: ProjectId) -> bool:
        """False while this node may have missed a deletion in the project."""
        quarantine = self.quarantines.get(project)
        return quarantine is None or quarantine.may_send_content

    def quarantined(self) -> bool:
        """True while any project is in quarantine."""
        return any(not each.may_send_content for each in self.quarantines.values())

    def members(self) -> list[MemberView]:
        """All members of all projects, this node left out."""
        mono = self.mono_ms()
        views: list[MemberView] = []
        for node_id, entry in sorted(self.access.current.nodes().items()):
            if node_id == self.node.node_id:
                continue
            profile = self.profiles.get(node_id)
            views.append(
                MemberView(
                    node_id=node_id,
                    address=entry.addr,
                    status=self.liveness.life(node_id).value,
                    projects=tuple(
                        sorted(p.name for p in self.access.current.shared_with(node_id))
                    ),
                    linked=self.channel(node_id) is not None,
                    last_contact=self.last_contact.get(node_id),
                    score=self.limits.of(node_id, mono).score(mono) // 1000,
                    profile_entries=len(profile.entries) if profile else 0,
                )
            )
        return views

    def status(self) -> Mapping[str, Any]:
        """Numbers for the status page and for metrics."""
        members = self.members()
        return {
            "listening": list(self.bound),
            "members": len(members),
            "alive": sum(member.status == "alive" for member in members),
            "linked": sum(member.linked for member in members),
            "quarantined": self.quarantined(),
            "profile_entries": len(self.own_profile.entries) if self.own_profile else 0,
            "tau_ppm": self.own_profile.tau_ppm if self.own_profile else None,
            "unanswered_copies": self.walk.unanswered,
            "relay_cache_bytes": self.relay.size,
        }
