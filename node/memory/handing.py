"""What the node hands to its own agents: who wants a memory, and who waits for one.

A memory that another agent announced, here or elsewhere, is handed to each local agent whose
position is near enough and who may read it: a delivery row in the transaction that stores the
memory. Subscribers read these rows; this module wakes them, and says nothing of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import trio
from numpy.typing import NDArray

from gossip.affinity import Quantised, cos_ppm, quantise, quantised
from node.agents import AgentDirectory
from storage import deliveries, memories
from storage.errors import ScopeErased
from storage.local import LocalNode
from storage.memories import Stored
from storage.model import AgentId, Memory, MemoryKind, Reader
from storage.pool import Tx
from storage.visibility import visible


@dataclass(frozen=True, slots=True, eq=False)
class Announced:
    """A stored memory, its announcement, and its vector as the mesh quantises it."""

    memory: Memory
    diff_id: bytes
    q8: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Standing:
    """An agent of this node: where it stands and what it may read."""

    position: Quantised
    reader: Reader


class HandingDesk:
    """Who may be handed something, and the subscribers that wait for it.

    `threshold` gives the node's own interest threshold in ppm. `hand` runs inside transactions on
    the island, everything else in trio.
    """

    def __init__(
        self, node: LocalNode, agents: AgentDirectory, threshold: Callable[[], int]
    ) -> None:
        self._node = node
        self._agents = agents
        self._threshold = threshold
        self._standing: tuple[Standing, ...] = ()
        self._waiting: dict[AgentId, trio.Event] = {}

    def place(self, positions: Mapping[AgentId, NDArray[np.float32]]) -> None:
        """Take over what the agents care about and may read now, replacing what was known."""
        self._standing = tuple(
            Standing(quantise(positions[agent.id]), self._agents.reader(agent))
            for agent in sorted(self._agents.all(), key=lambda agent: agent.id)
            if agent.id in positions
        )

    def wanting(self, memory: Memory, q: Quantised) -> list[AgentId]:
        """Agents that a memory is handed to, in the order in which they are locked."""
        if memory.kind is MemoryKind.AGENT:
            return []
        resident = memories.resident(memory, self._node.node_id)
        now_ms = int(self._node.wall().timestamp() * 1000)
        threshold = self._threshold()
        return [
            each.reader.agent_id
            for each in self._standing
            if each.reader.agent_id != memory.agent_id
            and each.position.values.size == q.values.size
            and cos_ppm(each.position, q) >= threshold
            and visible(resident, each.reader, now_ms)
        ]

    async def hand(self, tx: Tx, batch: Sequence[Announced]) -> set[AgentId]:
        """Write the delivery rows of what this transaction stored; who gets any.

        Belongs at its end: the agents stay locked until the commit. All are locked first and in
        one order, so that two batches cannot wait for each other. An agent whose scope is closed
        gets nothing.
        """
        wanted = [(one, self.wanting(one.memory, quantised(one.q8))) for one in batch]
        handed = {agent_id for _, wanting in wanted for agent_id in wanting}
        for agent_id in sorted(handed):
            try:
                await self._node.gate.for_write(tx, agent_id, None)
            except ScopeErased:
                handed.discard(agent_id)
        for agent_id in sorted(handed):
            await deliveries.lock_agent(tx, agent_id)
        for one, wanting in wanted:
            project_id = one.memory.project_id
            assert project_id is not None  # what is announced belongs to a project
            for agent_id in wanting:
                if agent_id in handed:
                    await deliveries.record(
                        tx,
                        diff_id=one.diff_id,
                        memory_id=one.memory.id,
                        project_id=project_id,
                        recipient=agent_id,
                        to_agent=True,
                        role="store",
                        status="stored",
                        hlc=self._node.clock.now(),
                        now=self._node.wall(),
                    )
        return handed

    async def hand_copy(self, tx: Tx, memory: Memory, diff_id: bytes, q8: bytes) -> None:
        """`hand` for one memory that a peer brought."""
        await self.hand(tx, [Announced(memory, diff_id, q8)])

    def told(self, agents: Iterable[AgentId]) -> None:
        """Deliveries to these agents were committed."""
        for agent_id in agents:
            waiting = self._waiting.pop(agent_id, None)
            if waiting is not None:
                waiting.set()

    def told_of(self, rows: Iterable[Stored]) -> None:
        """Memories that peers brought were committed."""
        for row in rows:
            self.told(self.wanting(row.memory, quantise(row.vector)))

    def next_delivery(self, agent_id: AgentId) -> trio.Event:
        """Set when something may be there for the agent; ask for it before looking."""
        return self._waiting.setdefault(agent_id, trio.Event())
