"""The removal itself: rows in batches, then memory, then files.

Each batch removes its rows and notes their leaves in one transaction, so counts never drift from
what happened. Every function may run again after a crash or a failure.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import trio

from erasure.context import ErasureContext
from erasure.forms import Graph
from erasure.plan import outside, target_of
from erasure.scope import agent_of, project_of
from erasure.states import HoldInForce, Run
from erasure.tiers import (
    MEMORY_TIERS,
    REMOVAL_ORDER,
    SLOTS,
    VECTORS,
    MemoryTier,
    TableTier,
    Target,
)
from storage import erasures, tombstones
from storage import tiers as places
from storage.local import LocalNode
from storage.model import MemoryId, Scope, ScopeKind
from storage.pool import Tx

FILES = "file."


async def rows(ctx: ErasureContext, run: Run) -> None:
    """Remove the rows of the plan, dependent ones first."""
    for name in REMOVAL_ORDER:
        tier = ctx.tiers.named(name)
        while await ctx.db.transact(_remove_batch, ctx.node, run, tier):
            ctx.between(f"batch:{name}")
    await ctx.access.reload(ctx.db)


async def memory(ctx: ErasureContext, run: Run) -> Graph:
    """Remove vectors, links, caches and queues; what was done to the hot graph."""
    target = await target_of(ctx, run)
    mode = Graph.UNTOUCHED
    if ctx.tiers.graph is not None:
        purge = partial(ctx.tiers.graph.purge, rebuild=run.row.config["graph"] == "rebuild")
        report = await trio.to_thread.run_sync(purge, target.ids)
        mode = Graph(report.mode)
        found = await _note_all(ctx, run, SLOTS)
        await _note_all(ctx, run, VECTORS)
        if mode is Graph.UNTOUCHED and found:
            mode = Graph.REBUILT  # the process began anew and loaded only what survives
    await _clear(ctx, run, target, files=False)
    return mode


async def files(ctx: ErasureContext, run: Run) -> None:
    """Remove snapshots, exports and the agent's files, its key last."""
    await _clear(ctx, run, await target_of(ctx, run), files=True)


def hide_scope(ctx: ErasureContext, erasure_id: str, scope: Scope) -> None:
    """Take all residents of a scope out of every search, and remember who they were.

    For a worker thread.
    """
    graph = ctx.tiers.graph
    if graph is not None:
        by_agent = scope.kind is ScopeKind.AGENT
        hide_ids(
            ctx,
            erasure_id,
            [
                one.id
                for one in graph.residents()
                if (one.agent_id if by_agent else one.project_id) == scope.id
            ],
        )


def hide_ids(ctx: ErasureContext, erasure_id: str, ids: Sequence[MemoryId]) -> None:
    """As `hide_scope`, for a scope of which newer memories live on. For a worker thread."""
    graph = ctx.tiers.graph
    if graph is None:
        return
    present = frozenset(one for one in ids if one in graph)
    ctx.hidden[erasure_id] = ctx.hidden.get(erasure_id, frozenset()) | present
    graph.hide(present)


async def check_holds(tx: Tx, run: Run) -> None:
    """Raises HoldInForce: the run waits where it is, hidden and uncertified, for the release."""
    scope = run.scope
    if scope is not None and await erasures.open_holds(
        tx, run.row.scope_id, agent_of(scope), project_of(scope)
    ):
        raise HoldInForce()


async def _remove_batch(tx: Tx, node: LocalNode, run: Run, tier: TableTier) -> int:
    left = await erasures.items_left(tx, run.id, tier.name, run.batch_rows)
    if not left:
        return 0
    await check_holds(tx, run)
    await erasures.allow_purging(tx)
    await places.removed(tx, tier.remove, [rid for _, rid in left])
    await erasures.mark_removed(tx, run.id, tier.name, [leaf for leaf, _ in left])
    if tier.name in MEMORY_TIERS:
        await tombstones.mark_purged(tx, [bytes.fromhex(rid) for _, rid in left], node.wall())
    return len(left)


async def _clear(ctx: ErasureContext, run: Run, target: Target, *, files: bool) -> None:
    """Clear the places of one group; a name is done when all places of that name are."""
    places_of: dict[str, list[MemoryTier]] = {}
    for place in outside(ctx):
        if place.name.startswith(FILES) == files:
            places_of.setdefault(place.name, []).append(place)
    for name, group in places_of.items():
        left = await ctx.db.read(_all_left, run, name)
        for place in group:
            await trio.to_thread.run_sync(place.remove, target, [rid for _, rid in left])
        await ctx.db.transact(erasures.mark_removed, run.id, name, [leaf for leaf, _ in left])


async def _note_all(ctx: ErasureContext, run: Run, name: str) -> int:
    left = await ctx.db.read(_all_left, run, name)
    await ctx.db.transact(erasures.mark_removed, run.id, name, [leaf for leaf, _ in left])
    return len(left)


async def _all_left(tx: Tx, run: Run, name: str) -> list[tuple[bytes, str]]:
    return await erasures.items_left(tx, run.id, name, 2**31 - 1)
