"""Rows of the erasure tables: runs, their items, recipients and documents.

Items are keyed leaves; the clear record id beside a leaf is emptied when the run is certified.
Functions work inside their caller's transaction. What a phase means is decided in `erasure/`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from storage.model import AgentId, Handle, MemoryId, NodeId, ProjectId
from storage.pool import Record, Tx
from storage.queries import load

SQL = load("erasures")


@dataclass(frozen=True, slots=True)
class ErasureRow:
    """One erasure and its scope as it is now; `config` is what the run began with."""

    erasure_id: str
    scope_id: int
    epoch: int
    role: str
    state: str
    basis: str
    request_digest: bytes | None
    requester: str | None
    approver: str | None
    requested_at: datetime
    due_by: datetime
    started_at: datetime
    completed_at: datetime | None
    config: Mapping[str, Any]
    verification: Mapping[str, Any] | None
    tiers: Mapping[str, Any] | None
    plan_root: bytes | None
    removal_root: bytes | None
    intent_seq: int
    notice_sha256: bytes | None
    last_recv_seq: int | None
    kind: str
    ext_id: bytes | None
    handle: Handle
    open_epoch: int | None
    closed_epoch: int


@dataclass(frozen=True, slots=True)
class Intent:
    """What the row of a new erasure says."""

    erasure_id: str
    scope_id: int
    epoch: int
    role: str
    basis: str
    requested_at: datetime
    due_by: datetime
    started_at: datetime
    config: Mapping[str, Any]
    intent_seq: int
    request_digest: bytes | None = None
    requester: str | None = None
    approver: str | None = None
    notice_sha256: bytes | None = None
    last_recv_seq: int | None = None


@dataclass(frozen=True, slots=True)
class Item:
    """One record in a plan, under its keyed leaf."""

    tier: str
    rid: str | None
    leaf: bytes
    plan: str = "remove"
    removed: bool = False


@dataclass(frozen=True, slots=True)
class RecipientRow:
    """A node that has to hear of an erasure."""

    node_id: NodeId
    status: str
    source: str
    receipt_sha256: bytes | None
    first_at: datetime
    settled_at: datetime | None


@dataclass(frozen=True, slots=True)
class DocumentRow:
    """A signed document; `sha256` is of its payload."""

    sha256: bytes
    doc: str
    node_id: NodeId
    n: int
    envelope: bytes
    ledger_seq: int | None


async def insert(tx: Tx, intent: Intent) -> bool:
    """Make the intent durable; False when this erasure has one."""
    stored = await tx.fetchval(
        SQL.insert_erasure,
        erasure_id=intent.erasure_id,
        scope_id=intent.scope_id,
        epoch=intent.epoch,
        role=intent.role,
        basis=intent.basis,
        request_digest=intent.request_digest,
        requester=intent.requester,
        approver=intent.approver,
        requested_at=intent.requested_at,
        due_by=intent.due_by,
        started_at=intent.started_at,
        config=json.dumps(dict(intent.config)),
        intent_seq=intent.intent_seq,
        notice_sha256=intent.notice_sha256,
        last_recv_seq=intent.last_recv_seq,
    )
    return stored is not None


async def get(tx: Tx, erasure_id: str) -> ErasureRow | None:
    """One erasure."""
    row = await tx.fetchrow(SQL.by_id, erasure_id=erasure_id)
    if row is None:
        return None
    fields = dict(row)
    for name in ("config", "verification", "tiers"):
        fields[name] = json.loads(fields[name]) if fields[name] is not None else None
    return ErasureRow(**fields)


async def is_newest(tx: Tx, row: ErasureRow) -> bool:
    """True while nothing of the scope that is newer than the erasure stands here.

    A peer that reopened the scope may have sent rows of the next epoch, although this node never
    opened it.
    """
    if row.open_epoch is not None or row.closed_epoch != row.epoch:
        return False
    raw_id = row.ext_id
    by_agent = row.kind == "agent"
    newer = await tx.fetchval(
        SQL.newer_rows,
        agent=raw_id if by_agent else None,
        project=None if by_agent else raw_id,
        epoch=row.epoch,
    )
    return not newer


async def old_ids(
    tx: Tx, agent: AgentId | None, project: ProjectId | None, epoch: int
) -> list[MemoryId] | None:
    """Memories of a scope up to an epoch, or None when all that stand are of it."""
    if not await tx.fetchval(SQL.newer_rows, agent=agent, project=project, epoch=epoch):
        return None
    rows = await tx.fetch(SQL.old_ids, agent=agent, project=project, epoch=epoch)
    return [row["id"] for row in rows]


async def lock(tx: Tx, erasure_id: str) -> ErasureRow | None:
    """One erasure, its row and those of its recipients held until commit."""
    if await tx.fetchval(SQL.lock_erasure, erasure_id=erasure_id) is None:
        return None
    return await get(tx, erasure_id)


async def page(
    tx: Tx, *, state: str | None, before: tuple[datetime, str] | None, limit: int
) -> list[Record]:
    """Summaries, newest first."""
    return await tx.fetch(
        SQL.page,
        state=state,
        before_at=before[0] if before else None,
        before_id=before[1] if before else None,
        limit=limit,
    )


async def open_ids(tx: Tx) -> list[tuple[str, str, str]]:
    """(id, role, state) of erasures that are not at their end, oldest first."""
    rows = await tx.fetch(SQL.open_ids)
    return [(row["erasure_id"], row["role"], row["state"]) for row in rows]


async def known_ids(tx: Tx, ids: Sequence[str]) -> set[str]:
    """Those of `ids` that have an intent."""
    return {row["erasure_id"] for row in await tx.fetch(SQL.known_ids, ids=list(ids))}


async def newest_of_scope(tx: Tx, scope_id: int, epoch: int) -> tuple[str, int, str, str] | None:
    """(id, epoch, state, role) of the last erasure of a scope up to `epoch`."""
    row = await tx.fetchrow(SQL.newest_of_scope, scope_id=scope_id, epoch=epoch)
    return (row["erasure_id"], row["epoch"], row["state"], row["role"]) if row else None


async def set_state(tx: Tx, erasure_id: str, state: str) -> None:
    """The next phase is reached."""
    await tx.execute(SQL.set_state, erasure_id=erasure_id, state=state)


async def set_graph(tx: Tx, erasure_id: str, graph: str) -> None:
    """Note what was done to the hot graph."""
    await tx.execute(SQL.set_graph, erasure_id=erasure_id, graph=graph)


async def set_plan(tx: Tx, erasure_id: str, plan_root: bytes) -> None:
    """Seal the plan."""
    await tx.execute(SQL.set_plan, erasure_id=erasure_id, plan_root=plan_root)


async def set_verified(
    tx: Tx,
    erasure_id: str,
    *,
    completed_at: datetime,
    verification: Mapping[str, Any],
    tiers: Mapping[str, Any],
    plan_root: bytes,
    removal_root: bytes,
) -> None:
    """Fix everything that the signed document will say."""
    await tx.execute(
        SQL.set_verified,
        erasure_id=erasure_id,
        completed_at=completed_at,
        verification=json.dumps(dict(verification)),
        tiers=json.dumps(dict(tiers)),
        plan_root=plan_root,
        removal_root=removal_root,
    )


async def set_counted(tx: Tx, erasure_id: str, nodes: Iterable[NodeId]) -> None:
    """Fix the recipients that the certificate counts."""
    counted = json.dumps(sorted(node.hex() for node in nodes))
    await tx.execute(SQL.set_counted, erasure_id=erasure_id, counted=counted)


async def set_notice(tx: Tx, erasure_id: str, sha256: bytes) -> None:
    """Note the first notice that this node answers."""
    await tx.execute(SQL.set_notice, erasure_id=erasure_id, sha256=sha256)


async def claim_request(tx: Tx, request_hmac: bytes, erasure_id: str) -> str:
    """Bind a request id to an erasure; the erasure that it is bound to."""
    await tx.execute(SQL.insert_request, request_hmac=request_hmac, erasure_id=erasure_id)
    return str(await tx.fetchval(SQL.request, request_hmac=request_hmac))


async def request(tx: Tx, request_hmac: bytes) -> str | None:
    """The erasure that a request id is bound to."""
    found = await tx.fetchval(SQL.request, request_hmac=request_hmac)
    return str(found) if found is not None else None


async def open_holds(
    tx: Tx, scope_id: int | None, agent: AgentId | None, project: ProjectId | None
) -> int:
    """Holds in force on a scope or on one of its memories."""
    return int(await tx.fetchval(SQL.open_holds, scope_id=scope_id, agent=agent, project=project))


async def held(tx: Tx, ids: Sequence[MemoryId]) -> set[MemoryId]:
    """Those of these memories whose rows a hold keeps."""
    return {row["id"] for row in await tx.fetch(SQL.held, ids=list(ids))}


async def add_items(tx: Tx, erasure_id: str, items: Iterable[Item]) -> None:
    """Add records to the plan; one that stands already is no news."""
    await tx.executemany(
        SQL.insert_item,
        [
            {
                "erasure_id": erasure_id,
                "tier": item.tier,
                "rid": item.rid,
                "leaf": item.leaf,
                "plan": item.plan,
                "removed": item.removed,
            }
            for item in items
        ],
    )


async def discard_items(tx: Tx, erasure_id: str) -> None:
    """Drop a plan that was never sealed."""
    await tx.execute(SQL.discard_items, erasure_id=erasure_id)


async def items_left(tx: Tx, erasure_id: str, tier: str, limit: int) -> list[tuple[bytes, str]]:
    """(leaf, record id) of a tier that are not gone."""
    rows = await tx.fetch(SQL.items_left, erasure_id=erasure_id, tier=tier, limit=limit)
    return [(row["leaf"], row["rid"]) for row in rows]


async def items_page(
    tx: Tx, erasure_id: str, tiers: Sequence[str], after: tuple[str, bytes], limit: int
) -> list[Item]:
    """Items of some tiers behind (tier, leaf), in that order."""
    rows = await tx.fetch(
        SQL.items_page,
        erasure_id=erasure_id,
        tiers=list(tiers),
        tier=after[0],
        leaf=after[1],
        limit=limit,
    )
    return [Item(row["tier"], row["rid"], row["leaf"]) for row in rows]


async def mark_removed(tx: Tx, erasure_id: str, tier: str, leaves: Sequence[bytes]) -> int:
    """Note that items are gone; how many were not noted yet."""
    return await tx.execute(SQL.mark_removed, erasure_id=erasure_id, tier=tier, leaves=list(leaves))


async def leaves_page(
    tx: Tx, erasure_id: str, tier: str, after: bytes, limit: int
) -> list[tuple[bytes, str, bool]]:
    """(leaf, plan, removed) of a tier in ascending order of the leaf."""
    rows = await tx.fetch(
        SQL.leaves_page, erasure_id=erasure_id, tier=tier, after=after, limit=limit
    )
    return [(row["leaf"], row["plan"], row["removed"]) for row in rows]


async def count_left(tx: Tx, erasure_id: str) -> int:
    """Items that are planned and not gone."""
    return int(await tx.fetchval(SQL.count_left, erasure_id=erasure_id))


async def blank_items(tx: Tx, erasure_id: str) -> None:
    """Keep leaves only."""
    await tx.execute(SQL.blank_items, erasure_id=erasure_id)


async def add_recipients(
    tx: Tx, erasure_id: str, nodes: Mapping[NodeId, str], now: datetime
) -> list[NodeId]:
    """Add nodes with how they became known; those that are new."""
    new = []
    for node_id, source in sorted(nodes.items()):
        added = await tx.fetchval(
            SQL.insert_recipient, erasure_id=erasure_id, node_id=node_id, source=source, now=now
        )
        if added is not None:
            new.append(node_id)
    return new


async def settle_recipient(
    tx: Tx,
    erasure_id: str,
    node_id: NodeId,
    status: str,
    receipt_sha256: bytes | None,
    now: datetime,
) -> None:
    """Note how a recipient ended."""
    await tx.execute(
        SQL.settle_recipient,
        erasure_id=erasure_id,
        node_id=node_id,
        status=status,
        receipt_sha256=receipt_sha256,
        now=now,
    )


async def recipients(tx: Tx, erasure_id: str) -> list[RecipientRow]:
    """All recipients by node id."""
    rows = await tx.fetch(SQL.recipients, erasure_id=erasure_id)
    return [RecipientRow(**dict(row)) for row in rows]


async def waiting_for(tx: Tx, node_id: NodeId) -> list[tuple[str, str]]:
    """(id, state) of own erasures in which a node has not settled."""
    rows = await tx.fetch(SQL.waiting_for, node_id=node_id)
    return [(row["erasure_id"], row["state"]) for row in rows]


async def add_document(tx: Tx, erasure_id: str, document: DocumentRow) -> bool:
    """Keep a document; False when it, or another in its place, is here."""
    stored = await tx.fetchval(
        SQL.insert_document,
        sha256=document.sha256,
        erasure_id=erasure_id,
        doc=document.doc,
        node_id=document.node_id,
        n=document.n,
        envelope=document.envelope,
        ledger_seq=document.ledger_seq,
    )
    return stored is not None


async def documents(tx: Tx, erasure_id: str) -> list[DocumentRow]:
    """All documents of an erasure."""
    rows = await tx.fetch(SQL.documents, erasure_id=erasure_id)
    return [DocumentRow(**dict(row)) for row in rows]


async def projects_of_agent(tx: Tx, agent: AgentId) -> list[ProjectId]:
    """Projects in which an agent left anything here."""
    return [row["project_id"] for row in await tx.fetch(SQL.projects_of_agent, agent=agent)]


async def nodes_to_tell(
    tx: Tx, projects: Sequence[ProjectId], agent: AgentId | None, project: ProjectId | None
) -> dict[NodeId, str]:
    """Nodes that must hear of an erasure, and why: member before holder."""
    rows = await tx.fetch(SQL.nodes_to_tell, projects=list(projects), agent=agent, project=project)
    found: dict[NodeId, str] = {}
    for row in rows:
        if found.get(row["node_id"]) != "member":
            found[row["node_id"]] = row["source"]
    return found


async def allow_purging(tx: Tx) -> None:
    """Let this transaction remove rows that are otherwise only appended."""
    await tx.execute(SQL.allow_purging)


async def sample(tx: Tx, ids: Sequence[MemoryId]) -> list[Record]:
    """id, content (cut), vector of some memories."""
    return await tx.fetch(SQL.sample, ids=list(ids))
