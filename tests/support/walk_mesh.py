"""A discrete-event mesh that drives real walk cores: no sockets, no clock, one seed.

Links delay, drop and repeat frames. A node's rows are a dict. Every rule of the walk that must
hold at all times is checked while it runs (`always_*`); what must hold in the end is asked by
the tests. The seed is printed on failure by pytest's captured output; `SEED=...` replays it.
"""

from __future__ import annotations

import heapq
import os
import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from gossip import copies, energy
from gossip.affinity import Quantised, quantise
from gossip.copies import CopyIn, Diff, Facts, Keep, LocalDiff, Persist, Seen, Send
from gossip.moment import Moment
from gossip.profile import Entry, KnownProfiles, Profile, View
from gossip.settings import GossipSettings
from gossip.walk import Walk
from gossip.wire.messages import Hop
from storage import clock

DIM = 32
MODEL = "test"
TAU_PPM = 450_000
WALL = 1_700_000_000_000


@dataclass(frozen=True)
class Faults:
    """Per frame: the share lost, the share sent twice, and the range of delays in ms."""

    loss: float = 0.0
    repeat: float = 0.0
    delay_ms: tuple[int, int] = (1, 40)


@dataclass
class Node:
    """One node: its core, its rows, what it knows of others."""

    id: bytes
    profile: Profile
    walk: Walk
    known: KnownProfiles
    seen: dict[bytes, Seen] = field(default_factory=dict)
    stored: set[bytes] = field(default_factory=set)
    up: bool = True
    quarantined: bool = False
    extra_dwell_ms: int = 0
    owned_dwell_ms: int = 0
    """The part of the dwell that the node admits in `age_ms`."""


class WalkMesh:
    """`size` nodes with 1 to 4 interests each, out of `topics` random directions."""

    def __init__(
        self,
        size: int,
        seed: int,
        *,
        topics: int = 20,
        known_share: float = 1.0,
        faults: Faults | None = None,
        settings: GossipSettings | None = None,
        ring: bool = False,
    ) -> None:
        self.seed = int(os.environ.get("SEED", seed))
        print(f"SEED={self.seed}")
        self.rng = random.Random(self.seed)
        self.numpy = np.random.default_rng(self.seed)
        self.faults = faults or Faults()
        self.ring = ring
        self.settings = settings or GossipSettings()
        self.now = 0
        self.log: list[str] = []
        self.metrics: Counter[tuple[str, str]] = Counter()
        self.scores: Counter[tuple[bytes, bytes, str]] = Counter()
        self.sends: dict[bytes, int] = defaultdict(int)
        self.sent_pairs: set[tuple[bytes, bytes, bytes]] = set()
        self.diffs: dict[bytes, Diff] = {}
        self.bad: set[bytes] = set()
        self._queue: list[tuple[int, int, bytes, Any]] = []
        self._ticket = 0
        self.topics = self.numpy.normal(size=(topics, DIM))
        ids = [self.rng.randbytes(16) for _ in range(size)]
        self.nodes = {node_id: self._node(node_id) for node_id in ids}
        for node in self.nodes.values():
            others = [n for n in self.nodes.values() if n is not node]
            for other in self.rng.sample(others, round(known_share * len(others))):
                node.known.accept(other.profile, 0)

    def _node(self, node_id: bytes) -> Node:
        chosen = self.rng.sample(
            range(len(self.topics)), min(self.rng.randint(1, 4), len(self.topics))
        )
        entries = tuple(
            Entry(self.rng.randbytes(16), self.vector(topic, 0.15).raw, 0) for topic in chosen
        )
        walk = Walk(node_id, self.settings, random.Random(self.rng.random()))
        profile = Profile(node_id, entries, TAU_PPM, MODEL, clock.from_millis(WALL))
        return Node(node_id, profile, walk, KnownProfiles())

    def vector(self, topic: int, noise: float) -> Quantised:
        """A direction near a topic."""
        return quantise(self.topics[topic] + self.numpy.normal(size=DIM) * noise)

    def wanting(self, diff: Diff) -> set[bytes]:
        """Everybody but the origin who wants the diff."""
        return {
            n.id for n in self.nodes.values() if n.profile.wants(diff.q) and n.id != diff.origin
        }

    def publish(self, origin: bytes | None = None, *, bad: bool = False, body: int = 800) -> Diff:
        """Sign and announce a diff at a node, as the service would."""
        node = self.nodes[origin] if origin else self.rng.choice(list(self.nodes.values()))
        q = self.vector(self.rng.randrange(len(self.topics)), 0.5)
        view = self._view(node)
        wanting, asked = view.sample(q)
        members = len(self.nodes)
        e0 = energy.budget(self.settings.kappa, energy.interested(members, wanting, asked), members)
        diff = Diff(
            self.rng.randbytes(32),
            self.rng.randbytes(16),
            node.id,
            q,
            body,
            clock.from_millis(WALL + self.now),
            e0,
            self.settings.ttl_s * 1_000,
            self.settings.hop_max,
        )
        self.diffs[diff.diff_id] = diff
        if bad:
            self.bad.add(diff.diff_id)
        node.stored.add(diff.diff_id)
        local = LocalDiff(diff, self._facts(node, diff, bad=False))
        self._run(node, node.walk.handle(local, self._at()))
        return diff

    def inject(self, sender: bytes, to: bytes, diff: Diff, hop: Hop) -> None:
        """Put a frame on a link, whatever its header says."""
        self.diffs[diff.diff_id] = diff
        self._push(self.now + 1, to, ("copy", sender, diff.diff_id, hop))

    def run(self, until_ms: int | None = None) -> None:
        """Until nothing is left to happen, or until a time."""
        while self._queue and (until_ms is None or self._queue[0][0] <= until_ms):
            self.now, _, to, event = heapq.heappop(self._queue)
            self.log.append(f"{self.now} {to.hex()[:8]} {event}")
            self._deliver(self.nodes[to], event)
        if until_ms is not None:
            self.now = max(self.now, until_ms)

    def repair_round(self) -> int:
        """Each node that is up pulls what it wants from one random peer; how many it got."""
        got = 0
        for node in self.nodes.values():
            peers = [n for n in self.nodes.values() if n is not node and n.up]
            if not node.up or not peers:
                continue
            peer = self.rng.choice(peers)
            for diff_id in sorted(peer.stored - node.stored):
                if node.profile.wants(self.diffs[diff_id].q):
                    node.stored.add(diff_id)
                    got += 1
        return got

    def recall(self) -> float:
        """Share of (diff, node that wants it) pairs where the diff has arrived."""
        valid = [d for d in self.diffs.values() if d.diff_id not in self.bad]
        pairs = [(d, n) for d in valid for n in self.wanting(d)]
        return sum(d.diff_id in self.nodes[n].stored for d, n in pairs) / max(1, len(pairs))

    def _at(self) -> Moment:
        return Moment(WALL + self.now, self.now)

    def _view(self, node: Node) -> View:
        """All others; in a ring the two neighbours, by a node that knows of further ones."""
        live = [n.id for n in self.nodes.values() if n is not node]
        if self.ring:
            ids = list(self.nodes)
            place = ids.index(node.id)
            live = [ids[place - 1], ids[(place + 1) % len(ids)]]
        view = node.known.view(live, MODEL, 0)
        return View(view.candidates, view.complete and not self.ring)

    def _facts(self, node: Node, diff: Diff, *, bad: bool) -> Facts:
        return Facts(
            seen=node.seen.get(diff.diff_id),
            own=node.profile,
            view=self._view(node),
            members=len(self.nodes),
            stamp=clock.from_millis(WALL + self.now),
            may_send=not node.quarantined,
            refusal=copies.Refusal.SIGNATURE if bad else None,
        )

    def _deliver(self, node: Node, event: tuple[Any, ...]) -> None:
        if not node.up:
            return
        match event:
            case ("copy", sender, diff_id, hop):
                diff, bad = self.diffs[diff_id], diff_id in self.bad
                facts = self._facts(node, diff, bad=bad)
                copy = CopyIn(sender, diff_id, hop, None if bad else diff, facts)
                self._run(node, node.walk.handle(copy, self._at()))
            case ("ack", sender, diff_id, status):
                self._run(node, node.walk.handle(copies.AckIn(sender, diff_id, status), self._at()))
            case ("timer", peer, diff_id):
                self._run(node, node.walk.handle(copies.Timer(peer, diff_id), self._at()))

    def _run(self, node: Node, effects: list[copies.Effect]) -> None:
        intended: set[tuple[bytes, bytes]] = set()
        for effect in effects:
            match effect:
                case Persist():
                    self.always_conserving(node, effect)
                    node.seen[effect.diff_id] = effect.seen
                    intended |= {(effect.diff_id, intent.peer) for intent in effect.intents}
                    if effect.keep is Keep.STORE:
                        assert effect.diff_id not in node.stored or effect.sender is not None
                        node.stored.add(effect.diff_id)
                case Send():
                    if effect.attempt == 0:
                        self.always_one_send(node, effect, intended)
                    age_ms = effect.hop.age_ms + node.owned_dwell_ms
                    hop = msgspec.structs.replace(effect.hop, age_ms=age_ms)
                    frame = ("copy", node.id, effect.diff_id, hop)
                    self._transmit(node, effect.peer, frame)
                case copies.Ack():
                    frame = ("ack", node.id, effect.diff_id, effect.status)
                    self._transmit(node, effect.peer, frame)
                case copies.SetTimer():
                    self._push(effect.at_ms, node.id, ("timer", effect.peer, effect.diff_id))
                case copies.Metric():
                    self.metrics[effect.name, effect.label] += effect.n
                case copies.Score():
                    self.scores[node.id, effect.peer, effect.conduct.value] += 1

    def always_conserving(self, node: Node, persist: Persist) -> None:
        """What a node spent never exceeds what it took in, nor that the signed budget."""
        seen, diff = persist.seen, self.diffs[persist.diff_id]
        assert 0 <= seen.energy_out <= seen.energy_in <= diff.e0_milli
        assert seen.fanout <= 24

    def always_one_send(self, node: Node, send: Send, intended: set[tuple[bytes, bytes]]) -> None:
        """No peer gets a diff twice from one node, and no frame leaves before its intent."""
        assert (send.diff_id, send.peer) in intended
        pair = (node.id, send.peer, send.diff_id)
        assert pair not in self.sent_pairs
        self.sent_pairs.add(pair)
        self.sends[send.diff_id] += 1

    def finally_bounded(self) -> None:
        """Sends of each diff cost at least a unit each out of its budget."""
        for diff_id, count in self.sends.items():
            assert count * energy.UNIT <= self.diffs[diff_id].e0_milli

    def _transmit(self, node: Node, to: bytes, frame: tuple[Any, ...]) -> None:
        if to not in self.nodes or self.rng.random() < self.faults.loss:
            return
        for _ in range(2 if self.rng.random() < self.faults.repeat else 1):
            delay = self.rng.randint(*self.faults.delay_ms) + node.extra_dwell_ms
            self._push(self.now + delay, to, frame)

    def _push(self, at: int, to: bytes, event: tuple[Any, ...]) -> None:
        self._ticket += 1
        heapq.heappush(self._queue, (at, self._ticket, to, event))


def finished(mesh: WalkMesh) -> bool:
    """No frame and no timer is left, and no copy waits for an answer."""
    return not any(node.walk.unanswered for node in mesh.nodes.values() if node.up)
