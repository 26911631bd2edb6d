"""An agent leaves its node: nobody reads its memories any more, or they are forgotten.

The certified removal of everything is an erasure, which works on a removed agent by its UUID.
"""

from __future__ import annotations

from dataclasses import dataclass

from node.agents import DEFAULT_AGENT
from node.memory.context import MemoryContext
from node.memory.forget import forget_all
from node.memory.modify import archive_all
from storage.errors import InvalidInput
from storage.model import AgentProfile


@dataclass(frozen=True, slots=True)
class Left:
    """How many memories of the agent became unreadable, and how many were forgotten."""

    archived: int = 0
    forgotten: int = 0


async def remove_agent(
    context: MemoryContext, agent: AgentProfile, *, purge: bool, actor: str = "api"
) -> Left:
    """Archive the memories of an agent, or with `purge` forget them, and take the agent away.

    Goes on where it was interrupted when it is asked again. What the agent was still writing goes
    the same way. Raises InvalidInput for the node's `default` agent, which owns what the node
    itself writes.
    """
    if agent.name == DEFAULT_AGENT:
        raise InvalidInput(f"{DEFAULT_AGENT} cannot be removed")
    count = await _end(context, agent, purge=purge, actor=actor)
    position = await context.agents.remove(agent)
    if position is not None:
        await context.residency.forget([position])
    count += await _end(context, agent, purge=purge, actor=actor)
    return Left(forgotten=count) if purge else Left(archived=count)


async def _end(context: MemoryContext, agent: AgentProfile, *, purge: bool, actor: str) -> int:
    if purge:
        return await forget_all(context, agent, actor=actor)
    return await archive_all(context, agent, actor=actor)
