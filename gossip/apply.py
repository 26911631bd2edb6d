"""Inbound content to storage: parse, verify, pass the gate, store. One transaction a diff.

The only way by which a peer's memory becomes a row of ours. Whether it is wanted was decided by
the walk or by repair; whether it may exist here is decided by the gate inside the transaction.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from gossip.affinity import Quantised, quantise_wire
from gossip.copies import Diff, Keep, Persist, Refusal, Seen
from gossip.limits import Conduct
from gossip.mesh import Mesh
from storage import clock, deliveries, diffs, memories, records, tombstones
from storage.canonical import NonCanonical
from storage.clock import Stamp
from storage.content import check_text, normalize
from storage.errors import InvalidInput, ScopeErased, Tombstoned
from storage.gate import Epochs
from storage.memories import Stored
from storage.model import Memory, MemoryKind, NodeId
from storage.pool import Tx
from storage.records import DiffBody, InvalidRecord


class CopyRefused(InvalidInput):
    """A copy is not taken."""

    code = "copy_refused"

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(f"refused: {refusal.value}")
        self.refusal = refusal


@dataclass(frozen=True, slots=True, eq=False)
class Inbound:
    """A diff whose bytes, signature and origin were checked. `q` is its quantised vector."""

    diff_id: bytes
    body: bytes
    sig: bytes
    record: DiffBody
    q: Quantised
    vector: NDArray[np.float32]

    @property
    def hlc(self) -> int:
        """The stamp as a number."""
        return clock.from_bytes(self.record.hlc)

    def for_walk(self) -> Diff:
        """What the walk needs to know."""
        return Diff(
            diff_id=self.diff_id,
            memory_id=self.record.memory,
            origin=self.record.origin,
            q=self.q,
            body_bytes=len(self.body),
            hlc=self.hlc,
            e0_milli=self.record.e0_milli,
            ttl_ms=self.record.ttl_ms,
            hop_max=self.record.hop_max,
        )


def open_copy(mesh: Mesh, body: bytes, sig: bytes, peer: NodeId) -> Inbound:
    """Parse and verify a diff from a peer. Raises CopyRefused with the first check that fails."""
    try:
        record = records.decode_diff(body)
        stamp = clock.from_bytes(record.hlc)
        q = quantise_wire(record.emb, record.emb_dtype)
        vector = records.vector(record)
        _check_storable(record)
    except NonCanonical as error:
        raise CopyRefused(Refusal.NONCANONICAL) from error
    except (InvalidRecord, InvalidInput, ValueError) as error:
        raise CopyRefused(Refusal.MALFORMED) from error
    project = mesh.access.current.projects.get(record.project)
    if project is None or peer not in project.nodes or record.origin not in project.nodes:
        raise CopyRefused(Refusal.ACL)
    card = project.cards.get(record.agent)
    if card is None or card.home_node != record.origin:
        raise CopyRefused(Refusal.ACL)
    if not records.verified(card.public_key, records.DOMAIN_DIFF, body, sig):
        raise CopyRefused(Refusal.SIGNATURE)
    if record.model != mesh.model or len(vector) != mesh.dim:
        raise CopyRefused(Refusal.MODEL)
    if mesh.node.clock.observe(stamp) is not Stamp.ACCEPTED:
        raise CopyRefused(Refusal.DRIFT)
    return Inbound(
        diff_id=records.record_id(records.DOMAIN_DIFF, body),
        body=body,
        sig=sig,
        record=record,
        q=q,
        vector=vector,
    )


async def persist_copy(
    tx: Tx, mesh: Mesh, inbound: Inbound, persist: Persist, content: str | None
) -> Stored | None:
    """Run a walk's `Persist` for a copy: gate, seen row, memory when kept, intents and holders.

    Returns the new row, None when nothing was to be stored or it was here. Raises ScopeErased and
    Tombstoned, after which nothing changed.
    """
    await enter(tx, mesh, inbound)
    await save_seen(tx, persist.seen)
    stored = None
    if persist.keep is Keep.STORE and content is not None:
        stored = await store(tx, mesh, inbound, content)
    await record_intents(tx, mesh, inbound, persist)
    return stored


async def enter(tx: Tx, mesh: Mesh, inbound: Inbound) -> None:
    """Let a peer's diff in for writing. Raises ScopeErased, Tombstoned.

    Until the commit no tombstone is set: otherwise one that commits at the same time would see
    neither the new row nor the new holders, and this unit would not see the tombstone.
    """
    memory_id = inbound.record.memory
    await memories.by_ids(tx, [memory_id], lock=True)
    await pass_gate(tx, mesh, inbound)
    await tombstones.hold_off(tx)
    if await tombstones.existing(tx, [memory_id]):
        raise Tombstoned()


async def pass_gate(tx: Tx, mesh: Mesh, inbound: Inbound) -> None:
    """Ask the gate about a diff. Raises ScopeErased, Tombstoned."""
    record = inbound.record
    await mesh.node.gate.for_foreign(
        tx,
        agent_id=record.agent,
        project_id=record.project,
        epochs=Epochs(record.agent_epoch, record.project_epoch),
        hlc=inbound.hlc,
        memory_id=record.memory,
    )


async def blame(
    mesh: Mesh, sender: NodeId | None, inbound: Inbound, error: ScopeErased | Tombstoned
) -> Refusal:
    """The gate's verdict as the wire names it; a sender that knew of the tombstone pays."""
    if isinstance(error, ScopeErased):
        return Refusal.FENCED
    if sender is not None and await mesh.db.read(
        tombstones.acked_by, inbound.record.memory, sender
    ):
        mesh.note(sender, Conduct.SERVED_TOMBSTONED)
        return Refusal.SERVED_TOMBSTONED
    return Refusal.TOMBSTONED


async def pass_gate_of_row(tx: Tx, mesh: Mesh, row: Memory) -> None:
    """Ask the gate about a locked row of a project before it leaves.

    Raises ScopeErased, Tombstoned.
    """
    if row.project_id is None:
        raise ScopeErased("a memory without a project does not travel")
    await mesh.node.gate.for_foreign(
        tx,
        agent_id=row.agent_id,
        project_id=row.project_id,
        epochs=Epochs(row.agent_epoch, row.project_epoch),
        hlc=row.hlc,
        memory_id=row.id,
    )


async def store(tx: Tx, mesh: Mesh, inbound: Inbound, content: str) -> Stored | None:
    """Make a peer's diff a row of ours; None when its bytes are here. The gate was passed."""
    record = inbound.record
    now = mesh.node.wall()
    created = datetime.fromtimestamp(record.meta.created_ms / 1000, UTC)
    expires = record.meta.expires_ms
    expiry = datetime.fromtimestamp(clock.millis(inbound.hlc) / 1000, UTC) + timedelta(
        milliseconds=record.ttl_ms
    )
    added = await diffs.insert(
        tx,
        diffs.Diff(
            diff_id=inbound.diff_id,
            kind=record.kind,
            project_id=record.project,
            agent_id=record.agent,
            agent_epoch=record.agent_epoch,
            project_epoch=record.project_epoch,
            memory_id=record.memory,
            origin_node=record.origin,
            hlc=inbound.hlc,
            model=record.model,
            q8=inbound.q.raw,
            body=inbound.body,
            sig=inbound.sig,
            expires_at=expiry,
            drop_after=expiry + timedelta(hours=mesh.diff_grace_h),
        ),
    )
    if not added:
        return None
    memory = Memory(
        id=record.memory,
        kind=MemoryKind(record.mkind),
        agent_id=record.agent,
        project_id=record.project,
        scope_label=record.meta.scope_label,
        content=content,
        normalized_content=normalize(content).normalized,
        content_hash=None,
        type=record.meta.type,
        tags=record.meta.tags,
        who=record.meta.who,
        importance=record.meta.importance_ppm / 1_000_000,
        pinned=record.meta.pinned,
        expires_at=datetime.fromtimestamp(expires / 1000, UTC) if expires is not None else None,
        announced_at=now,
        created_at=created,
        updated_at=now,
        updated_by="peer",
        origin_node=record.origin,
        agent_epoch=record.agent_epoch,
        project_epoch=record.project_epoch,
        hlc=inbound.hlc,
    )
    if not await memories.insert(tx, memory):
        return None
    await memories.insert_vector(tx, memory, record.model, inbound.vector)
    await mesh.hooks.hand(tx, memory, inbound.diff_id, inbound.q.raw)
    return Stored(memory, inbound.vector)


async def record_intents(tx: Tx, mesh: Mesh, inbound: Inbound, persist: Persist) -> None:
    """Delivery and holder rows, before any frame leaves."""
    for intent in persist.intents:
        seq = await deliveries.record(
            tx,
            diff_id=persist.diff_id,
            memory_id=persist.memory_id,
            project_id=inbound.record.project,
            recipient=intent.peer,
            to_agent=False,
            role=intent.role,
            status="intent",
            hlc=mesh.node.clock.now(),
            now=mesh.node.wall(),
        )
        await deliveries.hold(
            tx,
            persist.memory_id,
            intent.peer,
            inbound.record.project,
            inbound.record.agent,
            state="possible",
            seq=seq or 0,
        )


def checked_content(inbound: Inbound, content: bytes) -> str:
    """The text of fetched content bytes. Raises CopyRefused unless length and hash fit."""
    reference = inbound.record.content_ref
    if (
        reference is None
        or len(content) != reference.length
        or records.content_digest(content) != reference.digest
    ):
        raise CopyRefused(Refusal.MALFORMED)
    try:
        return check_text(content.decode("utf-8"), "content")
    except (InvalidInput, UnicodeDecodeError) as error:
        raise CopyRefused(Refusal.MALFORMED) from error


def _check_storable(record: DiffBody) -> None:
    """Raises InvalidInput for what passes as a record and would fail as a row."""
    meta = record.meta
    texts = (record.content, meta.type, meta.who, meta.scope_label, *meta.tags)
    for text in texts:
        if text is not None:
            check_text(text, "text")
    if record.agent_epoch < 1 or record.project_epoch < 1:
        raise InvalidInput("epochs start at 1")


def to_core(seen: diffs.Seen | None, expires_ms: int) -> Seen | None:
    """A seen row as the walk core knows it."""
    if seen is None:
        return None
    return Seen(
        diff_id=seen.diff_id,
        first_hlc=seen.first_hlc,
        expires_ms=expires_ms,
        energy_in=seen.energy_in,
        energy_out=seen.energy_out,
        sent=seen.sent,
        senders=seen.senders,
        outcome=seen.outcome,
    )


async def save_seen(tx: Tx, seen: Seen) -> None:
    """Write the walk's memory as the core decided it."""
    expires_at = datetime.fromtimestamp(seen.expires_ms / 1000, UTC)
    await diffs.save_seen(
        tx,
        diffs.Seen(
            diff_id=seen.diff_id,
            first_hlc=seen.first_hlc,
            energy_in=seen.energy_in,
            energy_out=seen.energy_out,
            fanout=seen.fanout,
            sent=seen.sent,
            senders=seen.senders,
            outcome=seen.outcome,
        ),
        expires_at,
        expires_at + timedelta(hours=24),
    )
