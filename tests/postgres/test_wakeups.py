"""Notifications become wake-ups, and a lost connection only costs time."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from storage.embedded import EmbeddedServer
from storage.island import Island
from storage.wakeups import Wakeups
from tests.support.postgres import SETTINGS, run_sql

pytestmark = pytest.mark.postgres

KILL = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
          WHERE datname = $1 AND query ILIKE 'listen%'"""


@pytest.fixture
async def wakeups(island: Island, empty_database: dict[str, Any]) -> Wakeups:
    return Wakeups(island, empty_database, SETTINGS)


async def test_a_notification_wakes_its_channel_only(
    wakeups: Wakeups, island: Island, empty_database: dict[str, Any]
) -> None:
    outbox, jobs = wakeups.subscribe("outbox"), wakeups.subscribe("jobs")
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            await nursery.start(wakeups.run)
            assert await outbox.wait(5)
            assert await jobs.wait(5)
            await island.call(run_sql, empty_database, "NOTIFY outbox")
            assert await outbox.wait(5)
            assert not await jobs.wait(0)
            nursery.cancel_scope.cancel()
    assert not wakeups.listening


async def test_a_wake_up_while_nobody_waits_is_kept_once(wakeups: Wakeups) -> None:
    outbox = wakeups.subscribe("outbox")
    wakeups.wake(["outbox"])
    wakeups.wake(["outbox"])
    with trio.fail_after(60):
        assert [await outbox.wait(0.01), await outbox.wait(0.01)] == [True, False]


async def test_f3_a_lost_connection_is_replaced_and_everybody_woken(
    wakeups: Wakeups,
    island: Island,
    postgres_server: EmbeddedServer,
    empty_database: dict[str, Any],
) -> None:
    outbox = wakeups.subscribe("outbox")
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            await nursery.start(wakeups.run)
            assert await outbox.wait(5)
            killed = await island.call(
                run_sql, postgres_server.connect_kwargs, KILL, empty_database["database"]
            )
            assert len(killed) == 1
            assert await outbox.wait(10)
            await island.call(run_sql, empty_database, "NOTIFY outbox")
            assert await outbox.wait(10)
            nursery.cancel_scope.cancel()


def test_a_channel_name_must_be_plain(session_island: Island) -> None:
    async def subscribe() -> None:
        Wakeups(session_island, {}, SETTINGS).subscribe("a; DROP TABLE x")

    with pytest.raises(ValueError, match="not a channel name"):
        trio.run(subscribe)
