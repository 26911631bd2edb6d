"""What recipients answer, and the documents of others that are kept as evidence.

Nothing is believed before the signature of the node it speaks for has held. A receipt settles its
node once; a second one with other bytes is refused.
"""

from __future__ import annotations

import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from erasure import addenda, certify, closing, journal, received, refusals
from erasure.context import ErasureContext
from erasure.forms import AddendumKind, Doc, ReceiptStatus, RecipientStatus
from erasure.ledger import LedgerKind
from erasure.parts import Recipient
from erasure.received import Received, Refused
from erasure.states import Role, State
from erasure.witness import record_head
from storage import erasures, peers
from storage.erasures import DocumentRow, ErasureRow, RecipientRow
from storage.model import NodeId
from storage.pool import Tx

__all__ = ["key_of", "record_document", "record_head", "release_recipient"]

ACCEPTED, DUPLICATE = "accepted", "duplicate"

_STATUS = {
    ReceiptStatus.APPLIED.value: RecipientStatus.ACKED.value,
    ReceiptStatus.NEVER_HAD.value: RecipientStatus.NEVER_HAD.value,
    ReceiptStatus.PARTIAL.value: "partial",
}
_EVIDENCE = {
    Doc.CERTIFICATE: "certificate",
    Doc.CLOSURE: "closure",
    Doc.ADDENDUM: "addendum",
    Doc.RECEIPT: "receipt",
}


async def record_document(ctx: ErasureContext, peer: NodeId, data: bytes) -> str:
    """Take a document that a peer sent: 'accepted', 'duplicate' or 'refused:<why>'.

    A refusal changes nothing but one ledger entry. An accepted receipt may close the erasure.
    """
    try:
        document = received.read(data)
        if document.doc not in _EVIDENCE:
            raise Refused("unexpected_document")
        if document.node_id == ctx.node.node_id:
            raise Refused("own_document")
        key = await trio.to_thread.run_sync(ctx.node.keys.erasure_key)
        verdict = await ctx.db.transact(_record, ctx, document, key)
    except Refused as refusal:
        await refusals.note(ctx, peer, "document", data, str(refusal))
        return f"refused:{refusal}"
    await journal.copy(ctx)
    if verdict == ACCEPTED and document.doc is Doc.RECEIPT:
        await closing.try_close(ctx, document.erasure_id)
        ctx.wake()
    return verdict


async def release_recipient(ctx: ErasureContext, peer: NodeId, *, decommissioned: bool) -> int:
    """A node is out of the mesh for good: no erasure waits for it any more; how many did."""
    key = await trio.to_thread.run_sync(ctx.node.keys.erasure_key)
    released = 0
    for erasure_id, _ in await ctx.db.read(erasures.waiting_for, peer):
        released += await ctx.db.transact(_release, ctx, erasure_id, peer, key, decommissioned)
        await closing.try_close(ctx, erasure_id)
    if released:
        await journal.copy(ctx)
        ctx.wake()
    return released


async def key_of(tx: Tx, node_id: NodeId) -> bytes | None:
    """The erasure key of a peer, as it stated it when it connected."""
    for peer in await peers.all_peers(tx):
        if peer.peer_id == node_id:
            return peer.erasure_key
    return None


async def _record(tx: Tx, ctx: ErasureContext, document: Received, key: Ed25519PrivateKey) -> str:
    if document.predicate["mesh_id"] != ctx.node.mesh_id:
        raise Refused("other_mesh")
    if not document.signed_by(await key_of(tx, document.node_id)):
        raise Refused("bad_signature")
    row = await erasures.lock(tx, document.erasure_id)
    if row is None:
        raise Refused("unknown_erasure")
    present = await erasures.documents(tx, row.erasure_id)
    if any(one.sha256 == document.sha256 for one in present):
        return DUPLICATE
    scope = document.predicate.get("scope")
    if scope is not None and (scope["handle"], scope["epoch"]) != (row.handle.hex(), row.epoch):
        raise Refused("other_scope")
    if document.doc is Doc.RECEIPT and row.role == Role.ORIGIN:
        await _settle(tx, ctx, row, document, present, key)
        return ACCEPTED
    if document.doc is Doc.RECEIPT:
        raise Refused("not_the_origin")
    n = int(document.predicate["n"]) if document.doc is Doc.ADDENDUM else 0
    if not await _keep(tx, row, document, n, None):
        raise Refused("another_in_its_place")
    return ACCEPTED


async def _settle(
    tx: Tx,
    ctx: ErasureContext,
    row: ErasureRow,
    receipt: Received,
    present: list[DocumentRow],
    key: Ed25519PrivateKey,
) -> None:
    told = {one.node_id: one for one in await erasures.recipients(tx, row.erasure_id)}
    before = told.get(receipt.node_id)
    if before is None:
        raise Refused("no_recipient")
    own = {one.sha256: one.doc for one in present if one.node_id == ctx.node.node_id}
    certificate = receipt.digest("certificate_sha256")
    if own.get(receipt.digest("notice_sha256") or b"") != "notice" or (
        certificate is not None and own.get(certificate) != "certificate"
    ):
        raise Refused("answers_another_notice")
    now = ctx.node.wall()
    seq = await journal.append(
        tx,
        ctx.node,
        LedgerKind.RECEIPT,
        now,
        {"document": receipt.sha256, "erasure_id": row.erasure_id},
    )
    if not await _keep(tx, row, receipt, 0, seq):
        raise Refused("second_receipt")
    status = _STATUS[receipt.predicate["status"]]
    await erasures.settle_recipient(
        tx, row.erasure_id, receipt.node_id, status, receipt.sha256, now
    )
    if row.state == State.CLOSED:
        await _late(tx, ctx, row, before, status, receipt.sha256, key)
        return
    passed_on = {bytes.fromhex(one): "forwarded" for one in receipt.predicate["forwarded_to"]}
    passed_on.pop(ctx.node.node_id, None)
    new = await erasures.add_recipients(tx, row.erasure_id, passed_on, now)
    await certify.tell_late(tx, ctx, row, new)


async def _late(
    tx: Tx,
    ctx: ErasureContext,
    row: ErasureRow,
    before: RecipientRow,
    status: str,
    sha256: bytes,
    key: Ed25519PrivateKey,
) -> None:
    if status not in closing.SETTLED or before.status != RecipientStatus.UNREACHABLE:
        return
    answered = Recipient(before.node_id, RecipientStatus(status), sha256, ctx.node.wall())
    await addenda.add(
        tx,
        ctx,
        row,
        key,
        AddendumKind.LATE_RECEIPT,
        "a receipt arrived after the closure",
        recipients=(answered,),
    )


async def _release(
    tx: Tx,
    ctx: ErasureContext,
    erasure_id: str,
    peer: NodeId,
    key: Ed25519PrivateKey,
    decommissioned: bool,
) -> bool:
    row = await erasures.lock(tx, erasure_id)
    told = await erasures.recipients(tx, erasure_id)
    before = next((one for one in told if one.node_id == peer), None)
    if row is None or before is None or before.status in closing.SETTLED:
        return False
    now = ctx.node.wall()
    kind = LedgerKind.DECOMMISSIONED if decommissioned else LedgerKind.EXPELLED
    await journal.append(tx, ctx.node, kind, now, {"erasure_id": erasure_id, "node_id": peer})
    await erasures.settle_recipient(tx, erasure_id, peer, "expelled", None, now)
    if row.state == State.CLOSED:
        gone = Recipient(peer, RecipientStatus.EXPELLED, before.receipt_sha256, now)
        await addenda.add(
            tx,
            ctx,
            row,
            key,
            AddendumKind.RECIPIENT_EXPELLED,
            "an unreachable recipient left the mesh",
            recipients=(gone,),
        )
    return True


async def _keep(tx: Tx, row: ErasureRow, document: Received, n: int, seq: int | None) -> bool:
    return await erasures.add_document(
        tx,
        row.erasure_id,
        DocumentRow(
            document.sha256,
            _EVIDENCE[document.doc],
            document.node_id,
            n,
            document.envelope.to_bytes(),
            seq,
        ),
    )
