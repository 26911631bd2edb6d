"""Small, fixed surroundings for one walk core: peers, profiles, a diff, and effects by type."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any, TypeVar

import numpy as np

from gossip.affinity import PPM, quantise
from gossip.copies import CopyIn, Diff, Effect, Facts, Metric, Seen
from gossip.moment import Moment
from gossip.profile import Candidate, Entry, Profile, View
from gossip.settings import GossipSettings
from gossip.walk import Walk
from gossip.wire.messages import Hop
from storage import clock

WALL = 1_700_000_000_000
SELF = b"\xff" * 16
ORIGIN = b"\xfe" * 16
NEAR = (1.0, 0.0)
FAR = (0.0, 1.0)
E = TypeVar("E")


def at(ms: int = 0) -> Moment:
    return Moment(WALL + ms, ms)


def node(number: int) -> bytes:
    return number.to_bytes(4, "big") * 4


def profile(node_id: bytes, direction: tuple[float, float]) -> Profile:
    q = quantise(np.array(direction, dtype=np.float32))
    return Profile(node_id, (Entry(b"e" * 16, q.raw, 0),), 500_000, "m", clock.from_millis(WALL))


def peers(*directions: tuple[float, float] | None, first: int = 1) -> tuple[Candidate, ...]:
    """Candidates numbered from `first`; None has no known profile."""
    return tuple(
        Candidate(node(number), profile(node(number), d) if d else None)
        for number, d in enumerate(directions, first)
    )


def diff(*, e0: int = 60_000, ttl_ms: int = 3_600_000, hop_max: int = 12, body: int = 0) -> Diff:
    q = quantise(np.array(NEAR, dtype=np.float32))
    stamp = clock.from_millis(WALL)
    return Diff(b"d" * 32, b"m" * 16, ORIGIN, q, body, stamp, e0, ttl_ms, hop_max)


def facts(
    candidates: tuple[Candidate, ...] = (),
    *,
    seen: Seen | None = None,
    own: tuple[float, float] | None = NEAR,
    complete: bool = False,
    **others: Any,
) -> Facts:
    mine = profile(SELF, own) if own else None
    members = others.pop("members", 100)
    stamp = clock.from_millis(WALL)
    return Facts(seen, mine, View(candidates, complete), members, stamp, **others)


def header(energy: int = 30_000, hop: int = 1, **others: Any) -> Hop:
    fields = {"age_ms": 0, "explore": 0, "best_ppm": -PPM, "skip": ()} | others
    return Hop(energy, hop, **fields)


def copy(
    given: Facts, hop: Hop | None = None, *, of: Diff | None = None, peer: bytes = node(900)
) -> CopyIn:
    that = of or diff()
    return CopyIn(peer, that.diff_id, hop or header(), that, given)


def walk(seed: int = 1, settings: GossipSettings | None = None) -> Walk:
    return Walk(SELF, settings or GossipSettings(), random.Random(seed))


def only(effects: Iterable[Effect], kind: type[E]) -> list[E]:
    return [effect for effect in effects if isinstance(effect, kind)]


def counted(effects: Iterable[Effect], name: str) -> dict[str, int]:
    return {m.label: m.n for m in only(effects, Metric) if m.name == name}
