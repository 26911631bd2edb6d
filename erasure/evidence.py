"""The files that somebody needs who checks an erasure without us.

Only reads. The list of keys is this node's own view and is meant to be compared with keys that
the verifier has obtained by another way.
"""

from __future__ import annotations

from typing import Any

import trio

from erasure import canonical
from erasure.context import ErasureContext
from erasure.envelope import keyid, public_bytes
from erasure.ledger import proof
from erasure.trust import Role as KeyRole
from storage import erasures, ledger, peers
from storage.errors import NotFound
from storage.model import NodeId
from storage.pool import Tx


async def collect(ctx: ErasureContext, erasure_id: str) -> dict[str, Any]:
    """Documents, proof, head and keys of one erasure. Raises NotFound."""
    own = {
        KeyRole.ERASURE: public_bytes(await trio.to_thread.run_sync(ctx.node.keys.erasure_key)),
        KeyRole.LEDGER: public_bytes(await trio.to_thread.run_sync(ctx.node.keys.ledger_key)),
    }
    return await ctx.db.read(_collect, ctx.node.node_id, erasure_id, own)


async def _collect(
    tx: Tx, node_id: NodeId, erasure_id: str, own: dict[KeyRole, bytes]
) -> dict[str, Any]:
    if await erasures.get(tx, erasure_id) is None:
        raise NotFound("erasure not found")
    kept = await erasures.documents(tx, erasure_id)
    certificates = [one for one in kept if one.doc == "certificate"]
    # A peer that follows has the origin's certificate; an origin has its own.
    certificates.sort(key=lambda one: one.node_id != node_id)
    issuer = certificates[0].node_id if certificates else node_id
    # Another node that began the same erasure has a certificate of its own, and documents about it.
    rivals = {one.node_id for one in certificates} - {issuer}
    closures = [one for one in kept if one.doc == "closure" and one.node_id == issuer]
    shown, head = None, None
    if certificates and certificates[0].ledger_seq is not None:
        log = keyid(own[KeyRole.LEDGER])
        shown, head = await _proof(tx, certificates[0].ledger_seq, bytes.fromhex(log))
    return {
        "certificate": certificates[0].envelope if certificates else None,
        "receipts": {
            one.node_id.hex(): one.envelope
            for one in kept
            if one.doc == "receipt" and (one.node_id != issuer or not certificates)
        },
        "notices": [
            one.envelope
            for one in kept
            if one.doc == "notice" and (one.node_id == issuer or not certificates)
        ],
        "closure": closures[0].envelope if closures else None,
        "addenda": [
            one.envelope for one in kept if one.doc == "addendum" and one.node_id not in rivals
        ],
        "proof": shown,
        "head": head,
        "trust": canonical.encode(await _keys(tx, node_id, own)),
    }


async def _proof(tx: Tx, seq: int, log: bytes) -> tuple[bytes | None, bytes | None]:
    """Proof and head: the highest head that others have signed, else the newest."""
    entry = await ledger.entry(tx, seq)
    seen = await ledger.witnessed(tx, log)
    if entry is None:
        return None, None
    if seen is not None and seen.size >= seq:
        size, head = seen.size, seen.head
    else:
        end = await ledger.head(tx)
        last = await ledger.entry(tx, end.size) if end is not None else None
        if last is None:
            return None, None
        size, head = last.seq, last.head
    shown = proof(entry.payload, await ledger.leaves(tx, size))
    return canonical.encode(shown), head


async def _keys(tx: Tx, node_id: NodeId, own: dict[KeyRole, bytes]) -> dict[str, Any]:
    known = [(node_id, role, public) for role, public in own.items()]
    for peer in await peers.all_peers(tx):
        for role, public in (
            (KeyRole.ERASURE, peer.erasure_key),
            (KeyRole.LEDGER, peer.ledger_key),
        ):
            if public is not None:
                known.append((peer.peer_id, role, public))
    return {
        keyid(public): {
            "public_hex": public.hex(),
            "role": role.value,
            "node_id": node.hex(),
            "not_before": None,
            "not_after": None,
            "revoked_at": None,
        }
        for node, role, public in known
    }
