"""Watch: what the node handed to an agent, in order, from any place on.

A feed remembers only how far its reader is. The rows are the truth: after a restart of either
side a reader goes on behind the number that it dealt with last, and gets each memory once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import trio

from node.memory.context import MemoryContext
from storage import deliveries
from storage.model import AgentId, AgentProfile, Memory

PAGE: Final = 16
POLL_S: Final = 5.0
"""Seconds after which a feed looks although nobody woke it."""


@dataclass(frozen=True, slots=True)
class Handed:
    """A memory handed to an agent, and the number to resume behind."""

    seq: int
    memory: Memory


class Feed:
    """Deliveries to one agent behind `after`; one reader at a time.

    `agent` gives the agent as it is now and raises when it may no longer read.
    """

    def __init__(
        self, context: MemoryContext, agent: Callable[[], AgentProfile], after: int
    ) -> None:
        self._context = context
        self._agent = agent
        self.after = after

    async def read(self, limit: int, patience_s: float | None = None) -> list[Handed]:
        """The next memories, at least one unless patience runs out first.

        What the agent may not see (any more) is passed over.
        """
        with trio.move_on_after(float("inf") if patience_s is None else patience_s):
            while True:
                agent = self._agent()
                due = self._context.desk.next_delivery(agent.id)
                found, passed = await self._page(agent, min(limit, PAGE))
                if found:
                    return found
                if passed:
                    continue
                with trio.move_on_after(POLL_S):
                    await due.wait()
        return []

    async def _page(self, agent: AgentProfile, limit: int) -> tuple[list[Handed], bool]:
        rows = await self._context.db.read(
            deliveries.handed,
            agent.id,
            self._context.agents.reader(agent),
            self._context.now(),
            after=self.after,
            limit=limit,
        )
        if rows:
            self.after = rows[-1][0]
        visible = [
            Handed(seq, memory)
            for seq, memory in rows
            if memory is not None and not self._context.residency.has_left(memory.id)
        ]
        return visible, bool(rows)


async def newest(context: MemoryContext, agent_id: AgentId) -> int:
    """The number of the last delivery to an agent, 0 before the first."""
    return await context.db.read(deliveries.last_to_agent, agent_id)
