"""Cold rows that routing leads to are judged as a comparison of all rows judges them."""

from __future__ import annotations

import random

import numpy as np
import pytest
from numpy.typing import NDArray

from node.workers.consolidation import Consolidation
from storage import memories
from storage.model import Memory, MemoryId, MemoryKind, Reader, ReadPolicy
from storage.pool import Tx
from tests.postgres.test_memory_visibility import a_reader, a_row
from tests.support.memory import START, World

ROWS = 300
LIMIT = 10


def direction(rng: np.random.Generator, dimension: int) -> NDArray[np.float32]:
    """A unit vector, rounded as the tables keep it."""
    vector = rng.standard_normal(dimension)
    return np.asarray(vector / np.linalg.norm(vector), np.float16).astype(np.float32)


async def fill(world: World, seed: int) -> list[Memory]:
    """Rows of any kind, owner and visibility, with vectors, in clusters."""
    chance, rng = random.Random(seed), np.random.default_rng(seed)
    rows = [a_row(chance, number, world.node.node_id) for number in range(1, ROWS + 1)]
    embedder = world.context.embedder

    async def store(tx: Tx) -> None:
        for row in rows:
            await memories.insert(tx, row)
            await memories.insert_vector(
                tx, row, embedder.model_id, direction(rng, embedder.dimension)
            )

    await world.db.transact(store)
    await world.change("UPDATE memories SET superseded_by = id WHERE get_byte(id, 15) % 5 = 0")
    owner = await world.agent("owner")
    consolidation = Consolidation(
        world.node,
        world.db,
        world.context.cold,
        embedder.model_id,
        owner=lambda: owner.id,
        k_min=lambda: ROWS,
    )
    while (await consolidation.tick()).placed:
        continue
    assert len(world.context.cold.routes) > 1
    return rows


async def routed(
    world: World, vector: NDArray[np.float32], reader: Reader, *known: MemoryId
) -> list[MemoryId] | None:
    """Among the rows of nearly all clusters; None when all have to be compared after all."""
    cold = world.context.cold
    cold.exact_rows, cold.budget = 0, ROWS - 1
    found = await world.db.read(
        cold._nearest,
        vector,
        world.context.embedder.model_id,
        reader,
        START,
        LIMIT,
        frozenset(),
        False,
        known,
    )
    return None if found is None else [each.memory.id for each in found]


async def compared(world: World, vector: NDArray[np.float32], reader: Reader) -> list[MemoryId]:
    found = await world.db.read(
        memories.search_vectors,
        vector,
        world.context.embedder.model_id,
        reader,
        START,
        limit=LIMIT,
        superseded=False,
    )
    return [each.memory.id for each in found]


@pytest.mark.parametrize("seed", range(2))
async def test_routing_to_all_clusters_finds_what_comparing_all_finds(
    world: World, seed: int
) -> None:
    await fill(world, seed)
    chance, rng, complete = random.Random(seed), np.random.default_rng(seed + 50), 0
    for _ in range(60):
        reader, vector = a_reader(chance), direction(rng, world.context.embedder.dimension)
        found = await routed(world, vector, reader)
        if found is not None:
            complete += 1
            assert found == await compared(world, vector, reader)
    assert complete > 5


async def test_what_the_caller_knows_is_left_out_and_still_counts(world: World) -> None:
    rows = await fill(world, 7)
    await world.change(
        "UPDATE memories SET visibility = 'global', expires_at = NULL, superseded_by = NULL"
    )
    everybody = Reader(
        agent_id=rows[0].agent_id,
        policy=ReadPolicy.SHARED,
        projects=frozenset(row.project_id for row in rows if row.project_id is not None),
    )
    rng = np.random.default_rng(9)
    for _ in range(10):
        vector = direction(rng, world.context.embedder.dimension)
        best = await routed(world, vector, everybody)
        assert best is not None
        assert len(best) == LIMIT
        assert await routed(world, vector, everybody, *best[::2]) == best[1::2]


async def test_positions_of_agents_are_never_among_the_nearest(world: World) -> None:
    rows = await fill(world, 3)
    positions = {row.id for row in rows if row.kind is MemoryKind.AGENT}
    reader = Reader(agent_id=rows[0].agent_id, policy=ReadPolicy.SHARED)
    assert positions
    for number in range(10):
        rng = np.random.default_rng(number)
        found = await routed(world, direction(rng, world.context.embedder.dimension), reader)
        assert positions.isdisjoint(found or ())
