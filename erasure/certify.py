"""Turns the journal of a finished run into its signed document, in one transaction.

What the document says was fixed when the run was verified; here it gets its ledger entry, its
signature and its recipients. An origin signs a certificate, a peer a receipt.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from erasure import journal, leaves, received
from erasure.certificates import Certificate, Notice, Receipt, seal
from erasure.context import ErasureContext
from erasure.envelope import Envelope
from erasure.forms import Graph, ReceiptStatus
from erasure.ledger import LedgerKind
from erasure.parts import (
    NOT_COVERED,
    LedgerRef,
    Pending,
    Request,
    Retained,
    ScopeRef,
    Tier,
    Verification,
)
from erasure.parts import Run as RunParts
from erasure.scope import agent_of, project_of
from erasure.states import ResidueFound, Role, Run, State, reached
from storage import burials, erasures, gate, outbox
from storage.erasures import DocumentRow, ErasureRow
from storage.model import NodeId, ScopeKind
from storage.outbox import Topic
from storage.pool import Tx

_INTEREST = "legitimate-interest"
PHYSICAL = ("pg.heap", "pg.index", "pg.statistic", "pg.toast", "pg.wal")
FOREVER, STABLE = "permanent", "tombstones stable"


async def settle(
    tx: Tx,
    run: Run,
    shape: dict[str, tuple[str, str]],
    graph: Graph,
    verification: Verification,
    now: datetime,
) -> None:
    """Fix what will be signed: counts and roots of every tier, from the items alone.

    Raises ResidueFound when an item of the plan is not gone.
    """
    row = await erasures.lock(tx, run.id)
    if row is None or reached(row.state, State.VERIFIED):
        return
    left = await erasures.count_left(tx, run.id)
    if left:
        raise ResidueFound(f"{left} records of the plan are not removed")
    tiers = {}
    for name, (level, how) in shape.items():
        tiers[name] = await _counts(tx, run, name, level, how)
    kept = await _retained(tx, run)
    await erasures.set_verified(
        tx,
        run.id,
        completed_at=now,
        verification={
            "done": verification.as_json(),
            "retained": [one.as_json() for one in kept],
        },
        tiers={
            "graph": graph.value,
            "tiers": {
                name: tier.as_json() | {"plan_root": tier.plan_root.hex()}
                for name, tier in tiers.items()
            },
        },
        plan_root=leaves.top_root({k: (one.found, one.plan_root) for k, one in tiers.items()}),
        removal_root=leaves.top_root({k: (one.n, one.root) for k, one in tiers.items()}),
    )


async def _retained(tx: Tx, run: Run) -> list[Retained]:
    """Everything that stays on purpose."""
    kept = [Retained("fence and scope handle", 1, "refuses the erased epoch", _INTEREST, FOREVER)]
    scope = run.scope
    if scope is None:
        return kept
    buried, copies = await burials.count_evidence(tx, run.id, agent_of(scope), project_of(scope))
    if buried:
        kept.append(Retained("tombstones", buried, "refuse late copies", _INTEREST, STABLE))
    if copies:
        kept.append(
            Retained(
                "holder and delivery rows of peers",
                copies,
                "address the notices",
                "gdpr-19",
                STABLE,
            )
        )
    if scope.kind is ScopeKind.PROJECT:
        kept.append(
            Retained(
                "project name, key and access list", 1, "verify signatures", _INTEREST, FOREVER
            )
        )
    return kept


async def certificate(tx: Tx, ctx: ErasureContext, run: Run, key: Ed25519PrivateKey) -> None:
    """Mint C: document, ledger entry, second notice and outbox rows together."""
    row = await _verified(tx, run)
    if row is None:
        return
    node, now = ctx.node, ctx.node.wall()
    told = [one.node_id for one in await erasures.recipients(tx, run.id)]
    await erasures.set_counted(tx, run.id, told)
    where = await journal.next_entry(tx, node, now)
    minted = Certificate(
        run=_parts(ctx, row, where),
        request=Request(
            id_digest=row.request_digest or bytes(32),
            basis=row.basis,
            requested_at=row.requested_at,
            due_by=row.due_by,
            requester=bytes.fromhex(row.requester) if row.requester else None,
            approver=bytes.fromhex(row.approver) if row.approver else None,
        ),
        intent_seq=row.intent_seq,
        recipients=tuple(told),
        clock_source=ctx.clock_source,
        clock_uncertainty_ms=ctx.clock_uncertainty_ms,
        previous=await _previous(tx, ctx, row),
    )
    signed = seal(minted, key)
    await record(tx, ctx, row, "certificate", signed, LedgerKind.CERTIFICATE, now)
    await notify(tx, ctx, row, key, told, certificate_sha256=signed.sha256)
    await post(tx, ctx, told, signed, now)
    await answer(tx, ctx, row, key)
    await erasures.blank_items(tx, run.id)
    await erasures.set_state(tx, run.id, State.CERTIFIED.value)


async def receipt(tx: Tx, ctx: ErasureContext, run: Run, key: Ed25519PrivateKey) -> None:
    """Mint R for the first notice that asked, and end this node's run with it."""
    row = await _verified(tx, run)
    if row is None:
        return
    await answer(tx, ctx, row, key)
    await erasures.blank_items(tx, run.id)
    await erasures.set_state(tx, run.id, State.CERTIFIED.value)
    await gate.forget_raw_id(tx, row.scope_id)


async def answer(tx: Tx, ctx: ErasureContext, row: ErasureRow, key: Ed25519PrivateKey) -> bool:
    """Answer the noted notice with R, once; the same bytes go to every origin that asks.

    The erasure must be verified and its row locked. False when no notice is noted.
    """
    node, now = ctx.node, ctx.node.wall()
    documents = await erasures.documents(tx, row.erasure_id)
    notices = [one for one in documents if one.doc == "notice" and one.node_id != node.node_id]
    asking = sorted({one.node_id for one in notices})
    own = [one for one in documents if one.doc == "receipt" and one.node_id == node.node_id]
    if own:
        await post(tx, ctx, asking, Envelope.from_bytes(own[0].envelope), now)
        return True
    first = next((one for one in notices if one.sha256 == row.notice_sha256), None)
    if first is None:
        return False
    where = await journal.next_entry(tx, node, now)
    parts = _parts(ctx, row, where)
    had = any(tier.found for tier in parts.tiers.values())
    passed_on = {one.node_id for one in await erasures.recipients(tx, row.erasure_id)}
    signed = seal(
        Receipt(
            run=parts,
            status=ReceiptStatus.APPLIED if had else ReceiptStatus.NEVER_HAD,
            notice_sha256=first.sha256,
            certificate_sha256=received.read(first.envelope).digest("certificate_sha256"),
            forwarded_to=tuple(passed_on - {first.node_id}) if row.role == Role.PEER else (),
        ),
        key,
    )
    await record(tx, ctx, row, "receipt", signed, LedgerKind.RECEIPT, now)
    await post(tx, ctx, asking, signed, now)
    return True


async def tell(tx: Tx, ctx: ErasureContext, row: ErasureRow, nodes: list[NodeId]) -> None:
    """Send the fence to these nodes; its subject is the erasure's id."""
    fence = await burials.fence_at(tx, row.kind, row.handle, row.epoch)
    if fence is not None:
        await outbox.enqueue(
            tx,
            Topic.FENCE,
            nodes,
            row.erasure_id.encode("ascii"),
            fence.wire,
            project_id=None,
            now=ctx.node.wall(),
        )


async def tell_late(tx: Tx, ctx: ErasureContext, row: ErasureRow, nodes: list[NodeId]) -> None:
    """Send nodes that became known late everything that the others got."""
    await tell(tx, ctx, row, nodes)
    now = ctx.node.wall()
    for document in await erasures.documents(tx, row.erasure_id):
        if document.node_id != ctx.node.node_id or document.doc not in ("notice", "certificate"):
            continue
        topic = Topic.NOTICE if document.doc == "notice" else Topic.DOCUMENT
        await outbox.enqueue(
            tx, topic, nodes, document.sha256, document.envelope, project_id=None, now=now
        )


async def notify(
    tx: Tx,
    ctx: ErasureContext,
    row: ErasureRow,
    key: Ed25519PrivateKey,
    nodes: list[NodeId],
    *,
    certificate_sha256: bytes | None,
) -> None:
    """Issue a notice, the first before C and the second with its digest, and send it."""
    now = ctx.node.wall()
    fence = await burials.fence_at(tx, row.kind, row.handle, row.epoch)
    ids_n, ids_root = await ids_of(tx, row.erasure_id)
    signed = seal(
        Notice(
            mesh_id=ctx.node.mesh_id,
            node_id=ctx.node.node_id,
            scope=_scope(row),
            hlc_floor=fence.hlc_floor if fence else 0,
            ids_n=ids_n,
            ids_root=ids_root,
            certificate_sha256=certificate_sha256,
            issued_at=now,
        ),
        key,
    )
    n = 1 if certificate_sha256 is None else 2
    document = DocumentRow(signed.sha256, "notice", ctx.node.node_id, n, signed.to_bytes(), None)
    if await erasures.add_document(tx, row.erasure_id, document):
        await outbox.enqueue(
            tx,
            Topic.NOTICE,
            nodes,
            signed.sha256,
            signed.to_bytes(),
            project_id=None,
            now=now,
        )


async def ids_of(tx: Tx, erasure_id: str) -> tuple[int, bytes]:
    """Number and root of the memory ids under the run's tombstones."""
    ids = await burials.buried(tx, erasure_id)
    return len(ids), leaves.id_set_root(one.hex() for one in ids)


async def post(
    tx: Tx, ctx: ErasureContext, nodes: list[NodeId], signed: Envelope, now: datetime
) -> None:
    """Ask for a document to be carried; its subject is its payload's SHA-256."""
    await outbox.enqueue(
        tx, Topic.DOCUMENT, nodes, signed.sha256, signed.to_bytes(), project_id=None, now=now
    )


def pending(ctx: ErasureContext, row: ErasureRow, at: datetime, *, had: bool) -> Pending:
    """What is unreachable but not gone: database bytes, and backups until their window ends."""
    if not had:
        return Pending()
    window = row.config.get("backup_window_ms")
    clear = None if window is None else (at + timedelta(milliseconds=window)).date()
    physical = (*PHYSICAL, "pg.log") if "database server log" in ctx.not_covered else PHYSICAL
    return Pending(physical, "beyond-use", clear)


async def record(
    tx: Tx,
    ctx: ErasureContext,
    row: ErasureRow,
    doc: str,
    signed: Envelope,
    kind: LedgerKind,
    now: datetime,
    n: int = 0,
) -> int:
    """Keep a document of this node with its ledger entry; the entry's number.

    The document names that number, so it must have been made after `journal.next_entry` in this
    transaction.
    """
    seq = await journal.append(
        tx, ctx.node, kind, now, {"document": signed.sha256, "erasure_id": row.erasure_id}
    )
    await erasures.add_document(
        tx,
        row.erasure_id,
        DocumentRow(signed.sha256, doc, ctx.node.node_id, n, signed.to_bytes(), seq),
    )
    return seq


async def _verified(tx: Tx, run: Run) -> ErasureRow | None:
    row = await erasures.lock(tx, run.id)
    return row if row is not None and row.state == State.VERIFIED else None


async def _previous(tx: Tx, ctx: ErasureContext, row: ErasureRow) -> bytes | None:
    before = await erasures.newest_of_scope(tx, row.scope_id, row.epoch - 1)
    if before is None:
        return None
    for document in await erasures.documents(tx, before[0]):
        if document.doc == "certificate" and document.node_id == ctx.node.node_id:
            return document.sha256
    return None


async def _counts(tx: Tx, run: Run, name: str, level: str, how: str) -> Tier:
    gone, planned = leaves.SortedRoot(), leaves.SortedRoot()
    by_plan = dict.fromkeys(("remove", "recompute", "drop", "retain"), 0)
    after = b""
    while page := await erasures.leaves_page(tx, run.id, name, after, run.batch_rows):
        for leaf, plan, _ in page:
            by_plan[plan] += 1
            planned.add(leaf)
            if plan != "retain":
                gone.add(leaf)
        after = page[-1][0]
    return Tier(
        found=planned.n,
        removed=by_plan["remove"],
        recomputed=by_plan["recompute"],
        dropped=by_plan["drop"],
        retained=by_plan["retain"],
        after=by_plan["retain"],
        level=level,
        how=how,
        root=gone.root,
        plan_root=planned.root,
    )


def _scope(row: ErasureRow) -> ScopeRef:
    return ScopeRef(ScopeKind(row.kind), row.handle, row.epoch)


def _parts(ctx: ErasureContext, row: ErasureRow, where: LedgerRef) -> RunParts:
    told, counted = row.verification or {}, row.tiers or {}
    tiers = {name: _tier(entry) for name, entry in counted["tiers"].items()}
    completed = row.completed_at or row.started_at
    had = row.role == Role.ORIGIN or any(tier.found for tier in tiers.values())
    return RunParts(
        mesh_id=ctx.node.mesh_id,
        node_id=ctx.node.node_id,
        scope=_scope(row),
        software=ctx.software,
        started_at=row.started_at,
        completed_at=completed,
        tiers=tiers,
        graph=Graph(counted["graph"]),
        retained=tuple(Retained(**one) for one in told["retained"]),
        pending=pending(ctx, row, completed, had=had),
        verification=Verification(**{**told["done"], "scanned": tuple(told["done"]["scanned"])}),
        ledger=where,
        not_covered=(*NOT_COVERED, *ctx.not_covered),
        mode=str(row.config["mode"]),
    )


def _tier(entry: dict[str, Any]) -> Tier:
    fields = {name: value for name, value in entry.items() if name != "n"}
    return Tier(
        **{
            **fields,
            "root": bytes.fromhex(fields["root"]),
            "plan_root": bytes.fromhex(fields["plan_root"]),
        }
    )
