"""Ask for an erasure, and ask how one stands: what CLI, HTTP and agents call.

A request is checked for form, then for authority, and only then becomes a durable intent. The
same request, or another one for the same scope and epoch, never erases twice: it joins the run
or gets the same certificate.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from erasure import absence, apply, certify, evidence, journal, leaves, preview, supplement
from erasure.context import ErasureContext
from erasure.envelope import Envelope
from erasure.forget import NoSigningKey
from erasure.forms import BASES
from erasure.ledger import LedgerKind
from erasure.notices import frozen
from erasure.scope import (
    agent_of,
    check_scope,
    concerned,
    entitled_key,
    project_of,
    projects_of,
    request_hmac,
)
from erasure.states import (
    HoldInForce,
    NotEntitled,
    RequestIdConflict,
    Role,
    State,
    StillRunning,
    reached,
)
from storage import burials, clock, erasures, gate, records, tombstones
from storage.erasures import ErasureRow, Intent
from storage.errors import InvalidInput, NotFound
from storage.gate import ScopeRow
from storage.model import NodeId, Scope
from storage.pool import Tx
from storage.records import FenceBody
from storage.tombstones import Fence

MAX_REQUEST_ID = 200
MAX_PAGE = 200
RECEIVED = frozenset({"acked", "never_had"})


@dataclass(frozen=True, slots=True)
class EraseRequest:
    """Who wants what gone and why. `requester` and `approver` are 32-byte key ids.

    `assert_absent` asks, for a scope that nobody here knows, for a signed statement instead of
    NotFound.
    """

    scope: Scope
    basis: str
    request_id: str
    requester: bytes | None = None
    approver: bytes | None = None
    dry_run: bool = False
    assert_absent: bool = False


@dataclass(frozen=True, slots=True)
class Wrapper:
    """What the API puts around a certificate; only this changes while the erasure goes on.

    `certificate`, `closure`, `addenda` and `absence` are envelope bytes. `plan` is set by a dry
    run: counts by tier and the root of the plan under a key that is thrown away.
    """

    erasure_id: str | None
    state: str
    removed_now: int = 0
    certificate: bytes | None = None
    receipts_have: int = 0
    receipts_of: int = 0
    closure: bytes | None = None
    addenda: tuple[bytes, ...] = ()
    recipients: tuple[tuple[NodeId, str], ...] = ()
    due_by: datetime | None = None
    absence: bytes | None = None
    plan: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The answer of the API; envelopes as JSON, node ids in lower hex."""
        return {
            "erasure_id": self.erasure_id,
            "certificate": _envelope(self.certificate),
            "removed_now": self.removed_now,
            "state": self.state,
            "receipts": {"have": self.receipts_have, "of": self.receipts_of},
            "closure": _envelope(self.closure),
            "addenda": [_envelope(one) for one in self.addenda],
            "recipients": [
                {"node_id": node_id.hex(), "status": status} for node_id, status in self.recipients
            ],
            "due_by": self.due_by.isoformat() if self.due_by else None,
            "absence": _envelope(self.absence),
            "plan": dict(self.plan) or None,
        }


async def erase(ctx: ErasureContext, request: EraseRequest) -> Wrapper:
    """Erase a scope and wait for the certificate, or join or repeat its erasure.

    Raises InvalidInput (also InvalidScope), NotFound, NoSigningKey, HoldInForce,
    RequestIdConflict, and what a tier raised; an intent that is durable by then is finished
    later.
    """
    erasure_id = await intend(ctx, request)
    if isinstance(erasure_id, Wrapper):
        return erasure_id
    row = await ctx.db.read(erasures.get, erasure_id)
    if row is not None and reached(row.state, State.CERTIFIED):
        again = await supplement.recheck(ctx, row, request.scope)
        return await _wrap(ctx, erasure_id, again)
    row = await apply.drive(ctx, erasure_id)
    entries = (row.tiers or {}).get("tiers", {})
    return await _wrap(ctx, erasure_id, sum(entry["n"] for entry in entries.values()))


async def intend(ctx: ErasureContext, request: EraseRequest) -> str | Wrapper:
    """The id of the erasure that this request is now part of; its intent is durable.

    The run itself is left to `apply.drive` or to the service loop. A dry run and a statement of
    absence are answered at once.
    """
    scope = _check(request)
    bound = await ctx.db.read(erasures.request, request_hmac(ctx.node, request.request_id))
    if bound is not None:
        row = await ctx.db.read(erasures.get, bound)
        if row is None or (row.kind, row.handle) != (scope.kind, ctx.node.handle(scope)):
            raise RequestIdConflict()
        return bound
    if not await ctx.db.read(absence.known, ctx.node, scope):
        if request.assert_absent and not request.dry_run:
            return Wrapper(
                None, "absent", absence=await absence.state(ctx, scope, request.requester)
            )
        raise NotFound("scope not found")
    if request.dry_run:
        counts, root = await preview.preview(ctx, scope)
        return Wrapper(None, "planned", plan={"tiers": counts, "plan_root": root.hex()})
    projects = await ctx.db.read(projects_of, scope)
    while True:
        epoch, standing = await ctx.db.read(_epoch, ctx, scope)
        key = None
        if standing is None:
            key = await trio.to_thread.run_sync(
                entitled_key, ctx.node, ctx.access.current, scope, projects
            )
        erasure_id = leaves.erasure_id(ctx.node.mesh_id, ctx.node.handle(scope), epoch)
        kcert = await trio.to_thread.run_sync(ctx.node.keys.create_kcert, erasure_id)
        digest = leaves.request_digest(kcert, request.request_id)
        if await ctx.db.transact(_intend, ctx, request, erasure_id, epoch, key, digest):
            break
    await journal.copy(ctx)
    ctx.notify()
    return erasure_id


async def status(ctx: ErasureContext, erasure_id: str) -> Wrapper:
    """How an erasure stands. Raises NotFound."""
    return await _wrap(ctx, erasure_id, 0)


async def listing(
    ctx: ErasureContext,
    *,
    state: str | None = None,
    before: tuple[datetime, str] | None = None,
    limit: int = 50,
) -> list[dict[str, Any]]:
    """Erasures of this node, newest first; `before` is (requested_at, id) of the last one seen.

    Raises InvalidInput.
    """
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidInput(f"limit must be between 1 and {MAX_PAGE}")
    if state is not None and state not in set(State):
        raise InvalidInput("state is not a state of an erasure")
    rows = await ctx.db.read(erasures.page, state=state, before=before, limit=limit)
    return [dict(row) for row in rows]


async def documents(ctx: ErasureContext, erasure_id: str) -> dict[str, Any]:
    """Everything that an offline verification needs, as the bytes of its files.

    `certificate`, `closure`, `proof`, `head`, `trust`: bytes or None; `receipts`: by node id in
    hex; `notices` and `addenda`: lists. Raises NotFound.
    """
    return await evidence.collect(ctx, erasure_id)


async def reopen(ctx: ErasureContext, scope: Scope) -> int:
    """Let an erased scope write again, in its next epoch; the number of that epoch.

    Allowed to a holder of a key that may close the scope, and to the node that erased it. Raises
    NotFound for a scope that is unknown, StillRunning, NotEntitled, InvalidInput when it is open.
    """
    check_scope(scope)
    projects = await ctx.db.read(projects_of, scope)
    try:
        await trio.to_thread.run_sync(entitled_key, ctx.node, ctx.access.current, scope, projects)
        entitled = True
    except NoSigningKey:
        entitled = False
    epoch = await ctx.db.transact(_reopen, ctx, scope, entitled)
    await journal.copy(ctx)
    return epoch


def _check(request: EraseRequest) -> Scope:
    scope = check_scope(request.scope)
    if request.basis not in BASES:
        raise InvalidInput(f"basis is none of {', '.join(sorted(BASES))}")
    if not isinstance(request.request_id, str) or not (
        0 < len(request.request_id) <= MAX_REQUEST_ID
    ):
        raise InvalidInput(f"request_id must have 1 to {MAX_REQUEST_ID} characters")
    for name, keyid in (("requester", request.requester), ("approver", request.approver)):
        if keyid is not None and len(keyid) != 32:
            raise InvalidInput(f"{name} is not a key id")
    return scope


async def _epoch(tx: Tx, ctx: ErasureContext, scope: Scope) -> tuple[int, bytes | None]:
    """The epoch to erase and its fence: None when this request closes the epoch itself."""
    handle = ctx.node.handle(scope)
    row: ScopeRow | None = await gate.by_handle(tx, scope.kind, handle)
    if row is None:
        return 1, None
    if row.open_epoch is not None:
        return row.open_epoch, None
    fence = await burials.fence_at(tx, scope.kind, handle, row.closed_epoch)
    return row.closed_epoch, fence.wire if fence else None


async def _intend(
    tx: Tx,
    ctx: ErasureContext,
    request: EraseRequest,
    erasure_id: str,
    epoch: int,
    key: Ed25519PrivateKey | None,
    digest: bytes,
) -> bool:
    """The intent and everything that must stand with it; False when the epoch has moved."""
    node, scope, now = ctx.node, request.scope, ctx.node.wall()
    locked = await node.gate.lock(tx, scope)
    if epoch != (locked.open_epoch or locked.closed_epoch):
        return False
    mark = request_hmac(node, request.request_id)
    if await erasures.claim_request(tx, mark, erasure_id) != erasure_id:
        raise RequestIdConflict()
    if await erasures.get(tx, erasure_id) is not None:
        return True
    if await erasures.open_holds(tx, locked.scope_id, agent_of(scope), project_of(scope)):
        raise HoldInForce()
    if locked.open_epoch is not None:
        if key is None:
            return False
        await _set_fence(tx, ctx, scope, erasure_id, epoch, key)
        await gate.close_epoch(tx, locked.scope_id, epoch)
    fence = await burials.fence_at(tx, scope.kind, locked.handle, epoch)
    seq = await journal.append(
        tx,
        node,
        LedgerKind.INTENT,
        now,
        {"erasure_id": erasure_id, "epoch": epoch, "scope_handle": locked.handle},
    )
    await erasures.insert(
        tx,
        Intent(
            erasure_id=erasure_id,
            scope_id=locked.scope_id,
            epoch=epoch,
            role=Role.ORIGIN.value,
            basis=request.basis,
            requested_at=now,
            due_by=now + timedelta(milliseconds=ctx.settings.due_ms),
            started_at=now,
            config=frozen(ctx),
            intent_seq=seq,
            request_digest=digest,
            requester=request.requester.hex() if request.requester else None,
            approver=request.approver.hex() if request.approver else None,
            last_recv_seq=fence.recv_seq if fence else None,
        ),
    )
    told = await concerned(tx, node, scope)
    await erasures.add_recipients(tx, erasure_id, told, now)
    row = await erasures.get(tx, erasure_id)
    if row is not None:
        await certify.tell(tx, ctx, row, sorted(told))
    return True


async def _set_fence(
    tx: Tx,
    ctx: ErasureContext,
    scope: Scope,
    erasure_id: str,
    epoch: int,
    key: Ed25519PrivateKey,
) -> None:
    node = ctx.node
    stamp = node.clock.now()
    handle = node.handle(scope)
    wire = records.seal(
        key,
        records.DOMAIN_FENCE,
        FenceBody(
            scope_kind=scope.kind.value,
            scope_handle=handle,
            epoch_floor=epoch,
            hlc_floor=clock.to_bytes(stamp),
            hlc=clock.to_bytes(stamp),
            origin=node.node_id,
            nonce=node.random_bytes(16),
            erasure_id=erasure_id,
        ),
    )
    await tombstones.insert_fence(
        tx, Fence(scope.kind.value, handle, epoch, stamp, erasure_id, wire, stamp)
    )


async def _reopen(tx: Tx, ctx: ErasureContext, scope: Scope, entitled: bool) -> int:
    handle = ctx.node.handle(scope)
    locked = await ctx.node.gate.lock_handle(tx, scope.kind, handle)
    if locked is None or locked.closed_epoch == 0:
        raise NotFound("scope not found")
    last = await erasures.newest_of_scope(tx, locked.scope_id, locked.closed_epoch)
    if not entitled and (last is None or last[3] != Role.ORIGIN):
        raise NotEntitled()
    if last is not None and not reached(last[2], State.CERTIFIED):
        raise StillRunning()
    epoch = await gate.reopen(tx, locked.scope_id, scope.id)
    if epoch is None:
        raise InvalidInput("the scope is open")
    await journal.append(
        tx,
        ctx.node,
        LedgerKind.REOPENED,
        ctx.node.wall(),
        {"epoch": epoch, "scope_handle": handle},
    )
    return epoch


async def _wrap(ctx: ErasureContext, erasure_id: str, removed_now: int) -> Wrapper:
    return await ctx.db.read(_read_wrapper, ctx.node.node_id, erasure_id, removed_now)


async def _read_wrapper(tx: Tx, own: NodeId, erasure_id: str, removed_now: int) -> Wrapper:
    row: ErasureRow | None = await erasures.get(tx, erasure_id)
    if row is None:
        raise NotFound("erasure not found")
    kept = await erasures.documents(tx, erasure_id)
    told = await erasures.recipients(tx, erasure_id) if row.role == Role.ORIGIN else []
    mine = {one.doc: one.envelope for one in kept if one.node_id == own}
    return Wrapper(
        erasure_id=erasure_id,
        state=row.state,
        removed_now=removed_now,
        certificate=mine.get("certificate"),
        receipts_have=sum(one.status in RECEIVED for one in told),
        receipts_of=len(told),
        closure=mine.get("closure"),
        addenda=tuple(one.envelope for one in kept if one.doc == "addendum"),
        recipients=tuple((one.node_id, one.status) for one in told),
        due_by=row.due_by,
    )


def _envelope(data: bytes | None) -> Any:
    return None if data is None else json.loads(Envelope.from_bytes(data).to_bytes())
