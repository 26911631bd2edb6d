"""What a node tells its peers about its interests, and the set of peers a walk may choose from.

A profile is a signed list of at most 16 quantised directions: the positions of the node's agents
first, then its aggregates by weight. A receiver keeps the newest version of each peer and no
older one, since two versions side by side would show what changed.

`KnownProfiles` is the whole view of this version: every live member of a project is a candidate.
It never dials, never sends, and knows nothing of energy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from math import log
from typing import Annotated, Literal

import msgspec
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import Meta
from numpy.typing import NDArray

from gossip.affinity import (
    MAX_DIM,
    PPM,
    Interests,
    Quantised,
    affinity,
    cos_ppm,
    quantise,
    quantised,
    wants,
)
from storage import clock, records
from storage.errors import InvalidInput
from storage.model import Hlc, MemoryId, MemoryKind, NodeId

DOMAIN_PROFILE = b"mnemesh/profile/v1"
MAX_ENTRIES = 16
MAX_BODY = 16 * 1024
BIAS_SCALE_PPM = 30_000
MOVED_PPM = 50_000
MIN_PERIOD_MS = 60_000
REFRESH_MS = 600_000
CURRENT_MS = 2 * REFRESH_MS + MIN_PERIOD_MS
"""A profile heard of longer ago says nothing about now: two refreshes were missed."""

_RANK = {MemoryKind.AGENT: 0, MemoryKind.BEACON: 1, MemoryKind.L2: 2, MemoryKind.L1: 3}

_Id16 = Annotated[bytes, Meta(min_length=16, max_length=16)]
_Ppm = Annotated[int, Meta(ge=-PPM, le=PPM)]


class EntryBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    memory: _Id16
    q: Annotated[bytes, Meta(min_length=1, max_length=MAX_DIM)]
    bias_ppm: Annotated[int, Meta(ge=-PPM, le=0)]


class ProfileBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The signed form; its canonical bytes are what travels."""

    v: Literal[1] = 1
    node: _Id16
    entries: Annotated[tuple[EntryBody, ...], Meta(max_length=MAX_ENTRIES)]
    tau_ppm: _Ppm
    model: Annotated[str, Meta(min_length=1, max_length=200)]
    version: Annotated[bytes, Meta(min_length=8, max_length=8)]
    missed_ratio_ppm: Annotated[int, Meta(ge=0, le=PPM)]


@dataclass(frozen=True, slots=True)
class Entry:
    """One direction of interest; `q` has one int8 byte per component."""

    memory_id: MemoryId
    q: bytes
    bias_ppm: int


@dataclass(frozen=True, slots=True)
class Profile:
    """A node's interests at one version. Raises InvalidInput for a zero or uneven direction."""

    node_id: NodeId
    entries: tuple[Entry, ...]
    tau_ppm: int
    model: str
    version: Hlc
    missed_ratio_ppm: int = 0
    interests: Interests = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.entries) > MAX_ENTRIES:
            raise InvalidInput(f"entries: at most {MAX_ENTRIES}")
        directions = tuple(quantised(entry.q) for entry in self.entries)
        biases = tuple(entry.bias_ppm for entry in self.entries)
        object.__setattr__(self, "interests", Interests(directions, biases))

    def affinity(self, q: Quantised) -> int:
        """How near the vector is to the nearest interest, in ppm."""
        return affinity(self.interests, q)

    def wants(self, q: Quantised) -> bool:
        """Whether this node stores the vector."""
        return wants(self.interests, q, self.tau_ppm)


@dataclass(frozen=True, slots=True, eq=False)
class Interest:
    """A local memory that may stand in the profile: a position of an agent, or an aggregate.

    The caller leaves out aggregates that are dirty, hold an erased input or have too few
    inputs. `weight` in (0, 1] is the access-weighted mass relative to the largest.
    """

    memory_id: MemoryId
    kind: MemoryKind
    vector: NDArray[np.float32]
    weight: float = 1.0


def select(interests: Iterable[Interest]) -> tuple[Entry, ...]:
    """The entries of a profile: agents, beacons, l2, l1; within a kind the heaviest first.

    As many as fit into 16 entries and into the size of a profile message. Raises InvalidInput
    for a kind that never stands in a profile and for a weight out of range.
    """
    ranked = []
    for each in interests:
        if each.kind not in _RANK:
            raise InvalidInput(f"kind: a {each.kind} is no interest")
        if not 0.0 < each.weight <= 1.0:
            raise InvalidInput("weight: expected a number in (0, 1]")
        ranked.append(each)
    ranked.sort(key=lambda each: (_RANK[each.kind], -each.weight, each.memory_id))
    entries: list[Entry] = []
    room = MAX_BODY - 512
    for each in ranked[:MAX_ENTRIES]:
        bias = max(-PPM, round(BIAS_SCALE_PPM * log(each.weight)))
        entry = Entry(each.memory_id, quantise(each.vector).raw, bias)
        room -= len(entry.q) + 64
        if room < 0:
            break
        entries.append(entry)
    return tuple(entries)


def encode(profile: Profile) -> bytes:
    """The canonical bytes that are signed and sent."""
    return records.encode(
        ProfileBody(
            node=profile.node_id,
            entries=tuple(
                EntryBody(memory=e.memory_id, q=e.q, bias_ppm=e.bias_ppm) for e in profile.entries
            ),
            tau_ppm=profile.tau_ppm,
            model=profile.model,
            version=clock.to_bytes(profile.version),
            missed_ratio_ppm=profile.missed_ratio_ppm,
        )
    )


def sign(key: Ed25519PrivateKey, body: bytes) -> bytes:
    """The node key's signature over profile bytes: 64 bytes."""
    return records.sign(key, DOMAIN_PROFILE, body)


def decode(body: bytes, signature: bytes, node_id: NodeId, public: bytes) -> Profile:
    """The profile of a peer whose node key has these raw public bytes.

    Raises BadSignature when the key or the node does not fit, InvalidRecord or NonCanonical for
    bytes that are no profile.
    """
    if not records.verified(public, DOMAIN_PROFILE, body, signature):
        raise records.BadSignature()
    profile = parse(body)
    if profile.node_id != node_id:
        raise records.BadSignature("the profile names another node")
    return profile


def parse(body: bytes) -> Profile:
    """The profile of bytes whose signature was checked before.

    Raises InvalidRecord or NonCanonical for bytes that are no profile.
    """
    parsed = records.decode(body, ProfileBody, max_bytes=MAX_BODY)
    try:
        return Profile(
            parsed.node,
            tuple(Entry(e.memory, e.q, e.bias_ppm) for e in parsed.entries),
            parsed.tau_ppm,
            parsed.model,
            clock.from_bytes(parsed.version),
            parsed.missed_ratio_ppm,
        )
    except (InvalidInput, ValueError) as error:
        raise records.InvalidRecord("not a usable profile") from error


def moved(old: Profile, entries: tuple[Entry, ...]) -> bool:
    """Whether an interest appeared, vanished, or turned by more than 0.05 cosine."""
    before = {entry.memory_id: entry.q for entry in old.entries}
    if before.keys() != {entry.memory_id for entry in entries}:
        return True
    for entry in entries:
        then, now = quantised(before[entry.memory_id]), quantised(entry.q)
        if then.values.size != now.values.size or cos_ppm(then, now) < PPM - MOVED_PPM:
            return True
    return False


def due(old: Profile | None, entries: tuple[Entry, ...], since_sent_ms: int) -> bool:
    """Whether to advertise again: at once if never, then once a minute if moved, else 10 min."""
    if old is None:
        return True
    return since_sent_ms >= REFRESH_MS or (since_sent_ms >= MIN_PERIOD_MS and moved(old, entries))


@dataclass(frozen=True, slots=True)
class Candidate:
    """A peer that a walk may pick. `random`: it stands in the random view, so exploring may."""

    peer: NodeId
    profile: Profile | None
    random: bool = True


@dataclass(frozen=True, slots=True)
class View:
    """Whom a walk may pick, ordered by peer id so that a seed gives one run.

    `complete`: a current profile of every live member of the project is known.
    """

    candidates: tuple[Candidate, ...] = ()
    complete: bool = False

    def sample(self, q: Quantised) -> tuple[int, int]:
        """(profiles that want the vector, profiles asked): the input of `energy.interested`."""
        asked = [each.profile for each in self.candidates if each.profile is not None]
        return sum(profile.wants(q) for profile in asked), len(asked)


class KnownProfiles:
    """The newest profile of each peer, and when it was last heard of."""

    def __init__(self) -> None:
        self._known: dict[NodeId, tuple[Profile, int]] = {}

    def get(self, peer: NodeId) -> Profile | None:
        """The newest profile of a peer."""
        held = self._known.get(peer)
        return held[0] if held else None

    def accept(self, profile: Profile, mono_ms: int) -> bool:
        """Keep a profile unless a newer one is known; False when it was older."""
        held = self._known.get(profile.node_id)
        if held is not None and held[0].version > profile.version:
            return False
        self._known[profile.node_id] = (profile, mono_ms)
        return True

    def forget(self, peer: NodeId) -> None:
        """Drop what is known of a peer that left for good."""
        self._known.pop(peer, None)

    def view(
        self,
        live: Collection[NodeId],
        model: str,
        mono_ms: int,
        barred: Collection[NodeId] = (),
    ) -> View:
        """Everybody in `live` (this node not included) who is not barred.

        `barred` are peers that no new copy goes to: suspected for long, or of low score. They
        still count for `complete`, which asks for knowledge and not for reachability. A profile
        of another model or one not heard of for long is as good as none.
        """
        current: dict[NodeId, Profile] = {}
        for peer in live:
            held = self._known.get(peer)
            if held and held[0].model == model and mono_ms - held[1] <= CURRENT_MS:
                current[peer] = held[0]
        candidates = tuple(Candidate(p, current.get(p)) for p in sorted(live) if p not in barred)
        return View(candidates, len(current) == len(live))
