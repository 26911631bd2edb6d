"""To whom a purse of energy goes: candidates, picks, prices and shares of one copy.

Pure choice: it reads facts and draws from the given generator, changes nothing and sends
nothing. Called by the walk, once for each copy that brought energy.

In a mesh whose every live member has a current profile here (`View.complete`) nobody explores,
and a node that does not want a diff does not pass it on: exploring exists to reach the unknown,
and there is none. What such a walk misses is left to repair, and small meshes are not flooded.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from gossip.affinity import PPM, distance
from gossip.copies import FINAL, Diff, Facts, Seen, Stop
from gossip.energy import UNIT, cost, explorer_weight, split
from gossip.profile import Candidate
from gossip.settings import GossipSettings
from gossip.wire.messages import Hop
from storage.model import NodeId

NEAR_BONUS_PPM = 50_000
PREFIX_BYTES = 4


@dataclass(frozen=True, slots=True)
class Pick:
    """A peer that gets a copy, and what its header says of the branch."""

    peer: NodeId
    affinity_ppm: int
    wants: bool
    explorer: bool = False
    explore: int = 0
    best_ppm: int = -PPM


@dataclass(frozen=True, slots=True)
class Spread:
    """What a purse of energy became: copies with their shares, what they cost, or a stop."""

    picks: tuple[Pick, ...] = ()
    shares: tuple[int, ...] = ()
    paid: int = 0
    stop: Stop | None = None

    @property
    def out(self) -> int:
        """Milli-units that left the purse."""
        return self.paid + sum(self.shares)


@dataclass(frozen=True, slots=True)
class Chooser:
    """The picks for one copy at one node."""

    self_id: NodeId
    settings: GossipSettings
    rng: random.Random
    diff: Diff
    seen: Seen
    header: Hop
    facts: Facts

    def spread(self, energy: int) -> Spread:
        """The copies that `energy` milli-units buy here, or the reason why there are none."""
        diff, seen, header, facts = self.diff, self.seen, self.header, self.facts
        room = self.settings.fanout_cap - seen.fanout
        if seen.outcome in FINAL:
            return Spread(stop=Stop(seen.outcome))
        if not facts.may_send:
            return Spread(stop=Stop.QUARANTINED)
        if header.hop >= diff.hop_max:
            return Spread(stop=Stop.HOP_MAX)
        if energy < UNIT:
            return Spread(stop=Stop.ENERGY)
        if room <= 0:
            return Spread(stop=Stop.FANOUT_CAP)
        pool = self._candidates()
        if header.hop == 0 or (facts.own is not None and facts.own.wants(diff.q)):
            picks = self._pick_near(pool, room)
            if not facts.view.complete and len(picks) < room:
                picks += self._pick_explorer(pool, picks)
        elif facts.view.complete:
            return Spread(stop=Stop.NO_CANDIDATE)
        else:
            picks = self._pick_relay(pool)
            if pool and not picks:
                return Spread(stop=Stop.PATIENCE)
        if not picks:
            return Spread(stop=Stop.NO_CANDIDATE)
        return self._pay(energy, picks)

    @property
    def _eps_ppm(self) -> int:
        given = self.facts.eps_ppm
        return self.settings.eps_ppm if given is None else given

    def _candidates(self) -> list[tuple[Candidate, int]]:
        """Peers that may get a copy, each with its affinity; 0 where no profile is known."""
        served = {*self.seen.sent, *self.seen.senders, self.diff.origin, self.self_id}
        skipped = set(self.header.skip)
        return [
            (each, each.profile.affinity(self.diff.q) if each.profile is not None else 0)
            for each in self.facts.view.candidates
            if each.peer not in served and each.peer[:PREFIX_BYTES] not in skipped
        ]

    def _pick_near(self, pool: Sequence[tuple[Candidate, int]], room: int) -> list[Pick]:
        """Up to `fanout` peers that want the diff, drawn without replacement; near ones first."""
        near = [
            (each.peer, near_ppm, near_ppm - each.profile.tau_ppm + NEAR_BONUS_PPM)
            for each, near_ppm in pool
            if each.profile is not None and each.profile.wants(self.diff.q)
        ]
        picks: list[Pick] = []
        total = sum(weight for _, _, weight in near)
        while near and len(picks) < min(self.settings.fanout, room):
            ticket = self.rng.randrange(total)
            for index, (peer, near_ppm, weight) in enumerate(near):
                ticket -= weight
                if ticket < 0:
                    picks.append(Pick(peer, near_ppm, True, best_ppm=near_ppm))
                    total -= weight
                    del near[index]
                    break
        return picks

    def _pick_explorer(
        self, pool: Sequence[tuple[Candidate, int]], picked: Sequence[Pick]
    ) -> list[Pick]:
        """One more peer of the random view, half of the time the nearest, else any.

        Always at the origin. It opens a branch of its own, which climbs from where it stands.
        """
        if self.header.hop > 0 and self.rng.randrange(PPM) >= min(PPM, 6 * self._eps_ppm):
            return []
        taken = {pick.peer for pick in picked}
        others = [each for each in pool if each[0].random and each[0].peer not in taken]
        if not others:
            return []
        nearest = self.rng.randrange(2) == 0
        each, near_ppm = max(others, key=_nearness) if nearest else self.rng.choice(others)
        return [Pick(each.peer, near_ppm, self._wanted(each), explorer=True, best_ppm=near_ppm)]

    def _pick_relay(self, pool: Sequence[tuple[Candidate, int]]) -> list[Pick]:
        """The nearest peer, while the branch still climbs or has patience left.

        Where no profile is known there is nothing to climb: any peer, on patience.
        """
        if not pool:
            return []
        known = [each for each in pool if each[0].profile is not None]
        each, near_ppm = max(known, key=_nearness) if known else self.rng.choice(pool)
        explore, best_ppm = self.header.explore, near_ppm
        if not known or near_ppm <= self.header.best_ppm:
            if self.header.explore >= self.settings.patience:
                return []
            explore, best_ppm = self.header.explore + 1, self.header.best_ppm
        return [Pick(each.peer, near_ppm, self._wanted(each), explore=explore, best_ppm=best_ppm)]

    def _wanted(self, each: Candidate) -> bool:
        return each.profile is not None and each.profile.wants(self.diff.q)

    def _pay(self, energy: int, picks: Sequence[Pick]) -> Spread:
        """Pay for the picks in their order while the purse lasts, then share out what is left."""
        paid = 0
        afforded: list[Pick] = []
        for pick in picks:
            copies = self.seen.fanout + len(afforded)
            price = cost(distance(pick.affinity_ppm), copies, self.diff.body_bytes)
            if paid + price > energy:
                break
            paid += price
            afforded.append(pick)
        if not afforded:
            return Spread(stop=Stop.ENERGY)
        normal = sum(not pick.explorer for pick in afforded)
        weights = [
            explorer_weight(self._eps_ppm, normal) if pick.explorer else PPM for pick in afforded
        ]
        return Spread(tuple(afforded), tuple(split(energy - paid, weights)), paid)


def _nearness(each: tuple[Candidate, int]) -> tuple[int, NodeId]:
    return each[1], each[0].peer
