"""Clusters of near memories, what stands for them, and that a lost input takes both along."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import trio
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, generate_latest

from node.memory import forget as ending
from node.memory.cold import ENOUGH
from node.memory.drafts import Draft
from node.memory.remember import Remembered, remember_batch
from node.telemetry.metrics import HotMetrics, Metrics, build_metrics
from node.workers import consolidation as consolidating
from node.workers.consolidation import Consolidation
from storage import aggregates
from storage.model import AgentProfile, Memory, MemoryId, ProjectId, ReadPolicy, Visibility
from storage.pool import Tx
from tests.support.memory import World, lit

TOPICS = 4
PER_TOPIC = 12
K_MIN = 5


def worker(
    world: World, owner: AgentProfile, k_min: int = K_MIN, metrics: HotMetrics | None = None
) -> Consolidation:
    return Consolidation(
        world.node,
        world.db,
        world.context.cold,
        world.context.embedder.model_id,
        owner=lambda: owner.id,
        k_min=lambda: k_min,
        metrics=metrics,
    )


def around(topic: int, number: int) -> NDArray[np.float32]:
    """A vector near the middle of its topic."""
    middle = np.random.default_rng(topic).standard_normal(64)
    noise = np.random.default_rng(1_000 * (topic + 1) + number).standard_normal(64)
    vector = middle / np.linalg.norm(middle) + 0.3 * noise / np.linalg.norm(noise)
    return (vector / np.linalg.norm(vector)).astype(np.float32)


async def topics(
    world: World,
    agent: AgentProfile,
    project_id: ProjectId | None = None,
    numbers: Sequence[int] = range(PER_TOPIC),
    visibility: Visibility = Visibility.GLOBAL,
) -> list[list[Memory]]:
    """Memories around some middles."""
    drafts = [
        Draft(
            content=f"{agent.name} note {number} of topic {topic}",
            agent_id=agent.id,
            vector=around(topic, number),
            project_id=project_id,
            visibility=visibility,
        )
        for topic in range(TOPICS)
        for number in numbers
    ]
    stored = []
    for done in await remember_batch(world.context, drafts):
        assert isinstance(done, Remembered)
        stored.append(done.memory)
    return [stored[place : place + len(numbers)] for place in range(0, len(stored), len(numbers))]


async def cluster_of(world: World, memory_id: MemoryId) -> int | None:
    value: int | None = await world.value(
        f"SELECT cluster_id FROM embeddings WHERE memory_id = {lit(memory_id)}"
    )
    return value


async def centroids(world: World) -> dict[int, NDArray[np.float32]]:
    clean, _ = await world.db.read(aggregates.routing, world.context.embedder.model_id)
    return {each.id: each.centroid for each in clean}


async def mean_of(world: World, cluster_id: int) -> NDArray[np.float32]:
    rows = await world.db.read(aggregates.members, [cluster_id])
    mean = np.stack([row.vector for row in rows]).mean(axis=0, dtype=np.float64)
    return np.asarray(mean, np.float32)


async def test_every_cell_gets_a_cluster_and_each_centroid_is_the_mean_of_its_members(
    world: World,
) -> None:
    a1 = await world.agent("a1")
    await topics(world, a1)
    await worker(world, a1).tick()
    assert (
        await world.value(
            "SELECT count(*) FROM embeddings e JOIN memories m ON m.id = e.memory_id"
            " WHERE m.kind = 'cell' AND cluster_id IS NULL"
        )
        == 0
    )
    for cluster_id, centroid in (await centroids(world)).items():
        np.testing.assert_allclose(centroid, await mean_of(world, cluster_id), atol=1e-5)


async def test_a_group_that_grows_is_cut_and_near_memories_share_a_cluster(world: World) -> None:
    a1 = await world.agent("a1")
    consolidation = worker(world, a1)
    for first in range(0, 48, 16):
        await topics(world, a1, numbers=range(first, first + 16))
        await consolidation.tick()
    while (await consolidation.tick()).split:
        continue
    sizes = await world.rows(
        "SELECT count(*) FROM embeddings WHERE cluster_id > 0 GROUP BY cluster_id"
    )
    assert len(sizes) > 1
    assert sum(row[0] for row in sizes) == TOPICS * 48
    assert max(row[0] for row in sizes) <= 128


async def test_a_new_cell_gets_its_nearest_cluster_at_insert(world: World) -> None:
    a1 = await world.agent("a1")
    rows = await topics(world, a1, numbers=range(60))
    await worker(world, a1).tick()
    new = await world.store(a1, "one more of topic 2", vector=around(2, 999))
    assert await cluster_of(world, new.id) == await cluster_of(world, rows[2][0].id)


async def test_a_cluster_that_is_gone_at_insert_counts_as_none(world: World) -> None:
    a1 = await world.agent("a1")
    await topics(world, a1)
    await worker(world, a1).tick()
    await world.change("UPDATE embeddings SET cluster_id = NULL")
    await world.change("DELETE FROM clusters")
    new = await world.store(a1, "late", vector=around(1, 999))
    assert await cluster_of(world, new.id) is None


async def test_members_that_are_nearer_to_another_cluster_change_over(world: World) -> None:
    a1 = await world.agent("a1")
    rows = await topics(world, a1, numbers=range(60))
    consolidation = worker(world, a1)
    while (done := await consolidation.tick()).split or done.moved:
        world.pass_time(seconds=60)
    home, abroad = [await cluster_of(world, rows[topic][0].id) for topic in (0, 1)]
    assert home != abroad
    lost = [row.id for row in rows[0][:5]]
    ids = ", ".join(lit(memory_id) for memory_id in lost)
    await world.change(f"UPDATE embeddings SET cluster_id = {abroad} WHERE memory_id IN ({ids})")
    await world.change(f"SELECT doubt_clusters(ARRAY[{home}, {abroad}])")
    world.pass_time(seconds=60)
    assert (await consolidation.tick()).moved == len(lost)
    assert {await cluster_of(world, memory_id) for memory_id in lost} == {home}


async def test_global_cells_of_a_project_get_a_text_of_one_of_them_and_others_do_not(
    world: World,
) -> None:
    project = await world.project("team")
    a1 = await world.agent("a1", project_id=project)
    shared = await topics(world, a1, project)
    await topics(world, a1, project, range(100, 108), Visibility.PRIVATE)
    await topics(world, a1, None, range(200, 208))
    await worker(world, a1).tick()
    aggregates_ = await world.rows(
        "SELECT content, project_id, agent_id FROM memories WHERE kind = 'l1'"
    )
    texts = {memory.content for topic in shared for memory in topic}
    assert aggregates_
    assert all(row["content"] in texts for row in aggregates_)
    assert {row["project_id"] for row in aggregates_} == {project}
    mixed = await world.value(
        "SELECT count(*) FROM embeddings e JOIN memories m ON m.id = e.memory_id"
        " JOIN clusters c ON c.cluster_id = e.cluster_id"
        " WHERE c.memory_id IS NOT NULL AND (m.visibility <> 'global' OR m.project_id IS NULL)"
    )
    assert mixed == 0


async def test_aggregates_are_not_announced_nor_found_nor_listed_nor_resident(
    world: World,
) -> None:
    project = await world.project("team")
    a1 = await world.agent("a1", project_id=project)
    await topics(world, a1, project)
    announced = await world.value("SELECT count(*) FROM diffs")
    await worker(world, a1).tick()
    (text, aggregate_id), *_ = await world.rows(
        "SELECT content, id FROM memories WHERE kind = 'l1'"
    )
    assert await world.value("SELECT count(*) FROM diffs") == announced
    assert aggregate_id not in await world.found(a1, text, limit=50)
    await world.restart()
    assert aggregate_id not in world.graph
    assert not world.context.residency.has_cold


async def test_a_pass_places_no_more_rows_than_its_bound_and_the_next_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    a1 = await world.agent("a1")
    await topics(world, a1)
    unplaced = "SELECT count(*) FROM embeddings WHERE cluster_id IS NULL"
    rows = await world.value(unplaced)
    monkeypatch.setattr(consolidating, "PLACED", 20)
    consolidation = worker(world, a1)
    assert (await consolidation.tick()).placed == 20
    assert await world.value(unplaced) == rows - 20
    while (await consolidation.tick()).placed:
        continue
    assert await world.value(unplaced) == 0


async def test_lineage_leads_from_a_memory_to_what_stands_for_it_and_back(world: World) -> None:
    project = await world.project("team")
    a1 = await world.agent("a1", project_id=project)
    stored = await many(world, a1, project)
    await worker(world, a1).tick()
    up = await world.rows(
        "SELECT e.memory_id, low.memory_id AS l1, high.memory_id AS l2, high.cluster_id"
        " FROM embeddings e JOIN clusters low ON low.cluster_id = e.cluster_id"
        " JOIN clusters high ON high.cluster_id = low.parent_id"
    )
    assert {row["memory_id"] for row in up} <= {memory.id for memory in stored}
    kinds = dict(
        [
            tuple(row)
            for row in await world.rows("SELECT id, kind FROM memories WHERE kind LIKE 'l_'")
        ]
    )
    assert {kinds[row["l1"]] for row in up} == {"l1"}
    assert {kinds[row["l2"]] for row in up} == {"l2"}
    for high in {row["cluster_id"] for row in up}:
        below = await world.db.read(aggregates.children, high)
        down = await world.db.read(aggregates.members, below)
        assert {row.memory_id for row in down} == {
            row["memory_id"] for row in up if row["cluster_id"] == high
        }


async def test_members_are_marked_as_consolidated(world: World) -> None:
    project = await world.project("team")
    a1 = await world.agent("a1", project_id=project)
    await topics(world, a1, project)
    await worker(world, a1).tick()
    assert (
        await world.value("SELECT count(*) FROM diff_marks WHERE mark = 'consolidated'")
        == TOPICS * PER_TOPIC
    )


async def test_fewer_than_k_min_inputs_get_no_text(world: World) -> None:
    project = await world.project("team")
    a1 = await world.agent("a1", project_id=project)
    await topics(world, a1, project, range(1))
    await worker(world, a1).tick()
    assert await world.value("SELECT count(*) FROM clusters") > 0
    assert await world.value("SELECT count(*) FROM memories WHERE kind = 'l1'") == 0


@pytest.mark.parametrize("how", ["forget", "delete", "supersede", "hide"])
async def test_a_lost_input_takes_text_and_parents_along_in_its_own_transaction(
    world: World, how: str
) -> None:
    project = await world.project("team")
    a1 = await world.agent("a1", project_id=project)
    rows = await many(world, a1, project)
    await worker(world, a1).tick()
    assert await world.value("SELECT count(*) FROM memories WHERE kind = 'l2'") > 0
    victim = rows[0]
    cluster = await cluster_of(world, victim.id)
    if how == "forget":
        await ending.forget(world.context, a1, [victim.id])
    elif how == "delete":
        await ending.soft_delete(world.context, a1, [victim.id])
    elif how == "supersede":
        await world.change(
            f"UPDATE memories SET superseded_by = {lit(rows[1].id)}, superseded_at = now()"
            f" WHERE id = {lit(victim.id)}"
        )
    else:
        await world.change(
            f"UPDATE memories SET visibility = 'private' WHERE id = {lit(victim.id)}"
        )
    state = await world.rows(
        f"SELECT dirty, memory_id FROM clusters WHERE cluster_id = {cluster}"
        f" OR cluster_id = (SELECT parent_id FROM clusters WHERE cluster_id = {cluster})"
    )
    assert [tuple(row) for row in state] == [(True, None), (True, None)]
    assert (
        await world.value(
            "SELECT count(*) FROM memories m WHERE kind IN ('l1', 'l2') AND"
            " NOT EXISTS (SELECT FROM clusters c WHERE c.memory_id = m.id)"
        )
        == 0
    )
    await worker(world, a1).tick()
    assert await world.value("SELECT count(*) FROM clusters WHERE dirty") == 0
    if cluster in (found := await centroids(world)) and cluster is not None:
        survivors = await world.db.read(aggregates.members, [cluster])
        assert victim.id not in {row.memory_id for row in survivors}
        np.testing.assert_allclose(found[cluster], await mean_of(world, cluster), atol=1e-5)


async def many(world: World, agent: AgentProfile, project_id: ProjectId) -> list[Memory]:
    """Enough memories for several clusters."""
    rows = await topics(world, agent, project_id, range(80))
    return [memory for topic in rows for memory in topic]


async def test_an_untouched_second_level_becomes_a_beacon_and_promotes_its_inputs(
    world: World,
) -> None:
    project = await world.project("team")
    a1 = await world.agent("a1", project_id=project)
    await many(world, a1, project)
    consolidation = worker(world, a1)
    await consolidation.tick()
    second = await world.value("SELECT count(*) FROM memories WHERE kind = 'l2'")
    world.pass_time(hours=25)
    done = await consolidation.tick()
    assert second > 0
    assert done.beacons == second
    assert await world.value("SELECT count(*) FROM memories WHERE kind = 'beacon'") == second
    assert await world.value("SELECT count(*) FROM diff_marks WHERE mark = 'promoted'") > 0


async def test_a_pass_over_what_is_settled_changes_nothing(world: World) -> None:
    project = await world.project("team")
    a1 = await world.agent("a1", project_id=project)
    await many(world, a1, project)
    consolidation = worker(world, a1)
    for _ in range(3):
        await consolidation.tick()
    before = await world.rows(
        "SELECT cluster_id, centroid::text, memory_id FROM clusters ORDER BY 1"
    )
    done = await consolidation.tick()
    assert (done.placed, done.split, done.texts, done.parents) == (0, 0, 0, 0)
    after = await world.rows(
        "SELECT cluster_id, centroid::text, memory_id FROM clusters ORDER BY 1"
    )
    assert [tuple(row) for row in after] == [tuple(row) for row in before]


async def test_what_came_after_the_last_pass_is_found_before_the_next(world: World) -> None:
    a1 = await world.agent("a1", ReadPolicy.SHARED)
    await topics(world, a1, numbers=range(60))
    cold = world.context.cold
    cold.exact_rows = 0
    cold.budget = 1
    await worker(world, a1).tick()
    world.context.residency.has_cold = True
    world.graph.hide([resident.id for resident in world.graph.residents()])
    new = await world.store(a1, "quite new", vector=around(3, 500))
    world.graph.hide([new.id])
    answer = await world.recall(a1, "", vector=around(3, 500), limit=1)
    assert [(hit.memory.id, hit.tier) for hit in answer.hits] == [(new.id, "cold")]


async def test_members_of_a_dirty_cluster_are_found(world: World) -> None:
    a1 = await world.agent("a1", ReadPolicy.SHARED)
    rows = await topics(world, a1, numbers=range(60))
    cold = world.context.cold
    cold.exact_rows, cold.budget = 0, 1
    await worker(world, a1).tick()
    await ending.forget(world.context, a1, [rows[0][0].id])
    await cold.refresh(world.db, world.context.embedder.model_id)
    assert cold.routes.dirty
    world.graph.hide([resident.id for resident in world.graph.residents()])
    world.context.residency.has_cold = True
    answer = await world.recall(a1, "", vector=around(0, 1), limit=1)
    assert [hit.memory.id for hit in answer.hits] == [rows[0][1].id]


def shown(metrics: Metrics, name: str) -> float | None:
    """A value as Prometheus reads it."""
    lines = generate_latest(metrics.registry).decode().splitlines()
    values = [line.split()[1] for line in lines if line.split()[0] == name]
    return float(values[0]) if values else None


async def test_the_self_test_is_a_metric_and_a_low_recall_raises_the_budget(world: World) -> None:
    a1 = await world.agent("a1", ReadPolicy.SHARED)
    rng = np.random.default_rng(5)
    drafts = [
        Draft(f"far apart {number}", a1.id, vector=rng.standard_normal(64).astype(np.float32))
        for number in range(500)
    ]
    await remember_batch(world.context, drafts)
    metrics, cold = build_metrics(CollectorRegistry()), world.context.cold
    cold.exact_rows, cold.budget = 0, 10
    consolidation = worker(world, a1, metrics=metrics.hot)
    await consolidation.tick()
    first = shown(metrics, "mnemesh_hot_measured_recall")
    assert first == cold.measured_recall
    assert first is not None
    assert first < ENOUGH
    while cold.budget == 10:
        await consolidation.tick()
        assert shown(metrics, "mnemesh_hot_row_budget") == cold.budget
    assert cold.budget == 15


async def test_no_self_test_is_no_recall_of_zero(world: World) -> None:
    a1 = await world.agent("a1")
    metrics = build_metrics(CollectorRegistry())
    await worker(world, a1, metrics=metrics.hot).tick()
    recall = shown(metrics, "mnemesh_hot_measured_recall")
    assert recall is not None
    assert math.isnan(recall)
    assert shown(metrics, "mnemesh_hot_row_budget") == world.context.cold.budget


async def test_a_small_scope_is_compared_whole(world: World) -> None:
    a1 = await world.agent("a1")
    a2 = await world.agent("a2")
    await topics(world, a1, numbers=range(60))
    mine = await world.store(a2, "the only one", vector=around(0, 700))
    await worker(world, a1).tick()
    cold = world.context.cold
    cold.exact_rows, cold.budget = 10, 1
    world.graph.hide([resident.id for resident in world.graph.residents()])
    world.context.residency.has_cold = True
    answer = await world.recall(a2, "", vector=-around(0, 700), limit=5, superseded=True)
    answer = await world.recall(a2, "", vector=around(3, 1), limit=5)
    assert {hit.memory.id for hit in answer.hits} <= {mine.id}


async def test_es_09_consolidation_gives_up_texts_of_an_erased_scope(world: World) -> None:
    project = await world.project("team")
    a1 = await world.agent("a1", project_id=project)
    await topics(world, a1, project)

    async def close(tx: Tx) -> None:
        await world.node.gate.for_write(tx, a1.id, project)

    await world.db.transact(close)
    await world.change(
        f"UPDATE scopes SET closed_epoch = 1, open_epoch = NULL WHERE ext_id = {lit(a1.id)}"
    )
    done = await worker(world, a1).tick()
    assert (done.placed, done.texts) == (0, 0)
    assert await world.value("SELECT count(*) FROM clusters") == 0


async def test_forgetting_storing_and_consolidating_at_once_end_in_true_centroids(
    world: World,
) -> None:
    project = await world.project("team")
    a1 = await world.agent("a1", project_id=project)
    rows = await many(world, a1, project)
    consolidation = worker(world, a1)

    async def forget() -> None:
        for start in range(0, 90, 9):
            await ending.forget(world.context, a1, [row.id for row in rows[start : start + 9]])

    async def store() -> None:
        for number in range(30):
            await world.store(
                a1, f"late {number}", vector=around(number % 4, 800 + number), project_id=project
            )

    async def consolidate() -> None:
        for _ in range(4):
            await consolidation.tick()

    async with trio.open_nursery() as nursery:
        for work in (forget, store, consolidate):
            nursery.start_soon(work)
    await consolidation.tick()
    assert await world.value("SELECT count(*) FROM clusters WHERE dirty") == 0
    for cluster_id, centroid in (await centroids(world)).items():
        members = await world.db.read(aggregates.members, [cluster_id])
        if len(members) == await world.value(
            f"SELECT size FROM clusters WHERE cluster_id = {cluster_id}"
        ):
            np.testing.assert_allclose(centroid, await mean_of(world, cluster_id), atol=1e-5)
    forgotten = {row.content for row in rows[:90]}
    texts = await world.rows("SELECT content FROM memories WHERE kind <> 'cell'")
    assert not forgotten & {row["content"] for row in texts}


async def test_a_text_that_is_forgotten_itself_is_written_anew(world: World) -> None:
    project = await world.project("team")
    a1 = await world.agent("a1", project_id=project)
    await topics(world, a1, project)
    consolidation = worker(world, a1)
    await consolidation.tick()
    old = await world.value("SELECT id FROM memories WHERE kind = 'l1'")
    await ending.forget(world.context, a1, [old])
    assert await world.value("SELECT count(*) FROM clusters WHERE memory_id IS NOT NULL") == 0
    await consolidation.tick()
    assert await world.value("SELECT id FROM memories WHERE kind = 'l1'") != old


async def test_a_memory_that_expires_lends_its_text_to_nothing(world: World) -> None:
    project = await world.project("team")
    a1 = await world.agent("a1", project_id=project)
    await topics(world, a1, project)
    await world.change("UPDATE memories SET expires_at = now() + interval '1 year'")
    await worker(world, a1).tick()
    assert await world.value("SELECT count(*) FROM memories WHERE kind = 'l1'") == 0
