"""Reads by id and by page: get, list, history, export. One visibility rule for all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime

from node.memory.context import MemoryContext
from storage import history, memories
from storage.errors import InvalidInput, NotFound
from storage.history import Event
from storage.model import AgentId, AgentProfile, Memory, MemoryId

MAX_PAGE = 200
EXPORT_PAGE = 500


async def get(context: MemoryContext, agent: AgentProfile, memory_id: MemoryId) -> Memory:
    """One memory that the agent may see; a cold one becomes resident.

    Raises NotFound, alike for a missing memory and for somebody else's.
    """
    rows = await context.db.read(
        memories.visible_by_ids, [memory_id], context.agents.reader(agent), context.now()
    )
    if not rows:
        raise NotFound("memory not found")
    await context.residency.warm(context.db, [memory_id], context.settings.recall_deadline_s)
    return rows[0]


async def page(
    context: MemoryContext,
    agent: AgentProfile,
    *,
    limit: int = 50,
    about: AgentId | None = None,
    before: tuple[datetime, MemoryId] | None = None,
    offset: int = 0,
) -> tuple[list[Memory], bool]:
    """Visible memories, newest first, behind the place of the last one seen; and whether there
    are more."""
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidInput(f"limit must be between 1 and {MAX_PAGE}")
    rows = await context.db.read(
        memories.list_page,
        context.agents.reader(agent),
        context.now(),
        limit=limit + 1,
        agent_id=about,
        before=before,
        offset=offset,
    )
    return rows[:limit], len(rows) > limit


async def events(context: MemoryContext, agent: AgentProfile, memory_id: MemoryId) -> list[Event]:
    """What happened to a memory of this agent, also after it is gone.

    Raises NotFound, alike for no history and for another agent's.
    """
    found = await context.db.read(history.of_memory, memory_id)
    if not found or found[0].agent_id != agent.id:
        raise NotFound("memory not found")
    return found


async def events_page(
    context: MemoryContext,
    agent: AgentProfile,
    memory_id: MemoryId,
    *,
    limit: int,
    after: int | None = None,
    offset: int = 0,
) -> tuple[list[Event], bool]:
    """A page of what `events` tells, behind the event of a number; and whether there are more."""
    found = await context.db.read(
        history.page_of_memory, memory_id, agent.id, limit=limit + 1, after=after, offset=offset
    )
    if found is None:
        raise NotFound("memory not found")
    return found[:limit], len(found) > limit


async def export(context: MemoryContext, agent: AgentProfile) -> AsyncIterator[list[Memory]]:
    """All of an agent's own visible memories, a page at a time in id order."""
    after: MemoryId | None = None
    while True:
        rows = await context.db.read(
            memories.export_page,
            agent.id,
            context.agents.reader(agent),
            context.now(),
            after=after,
            limit=EXPORT_PAGE,
        )
        if rows:
            yield rows
        if len(rows) < EXPORT_PAGE:
            return
        after = rows[-1].id
