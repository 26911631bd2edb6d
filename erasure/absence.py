"""A scope that this node does not know: searched for, and stated as not found on demand.

A statement of absence is a document of its own type. It is never a certificate, since nothing
was removed.
"""

from __future__ import annotations

import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from erasure import journal, leaves
from erasure.certificates import Absence, seal
from erasure.context import ErasureContext
from erasure.ledger import LedgerKind
from erasure.parts import Verification
from erasure.scope import agent_of
from erasure.states import ResidueFound
from erasure.tiers import EXEMPT, check_catalog
from storage import erasures, gate
from storage import tiers as places
from storage.erasures import DocumentRow
from storage.local import LocalNode
from storage.model import Scope
from storage.pool import Tx


async def known(tx: Tx, node: LocalNode, scope: Scope) -> bool:
    """True when any table of this node names the scope, by its id or its handle."""
    if await gate.by_handle(tx, scope.kind, node.handle(scope)) is not None:
        return True
    return bool(await _count(tx, scope))


async def state(ctx: ErasureContext, scope: Scope, requester: bytes | None) -> bytes:
    """Search every place for an unknown scope and sign that nothing was found."""
    key = await trio.to_thread.run_sync(ctx.node.keys.erasure_key)
    data = await ctx.db.transact(_state, ctx, scope, requester, key)
    await journal.copy(ctx)
    return data


async def _count(tx: Tx, scope: Scope) -> int:
    column = "agent_id" if agent_of(scope) else "project_id"
    found = 0
    for table in await check_catalog(tx):
        if column in table.scope_columns:
            found += await places.count_by_id(tx, table.name, column, scope.id)
    return found


async def _state(
    tx: Tx,
    ctx: ErasureContext,
    scope: Scope,
    requester: bytes | None,
    key: Ed25519PrivateKey,
) -> bytes:
    if await known(tx, ctx.node, scope):
        raise ResidueFound("the scope appeared meanwhile")
    node, now = ctx.node, ctx.node.wall()
    handle = node.handle(scope)
    searched = tuple(ctx.tiers.shape("untouched"))
    asked = [one for one in await check_catalog(tx) if one.name not in EXEMPT]
    where = await journal.next_entry(tx, node, now)
    signed = seal(
        Absence(
            mesh_id=node.mesh_id,
            node_id=node.node_id,
            kind=scope.kind,
            handle=handle,
            software=ctx.software,
            requester=requester,
            searched_at=now,
            searched=searched,
            verification=Verification(len(asked), len(asked), 0, 0, ()),
            ledger=where,
        ),
        key,
    )
    seq = await journal.append(
        tx,
        node,
        LedgerKind.ABSENCE,
        now,
        {"document": signed.sha256, "scope_handle": handle},
    )
    about = leaves.erasure_id(node.mesh_id, handle, 1)
    number = len(await erasures.documents(tx, about))
    await erasures.add_document(
        tx,
        about,
        DocumentRow(signed.sha256, "absence", node.node_id, number, signed.to_bytes(), seq),
    )
    return signed.to_bytes()
