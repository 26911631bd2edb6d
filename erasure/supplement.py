"""A second look at a scope that was erased: what is there again goes again.

Residue means a defect or a restored backup. It is removed under the same erasure, and an addendum
tells of it; the certificate stays as it was signed. Nothing found, nothing written.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from erasure import addenda, journal, leaves, plan
from erasure.context import ErasureContext
from erasure.forms import AddendumKind
from erasure.scope import bounds
from erasure.states import Run
from erasure.tiers import MEMORY_TIERS, REMOVAL_ORDER, SLOTS, TABLE_TIERS, Target
from storage import burials, erasures, tombstones
from storage import tiers as places
from storage.erasures import ErasureRow, Item
from storage.model import Scope
from storage.pool import Tx

CAUSE = "found again when the erasure was repeated"

Found = dict[str, list[str]]


async def recheck(ctx: ErasureContext, row: ErasureRow, scope: Scope) -> int:
    """Remove what stands of a certified erasure's scope; how many records went."""
    kcert = await trio.to_thread.run_sync(ctx.node.keys.create_kcert, row.erasure_id)
    key = await trio.to_thread.run_sync(ctx.node.keys.erasure_key)
    row = replace(row, ext_id=scope.id)  # emptied at the end, and given again by the caller
    newest = await ctx.db.read(erasures.is_newest, row)
    run = Run(row, newest, kcert, scope, bounds(scope, row.erasure_id, row.epoch))
    total = 0
    found = await _outside(ctx, run)
    while True:
        went, ids = await ctx.db.transact(_remove, ctx, run, key, found)
        if not went:
            break
        total += went
        if ctx.tiers.graph is not None and ids:
            await trio.to_thread.run_sync(ctx.tiers.graph.forget, ids)
        found = {}
    if total:
        await ctx.access.reload(ctx.db)
        await journal.copy(ctx)
        ctx.wake()
    return total


async def _outside(ctx: ErasureContext, run: Run) -> Found:
    ids = tuple(await ctx.db.read(burials.buried, run.id))
    target = Target(run.scope, ids, run.newest)
    found: Found = {}
    graph = ctx.tiers.graph
    if graph is not None:
        slots = await trio.to_thread.run_sync(graph.occupants, ids)
        if slots:
            rebuild = run.row.config["graph"] == "rebuild"
            await trio.to_thread.run_sync(partial(graph.purge, rebuild=rebuild), sorted(slots))
            found[SLOTS] = [memory_id.hex() for memory_id in slots]
    for place in plan.outside(ctx):
        rids = list(await trio.to_thread.run_sync(place.enumerate, target))
        if rids:
            await trio.to_thread.run_sync(place.remove, target, rids)
            found.setdefault(place.name, []).extend(rids)
    return found


async def _remove(
    tx: Tx, ctx: ErasureContext, run: Run, key: Ed25519PrivateKey, outside: Found
) -> tuple[int, list[bytes]]:
    row = await erasures.lock(tx, run.id)
    if row is None:
        return 0, []
    run = replace(run, row=row)
    found: Found = dict(outside)
    for tier in TABLE_TIERS:
        if not tier.epoched and not run.newest:
            continue
        rows = await places.planned(tx, tier.plan, run.bounds, "", run.batch_rows, tier.constants)
        if rows:
            found[tier.name] = [rid for rid, _ in rows]
    if not found:
        return 0, []
    ids = [bytes.fromhex(rid) for name in MEMORY_TIERS for rid in found.get(name, ())]
    await plan.bury_ids(tx, ctx.node, run, ids)
    await erasures.allow_purging(tx)
    for name in REMOVAL_ORDER:
        if name in found:
            await places.removed(tx, ctx.tiers.named(name).remove, found[name])
    await tombstones.mark_purged(tx, ids, ctx.node.wall())
    removed = {}
    for name, rids in found.items():
        keyed = [leaves.leaf(run.kcert, name, rid) for rid in sorted(set(rids))]
        removed[name] = leaves.tier_root(keyed)
        await erasures.add_items(
            tx, run.id, [Item(name, None, leaf, removed=True) for leaf in keyed]
        )
    await addenda.add(tx, ctx, row, key, AddendumKind.SUPPLEMENT, CAUSE, removed=removed)
    return sum(n for n, _ in removed.values()), ids
