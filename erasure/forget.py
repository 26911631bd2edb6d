"""The end of single memories: the one transaction that a local forget and a peer's tombstone run.

The tombstone comes first, so that nothing which commits later can bring the memory back; then
rows, vectors, announcements and the texts in history go, and the outbox learns whom to tell. The
hot graph follows after the commit, in the hands of the caller.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from storage import (
    clock,
    deliveries,
    diffs,
    erasures,
    history,
    memories,
    outbox,
    records,
    tombstones,
)
from storage.access import Access
from storage.errors import Forbidden
from storage.keyring import public_bytes
from storage.local import LocalNode
from storage.model import Hlc, Memory, MemoryId, NodeId, ProjectId, Scope, ScopeKind
from storage.outbox import Topic
from storage.pool import Tx
from storage.records import InvalidRecord, TombstoneBody
from storage.tombstones import Tombstone


class NoSigningKey(Forbidden):
    """This node holds no key that may speak for the memory."""

    code = "no_signing_key"


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What a forget did: ids gone now, and ids that were gone before; of both, those whose rows a
    hold keeps, out of everybody's reach."""

    gone: tuple[MemoryId, ...] = ()
    already: tuple[MemoryId, ...] = ()
    told: int = 0
    tombstones: Mapping[MemoryId, bytes] = field(default_factory=dict)
    kept: tuple[MemoryId, ...] = ()


def signing_key(
    node: LocalNode, access: Access, agent_id: bytes, project_id: ProjectId | None
) -> Ed25519PrivateKey:
    """A key of this node that may speak for an agent's memories: its own, project, operator.

    Raises NoSigningKey.
    """
    own = node.keys.agent(agent_id)
    if own is not None:
        return own
    project = access.projects.get(project_id) if project_id else None
    if project is not None:
        key = node.keys.project(project.project_id)
        if key is not None:
            return key
        operator = node.keys.operator_key()
        if public_bytes(operator) in project.acl.operators:
            return operator
    raise NoSigningKey()


async def forget(
    tx: Tx,
    node: LocalNode,
    access: Access,
    targets: Sequence[Memory],
    *,
    actor: str,
    reason: str | None = None,
    keep_rows: bool = False,
) -> Forgotten:
    """Forget memories that stand on this node, by this node's own word.

    `keep_rows` writes tombstones for peers but leaves the rows: the soft delete of memories that
    were announced. Idempotent: an id that has its tombstone only loses what is left of it.
    Raises NoSigningKey before anything changes.
    """
    now = node.wall()
    standing = await tombstones.existing(tx, [memory.id for memory in targets])
    fresh = [memory for memory in targets if memory.id not in standing]
    signed: dict[MemoryId, bytes] = {}
    for memory in fresh:
        stamp = node.clock.now()
        travels = memory.announced_at is not None and memory.project_id is not None
        wire = _sign(node, access, memory, stamp) if travels else None
        if wire is not None:
            signed[memory.id] = wire
        await tombstones.insert(tx, _tombstone(node, memory, wire, stamp, now))
    told = await _tell(tx, node, signed, {memory.id: memory for memory in fresh}, now)
    kept: set[MemoryId] = set()
    if not keep_rows:
        kept = await _purge(tx, targets, now=now, actor=actor, reason=reason)
    return Forgotten(
        gone=tuple(memory.id for memory in fresh),
        already=tuple(sorted(standing)),
        told=told,
        tombstones=signed,
        kept=tuple(sorted(kept)),
    )


async def apply_tombstone(
    tx: Tx, node: LocalNode, access: Access, wire: bytes, *, peer: NodeId
) -> Forgotten:
    """Forget by a peer's word: verify who signed, then the same steps, then our own holders.

    Content that never was here leaves its tombstone all the same, so that a late copy is
    refused. A row that waits here as a soft delete keeps waiting when its own tombstone comes
    back. Raises BadSignature or InvalidRecord, also when the memory here is of another agent or
    project than the signer speaks for, and changes nothing then.
    """
    body = access.check_tombstone(wire)
    now = node.wall()
    await memories.by_ids(tx, [body.target], lock=True)
    await tombstones.lock(tx)  # a copy that was being stored is committed now, and seen below
    rows = await memories.by_ids(tx, [body.target], lock=True)
    if any((row.agent_id, row.project_id) != (body.agent, body.project) for row in rows):
        raise InvalidRecord("the tombstone is not of the memory's agent and project")
    seq = await tombstones.insert(
        tx,
        Tombstone(
            memory_id=body.target,
            kind=body.mkind,
            project_id=body.project,
            agent_handle=node.handle(Scope(ScopeKind.AGENT, body.agent)),
            project_handle=node.handle(Scope(ScopeKind.PROJECT, body.project))
            if body.project
            else None,
            epoch=body.agent_epoch,
            hlc=clock.from_bytes(body.hlc),
            origin_node=body.origin,
            home_node=body.home,
            cause=body.cause,
            created_at=now,
            parent_peer=peer,
            wire=wire,
            purged_at=None if rows else now,
        ),
    )
    told = 0
    if seq is not None:
        told = await _spread(tx, node, {body.target: wire}, body.home, body.project, now, {peer})
    else:
        rows = [row for row in rows if row.deleted_at is None]
    await _purge(tx, rows, now=now, actor=f"peer:{peer.hex()}", reason=None)
    if not rows:
        await diffs.purge_of_agent(tx, [body.target], body.agent)
    if seq is None:
        return Forgotten(already=(body.target,))
    return Forgotten(gone=(body.target,), told=told, tombstones={body.target: wire})


async def finish_unpurged(tx: Tx, node: LocalNode, limit: int) -> list[MemoryId]:
    """Purge what a crash left under a tombstone; the ids, at most `limit`."""
    ids = await tombstones.unpurged(tx, limit)
    rows = await memories.by_ids(tx, ids, lock=True)
    kept = await _purge(tx, rows, now=node.wall(), actor="restart", reason=None)
    done = [memory_id for memory_id in ids if memory_id not in kept]
    await tombstones.mark_purged(tx, done, node.wall())
    return done


def _sign(node: LocalNode, access: Access, memory: Memory, stamp: Hlc) -> bytes:
    key = signing_key(node, access, memory.agent_id, memory.project_id)
    return records.seal(
        key,
        records.DOMAIN_TOMBSTONE,
        TombstoneBody(
            project=memory.project_id,
            agent=memory.agent_id,
            origin=node.node_id,
            home=memory.origin_node,
            agent_epoch=memory.agent_epoch,
            project_epoch=memory.project_epoch,
            hlc=clock.to_bytes(stamp),
            nonce=node.random_bytes(16),
            target=memory.id,
            mkind=memory.kind.value,
            cause="forget",
        ),
    )


def _tombstone(
    node: LocalNode, memory: Memory, wire: bytes | None, stamp: Hlc, now: datetime
) -> Tombstone:
    project = memory.project_id
    return Tombstone(
        memory_id=memory.id,
        kind=memory.kind.value,
        project_id=project,
        agent_handle=node.handle(Scope(ScopeKind.AGENT, memory.agent_id)),
        project_handle=node.handle(Scope(ScopeKind.PROJECT, project)) if project else None,
        epoch=memory.agent_epoch,
        hlc=stamp,
        origin_node=node.node_id,
        home_node=memory.origin_node,
        cause="forget",
        created_at=now,
        wire=wire,
    )


async def _purge(
    tx: Tx, rows: Sequence[Memory], *, now: datetime, actor: str, reason: str | None
) -> set[MemoryId]:
    """Take rows with all that hangs on them out; the ids of those that a hold keeps.

    A kept row is hidden like a soft-deleted one, without vector and announcement; retention takes
    it after the hold's release.
    """
    if not rows:
        return set()
    kept = await erasures.held(tx, [memory.id for memory in rows])
    ids = [memory.id for memory in rows if memory.id not in kept]
    await history.blank(tx, ids)
    await diffs.purge_of_memories(tx, [memory.id for memory in rows])
    await memories.purge(tx, ids)
    await tombstones.mark_purged(tx, ids, now)
    if kept:
        await memories.purge_vectors(tx, sorted(kept))
        hidden = await memories.soft_delete(tx, sorted(kept), now, actor)
        rows = [memory for memory in rows if memory.id not in kept or memory.id in hidden]
    for memory in rows:
        await history.record(tx, memory, "deleted", now=now, changed_by=actor, reason=reason)
    return kept


async def _tell(
    tx: Tx,
    node: LocalNode,
    signed: Mapping[MemoryId, bytes],
    fresh: Mapping[MemoryId, Memory],
    now: datetime,
) -> int:
    told = 0
    for memory_id, wire in signed.items():
        memory = fresh[memory_id]
        told += await _spread(
            tx, node, {memory_id: wire}, memory.origin_node, memory.project_id, now, set()
        )
    return told


async def _spread(
    tx: Tx,
    node: LocalNode,
    signed: Mapping[MemoryId, bytes],
    home: NodeId,
    project_id: ProjectId | None,
    now: datetime,
    spare: set[NodeId],
) -> int:
    """Outbox rows for holders, senders and the home node; how many are new."""
    ids = list(signed)
    peers: dict[MemoryId, set[NodeId]] = {memory_id: {home} for memory_id in ids}
    for holder in await deliveries.holders_of(tx, ids):
        if holder.state != "none":
            peers[holder.memory_id].add(holder.peer_id)
    for memory_id, senders in (await diffs.senders_of(tx, ids)).items():
        peers[memory_id] |= senders
    told = 0
    for memory_id, wire in signed.items():
        told += await outbox.enqueue(
            tx,
            Topic.TOMBSTONE,
            sorted(peers[memory_id] - {node.node_id} - spare),
            memory_id,
            wire,
            project_id=project_id,
            now=now,
        )
    return told
