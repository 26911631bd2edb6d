"""Random histories of three nodes: in the end each holds what it wants and nothing forgotten.

`SEED=n` replays one history.
"""

from __future__ import annotations

import os
import random

import pytest

from gossip.affinity import quantised
from storage.model import AgentProfile, MemoryId
from tests.support.memory import lit
from tests.support.mesh import MeshNode, Town, until

TOPICS = ("roses garden soil", "boats harbour wind", "bread oven flour")
STEPS = 30
SEEDS = [int(os.environ["SEED"])] if "SEED" in os.environ else [11, 29]


class History:
    """What happened so far, and what must be true in the end."""

    def __init__(self, seed: int, nodes: list[MeshNode], agents: list[AgentProfile]) -> None:
        self.rng = random.Random(seed)
        self.nodes = nodes
        self.agents = agents
        self.live: dict[MemoryId, tuple[int, bytes]] = {}
        self.forgotten: set[MemoryId] = set()
        self.log: list[str] = []

    async def step(self, n: int) -> None:
        place = self.rng.randrange(3)
        node = self.nodes[place]
        what = self.rng.choice(("remember", "remember", "remember", "forget", "forget", "power"))
        self.log.append(f"{what} {place}")
        if what == "power":
            if node.running:
                await node.stop()
            else:
                await node.start(down_ms=self.rng.choice((0, 3_600_000)))
        elif not node.running:
            return
        elif what == "remember":
            text = f"{self.rng.choice(TOPICS)} number {n}"
            memory = await node.remember(self.agents[place], text)
            q8 = await node.value(f"SELECT q8 FROM diffs WHERE memory_id = {lit(memory.id)}")
            self.live[memory.id] = (place, q8)
        else:
            mine = sorted(key for key, (home, _) in self.live.items() if home == place)
            if mine:
                chosen = self.rng.choice(mine)
                await node.forget(self.agents[place], chosen)
                del self.live[chosen]
                self.forgotten.add(chosen)

    def expected(self, place: int) -> set[MemoryId]:
        """What a node must hold: its own, and what its profile wants of the others'."""
        profile = self.nodes[place].mesh.own_profile
        assert profile is not None
        return {
            memory_id
            for memory_id, (home, q8) in self.live.items()
            if home == place or profile.wants(quantised(q8))
        }


@pytest.mark.parametrize("seed", SEEDS)
async def test_after_any_history_each_node_holds_what_it_wants_and_nothing_forgotten(
    town: Town, seed: int
) -> None:
    print(f"SEED={seed}")
    nodes = [await town.node(name) for name in "abc"]
    project = await town.join("p", *nodes)
    agents = [
        await node.agent(f"agent {n}", topic, project)
        for n, (node, topic) in enumerate(zip(nodes, TOPICS, strict=True))
    ]
    history = History(seed, nodes, agents)
    for n in range(STEPS):
        await history.step(n)
    for node in nodes:
        if not node.running:
            await node.start()

    async def settled() -> bool:
        lives = [await node.live() for node in nodes]
        return all(lives[place] == history.expected(place) for place in range(3))

    await until(settled, f"SEED={seed}: every node holds what it wants; {history.log}")
    for node in nodes:
        for memory_id in sorted(history.forgotten):
            await until(lambda i=memory_id, n=node: _clean(n, i), f"SEED={seed}: no trace")  # type: ignore[misc]
        assert node.count("energy_violation_total") == 0
        assert node.count("session_failed_total") == 0
    assert all(not node.mesh.quarantined() for node in nodes)


async def _clean(node: MeshNode, memory_id: MemoryId) -> bool:
    """Nothing is left; bodies in memory go with the next sweep."""
    return await node.traces(memory_id) == 0
