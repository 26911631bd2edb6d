"""Agents that care for the same things, what one tells the others, and a watch over HTTP."""

from __future__ import annotations

from typing import Any

import httpx
import trio

from storage.model import AgentProfile, Memory, ProjectId, ReadPolicy
from tests.support.memory import World
from tests.support.services import Edge

SEA = "ships sail the sea past the harbour"


async def sailors(
    world: World, *names: str, policy: ReadPolicy = ReadPolicy.SHARED
) -> tuple[ProjectId, list[AgentProfile]]:
    """A project, and agents that care about the sea."""
    project_id = await world.project("harbour")
    agents = [
        await world.agent(name, policy, description="the sea, ships and the harbour")
        for name in names
    ]
    await world.context.agents.vouch(project_id)
    await world.place_agents()
    return project_id, agents


async def announce(world: World, agent: AgentProfile, project: ProjectId, text: str) -> Memory:
    return await world.store(agent, text, project_id=project)


async def lines(served: Edge, count: int, headers: dict[str, str], **params: Any) -> list[str]:
    """The first lines of a watch that are not empty."""
    found: list[str] = []

    async def follow() -> None:
        async with (
            httpx.AsyncClient(base_url=served.url, timeout=60) as client,
            client.stream("GET", "/api/memory/watch", params=params, headers=headers) as answer,
        ):
            assert answer.status_code == 200
            async for line in answer.aiter_lines():
                if line.strip():
                    found.append(line)
                if len(found) == count:
                    return

    await served.island.call(follow)
    return found


async def happened(event: trio.Event) -> None:
    """Set an event from the other loop, by `Island.to_trio`."""
    event.set()
