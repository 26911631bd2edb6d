"""The examples of the client run as they are printed."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from ops.examples import crowd, follower, notes
from storage.model import ReadPolicy
from tests.support.port import Port, port
from tests.support.services import edge

__all__ = ["edge", "port"]

pytestmark = pytest.mark.postgres


async def test_notes_are_recalled(port: Port) -> None:
    found = await trio.to_thread.run_sync(notes.main, f"unix:{port.path}")
    assert found == [
        "The deploy runs on Fridays at noon",
        "The staging database is restored every night",
    ]


async def test_a_crowd_asks_at_once(port: Port) -> None:
    found = await crowd.main(f"unix:{port.path}")
    assert found == {city: f"{city} lies at the {water}" for city, water in crowd.CITIES.items()}


async def test_a_follower_gets_each_memory_once_across_its_restarts(
    port: Port, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = port.edge.world
    project = await world.project("harbour")
    ada = await world.agent("ada", ReadPolicy.SHARED, description="ships on the sea")
    await world.agent("bob", ReadPolicy.SHARED, description="ships on the sea")
    await world.context.agents.vouch(project)
    await world.place_agents()
    for number in range(3):
        await world.store(ada, f"ships on the sea {number}", project_id=project)
    kept = tmp_path / "seq"
    for count in (2, 1):
        await follower.main("bob", kept, f"unix:{port.path}", count)
    assert capsys.readouterr().out.splitlines() == [f"ada: ships on the sea {n}" for n in range(3)]
