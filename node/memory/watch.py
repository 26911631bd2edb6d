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
from storage.errors import InvalidInput
from storage.model import AgentProfile, Memory

PAGE: Final = 16
PAGE_BYTES: Final = 1 << 20
"""Bytes of contents behind which a page ends."""
POLL_S: Final = 5.0
"""Seconds after which a feed looks although nobody woke it."""


@dataclass(frozen=True, slots=True)
class Handed:
    """A memory handed to an agent, and the number to resume behind."""

    seq: int
    memory: Memory


class Unnumbered(InvalidInput):
    """The number lies beyond all deliveries of this node.

    It is of another node, or of a database that was replaced since.
    """

    code = "unnumbered"


async def follow(
    context: MemoryContext, agent: Callable[[], AgentProfile], after: int | None
) -> Feed:
    """A feed behind a number; of what comes from now on when it is None.

    Raises Unnumbered for a number that was never given: waiting for one behind it would miss all
    that come before.
    """
    if after is None:
        after = await context.db.read(deliveries.last_to_agent, agent().id)
    elif after > 0 and after > await context.db.read(deliveries.last_given):
        raise Unnumbered
    return Feed(context, agent, after)


class Feed:
    """Deliveries to one agent behind `after`; one reader at a time. Made by `follow`.

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
        rows = min(limit, PAGE)
        with trio.move_on_after(float("inf") if patience_s is None else patience_s):
            while True:
                agent = self._agent()
                due = self._context.desk.next_delivery(agent.id)
                found, passed = await self._page(agent, limit, rows)
                if found:
                    return found
                if passed:
                    rows = PAGE
                    continue
                with trio.move_on_after(POLL_S):
                    await due.wait()
        return []

    async def _page(self, agent: AgentProfile, limit: int, size: int) -> tuple[list[Handed], bool]:
        """Of the next `size` rows those to show, `limit` at most; whether there were any rows."""
        rows = await self._context.db.read(
            deliveries.handed,
            agent.id,
            self._context.agents.reader(agent),
            self._context.now(),
            after=self.after,
            limit=size,
            room=PAGE_BYTES,
        )
        found: list[Handed] = []
        for seq, memory in rows:
            if len(found) == limit:
                break
            self.after = seq
            if memory is not None and not self._context.residency.has_left(memory.id):
                found.append(Handed(seq, memory))
        return found, bool(rows)
