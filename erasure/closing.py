"""The end of an own erasure: every recipient settled, or the promised day reached."""

from __future__ import annotations

from datetime import datetime, timedelta

import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from erasure import certify, journal, witness
from erasure.certificates import Closure, seal
from erasure.context import ErasureContext
from erasure.forms import RecipientStatus
from erasure.ledger import LedgerKind
from erasure.parts import Recipient
from erasure.states import Role, State
from storage import erasures, gate
from storage.erasures import ErasureRow, RecipientRow
from storage.pool import Tx

SETTLED = frozenset(
    {
        RecipientStatus.ACKED.value,
        RecipientStatus.NEVER_HAD.value,
        RecipientStatus.EXPELLED.value,
    }
)


async def try_close(ctx: ErasureContext, erasure_id: str) -> bool:
    """Sign Z if it is time; False when it is not, or not this node's to sign."""
    key = await trio.to_thread.run_sync(ctx.node.keys.erasure_key)
    if not await ctx.db.transact(_close, ctx, erasure_id, key):
        return False
    await journal.copy(ctx)
    told = await ctx.db.read(erasures.recipients, erasure_id)
    await witness.publish(ctx, [one.node_id for one in told])
    ctx.wake()
    return True


def as_recipient(row: RecipientRow, now: datetime, until: datetime) -> Recipient:
    """How a recipient stands at the end; one that has not settled is unreachable."""
    settled = row.status in SETTLED
    return Recipient(
        node_id=row.node_id,
        status=RecipientStatus(row.status) if settled else RecipientStatus.UNREACHABLE,
        receipt_sha256=row.receipt_sha256,
        at=row.settled_at or now,
        until=None if settled else until,
    )


async def _close(tx: Tx, ctx: ErasureContext, erasure_id: str, key: Ed25519PrivateKey) -> bool:
    row = await erasures.lock(tx, erasure_id)
    if row is None or row.role != Role.ORIGIN or row.state != State.CERTIFIED:
        return False
    now = ctx.node.wall()
    told = await erasures.recipients(tx, erasure_id)
    open_ones = [one for one in told if one.status not in SETTLED]
    if open_ones and now < row.due_by:
        return False
    await _sign(tx, ctx, row, told, key, now)
    for one in open_ones:
        await erasures.settle_recipient(tx, erasure_id, one.node_id, "unreachable", None, now)
    await erasures.set_state(tx, erasure_id, State.CLOSED.value)
    await gate.forget_raw_id(tx, row.scope_id)
    return True


async def _sign(
    tx: Tx,
    ctx: ErasureContext,
    row: ErasureRow,
    told: list[RecipientRow],
    key: Ed25519PrivateKey,
    now: datetime,
) -> None:
    node = ctx.node
    documents = await erasures.documents(tx, row.erasure_id)
    certificate = next(
        one for one in documents if one.doc == "certificate" and one.node_id == node.node_id
    )
    until = now + timedelta(milliseconds=int(row.config["max_offline_ms"]))
    counted = set((row.tiers or {})["counted"])
    where = await journal.next_entry(tx, node, now)
    signed = seal(
        Closure(
            erasure_id=row.erasure_id,
            certificate_sha256=certificate.sha256,
            mesh_id=node.mesh_id,
            node_id=node.node_id,
            closed_at=now,
            recipients=tuple(as_recipient(one, now, until) for one in told),
            ledger=where,
            added_after_certificate=tuple(
                one.node_id for one in told if one.node_id.hex() not in counted
            ),
            witnesses=await witness.witnesses(tx, where.log_id),
        ),
        key,
    )
    await certify.record(tx, ctx, row, "closure", signed, LedgerKind.CLOSURE, now)
    await certify.post(tx, ctx, [one.node_id for one in told], signed, now)
