"""What a peer says of an erasure: first the fence, then the notice that asks for a receipt.

The fence alone already stops every write and hides what is here. The notice makes this node run
the erasure over its own copies; the ids in it decide nothing, the scope does.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from erasure import certify, journal, leaves, received, refusals, removal
from erasure.context import ErasureContext
from erasure.forms import Doc
from erasure.ledger import LedgerKind
from erasure.receipts import key_of
from erasure.received import Received, Refused
from erasure.scope import agent_of, project_of, scope_of_handle
from erasure.states import Role, State, reached
from storage import burials, clock, erasures, gate, records, tombstones
from storage.erasures import DocumentRow, Intent
from storage.errors import InvalidInput
from storage.model import MemoryId, NodeId, Scope, ScopeKind
from storage.pool import Tx
from storage.records import FenceBody
from storage.tombstones import Fence

APPLIED, ALREADY = "applied", "already"


async def accept_fence(ctx: ErasureContext, wire: bytes, peer: NodeId) -> str:
    """Close an epoch by a peer's word: 'applied', 'already' or 'refused:<why>'.

    A refusal changes nothing but one ledger entry.
    """
    try:
        body = await _check_fence(ctx, wire)
    except InvalidInput as error:
        await refusals.note(ctx, peer, "fence", wire, error.code)
        return f"refused:{error.code}"
    if body is None:
        return ALREADY
    known = scope_of_handle(ctx.node, ctx.access.current, body.scope_kind, body.scope_handle)
    new, scope, old = await ctx.db.transact(_fence, ctx, body, wire, known)
    if scope is not None:
        if old is None:
            await trio.to_thread.run_sync(removal.hide_scope, ctx, body.erasure_id, scope)
            ctx.fenced(scope)
        else:
            await trio.to_thread.run_sync(removal.hide_ids, ctx, body.erasure_id, old)
    return APPLIED if new else ALREADY


async def accept_notice(ctx: ErasureContext, data: bytes, peer: NodeId) -> str:
    """Take a notice: 'applied' when a run begins, 'already', or 'refused:<why>'.

    `refused:unknown_fence` may be tried again once the fence is here; it leaves no ledger entry.
    The receipt follows through the outbox.
    """
    try:
        notice = received.read(data)
        if notice.doc is not Doc.NOTICE:
            raise Refused("unexpected_document")
        if notice.node_id not in ctx.access.current.nodes():
            raise Refused("no_member")
        key = await trio.to_thread.run_sync(ctx.node.keys.erasure_key)
        verdict = await ctx.db.transact(_notice, ctx, notice, key)
    except Refused as refusal:
        if str(refusal) != "unknown_fence":
            await refusals.note(ctx, peer, "notice", data, str(refusal))
        return f"refused:{refusal}"
    await journal.copy(ctx)
    ctx.notify()
    return verdict


async def _check_fence(ctx: ErasureContext, wire: bytes) -> FenceBody | None:
    """The fence, if it is entitled; None when these bytes stand here already.

    Raises InvalidInput.
    """
    sealed = records.open_sealed(wire, max_bytes=4096)
    said = records.decode(sealed.b, FenceBody)
    present = await ctx.db.read(
        burials.fence_at, said.scope_kind, said.scope_handle, said.epoch_floor
    )
    if present is not None and present.wire == wire:
        return None
    body = ctx.access.current.check_fence(wire, ctx.node.gate.handle_key)
    expected = leaves.erasure_id(ctx.node.mesh_id, body.scope_handle, body.epoch_floor)
    if body.erasure_id != expected:
        raise Refused("other_erasure")
    for stamp in (body.hlc, body.hlc_floor):
        try:
            clock.from_bytes(stamp)
        except ValueError as error:
            raise Refused("malformed") from error
    return body


async def _fence(
    tx: Tx, ctx: ErasureContext, body: FenceBody, wire: bytes, known: Scope | None
) -> tuple[bool, Scope | None, list[MemoryId] | None]:
    """Store the fence; whether it is new, and the scope if it closed one that is known here.

    The ids are those of its old memories, or None when newer ones do not exist.
    """
    node = ctx.node
    row = await node.gate.lock_by_handle(
        tx, body.scope_kind, body.scope_handle, known.id if known else None
    )
    ahead = node.wall() + timedelta(milliseconds=clock.DRIFT_MS)
    limit = clock.from_millis(int(ahead.timestamp() * 1000))
    new = await tombstones.insert_fence(
        tx,
        Fence(
            scope_kind=body.scope_kind,
            scope_handle=body.scope_handle,
            epoch_floor=body.epoch_floor,
            hlc_floor=min(clock.from_bytes(body.hlc_floor), limit),
            erasure_id=body.erasure_id,
            wire=wire,
            hlc=clock.from_bytes(body.hlc),
        ),
    )
    if body.epoch_floor <= row.closed_epoch:
        return new is not None, None, None
    await gate.close_epoch(tx, row.scope_id, body.epoch_floor)
    if row.ext_id is None:
        return new is not None, None, None
    scope = Scope(ScopeKind(body.scope_kind), row.ext_id)
    old = await erasures.old_ids(tx, agent_of(scope), project_of(scope), body.epoch_floor)
    return new is not None, scope, old


async def _notice(tx: Tx, ctx: ErasureContext, notice: Received, key: Ed25519PrivateKey) -> str:
    told = notice.predicate
    if told["mesh_id"] != ctx.node.mesh_id:
        raise Refused("other_mesh")
    if not notice.signed_by(await key_of(tx, notice.node_id)):
        raise Refused("bad_signature")
    scope = told["scope"]
    handle, epoch = bytes.fromhex(scope["handle"]), int(scope["epoch"])
    fence = await burials.fence_at(tx, scope["kind"], handle, epoch)
    if fence is None:
        raise Refused("unknown_fence")
    if fence.erasure_id != notice.erasure_id:
        raise Refused("other_erasure")
    locked = await ctx.node.gate.lock_by_handle(tx, scope["kind"], handle, None)
    row = await erasures.lock(tx, notice.erasure_id)
    verdict = ALREADY
    if row is None:
        await _intend(tx, ctx, notice, locked.scope_id, epoch, fence.recv_seq)
        verdict = APPLIED
    n = 1 if notice.digest("certificate_sha256") is None else 2
    await erasures.add_document(
        tx,
        notice.erasure_id,
        DocumentRow(notice.sha256, "notice", notice.node_id, n, notice.envelope.to_bytes(), None),
    )
    await erasures.set_notice(tx, notice.erasure_id, notice.sha256)
    row = await erasures.get(tx, notice.erasure_id)
    if row is not None and reached(row.state, State.CERTIFIED):
        await certify.answer(tx, ctx, row, key)
    return verdict


async def _intend(
    tx: Tx, ctx: ErasureContext, notice: Received, scope_id: int, epoch: int, recv_seq: int
) -> None:
    now = ctx.node.wall()
    issued = datetime.fromisoformat(notice.predicate["issued_at"].replace("Z", "+00:00"))
    seq = await journal.append(
        tx,
        ctx.node,
        LedgerKind.INTENT,
        now,
        {
            "erasure_id": notice.erasure_id,
            "epoch": epoch,
            "scope_handle": bytes.fromhex(notice.predicate["scope"]["handle"]),
        },
    )
    await erasures.insert(
        tx,
        Intent(
            erasure_id=notice.erasure_id,
            scope_id=scope_id,
            epoch=epoch,
            role=Role.PEER.value,
            basis="other",
            requested_at=issued,
            due_by=issued + timedelta(milliseconds=ctx.settings.due_ms),
            started_at=now,
            config=frozen(ctx),
            intent_seq=seq,
            notice_sha256=notice.sha256,
            last_recv_seq=recv_seq,
        ),
    )


def frozen(ctx: ErasureContext) -> dict[str, object]:
    """The settings that a run begins with and keeps."""
    settings = ctx.settings
    return {
        "batch_rows": settings.batch_rows,
        "graph": settings.graph,
        "mode": settings.mode,
        "backup_window_ms": settings.backup_window_ms,
        "max_offline_ms": settings.max_offline_ms,
    }
