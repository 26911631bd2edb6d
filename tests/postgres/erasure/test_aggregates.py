"""Erasing an input of clusters and aggregates: what they told of it goes before the certificate."""

from __future__ import annotations

import numpy as np
import trio

from erasure import requests
from node.memory.cold import ColdTier
from node.workers.consolidation import Consolidation
from storage import aggregates
from tests.support.erasure_nodes import (
    MODEL,
    ErasureNode,
    add_agent,
    agent,
    counts,
    join,
    predicate,
    project,
    remember,
    request,
    vector_of,
)

LIMIT = 60
K_MIN = 5


def worker(node: ErasureNode, owner: bytes, cold: ColdTier | None = None) -> Consolidation:
    return Consolidation(
        node.ctx.node,
        node.db,
        cold or ColdTier(),
        MODEL,
        owner=lambda: owner,
        k_min=lambda: K_MIN,
    )


async def test_es_07_no_answer_score_or_summary_carries_an_erased_fact(
    origin: ErasureNode,
) -> None:
    with trio.fail_after(LIMIT):
        p1 = await join([origin])
        a1, a2 = await add_agent(origin, "a1", p1), await add_agent(origin, "a2", p1)
        for number in range(8):
            await remember(origin, a1, f"fact F of a1, {number}", p1, seed=number)
            await remember(origin, a2, f"note of a2, {number}", p1, seed=100 + number)
        consolidation = worker(origin, a2)
        await consolidation.tick()
        assert await origin.one("SELECT count(*) FROM memories WHERE kind = 'l1'") > 0

        done = await requests.erase(origin.ctx, request(agent(a1)))
        await consolidation.tick()

        assert done.state == "closed"
        assert await origin.one("SELECT count(*) FROM memories WHERE content LIKE '%fact F%'") == 0
        clean, dirty = await origin.db.read(aggregates.routing, MODEL)
        assert dirty == []
        for cluster in clean:
            rows = await origin.db.read(aggregates.members, [cluster.id])
            mean = np.stack([row.vector for row in rows]).mean(axis=0, dtype=np.float64)
            np.testing.assert_allclose(cluster.centroid, mean, atol=1e-5)
        for text in await origin.sql("SELECT content FROM memories WHERE kind = 'l1'"):
            assert text["content"].startswith("note of a2")


async def test_es_16_what_was_derived_goes_or_is_computed_again_and_is_counted(
    origin: ErasureNode,
) -> None:
    with trio.fail_after(LIMIT):
        p1, p2 = await join([origin], "p1"), await join([origin], "p2")
        a1, a2 = await add_agent(origin, "a1", p1), await add_agent(origin, "a2", p1)
        for number in range(6):
            await remember(origin, a1, f"of a1, {number}", p1, seed=number)
            await remember(origin, a2, f"of a2 elsewhere, {number}", p2, seed=number)
        await worker(origin, a2).tick()
        others = await origin.one(
            "SELECT count(*) FROM memories WHERE kind = 'l1' AND project_id = $1", p2
        )
        derived = await origin.one(
            "SELECT count(*) FROM memories WHERE kind = 'l1' AND project_id = $1", p1
        )
        assert derived > 0
        assert others > 0

        done = await requests.erase(origin.ctx, request(agent(a1)))

        tiers = predicate(done.certificate)["tiers"]
        assert tiers["agg.l1"]["dropped"] == derived
        assert await origin.one("SELECT count(*) FROM memories WHERE kind = 'l1'") == others
        assert await origin.one("SELECT count(*) FROM clusters WHERE project_id = $1", p1) == 0


async def test_es_21_a_lost_input_leaves_no_old_centroid_and_too_few_survivors_no_aggregate(
    origin: ErasureNode,
) -> None:
    with trio.fail_after(LIMIT):
        p1 = await join([origin])
        a1, a2 = await add_agent(origin, "a1", p1), await add_agent(origin, "a2", p1)
        for number in range(2):
            await remember(origin, a1, f"of a1, {number}", p1, seed=1)
        for number in range(4):
            await remember(origin, a2, f"of a2, {number}", p1, seed=2)
        cold = ColdTier()
        consolidation = worker(origin, a2, cold)
        await consolidation.tick()
        (before,) = await origin.sql("SELECT centroid::text AS old, size FROM clusters")
        assert before["size"] == 6
        aggregate = await origin.one("SELECT id FROM memories WHERE kind = 'l1'")

        async def regrouped() -> None:
            await cold.refresh(origin.db, MODEL)

        origin.ctx.regrouped = regrouped
        await requests.erase(origin.ctx, request(agent(a1)))

        (after,) = await origin.sql("SELECT centroid::text AS new, size, dirty FROM clusters")
        assert (after["size"], after["dirty"]) == (4, False)
        assert after["new"] != before["old"]
        assert cold.routes.near(vector_of(2), None, 1_000)
        await consolidation.tick()
        assert await origin.one("SELECT count(*) FROM memories WHERE kind = 'l1'") == 0
        assert (
            await origin.one("SELECT count(*) FROM memory_history WHERE memory_id = $1", aggregate)
            == 0
        )
        assert (
            await origin.one("SELECT count(*) FROM embeddings WHERE memory_id = $1", aggregate) == 0
        )


async def test_erasing_a_project_leaves_none_of_its_clusters(origin: ErasureNode) -> None:
    with trio.fail_after(LIMIT):
        p1 = await join([origin])
        a1 = await add_agent(origin, "a1", p1)
        for number in range(6):
            await remember(origin, a1, f"of p1, {number}", p1, seed=number)
        await worker(origin, a1).tick()
        done = await requests.erase(origin.ctx, request(project(p1)))
        assert counts(done.certificate)["agg.l1"] == 1
        assert await origin.one("SELECT count(*) FROM clusters") == 0
        assert await origin.one("SELECT count(*) FROM memories") == 0
