"""What changed after a node's own document: numbered, chained addenda.

A certificate or receipt never changes; residue that turned up, an answer that came late and a
recipient that was expelled are told in an addendum of their own.
"""

from __future__ import annotations

from collections.abc import Mapping

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from erasure import certify, journal
from erasure.certificates import Addendum, seal
from erasure.context import ErasureContext
from erasure.forms import AddendumKind
from erasure.ledger import LedgerKind
from erasure.parts import Recipient
from erasure.states import Role
from storage import erasures
from storage.erasures import DocumentRow, ErasureRow
from storage.pool import Tx


async def add(
    tx: Tx,
    ctx: ErasureContext,
    row: ErasureRow,
    key: Ed25519PrivateKey,
    kind: AddendumKind,
    cause: str,
    *,
    removed: Mapping[str, tuple[int, bytes]] | None = None,
    recipients: tuple[Recipient, ...] = (),
) -> bytes:
    """Sign and keep the next addendum of this node; its payload's SHA-256.

    The erasure's row must be locked and this node must have its certificate or receipt.
    """
    node, now = ctx.node, ctx.node.wall()
    documents = await erasures.documents(tx, row.erasure_id)
    own = [one for one in documents if one.node_id == node.node_id]
    about = own_document(own, row)
    chain = sorted((one for one in own if one.doc == "addendum"), key=lambda one: one.n)
    theirs = [one for one in documents if one.doc == "certificate"]
    where = await journal.next_entry(tx, node, now)
    signed = seal(
        Addendum(
            erasure_id=row.erasure_id,
            about_sha256=about.sha256,
            certificate_sha256=about.sha256
            if row.role == Role.ORIGIN
            else (theirs[0].sha256 if theirs else None),
            previous=chain[-1].sha256 if chain else None,
            n=len(chain) + 1,
            kind=kind,
            cause=cause,
            mesh_id=node.mesh_id,
            node_id=node.node_id,
            software=ctx.software,
            at=now,
            pending=certify.pending(ctx, row, now, had=True),
            ledger=where,
            removed=removed or {},
            recipients=recipients,
        ),
        key,
    )
    await certify.record(
        tx, ctx, row, "addendum", signed, LedgerKind.ADDENDUM, now, n=len(chain) + 1
    )
    if row.role == Role.ORIGIN:
        nodes = [one.node_id for one in await erasures.recipients(tx, row.erasure_id)]
    else:
        nodes = sorted({one.node_id for one in documents} - {node.node_id})
    await certify.post(tx, ctx, nodes, signed, now)
    return signed.sha256


def own_document(own: list[DocumentRow], row: ErasureRow) -> DocumentRow:
    """This node's certificate or, at a peer, its receipt. Raises LookupError without one."""
    wanted = "certificate" if row.role == Role.ORIGIN else "receipt"
    for one in own:
        if one.doc == wanted:
            return one
    raise LookupError("this node has signed nothing about the erasure yet")
