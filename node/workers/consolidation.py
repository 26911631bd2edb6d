"""Consolidation: near memories form clusters, and those of a project a text that stands for them.

Each pass does a bounded amount of each step, in small transactions, with the arithmetic in a
thread. A member that leaves at the same time marks its cluster dirty by a trigger, so nothing that
is decided here outlives what it was decided on. Aggregates stay on this node: they route searches
and describe the node's interests, and are never announced.
"""

from __future__ import annotations

import logging
import math
import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np
import trio

from node.memory.cold import ColdTier
from node.telemetry.metrics import HotMetrics
from node.workers import grouping
from node.workers.periodic import every
from storage import aggregates, memories
from storage.aggregates import KIND, Cluster, Row
from storage.content import normalize
from storage.errors import ScopeErased
from storage.local import LocalNode
from storage.model import AgentId, Memory, MemoryId, MemoryKind, ProjectId, Visibility
from storage.pool import Database, Tx

log = logging.getLogger(__name__)

INTERVAL_S: Final = 60.0
PLACED: Final = 20_000
"""Unplaced rows that one pass takes."""
WRITTEN: Final = 500
"""Rows that one transaction changes."""
SPLITS: Final = 400
CUT: Final = 32
"""Clusters that are cut before their surroundings are looked at."""
NEIGHBOURS: Final = 6
REFINED: Final = 400
"""Clusters that got a new centroid and whose members one pass compares with those around."""
AROUND: Final = 32
GAIN: Final = 0.01
"""Members change over only where their cosine is larger by this."""
FEWEST: Final = 3
"""Fewer members that would change over stay: a text that is lost with them is worth more."""
TEXTS: Final = 200
PARENTS: Final = 2_000
STABLE: Final = timedelta(hours=24)
DRIFT: Final = 0.25
"""A cluster that grew or shrank by this share gets a new centroid."""
DRIFTED: Final = 2_000
SETTLED: Final = 5_000
"""Dirty clusters that are computed again before the pass goes on."""
SOURCE: Final = "consolidation"


@dataclass(frozen=True, slots=True)
class Pass:
    """What one pass did."""

    settled: int = 0
    placed: int = 0
    split: int = 0
    moved: int = 0
    texts: int = 0
    parents: int = 0
    beacons: int = 0


class Consolidation:
    """The passes of one node over the rows of one model.

    `owner` is the agent whose memories the aggregates are; `metrics` shows the recall of the
    self-tests and the row budget that follows it.
    """

    def __init__(
        self,
        node: LocalNode,
        db: Database,
        cold: ColdTier,
        model: str,
        *,
        owner: Callable[[], AgentId],
        k_min: Callable[[], int],
        metrics: HotMetrics | None = None,
    ) -> None:
        self._node = node
        self._db = db
        self._cold = cold
        self._model = model
        self._owner = owner
        self._k_min = k_min
        self._metrics = metrics
        self._rng = random.Random(int.from_bytes(node.random_bytes(8), "big"))
        self._refined = (datetime.min.replace(tzinfo=UTC), 0)
        self._one_pass = trio.Lock()
        self._limiter = trio.CapacityLimiter(1)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """A pass every minute, and one at once, until cancelled."""
        await every(
            lambda: INTERVAL_S,
            self.tick,
            name="consolidation",
            first_after=1.0,
            task_status=task_status,
        )

    async def tick(self) -> Pass:
        """One pass; what it did."""
        async with self._one_pass:
            settled = await self._settle()
            placed = await self._place()
            split, moved = await self._split()
            moved += await self._refine()
            texts = await self._texts()
            parents = await self._parents()
            texts += await self._texts()
            beacons = await self._beacons()
            await self._cold.refresh(self._db, self._model)
            recall = await self._cold.test(self._db, self._model, self._rng)
            if self._metrics is not None:
                self._metrics.measured_recall.set(math.nan if recall is None else recall)
                self._metrics.row_budget.set(self._cold.budget)
        done = Pass(settled, placed, split, moved, texts, parents, beacons)
        if done != Pass():
            log.info("consolidation: %s", done)
        return done

    async def _settle(self) -> int:
        total = 0
        while total < SETTLED:
            done = await self._db.transact(aggregates.settle, self._node.wall())
            if not done:
                break
            total += done
        return total

    # Where rows belong

    async def _place(self) -> int:
        rows = await self._db.read(aggregates.unplaced, self._model, PLACED)
        if not rows:
            return 0
        clusters, _ = await self._db.read(aggregates.routing, self._model)
        placed = 0
        for project_id in {row.project_id for row in rows}:
            group = [row for row in rows if row.project_id == project_id]
            standing = [each for each in clusters if each.project_id == project_id]
            chosen, new = await trio.to_thread.run_sync(
                _plan_placing, group, standing, limiter=self._limiter
            )
            ids = [each.id for each in standing]
            if new:
                ids += await self._db.transact(_insert_clusters, self._model, project_id, new)
            by_cluster = sorted(zip(chosen, group, strict=True), key=lambda pair: pair[0])
            pairs = [(row.memory_id, ids[place]) for place, row in by_cluster]
            for start in range(0, len(pairs), WRITTEN):
                placed += await self._db.transact(
                    aggregates.place, self._model, pairs[start : start + WRITTEN], None
                )
            await self._settle()
        await self._cold.refresh(self._db, self._model)
        return placed

    async def _split(self) -> tuple[int, int]:
        split = moved = 0
        counts = await self._db.read(aggregates.member_counts, self._model)
        clusters, _ = await self._db.read(aggregates.routing, self._model)
        by_id = {each.id: each for each in clusters}
        large = [each for each in clusters if counts.get(each.id, 0) > grouping.MOST][:SPLITS]
        for start in range(0, len(large), CUT):
            new = [await self._split_one(each) for each in large[start : start + CUT]]
            split += sum(bool(parts) for parts in new)
            await self._settle()
            fresh, _ = await self._db.read(aggregates.routing, self._model)
            by_id = {each.id: each for each in fresh}
            for parts in new:
                moved += await self._reassign(parts, by_id)
            await self._settle()
        drifted = [
            each.id
            for each in by_id.values()
            if abs(counts.get(each.id, each.size) - each.size) > DRIFT * each.size
        ]
        for start in range(0, min(len(drifted), DRIFTED), aggregates.SETTLED_AT_ONCE):
            await self._db.transact(
                aggregates.doubt, drifted[start : start + aggregates.SETTLED_AT_ONCE]
            )
            await self._settle()
        if split or drifted:
            await self._cold.refresh(self._db, self._model)
        return split, moved

    async def _split_one(self, cluster: Cluster) -> list[int]:
        """Cut a cluster in parts; the ids of all parts, none when it cannot be cut."""
        rows = await self._db.read(aggregates.members, [cluster.id])
        if len(rows) <= grouping.MOST:
            return []
        chosen = await trio.to_thread.run_sync(
            grouping.plan_splitting, _stack(rows), limiter=self._limiter
        )
        leaving: dict[int, list[MemoryId]] = defaultdict(list)
        for part, row in zip(chosen.tolist(), rows, strict=True):
            if part:
                leaving[part].append(row.memory_id)
        if not leaving:
            return []
        made = await self._db.transact(_cut, self._model, cluster, list(leaving.values()))
        return [cluster.id, *made] if made else []

    async def _reassign(self, parts: Sequence[int], by_id: dict[int, Cluster]) -> int:
        """Let rows in and around fresh parts go where they are nearest."""
        fresh = [by_id[each] for each in parts if each in by_id]
        if not fresh:
            return 0
        group = [each for each in by_id.values() if each.project_id == fresh[0].project_id]
        near = _around(fresh, group)
        rows = await self._db.read(aggregates.members, [each.id for each in near])
        if not rows:
            return 0
        centroids = {each.id: each.centroid for each in near}
        own = [row.cluster_id or 0 for row in rows]
        moves = await trio.to_thread.run_sync(
            grouping.plan_moves, _stack(rows), own, centroids, limiter=self._limiter
        )
        return await self._db.transact(
            _move,
            self._model,
            [(rows[place].memory_id, own[place], target) for place, target in moves.items()],
        )

    async def _refine(self) -> int:
        """Let members of clusters whose middle is another now go where they are nearest."""
        fresh = await self._db.read(aggregates.settled_since, self._model, self._refined, REFINED)
        if not fresh:
            return 0
        clusters, _ = await self._db.read(aggregates.routing, self._model)
        groups: dict[ProjectId | None, list[Cluster]] = defaultdict(list)
        for cluster in clusters:
            groups[cluster.project_id].append(cluster)
        by_id = {each.id: each for each in clusters}
        looked_at = [by_id[cluster_id] for _, cluster_id in fresh if cluster_id in by_id]
        moved = 0
        for start in range(0, len(looked_at), CUT):
            part = looked_at[start : start + CUT]
            moved += await self._refine_some(part, groups)
            await self._settle()
        self._refined = fresh[-1]
        return moved

    async def _refine_some(
        self, part: Sequence[Cluster], groups: Mapping[ProjectId | None, Sequence[Cluster]]
    ) -> int:
        rows = await self._db.read(aggregates.members, [each.id for each in part])
        members: dict[int, list[Row]] = defaultdict(list)
        for row in rows:
            members[row.cluster_id or 0].append(row)
        moves = await trio.to_thread.run_sync(
            _plan_refining, part, groups, members, limiter=self._limiter
        )
        return await self._db.transact(_move, self._model, moves)

    # What stands for them

    async def _texts(self) -> int:
        made = 0
        for cluster, level in await self._db.read(
            aggregates.without_text, self._model, self._k_min(), TEXTS
        ):
            try:
                made += await self._db.transact(self._write_text, cluster, level)
            except ScopeErased as error:
                log.info("an aggregate was given up: %s", error.code)
        return made

    async def _write_text(self, tx: Tx, cluster: Cluster, level: int) -> bool:
        if cluster.project_id is None:
            return False
        epochs = await self._node.gate.for_write(tx, self._owner(), cluster.project_id)
        inputs = [cluster.id] if level == 1 else await aggregates.children(tx, cluster.id)
        wanted = {cluster.id, *inputs}
        if set(await aggregates.lock(tx, wanted)) != wanted:
            return False
        text = await aggregates.medoid(tx, inputs, cluster.project_id, cluster.centroid)
        if text is None:
            return False
        now = self._node.wall()
        memory = Memory(
            id=self._node.new_id(),
            kind=KIND[level],
            agent_id=self._owner(),
            project_id=cluster.project_id,
            content=text,
            normalized_content=normalize(text).normalized,
            content_hash=None,
            created_at=now,
            updated_at=now,
            origin_node=self._node.node_id,
            agent_epoch=epochs.agent,
            project_epoch=epochs.project,
            hlc=self._node.clock.now(),
            type="summary",
            visibility=Visibility.GLOBAL,
            source_type=SOURCE,
            updated_by=SOURCE,
        )
        if not await memories.insert(tx, memory, searchable=False):
            return False
        await aggregates.set_text(tx, cluster.id, memory.id)
        if memory.kind is MemoryKind.L1:
            await aggregates.mark(tx, inputs, "consolidated", memory.hlc)
        return True

    async def _parents(self) -> int:
        alone = await self._db.read(aggregates.parentless, self._model, PARENTS)
        projects: dict[ProjectId, list[Cluster]] = defaultdict(list)
        for cluster in alone:
            if cluster.project_id is not None:
                projects[cluster.project_id].append(cluster)
        made = 0
        for project_id, clusters in projects.items():
            centroids = np.stack([each.centroid for each in clusters])
            for places in await trio.to_thread.run_sync(
                grouping.plan_parents, centroids, limiter=self._limiter
            ):
                below = [clusters[place] for place in places]
                made += await self._db.transact(self._write_parent, project_id, below)
        return made

    async def _write_parent(self, tx: Tx, project_id: ProjectId, below: list[Cluster]) -> bool:
        ids = [each.id for each in below]
        if await aggregates.lock(tx, ids) != sorted(ids):
            return False
        await aggregates.insert_above(tx, self._model, project_id, below, self._node.wall())
        return True

    async def _beacons(self) -> int:
        return await self._db.transact(self._raise_beacons)

    async def _raise_beacons(self, tx: Tx) -> int:
        now = self._node.wall()
        raised = await aggregates.raise_stable(tx, now - STABLE, now, TEXTS)
        for cluster_id in raised:
            inputs = await aggregates.children(tx, cluster_id)
            await aggregates.mark(tx, inputs, "promoted", self._node.clock.now())
        return len(raised)


async def _insert_clusters(
    tx: Tx, model: str, project_id: ProjectId | None, count: int
) -> list[int]:
    return [await aggregates.insert(tx, model, project_id) for _ in range(count)]


async def _cut(
    tx: Tx, model: str, cluster: Cluster, leaving: Sequence[Sequence[MemoryId]]
) -> list[int]:
    """Parts of a cluster become clusters of their own; nothing when it changed meanwhile."""
    if not await aggregates.lock(tx, [cluster.id]):
        return []
    made = []
    for ids in leaving:
        part = await aggregates.insert(tx, model, cluster.project_id)
        await aggregates.place(tx, model, [(each, part) for each in ids], cluster.id)
        made.append(part)
    await aggregates.doubt(tx, [cluster.id])
    return made


async def _move(tx: Tx, model: str, moves: Sequence[tuple[MemoryId, int, int]]) -> int:
    """Rows change over, as far as their old and new clusters stand; both become dirty."""
    if not moves:
        return 0
    ids = {each for _, old, new in moves for each in (old, new)}
    clean = set(await aggregates.lock(tx, ids))
    by_old: dict[int, list[tuple[MemoryId, int]]] = defaultdict(list)
    for memory_id, old, new in moves:
        if old in clean and new in clean:
            by_old[old].append((memory_id, new))
    moved = 0
    for old in sorted(by_old):
        moved += await aggregates.place(tx, model, by_old[old], old)
    if by_old:
        await aggregates.doubt(tx, {*by_old, *(new for rows in by_old.values() for _, new in rows)})
    return moved


def _plan_placing(rows: Sequence[Row], standing: Sequence[Cluster]) -> tuple[list[int], int]:
    vectors = _stack(rows)
    centroids = (
        np.stack([each.centroid for each in standing])
        if standing
        else np.empty((0, vectors.shape[1]), np.float32)
    )
    chosen, new = grouping.plan_placing(vectors, centroids)
    return chosen.tolist(), new


def _plan_refining(
    part: Sequence[Cluster],
    groups: Mapping[ProjectId | None, Sequence[Cluster]],
    members: Mapping[int, Sequence[Row]],
) -> list[tuple[MemoryId, int, int]]:
    """Which members go from which cluster to which, for `_move`."""
    moves: list[tuple[MemoryId, int, int]] = []
    matrices = {
        each: grouping.units(np.stack([one.centroid for one in groups[each]]))
        for each in {one.project_id for one in part}
    }
    for cluster in part:
        rows, group = members.get(cluster.id, ()), groups[cluster.project_id]
        if not rows or len(group) < 2:
            continue
        order = np.argsort(-(matrices[cluster.project_id] @ cluster.centroid))[:AROUND]
        near = {group[place].id: group[place].centroid for place in order.tolist()}
        near[cluster.id] = cluster.centroid
        targets = grouping.plan_moves(
            _stack(rows), [cluster.id] * len(rows), near, gain=GAIN, fewest=FEWEST
        )
        moves += [(rows[place].memory_id, cluster.id, to) for place, to in targets.items()]
    return moves


def _around(fresh: Sequence[Cluster], group: Sequence[Cluster]) -> list[Cluster]:
    """The fresh clusters and those nearest to them."""
    matrix = grouping.units(np.stack([each.centroid for each in group]))
    chosen = {each.id: each for each in fresh}
    for cluster in fresh:
        scores = matrix @ cluster.centroid
        for place in np.argsort(-scores)[: NEIGHBOURS + 1]:
            chosen[group[int(place)].id] = group[int(place)]
    return list(chosen.values())


def _stack(rows: Sequence[Row]) -> grouping.Floats:
    return np.stack([row.vector for row in rows])
