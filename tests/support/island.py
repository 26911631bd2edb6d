"""One island for the whole test session, bound to the trio run of each test in turn."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import trio

from storage.island import Island


@pytest.fixture(scope="session")
def session_island() -> Iterator[Island]:
    """The loop and its thread; bound to nothing."""
    island = Island()
    island.start()
    yield island
    island.close()


@pytest.fixture
async def island(session_island: Island, nursery: trio.Nursery) -> AsyncIterator[Island]:
    """The session's island, calling into this test's nursery; no call may outlive the test."""
    session_island.bind(trio.lowlevel.current_trio_token(), nursery)
    yield session_island
    session_island.unbind()
    assert session_island.open_calls == 0
