"""Does anything still lead to what was erased: asked by other ways than those that removed it.

Counts go over the catalog, reads over the view that readers use, vectors over the graph's own
search. One hit, and there is no certificate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import trio

from erasure.context import ErasureContext
from erasure.parts import Verification
from erasure.plan import outside, target_of
from erasure.scope import agent_of
from erasure.states import ResidueFound, Run
from erasure.tiers import check_catalog, memory_counts, scope_counts
from storage import tiers as places
from storage.errors import InvalidInput
from storage.hot.graph import HotGraph
from storage.model import MemoryId
from storage.pool import Tx
from storage.tiers import ScopedTable

CANARY_BYTES = 48
CANARIES = 20
NEAREST = 10


@dataclass(slots=True)
class _Tally:
    """What was asked and where something answered."""

    paths: set[str] = field(default_factory=set)
    probes: int = 0
    hits: dict[str, int] = field(default_factory=dict)
    residue: dict[str, int] = field(default_factory=dict)

    def read(self, path: str, probes: int, hits: int) -> None:
        """A read path was tried with so many records."""
        self.paths.add(path)
        self.probes += probes
        if hits:
            self.hits[path] = self.hits.get(path, 0) + hits

    def counted(self, place: str, probes: int, left: int) -> None:
        """A place was counted."""
        self.paths.add(place)
        self.probes += probes
        if left:
            self.residue[place] = self.residue.get(place, 0) + left


async def inspect(ctx: ErasureContext, run: Run) -> Verification:
    """Look everywhere. Raises ResidueFound naming the places, never the content."""
    tally = _Tally()
    target = await target_of(ctx, run)
    tables = await ctx.db.read(check_catalog)
    await ctx.db.read(_count_scope, run, tables, tally)
    for ids in _batches(target.ids, run.batch_rows):
        await ctx.db.read(_count_ids, ids, tables, tally)
        if ctx.tiers.graph is not None:
            left = await trio.to_thread.run_sync(ctx.tiers.graph.occupants, ids)
            tally.counted("hot graph slots", len(ids), len(left))
        for probe in ctx.tiers.probes:
            tally.read(probe.name, len(ids), await probe.hits(ids))
    for place in outside(ctx):
        tally.counted(place.name, 1, await trio.to_thread.run_sync(place.count, target))
    await _probe_samples(ctx, run, frozenset(target.ids), tally)
    scanned = await _scan(ctx, run, tally)
    if tally.hits or tally.residue:
        places_found = ", ".join(sorted({*tally.hits, *tally.residue}))
        raise ResidueFound(f"erased records are still found: {places_found}")
    return Verification(len(tally.paths), tally.probes, 0, 0, scanned)


async def _count_scope(tx: Tx, run: Run, tables: Sequence[ScopedTable], tally: _Tally) -> None:
    if run.scope is None or not run.newest:
        return
    column = "agent_id" if agent_of(run.scope) else "project_id"
    for table, name in scope_counts(tables, column):
        left = await places.count_by_id(tx, table, name, run.scope.id)
        tally.counted(f"rows of {table}", 1, left)
    if agent_of(run.scope):
        left = await places.count_by_id(tx, "deliveries", "recipient", run.scope.id)
        tally.counted("rows of deliveries", 1, left)


async def _count_ids(
    tx: Tx, ids: Sequence[MemoryId], tables: Sequence[ScopedTable], tally: _Tally
) -> None:
    for table, name in memory_counts(tables):
        left = await places.count_by_memory(tx, table, name, ids)
        tally.counted(f"rows of {table} by memory", len(ids), left)
    tally.read("list", len(ids), await places.count_live(tx, ids))


async def _probe_samples(
    ctx: ErasureContext, run: Run, erased: frozenset[MemoryId], tally: _Tally
) -> None:
    if not run.samples:
        return
    ids = [sample.memory_id for sample in run.samples]
    texts = [sample.text for sample in run.samples]
    hits = await ctx.db.read(places.count_words, ids, texts)
    tally.read("full text", len(texts), hits)
    graph = ctx.tiers.graph
    if graph is not None:
        asked, found = await trio.to_thread.run_sync(_search, graph, run, erased)
        tally.read("vector", asked, found)


def _search(graph: HotGraph, run: Run, erased: frozenset[MemoryId]) -> tuple[int, int]:
    asked = found = 0
    for sample in run.samples:
        if sample.vector is None:
            continue
        try:
            near = graph.search(sample.vector, NEAREST)
        except InvalidInput:
            continue  # a vector of another model than the graph's was never in it
        asked += 1
        found += sum(hit.resident.id in erased for hit in near)
    return asked, found


async def _scan(ctx: ErasureContext, run: Run, tally: _Tally) -> tuple[str, ...]:
    raw = [sample.text.encode("utf-8") for sample in run.samples]
    canaries = [one for one in raw if len(one) >= CANARY_BYTES][:CANARIES]
    if not canaries:
        return ()
    found = await ctx.db.read(
        places.count_canaries,
        run.id,
        canaries,
        intent_seq=run.row.intent_seq,
        since=run.row.started_at,
    )
    for place, left in found.items():
        tally.counted(f"bytes of {place}", len(canaries), left)
    return tuple(sorted(found))


def _batches(ids: Sequence[MemoryId], size: int) -> Iterator[Sequence[MemoryId]]:
    for start in range(0, len(ids), size):
        yield ids[start : start + size]
