"""What this node's agents care about, as gossip advertises it."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
from numpy.typing import NDArray

from gossip.mesh import Interests
from gossip.profile import MAX_ENTRIES, Interest
from storage import aggregates, memories
from storage.local import LocalNode
from storage.model import AgentId, AgentProfile, MemoryId
from storage.pool import Database, Tx

MEAN_OF = 500
SETTLED = timedelta(hours=1)
SAMPLE = 512


async def interests(
    db: Database, node: LocalNode, model: str, agents: list[AgentProfile], k_min: int
) -> Interests:
    """One position for each agent: the mean of its own newest memories, or before it owns
    `k_min` of them the vector of its description. Then the aggregates that have been as they are
    for an hour, so that a profile does not follow every new memory."""
    return await db.read(_interests, node, model, agents, k_min)


async def positions(
    db: Database, node: LocalNode, model: str, agents: list[AgentProfile], k_min: int
) -> dict[AgentId, NDArray[np.float32]]:
    """Where each agent stands that has a position, whether the mesh is told of it or not."""
    found = await db.read(_positions, node, model, agents, k_min)
    return {agent_id: vector for agent_id, (_, vector) in found.items()}


async def _interests(
    tx: Tx, node: LocalNode, model: str, agents: list[AgentProfile], k_min: int
) -> Interests:
    told = [agent for agent in agents if agent.project_id is not None]
    found = await _positions(tx, node, model, told, k_min)
    settled = await aggregates.for_profile(
        tx, model, node.node_id, k_min, node.wall() - SETTLED, MAX_ENTRIES
    )
    heaviest = max((each.mass for each in settled), default=1.0)
    return Interests(
        tuple(found.values()),
        await memories.sample_vectors(tx, model, SAMPLE),
        tuple(
            Interest(each.memory_id, each.kind, each.centroid, each.mass / heaviest)
            for each in settled
            if np.linalg.norm(each.centroid) > 0
        ),
    )


async def _positions(
    tx: Tx, node: LocalNode, model: str, agents: list[AgentProfile], k_min: int
) -> dict[AgentId, tuple[MemoryId, NDArray[np.float32]]]:
    found: dict[AgentId, tuple[MemoryId, NDArray[np.float32]]] = {}
    for agent in agents:
        own = await memories.agent_vectors(tx, agent.id, model, node.node_id, MEAN_OF)
        position = await memories.position_of(tx, agent.id)
        described = (
            await memories.with_vectors(tx, [position.id], model) if position is not None else []
        )
        if len(own) >= k_min:
            mean = np.stack(own).mean(axis=0, dtype=np.float64).astype(np.float32)
            key = position.id if position is not None else agent.id
            if np.linalg.norm(mean) > 0:
                found[agent.id] = (key, np.asarray(mean, dtype=np.float32))
        elif described:
            found[agent.id] = (described[0].memory.id, described[0].vector)
    return found
