"""Runs the walk's effects: rows before frames, frames before their timers.

One lock per diff from loading the facts to the commit. A commit that the gate or the database
refuses drops the rest of its effects, so nothing leaves of which no record knows.
"""

from __future__ import annotations

import heapq
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import trio

from gossip.affinity import quantised
from gossip.apply import (
    Inbound,
    blame,
    pass_gate,
    persist_copy,
    record_intents,
    save_seen,
    to_core,
)
from gossip.copies import (
    Ack,
    AckIn,
    CopyIn,
    Effect,
    Facts,
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
    Timer,
)
from gossip.limits import AgentLimits
from gossip.mesh import Mesh
from gossip.relay import Body
from gossip.wire.messages import Ack as AckMessage
from gossip.wire.messages import Hop
from storage import clock, deliveries, diffs, memories, records
from storage.errors import MnemeshError, ScopeErased, Tombstoned
from storage.memories import Stored
from storage.model import AgentId, NodeId, ProjectId
from storage.pool import Tx

BATCH = 200


@dataclass(slots=True)
class Spreading:
    """The walks of one node: locks, timers and the way from effects to rows and frames."""

    mesh: Mesh
    agents: AgentLimits = field(init=False)
    _locks: dict[bytes, tuple[trio.Lock, int]] = field(default_factory=dict)
    _timers: list[tuple[int, bytes, NodeId]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.agents = AgentLimits(self.mesh.settings.limits)

    async def copy_in(
        self, peer: NodeId, inbound: Inbound, hop: Hop, read_ms: int, content: str | None
    ) -> None:
        """A walk copy whose bytes were checked. `content` is the text when it is wanted."""
        mesh = self.mesh
        diff = inbound.for_walk()
        async with self._locked(diff.diff_id):
            seen = await mesh.db.read(diffs.load_seen, diff.diff_id)
            facts = self._facts(
                inbound.record.project, to_core(seen, _expires_ms(diff.hlc, diff.ttl_ms))
            )
            event = CopyIn(peer, diff.diff_id, hop, diff, facts, read_ms)
            await self._run(mesh.walk.handle(event, mesh.now()), inbound, content)

    async def refused_copy(self, peer: NodeId, diff_id: bytes, hop: Hop, refusal: Refusal) -> None:
        """A walk copy that could not be taken: ack, score and count it."""
        mesh = self.mesh
        facts = Facts(None, mesh.own_profile, mesh.view(b""), 1, 0, False, refusal)
        event = CopyIn(peer, diff_id, hop, None, facts)
        await self._run(mesh.walk.handle(event, mesh.now()), None, None)

    async def ack_in(self, event: AckIn) -> None:
        """A peer answered a walk copy."""
        await self._run(self.mesh.walk.handle(event, self.mesh.now()), None, None)

    async def due_timers(self) -> None:
        """Retry or give up what waited long enough."""
        now = self.mesh.mono_ms()
        while self._timers and self._timers[0][0] <= now:
            _, diff_id, peer = heapq.heappop(self._timers)
            effects = self.mesh.walk.handle(Timer(peer, diff_id), self.mesh.now())
            await self._run(effects, None, None)

    async def walk_own(self) -> int:
        """Start the walks of own announcements that have none; how many were started.

        An agent beyond its rate waits, and so does a project in quarantine, without keeping
        others waiting.
        """
        mesh = self.mesh
        held = [each for each in mesh.quarantines if not mesh.may_send_content(each)]
        ids = await mesh.db.read(diffs.unwalked, mesh.node.node_id, mesh.node.wall(), BATCH, held)
        found = {each.diff_id: each for each in await mesh.db.read(diffs.by_ids, ids)}
        started = 0
        paced: set[AgentId] = set()
        for signed in (found[diff_id] for diff_id in ids if diff_id in found):
            if signed.agent_id in paced:
                continue
            inbound = _own(signed)
            e0 = inbound.record.e0_milli
            granted = self.agents.grant(signed.agent_id, e0, mesh.mono_ms())
            if granted is None:
                paced.add(signed.agent_id)
                continue
            started += await self._start(inbound, granted)
        return started

    async def _start(self, inbound: Inbound, energy: int) -> bool:
        mesh = self.mesh
        async with self._locked(inbound.diff_id):
            facts = self._facts(inbound.record.project, None)
            diff = replace(inbound.for_walk(), e0_milli=energy)
            return await self._run(
                mesh.walk.handle(LocalDiff(diff, facts), mesh.now()), inbound, None
            )

    def _facts(self, project: ProjectId, seen: Seen | None) -> Facts:
        mesh = self.mesh
        return Facts(
            seen=seen,
            own=mesh.own_profile,
            view=mesh.view(project),
            members=mesh.live_members(project),
            stamp=mesh.node.clock.now(),
            may_send=mesh.may_send_content(project),
        )

    async def _run(
        self, effects: Sequence[Effect], inbound: Inbound | None, content: str | None
    ) -> bool:
        """Run effects in order; False when a commit was refused and the rest dropped."""
        for effect in effects:
            match effect:
                case Persist():
                    if not await self._persist(effect, inbound, content):
                        return False
                case RecordDelivery():
                    await self.mesh.db.transact(_record, self.mesh, effect)
                case Send():
                    self.mesh.post(effect.peer, effect)
                case Ack():
                    self._ack(effect)
                case SetTimer():
                    heapq.heappush(self._timers, (effect.at_ms, effect.diff_id, effect.peer))
                case Score():
                    self.mesh.note(effect.peer, effect.conduct)
                case Metric():
                    self.mesh.hooks.count(effect.name, effect.label, effect.n)
        return True

    async def _persist(
        self, persist: Persist, inbound: Inbound | None, content: str | None
    ) -> bool:
        mesh = self.mesh
        assert inbound is not None  # only copies and own diffs persist
        mesh.relay.put(_body(inbound), mesh.mono_ms())
        try:
            if persist.sender is None:
                await mesh.db.transact(_persist_own, mesh, inbound, persist)
                return True
            stored: Stored | None = await mesh.db.transact(
                persist_copy, mesh, inbound, persist, content
            )
        except (ScopeErased, Tombstoned) as error:
            mesh.hooks.count("resurrection_blocked_total", "G1")
            await self._refused(persist, await blame(mesh, persist.sender, inbound, error))
            return False
        except MnemeshError as error:
            await self._refused(persist, Refusal.MALFORMED)
            if error.retryable or persist.sender is None:
                raise
            return False
        if stored is not None:
            await mesh.hooks.stored([stored])
        return True

    async def _refused(self, persist: Persist, refusal: Refusal) -> None:
        """Nothing was written: what was to follow is undone."""
        mesh = self.mesh
        mesh.relay.drop([persist.diff_id])
        effects = mesh.walk.handle(PersistRefused(persist, refusal), mesh.now())
        await self._run(effects, None, None)

    def _ack(self, ack: Ack) -> None:
        channel = self.mesh.channel(ack.peer)
        if channel is not None:
            self.mesh.post(
                ack.peer, AckMessage(ack.diff_id, ack.status, ack.reason, channel.peer_nonce)
            )

    @asynccontextmanager
    async def _locked(self, diff_id: bytes) -> AsyncIterator[None]:
        lock, users = self._locks.get(diff_id, (trio.Lock(), 0))
        self._locks[diff_id] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks[diff_id]
            if users == 1:
                del self._locks[diff_id]
            else:
                self._locks[diff_id] = (lock, users - 1)


def _own(signed: diffs.Signed) -> Inbound:
    record = records.decode_diff(signed.body)
    return Inbound(
        diff_id=signed.diff_id,
        body=signed.body,
        sig=signed.sig,
        record=record,
        q=quantised(signed.q8),
        vector=records.vector(record),
    )


async def _persist_own(tx: Tx, mesh: Mesh, inbound: Inbound, persist: Persist) -> None:
    """The walk of an own diff begins: gate, seen row, intents and holders.

    The memory's row is locked first: a forget either waits and finds the new holders, or was
    here before and is found.
    """
    if not await memories.by_ids(tx, [persist.memory_id], lock=True):
        raise Tombstoned()
    await pass_gate(tx, mesh, inbound)
    await save_seen(tx, persist.seen)
    await record_intents(tx, mesh, inbound, persist)


async def _record(tx: Tx, mesh: Mesh, effect: RecordDelivery) -> None:
    """A further row about a copy that was sent, and what it says of the holder."""
    project_id = await deliveries.project_of(tx, effect.diff_id, effect.peer)
    if project_id is None:
        return
    await deliveries.record(
        tx,
        diff_id=effect.diff_id,
        memory_id=effect.memory_id,
        project_id=project_id,
        recipient=effect.peer,
        to_agent=False,
        role=effect.role,
        status=effect.status,
        reason=effect.reason or None,
        hlc=mesh.node.clock.now(),
        now=mesh.node.wall(),
    )
    if effect.status in ("stored", "dup"):
        await deliveries.set_holder(tx, effect.memory_id, effect.peer, "stored")
    elif effect.status == "refused":
        await deliveries.set_holder(tx, effect.memory_id, effect.peer, "none")


def _body(inbound: Inbound) -> Body:
    return Body(
        diff_id=inbound.diff_id,
        memory_id=inbound.record.memory,
        agent_id=inbound.record.agent,
        project_id=inbound.record.project,
        body=inbound.body,
        sig=inbound.sig,
    )


def _expires_ms(hlc: int, ttl_ms: int) -> int:
    return clock.millis(hlc) + ttl_ms
