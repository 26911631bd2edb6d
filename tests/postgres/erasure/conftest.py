"""Two or three nodes with a database each, in one process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from storage.embedded import EmbeddedServer
from storage.island import Island
from storage.pool import Database, open_database
from tests.support.erasure_nodes import ErasureNode, Wall, make_node
from tests.support.postgres import SETTINGS, create_database, drop_database


@pytest.fixture
def wall() -> Wall:
    """The time of all nodes of a test."""
    return Wall()


@pytest.fixture
async def origin(db: Database, tmp_path: Path, wall: Wall) -> ErasureNode:
    """The node on which an erasure begins."""
    return make_node(db, tmp_path / "origin", wall)


@pytest.fixture
async def peer(
    island: Island,
    postgres_server: EmbeddedServer,
    migrated_template: str,
    tmp_path: Path,
    wall: Wall,
) -> AsyncIterator[ErasureNode]:
    """A second node."""
    with trio.fail_after(60):
        target = await create_database(island, postgres_server, migrated_template)
    async with open_database(island, target, SETTINGS) as database:
        yield make_node(database, tmp_path / "peer", wall)
    with trio.fail_after(60):
        await drop_database(island, postgres_server, target)
