"""What goes: every record of the scope in every place, under a keyed leaf, before any of it does.

Tables are walked in batches by key. The plan of a run that was cut before its seal is thrown away
and made again, since nothing has been removed by then.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

import trio

from erasure import leaves
from erasure.context import ErasureContext
from erasure.states import Run, Sample
from erasure.tiers import (
    MEMORY_TIERS,
    SLOTS,
    TABLE_TIERS,
    VECTORS,
    MemoryTier,
    TableTier,
    Target,
)
from storage import burials, erasures
from storage import tiers as places
from storage.burials import Burial
from storage.erasures import Item
from storage.keyring import KeyStore
from storage.local import LocalNode
from storage.memories import as_vector
from storage.model import MemoryId, Scope, ScopeKind
from storage.pool import Tx

SAMPLES = 1_000
OWN_KEY = "signing key"


async def make(ctx: ErasureContext, run: Run) -> None:
    """Plan everything, and keep some texts and vectors in memory for the probes."""
    await ctx.db.transact(erasures.discard_items, run.id)
    await extend(ctx, run)
    ids = await memory_ids(ctx, run)
    chosen = random.sample(ids, min(SAMPLES, len(ids)))
    samples: dict[MemoryId, Sample] = {}
    for start in range(0, len(chosen), run.batch_rows):
        for row in await ctx.db.read(erasures.sample, chosen[start : start + run.batch_rows]):
            vector = None if row["vector"] is None else as_vector(row["vector"])
            samples[row["id"]] = Sample(row["id"], row["content"], vector)
    run.samples = tuple(samples.values())


async def extend(ctx: ErasureContext, run: Run) -> None:
    """Add to the plan what stands in any place and is not in it."""
    if run.scope is None:
        return
    for tier in TABLE_TIERS:
        if tier.epoched or run.newest:
            after: str | None = ""
            while after is not None:
                after = await ctx.db.transact(_plan_batch, run, tier, after)
    target = await target_of(ctx, run)
    await _plan_graph(ctx, run, target)
    for place in outside(ctx):
        rids = await trio.to_thread.run_sync(place.enumerate, target)
        await ctx.db.transact(erasures.add_items, run.id, _items(run, place.name, rids))


async def sealed_root(tx: Tx, run: Run, names: Iterable[str]) -> bytes:
    """Root over the whole plan."""
    found = {}
    for name in names:
        root = leaves.SortedRoot()
        after = b""
        while page := await erasures.leaves_page(tx, run.id, name, after, run.batch_rows):
            for leaf, _, _ in page:
                root.add(leaf)
            after = page[-1][0]
        found[name] = (root.n, root.root)
    return leaves.top_root(found)


async def memory_ids(ctx: ErasureContext, run: Run) -> list[MemoryId]:
    """Ids of all memories in the plan, 16 bytes each."""
    found: list[MemoryId] = []
    after = ("", b"")
    while page := await ctx.db.read(
        erasures.items_page, run.id, MEMORY_TIERS, after, run.batch_rows
    ):
        found += [bytes.fromhex(item.rid) for item in page if item.rid is not None]
        after = (page[-1].tier, page[-1].leaf)
    return sorted(found)


async def target_of(ctx: ErasureContext, run: Run) -> Target:
    """What the places outside PostgreSQL have to give up."""
    return Target(run.scope, tuple(await memory_ids(ctx, run)), run.newest)


async def bury(ctx: ErasureContext, run: Run) -> None:
    """Set a tombstone for every memory in the plan, in batches."""
    after = ("", b"")
    while True:
        page = await ctx.db.read(erasures.items_page, run.id, MEMORY_TIERS, after, run.batch_rows)
        if not page:
            return
        ids = [bytes.fromhex(item.rid) for item in page if item.rid is not None]
        await ctx.db.transact(bury_ids, ctx.node, run, ids)
        after = (page[-1].tier, page[-1].leaf)


async def bury_ids(tx: Tx, node: LocalNode, run: Run, ids: list[MemoryId]) -> None:
    """Set the tombstones of some memories that still stand."""
    fence = await burials.fence_at(tx, run.row.kind, run.row.handle, run.row.epoch)
    graves = [
        Burial(
            memory_id=row["id"],
            kind=row["kind"],
            project_id=row["project_id"],
            agent_handle=node.handle(Scope(ScopeKind.AGENT, row["agent_id"])),
            project_handle=None
            if row["project_id"] is None
            else node.handle(Scope(ScopeKind.PROJECT, row["project_id"])),
            home_node=row["origin_node"],
        )
        for row in await burials.to_bury(tx, ids)
    ]
    await burials.bury(
        tx,
        graves,
        erasure_id=run.id,
        epoch=run.row.epoch,
        hlc=fence.hlc if fence else 0,
        node_id=node.node_id,
        now=node.wall(),
    )


def outside(ctx: ErasureContext) -> list[MemoryTier]:
    """Places outside PostgreSQL and the hot graph, the agent's key among them.

    Several may have one name: their records are then told apart by what they call them.
    """
    return [*ctx.tiers.memory, _agent_key(ctx.node.keys)]


def _agent_key(keys: KeyStore) -> MemoryTier:
    def found(target: Target) -> list[str]:
        scope = target.scope
        if scope is None or scope.kind is not ScopeKind.AGENT or not target.all_of_scope:
            return []
        return [OWN_KEY] if keys.has_agent(scope.id) else []

    def remove(target: Target, _: object) -> int:
        scope = target.scope
        if scope is None or not found(target):
            return 0
        return int(keys.remove_agent(scope.id))

    return MemoryTier(
        "file.agent", found, remove, lambda target: len(found(target)), "L2", "unlink"
    )


async def _plan_batch(tx: Tx, run: Run, tier: TableTier, after: str) -> str | None:
    rows = await places.planned(tx, tier.plan, run.bounds, after, run.batch_rows, tier.constants)
    await erasures.add_items(
        tx,
        run.id,
        [Item(tier.name, rid, leaves.leaf(run.kcert, tier.name, rid), plan) for rid, plan in rows],
    )
    return rows[-1][0] if len(rows) == run.batch_rows else None


async def _plan_graph(ctx: ErasureContext, run: Run, target: Target) -> None:
    graph = ctx.tiers.graph
    if graph is None:
        return
    slots = await trio.to_thread.run_sync(graph.occupants, target.ids)
    hidden = ctx.hidden.get(run.id, frozenset())
    vectors = [one for one in target.ids if one in hidden or one in graph]
    for name, found in ((SLOTS, slots), (VECTORS, vectors)):
        rids = [memory_id.hex() for memory_id in found]
        await ctx.db.transact(erasures.add_items, run.id, _items(run, name, rids))
    await trio.to_thread.run_sync(graph.hide, target.ids)


def _items(run: Run, name: str, rids: Iterable[str]) -> list[Item]:
    return [Item(name, rid, leaves.leaf(run.kcert, name, rid)) for rid in sorted(set(rids))]
