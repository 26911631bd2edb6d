"""A dry run: what an erasure would find, with nothing changed.

The plan is made for real inside a transaction that is always rolled back.
"""

from __future__ import annotations

import secrets

from erasure import leaves
from erasure.context import ErasureContext
from erasure.scope import bounds
from erasure.tiers import TABLE_TIERS
from storage import erasures, gate
from storage import tiers as places
from storage.erasures import Item
from storage.errors import MnemeshError
from storage.model import Scope
from storage.pool import Tx


class _RolledBack(MnemeshError):
    """Carries the counts out of the transaction that must not commit."""

    def __init__(self, counts: dict[str, int], root: bytes) -> None:
        super().__init__("dry run")
        self.counts = counts
        self.root = root


async def preview(ctx: ErasureContext, scope: Scope) -> tuple[dict[str, int], bytes]:
    """Counts of the database tiers, and the root of their plan under a key thrown away."""
    try:
        await ctx.db.transact(_plan, ctx, scope)
    except _RolledBack as planned:
        return planned.counts, planned.root
    raise MnemeshError("a dry run committed")


async def _plan(tx: Tx, ctx: ErasureContext, scope: Scope) -> None:
    row = await gate.by_handle(tx, scope.kind, ctx.node.handle(scope))
    epoch = (row.open_epoch or row.closed_epoch) if row else 1
    key, erasure_id = secrets.token_bytes(32), "dry run"
    reach = bounds(scope, erasure_id, epoch)
    size = ctx.settings.batch_rows
    found: dict[str, tuple[int, bytes]] = {}
    for tier in TABLE_TIERS:
        keyed: list[bytes] = []
        after = ""
        while True:
            rows = await places.planned(tx, tier.plan, reach, after, size, tier.constants)
            items = [
                Item(tier.name, rid, leaves.leaf(key, tier.name, rid), how) for rid, how in rows
            ]
            await erasures.add_items(tx, erasure_id, items)
            keyed += [item.leaf for item in items]
            if len(rows) < size:
                break
            after = rows[-1][0]
        found[tier.name] = leaves.tier_root(keyed)
    raise _RolledBack({name: n for name, (n, _) in found.items()}, leaves.top_root(found))
