"""Heads of other ledgers, kept and cosigned, so that nobody can cut the end of a log unseen.

A node sends its newest head to those who wait for its documents, once the file copy of the ledger
holds it. Who gets a head keeps the highest one of that log, refuses a smaller one or a second
root of one size, and sends it back with its own signature. That signature says that the head was
seen; consistency between two sizes is checked by whoever has the log.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from erasure import canonical, refusals, shapes
from erasure.context import ErasureContext
from erasure.envelope import HEAD_PAYLOAD, Envelope, Signature, keyid, verify
from erasure.ledger import cosign, log_id
from erasure.parts import Witness
from erasure.received import Refused
from storage import ledger, outbox, peers
from storage.model import NodeId
from storage.outbox import Topic
from storage.pool import Tx

ACCEPTED, DUPLICATE = "accepted", "duplicate"

_FORM = shapes.record(
    {
        "v": shapes.whole(1),
        "log_id": shapes.hexadecimal(32),
        "size": shapes.whole(1),
        "root": shapes.hexadecimal(32),
        "at": shapes.time,
    }
)


@dataclass(frozen=True, slots=True)
class _Head:
    signed: Envelope
    log: str
    size: int
    root: bytes

    def good(self, public: bytes | None) -> Signature | None:
        """The signature by this key that holds, or None."""
        if public is None:
            return None
        for one in self.signed.signatures:
            if one.keyid == keyid(public) and verify(
                public, HEAD_PAYLOAD, self.signed.payload, one.sig
            ):
                return one
        return None


async def record_head(ctx: ErasureContext, peer: NodeId, data: bytes) -> str:
    """Take a tree head from a peer: 'accepted', 'duplicate' or 'refused:<why>'.

    A head of the peer's own log is kept and goes back cosigned; a head of this node's log is kept
    with the peer's signature. A refusal leaves one ledger entry.
    """
    try:
        head = _read(data)
        key = await trio.to_thread.run_sync(ctx.node.keys.ledger_key)
        if head.log == log_id(key):
            return await ctx.db.transact(_own, ctx, head, peer)
        verdict = await ctx.db.transact(_foreign, ctx, head, peer, key)
    except Refused as refusal:
        await refusals.note(ctx, peer, "head", data, str(refusal))
        return f"refused:{refusal}"
    ctx.wake()
    return verdict


async def publish(ctx: ErasureContext, nodes: list[NodeId]) -> None:
    """Send the newest head to these nodes. The file copy must hold it already."""
    key = await trio.to_thread.run_sync(ctx.node.keys.ledger_key)
    if nodes:
        await ctx.db.transact(_publish, ctx, nodes, bytes.fromhex(log_id(key)))
        ctx.wake()


async def witnesses(tx: Tx, own_log: str) -> tuple[Witness, ...]:
    """Signatures of other nodes over the highest head of this node's log."""
    row = await ledger.witnessed(tx, bytes.fromhex(own_log))
    if row is None:
        return ()
    signed = Envelope.from_bytes(row.head)
    told: Any = canonical.decode(signed.payload)
    known = {
        keyid(one.ledger_key): one.peer_id for one in await peers.all_peers(tx) if one.ledger_key
    }
    return tuple(
        Witness(
            node_id=known[one.keyid],
            keyid=one.keyid,
            log_id=own_log,
            size=row.size,
            root=row.root,
            at=datetime.fromisoformat(told["at"].replace("Z", "+00:00")),
            sig=one.sig,
        )
        for one in signed.signatures
        if one.keyid in known and one.keyid != own_log
    )


def _read(data: bytes) -> _Head:
    try:
        signed = Envelope.from_bytes(data)
        told: Any = canonical.decode(signed.payload)
    except canonical.Malformed as error:
        raise Refused("malformed") from error
    found = shapes.Findings()
    _FORM(told, "head", found)
    if found.faults or signed.payload_type != HEAD_PAYLOAD:
        raise Refused("malformed")
    return _Head(signed, told["log_id"], told["size"], bytes.fromhex(told["root"]))


async def _key_of(tx: Tx, node_id: NodeId) -> bytes | None:
    for peer in await peers.all_peers(tx):
        if peer.peer_id == node_id:
            return peer.ledger_key
    return None


async def _own(tx: Tx, ctx: ErasureContext, head: _Head, peer: NodeId) -> str:
    """A head of this node's log that a witness has signed."""
    added = head.good(await _key_of(tx, peer))
    if added is None or added.keyid == head.log:
        raise Refused("bad_signature")
    entry = await ledger.entry(tx, head.size)
    if entry is None or Envelope.from_bytes(entry.head).payload != head.signed.payload:
        raise Refused("not_our_head")
    log = bytes.fromhex(head.log)
    kept = await ledger.witnessed(tx, log, lock=True)
    if kept is not None and kept.size > head.size:
        return DUPLICATE
    base = Envelope.from_bytes(kept.head if kept and kept.size == head.size else entry.head)
    if any(one.keyid == added.keyid for one in base.signatures):
        return DUPLICATE
    both = replace(base, signatures=(*base.signatures, added))
    await ledger.put_witnessed(tx, log, head.size, head.root, both.to_bytes(), ctx.node.wall())
    return ACCEPTED


async def _foreign(
    tx: Tx, ctx: ErasureContext, head: _Head, peer: NodeId, key: Ed25519PrivateKey
) -> str:
    public = await _key_of(tx, peer)
    signature = head.good(public)
    if signature is None or signature.keyid != head.log:
        raise Refused("bad_signature")
    log, now = bytes.fromhex(head.log), ctx.node.wall()
    kept = await ledger.witnessed(tx, log, lock=True)
    if kept is not None and kept.size > head.size:
        raise Refused("smaller_head")
    if kept is not None and kept.size == head.size:
        if kept.root != head.root:
            raise Refused("second_root")
        return DUPLICATE
    plain = replace(head.signed, signatures=(signature,))
    await ledger.put_witnessed(tx, log, head.size, head.root, plain.to_bytes(), now)
    own = Signature(log_id(key), cosign(plain, key))
    back = replace(plain, signatures=(signature, own)).to_bytes()
    await outbox.enqueue(tx, Topic.HEAD, [peer], plain.sha256, back, project_id=None, now=now)
    return ACCEPTED


async def _publish(tx: Tx, ctx: ErasureContext, nodes: list[NodeId], log: bytes) -> None:
    end = await ledger.head(tx)
    entry = await ledger.entry(tx, end.size) if end is not None else None
    if entry is not None:
        await outbox.enqueue(
            tx,
            Topic.HEAD,
            nodes,
            log,
            entry.head,
            project_id=None,
            now=ctx.node.wall(),
            replace=True,
        )
