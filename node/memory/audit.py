"""Whether the hot graph, its vectors, the flag for cold rows and the tables say the same.

A comparison of everything with the rows, page by page, while the node serves. What differs is
looked at a second time, since a write may be on its way. `repair` makes the graph follow the
rows, gives a vector to rows without one, and takes vectors of no memory away; rows themselves
are never changed.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
import numpy as np
import trio
from numpy.typing import NDArray

from node.memory.context import MemoryContext
from storage import memories, residents, tombstones
from storage.memories import Stored
from storage.model import Memory, MemoryId, Resident, id_text
from storage.pool import Tx
from storage.residents import State

log = logging.getLogger(__name__)

PAGE: Final = 500
LIMIT: Final = 100_000
EXAMPLES: Final = 5
SETTLE_S: Final = 0.3
"""A commit reaches the graph well within this."""
HALF_ERROR: Final = 2e-3
"""Rounding to half precision moves no number of a unit vector further than this."""

NO_ROW: Final = "resident_without_row"
DELETED: Final = "resident_of_deleted_row"
TOMBSTONED: Final = "resident_tombstoned"
FENCED: Final = "resident_of_closed_epoch"
NO_LONGER: Final = "resident_without_vector_row"
OLD_TEXT: Final = "resident_with_old_text"
METADATA: Final = "resident_with_wrong_metadata"
SUPERSEDED: Final = "resident_with_wrong_superseded"
VECTOR: Final = "resident_with_wrong_vector"
INDEX: Final = "index_with_wrong_vector"
GHOST: Final = "index_label_of_nobody"
UNEMBEDDED: Final = "row_without_vector"
ORPHAN: Final = "vector_without_row"
MISFILED: Final = "vector_under_another_scope"
COLD: Final = "cold_flag"
KINDS: Final = (
    NO_ROW,
    DELETED,
    TOMBSTONED,
    FENCED,
    NO_LONGER,
    OLD_TEXT,
    METADATA,
    SUPERSEDED,
    VECTOR,
    INDEX,
    GHOST,
    UNEMBEDDED,
    ORPHAN,
    MISFILED,
    COLD,
)


@dataclass(slots=True)
class AuditReport:
    """How much was compared, and what differed by kind. `left` is what a repair did not mend."""

    residents: int = 0
    rows: int = 0
    cold: int = 0
    drift: dict[str, int] = field(default_factory=dict)
    repaired: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[MemoryId]] = field(default_factory=dict)

    @property
    def left(self) -> int:
        """Findings that stand."""
        return sum(self.drift.values()) - sum(self.repaired.values())

    def as_dict(self) -> dict[str, object]:
        """For the answer over HTTP."""
        return {
            "residents": self.residents,
            "rows": self.rows,
            "cold": self.cold,
            "drift": self.drift,
            "repaired": self.repaired,
            "left": self.left,
            "examples": {k: [id_text(one) for one in ids] for k, ids in self.examples.items()},
        }


@dataclass(slots=True)
class _Findings:
    """Ids by kind; `rows` are all that were seen live with a vector."""

    by_kind: dict[str, set[MemoryId]] = field(default_factory=lambda: defaultdict(set))
    rows: int = 0
    cold: int = 0
    ghosts: int = 0
    evicted: int = 0
    wrong_flag: bool = False


async def audit_graph(context: MemoryContext, *, repair: bool = False) -> AuditReport:
    """Compare everything; with `repair`, mend what differs and count what was mended."""
    found = await _look(context)
    report = AuditReport(len(context.residency.graph), found.rows, found.cold)
    report.drift = _counts(found)
    report.examples = {kind: sorted(ids)[:EXAMPLES] for kind, ids in found.by_kind.items() if ids}
    if repair and report.drift:
        await _repair(context, found)
        left = _counts(await _look(context))
        report.repaired = {
            kind: count - left.get(kind, 0)
            for kind, count in report.drift.items()
            if count > left.get(kind, 0)
        }
    level = logging.WARNING if report.drift else logging.INFO
    log.log(level, "audit of the graph", extra={"data": {"drift": report.drift}})
    return report


def _counts(found: _Findings) -> dict[str, int]:
    counts = {kind: len(found.by_kind.get(kind, ())) for kind in KINDS}
    counts[GHOST] = found.ghosts
    counts[COLD] = int(found.wrong_flag)
    return {kind: count for kind, count in counts.items() if count}


async def _look(context: MemoryContext) -> _Findings:
    found = _Findings()
    residency = context.residency
    before = residency.graph.stats()
    found.evicted = before.evicted_total
    seen = await _rows(context, found)
    others = [one.id for one in residency.graph.residents() if one.id not in seen]
    suspects = set(others).union(*found.by_kind.values())
    if suspects:
        await trio.sleep(SETTLE_S)
        found.by_kind.clear()
        await _again(context, sorted(suspects), found)
    faulty = await trio.to_thread.run_sync(
        residency.graph.faulty, [one.id for one in residency.graph.residents()]
    )
    found.by_kind[INDEX].update(faulty)
    found.ghosts = await _ghosts(context, drop=False)
    await _tables(context, found)
    after = residency.graph.stats()
    same = after.changes_total == before.changes_total and not residency.degraded
    found.wrong_flag = same and (found.cold > 0 or _lacks(found)) != residency.has_cold
    return found


def _lacks(found: _Findings) -> bool:
    """Rows without a vector are found by words alone, and count as cold."""
    return bool(found.by_kind.get(UNEMBEDDED))


async def _ghosts(context: MemoryContext, *, drop: bool) -> int:
    graph = context.residency.graph
    return await trio.to_thread.run_sync(lambda: graph.ghosts(drop=drop))


async def _rows(context: MemoryContext, found: _Findings) -> set[MemoryId]:
    """Compare all live rows; the ids that were seen."""
    seen: set[MemoryId] = set()
    after: MemoryId | None = None
    model = context.residency.model
    while page := await context.db.read(residents.live_page, model, after, PAGE):
        after = page[-1].memory.id
        seen.update(row.memory.id for row in page)
        await trio.to_thread.run_sync(_compare, context, page, found)
    found.rows = len(seen)
    return seen


async def _again(context: MemoryContext, ids: Sequence[MemoryId], found: _Findings) -> None:
    """The second look at what differed: as rows and residents are now."""
    model = context.residency.model
    for part in _parts(ids):
        rows = await context.db.read(memories.with_vectors, part, model)
        cold = found.cold
        await trio.to_thread.run_sync(_compare, context, rows, found)
        found.cold = cold
        live = {row.memory.id for row in rows}
        gone = [one for one in part if one not in live and one in context.residency.graph]
        for memory_id, state in (await context.db.read(residents.states, gone)).items():
            found.by_kind[_why_gone(state)].add(memory_id)


def _why_gone(state: State) -> str:
    if state.tombstoned:
        return TOMBSTONED
    if not state.has_row:
        return NO_ROW
    if state.deleted:
        return DELETED
    return FENCED if state.fenced else NO_LONGER


def _compare(context: MemoryContext, rows: Iterable[Stored], found: _Findings) -> None:
    """For a worker thread."""
    graph = context.residency.graph
    for row in rows:
        memory_id = row.memory.id
        resident, vector = graph.get(memory_id), graph.vector(memory_id)
        if resident is None or vector is None:
            found.cold += 1
            continue
        wanted = memories.resident(row.memory, context.node.node_id)
        if resident.content != wanted.content:
            found.by_kind[OLD_TEXT].add(memory_id)
        elif resident.superseded != wanted.superseded:
            found.by_kind[SUPERSEDED].add(memory_id)
        elif _plain(resident) != _plain(wanted):
            found.by_kind[METADATA].add(memory_id)
        if _differ(vector, row.vector):
            found.by_kind[VECTOR].add(memory_id)


def _plain(resident: Resident) -> Resident:
    """As the tables keep it: importance in single precision."""
    return msgspec.structs.replace(resident, importance=float(np.float32(resident.importance)))


def _differ(held: NDArray[np.float32], kept: NDArray[np.float32]) -> bool:
    norm = float(np.linalg.norm(kept))
    return norm == 0 or float(np.abs(held - kept / norm).max()) > HALF_ERROR


async def _tables(context: MemoryContext, found: _Findings) -> None:
    model = context.residency.model
    after: MemoryId | None = None
    while page := await context.db.read(residents.without_vector, model, after, PAGE):
        after = page[-1].id
        found.by_kind[UNEMBEDDED].update(memory.id for memory in page)
    found.by_kind[ORPHAN].update(await context.db.read(residents.orphans, LIMIT))
    found.by_kind[MISFILED].update(await context.db.read(residents.misfiled, LIMIT))


async def _repair(context: MemoryContext, found: _Findings) -> None:
    by_kind, residency = found.by_kind, context.residency
    if found.wrong_flag:
        residency.has_cold = found.cold > 0
    for part in _parts(sorted(by_kind[ORPHAN])):
        await context.db.transact(residents.drop_orphans, part)
    for part in _parts(sorted(by_kind[MISFILED])):
        await context.db.transact(residents.refile, part)
    for part in _parts(sorted(by_kind[UNEMBEDDED])):
        await _embed(context, part)
    if found.ghosts:
        await _ghosts(context, drop=True)
    about_residents = set().union(
        *(by_kind[kind] for kind in KINDS if kind not in (ORPHAN, MISFILED))
    )
    for part in _parts(sorted(about_residents)):
        await residency.refresh(context.db, part)
    if residency.graph.stats().evicted_total != found.evicted:
        residency.has_cold = True


async def _embed(context: MemoryContext, ids: Sequence[MemoryId]) -> None:
    rows = await context.db.read(memories.by_ids, ids)
    vectors = await context.embedder.embed([row.content for row in rows])
    await context.db.transact(
        _add_vectors,
        context.residency.model,
        dict(zip((row.id for row in rows), zip(rows, vectors, strict=True), strict=True)),
    )


async def _add_vectors(
    tx: Tx,
    model: str,
    made: dict[MemoryId, tuple[Memory, NDArray[np.float32]]],
) -> None:
    """Only for rows that are still the ones that were embedded."""
    await tombstones.hold_off(tx)
    states = await residents.states(tx, list(made))
    for row in await memories.by_ids(tx, list(made), lock=True):
        memory, vector = made[row.id]
        state = states[row.id]
        if row.content == memory.content and not (
            row.deleted_at or state.tombstoned or state.fenced
        ):
            await memories.insert_vector(tx, row, model, vector)


def _parts(ids: Sequence[MemoryId]) -> Iterable[Sequence[MemoryId]]:
    return (ids[start : start + PAGE] for start in range(0, len(ids), PAGE))
