"""The walk: how a diff spreads, decided one event at a time.

`Walk.handle(event, now)` takes what happened together with every fact it may depend on and
returns effects in order. `Persist` is a barrier: what follows it may run only after its commit,
so that no frame leaves of which no record knows. Same seed and events give the same effects.

The energy of a diff is signed by its origin; the hop header is not, hence it is clamped here to
what an honest chain of that length could still hold. A peer that repeats its copy adds nothing.
Whom a copy goes to, also why small meshes do not explore, is decided in `gossip/spread.py`.

The driver holds one lock per diff id from loading the facts to the commit. This module never
opens a body, checks a signature, reads a clock or a row, or sends.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from msgspec import structs

from gossip.affinity import PPM
from gossip.copies import (
    FINAL,
    LATE,
    PENALTIES,
    STOPS,
    Ack,
    AckIn,
    CopyIn,
    Diff,
    Effect,
    Event,
    Facts,
    Intent,
    Keep,
    LocalDiff,
    Metric,
    Persist,
    PersistRefused,
    RecordDelivery,
    Refusal,
    Score,
    Seen,
    Send,
    SetTimer,
    Stop,
    Timer,
)
from gossip.energy import UNIT, ceiling
from gossip.limits import Conduct
from gossip.moment import Moment
from gossip.settings import GossipSettings
from gossip.spread import PREFIX_BYTES, Chooser, Spread
from gossip.wire.messages import AckStatus, Hop
from storage.clock import millis
from storage.model import MemoryId, NodeId

REMEMBERED_COPIES = 8_192


@dataclass(slots=True)
class _Pending:
    memory_id: MemoryId
    role: str
    hop: Hop
    attempt: int = 0


@dataclass(slots=True)
class Walk:
    """The walk of one node. `settings` may be replaced between events."""

    self_id: NodeId
    settings: GossipSettings
    rng: random.Random
    _pending: dict[tuple[bytes, NodeId], _Pending] = field(default_factory=dict)
    _answered: OrderedDict[tuple[bytes, NodeId], tuple[Hop, AckStatus]] = field(
        default_factory=OrderedDict
    )

    @property
    def unanswered(self) -> int:
        """Copies sent and neither acked nor given up."""
        return len(self._pending)

    def handle(self, event: Event, now: Moment) -> list[Effect]:
        """The effects of one event, in the order in which they must run."""
        match event:
            case LocalDiff():
                return self._local(event.diff, event.facts, now)
            case CopyIn():
                return self._copy(event, now)
            case AckIn():
                return self._ack(event)
            case Timer():
                return self._timer(event, now)
            case PersistRefused():
                return self._refused_commit(event)

    def _local(self, diff: Diff, facts: Facts, now: Moment) -> list[Effect]:
        if facts.seen is not None:
            return []
        if facts.refusal is not None:
            return _stopped(STOPS.get(facts.refusal, Stop.INVALID))
        source = Hop(diff.e0_milli, 0, 0, 0, -PPM, ())
        persist, after = self._forward(diff, source, facts, Keep.NOTHING, None, now)
        return [persist, *after]

    def _copy(self, event: CopyIn, now: Moment) -> list[Effect]:
        facts, diff = event.facts, event.diff
        refusal = self._refusal(event, now)
        if refusal is not None or diff is None:
            return self._refuse(event, refusal or Refusal.MALFORMED)
        if facts.seen is not None and event.peer in facts.seen.senders:
            return self._repeat(event)
        energy, notes = self._clamp(event.peer, diff, event.hop, facts)
        header = Hop(
            energy,
            max(1, event.hop.hop),
            _age_ms(event, now),
            event.hop.explore,
            event.hop.best_ppm,
            event.hop.skip,
        )
        wanted = facts.own is not None and facts.own.wants(diff.q)
        if facts.seen is not None:
            keep, status = Keep.NOTHING, AckStatus.DUP
        elif wanted:
            keep, status = Keep.STORE, AckStatus.STORED
        else:
            keep, status = Keep.RELAY, AckStatus.RELAYED
        persist, after = self._forward(diff, header, facts, keep, event.peer, now)
        self._remember(event, status)
        effects = [*notes, persist, Ack(event.peer, event.diff_id, status), _copies_in(status)]
        if facts.seen is None:
            effects += [*_conduct(event.peer, facts, wanted), Metric("hops", "", header.hop)]
        return effects + after

    def _repeat(self, event: CopyIn) -> list[Effect]:
        """A second copy from one peer brings nothing.

        The same header, maybe older, is the retry of a peer that missed our ack and gets the
        same answer; anything else is a replay, which honest nodes never send.
        """
        answered = self._answered.get((event.diff_id, event.peer))
        if answered is not None:
            first, status = answered
            if structs.replace(event.hop, age_ms=first.age_ms) == first:
                return [Ack(event.peer, event.diff_id, status), _copies_in(status)]
        return [
            *_violation(event.peer),
            Ack(event.peer, event.diff_id, AckStatus.DUP),
            _copies_in(AckStatus.DUP),
            *_stopped(Stop.ENERGY),
        ]

    def _refusal(self, event: CopyIn, now: Moment) -> Refusal | None:
        facts, diff = event.facts, event.diff
        if facts.refusal is not None and facts.refusal not in LATE:
            return facts.refusal
        if diff is None:
            return facts.refusal or Refusal.MALFORMED
        if event.hop.hop > diff.hop_max:
            return Refusal.HOP_MAX
        if _age_ms(event, now) > diff.ttl_ms:
            return Refusal.EXPIRED_AGE
        if now.wall_ms > self._expires_ms(diff):
            return Refusal.EXPIRED_CLOCK
        return facts.refusal

    def _expires_ms(self, diff: Diff) -> int:
        return millis(diff.hlc) + diff.ttl_ms + round(self.settings.hlc.drift_s * 1_000)

    def _refuse(self, event: CopyIn, refusal: Refusal) -> list[Effect]:
        effects: list[Effect] = [
            Ack(event.peer, event.diff_id, AckStatus.REFUSED, refusal.value),
            _copies_in(AckStatus.REFUSED),
            Metric("refused_total", refusal.value),
            *_stopped(STOPS.get(refusal, Stop.INVALID)),
        ]
        if refusal in PENALTIES:
            effects.append(Score(event.peer, PENALTIES[refusal]))
        return effects

    def _clamp(self, peer: NodeId, diff: Diff, hop: Hop, facts: Facts) -> tuple[int, list[Effect]]:
        """The energy that this copy may add, and what is to be noted of the sender.

        An honest node paid at least one unit per hop, so more than e0 less the hops is forged.
        That is judged by the signed budget. The clamp looks also at what this mesh could ever
        need, but that alone proves nothing: two nodes may count members differently.
        """
        notes: list[Effect] = []
        roof = 2 * ceiling(facts.members)
        if diff.e0_milli > roof:
            notes.append(Metric("e0_clamped_total"))
        hops = UNIT * max(1, hop.hop)
        if hop.energy_milli > diff.e0_milli - hops:
            notes += _violation(peer)
        e0 = min(diff.e0_milli, roof)
        already = facts.seen.energy_in if facts.seen is not None else 0
        return max(0, min(hop.energy_milli, e0 - hops, e0 - already)), notes

    def _forward(
        self,
        diff: Diff,
        header: Hop,
        facts: Facts,
        keep: Keep,
        sender: NodeId | None,
        now: Moment,
    ) -> tuple[Persist, list[Effect]]:
        """The row after this copy, and the sends that its energy (in `header`) pays for."""
        seen = facts.seen or Seen(diff.diff_id, facts.stamp, self._expires_ms(diff))
        energy = header.energy_milli
        chooser = Chooser(self.self_id, self.settings, self.rng, diff, seen, header, facts)
        spread = chooser.spread(energy)
        final = seen.outcome in FINAL
        row = replace(
            seen,
            energy_in=seen.energy_in + energy,
            energy_out=seen.energy_out + spread.out,
            sent=seen.sent + tuple(pick.peer for pick in spread.picks),
            senders=seen.senders + (() if sender is None else (sender,)),
            outcome=seen.outcome if final else str(spread.stop or "forwarded"),
        )
        intents = tuple(Intent(p.peer, "store" if p.wants else "relay") for p in spread.picks)
        persist = Persist(diff.diff_id, diff.memory_id, row, keep, intents, sender)
        return persist, self._sends(diff, energy, header, spread, intents, now)

    def _sends(
        self,
        diff: Diff,
        energy: int,
        header: Hop,
        spread: Spread,
        intents: Sequence[Intent],
        now: Moment,
    ) -> list[Effect]:
        skip = self._skip(header, [pick.peer for pick in spread.picks])
        due = now.mono_ms + round(self.settings.ack.timeout_s * 1_000)
        effects: list[Effect] = []
        for pick, share, intent in zip(spread.picks, spread.shares, intents, strict=True):
            best = min(max(pick.best_ppm, -PPM), PPM)
            hop = Hop(share, header.hop + 1, header.age_ms, pick.explore, best, skip)
            self._pending[diff.diff_id, pick.peer] = _Pending(diff.memory_id, intent.role, hop)
            effects += [Send(pick.peer, diff.diff_id, hop), SetTimer(pick.peer, diff.diff_id, due)]
        if spread.picks:
            effects += [
                Metric("copies_total", "out,sent", len(spread.picks)),
                Metric("fanout", "", len(spread.picks)),
                Metric("energy_spent_total", "", spread.paid),
            ]
        if energy > spread.out:
            effects.append(Metric("energy_residual_total", "", energy - spread.out))
        if spread.stop is not None:
            effects += _stopped(spread.stop)
        return effects

    def _skip(self, header: Hop, peers: Sequence[NodeId]) -> tuple[bytes, ...]:
        """Siblings and their forebears: children need not serve one another."""
        limit = self.settings.skip
        known = [*header.skip, *(peer[:PREFIX_BYTES] for peer in (*peers, self.self_id))]
        return tuple(known[-limit:]) if limit else ()

    def _remember(self, event: CopyIn, status: AckStatus) -> None:
        key = (event.diff_id, event.peer)
        if key in self._answered:
            return
        self._answered[key] = (event.hop, status)
        if len(self._answered) > REMEMBERED_COPIES:
            self._answered.popitem(last=False)

    def _ack(self, event: AckIn) -> list[Effect]:
        pending = self._pending.pop((event.diff_id, event.peer), None)
        if pending is None:
            return []
        status = event.status.value
        return [
            RecordDelivery(
                event.diff_id, pending.memory_id, event.peer, pending.role, status, event.reason
            ),
            Metric("deliveries_total", status),
        ]

    def _timer(self, event: Timer, now: Moment) -> list[Effect]:
        key = (event.diff_id, event.peer)
        pending = self._pending.get(key)
        if pending is None:
            return []
        if pending.attempt < self.settings.ack.retries:
            pending.attempt += 1
            due = now.mono_ms + round(self.settings.ack.timeout_s * 1_000)
            return [
                Send(event.peer, event.diff_id, pending.hop, pending.attempt),
                SetTimer(event.peer, event.diff_id, due),
            ]
        del self._pending[key]
        return [
            RecordDelivery(event.diff_id, pending.memory_id, event.peer, pending.role, "timeout"),
            Metric("deliveries_total", "timeout"),
        ]

    def _refused_commit(self, event: PersistRefused) -> list[Effect]:
        persist, refusal = event.persist, event.refusal
        for intent in persist.intents:
            self._pending.pop((persist.diff_id, intent.peer), None)
        effects: list[Effect] = []
        if persist.sender is not None:
            self._answered.pop((persist.diff_id, persist.sender), None)
            effects.append(Ack(persist.sender, persist.diff_id, AckStatus.REFUSED, refusal.value))
            effects.append(_copies_in(AckStatus.REFUSED))
        effects.append(Metric("refused_total", refusal.value))
        return effects + _stopped(STOPS.get(refusal, Stop.INVALID))


def _age_ms(event: CopyIn, now: Moment) -> int:
    """The dwell of the diff so far, with the time that the copy waited here."""
    waited = 0 if event.read_ms is None else now.mono_ms - event.read_ms
    return event.hop.age_ms + max(0, waited)


def _conduct(peer: NodeId, facts: Facts, wanted: bool) -> list[Effect]:
    """What a first copy says of its sender.

    An unwanted one is held against it only where it had no reason to explore: our interests are
    out, and nobody's are unknown.
    """
    if wanted:
        return [Score(peer, Conduct.USEFUL)]
    if facts.own is not None and facts.view.complete:
        return [Score(peer, Conduct.IRRELEVANT)]
    return []


def _violation(peer: NodeId) -> list[Effect]:
    return [Score(peer, Conduct.ENERGY_VIOLATION), Metric("energy_violation_total")]


def _stopped(stop: Stop) -> list[Effect]:
    return [Metric("walk_stop_total", stop.value)]


def _copies_in(status: AckStatus) -> Effect:
    return Metric("copies_total", f"in,{status.value}")
