"""The periodic loop on a clock that jumps."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from node.workers.periodic import every
from storage.errors import Unavailable


async def times_of(
    interval: Callable[[], float],
    work: Callable[[], Awaitable[object]],
    until: float,
    **options: object,
) -> None:
    with trio.move_on_after(until):
        await every(interval, work, name="test", **options)  # type: ignore[arg-type]


async def test_the_first_pass_comes_after_one_interval(
    autojump_clock: trio.testing.MockClock,
) -> None:
    times: list[float] = []

    async def work() -> None:
        times.append(trio.current_time())

    await times_of(lambda: 60, work, 200)
    assert times == pytest.approx([60, 120, 180])


async def test_the_first_pass_may_come_sooner(autojump_clock: trio.testing.MockClock) -> None:
    times: list[float] = []

    async def work() -> None:
        times.append(trio.current_time())

    await times_of(lambda: 60, work, 130, first_after=0)
    assert times == pytest.approx([0, 60, 120])


async def test_a_failing_pass_is_logged_counted_and_followed(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    failures: list[None] = []
    passes = 0

    async def work() -> None:
        nonlocal passes
        passes += 1
        if passes == 1:
            raise Unavailable
        if passes == 2:
            raise ZeroDivisionError

    with caplog.at_level(logging.WARNING, "node.workers.periodic"):
        await times_of(lambda: 10, work, 35, on_failure=lambda: failures.append(None))
    assert (passes, len(failures)) == (3, 2)
    assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR"]


async def test_a_shorter_interval_counts_at_once(autojump_clock: trio.testing.MockClock) -> None:
    times: list[float] = []
    interval = 3_600.0

    async def work() -> None:
        times.append(trio.current_time())

    async def shorten() -> None:
        nonlocal interval
        await trio.sleep(100)
        interval = 60

    async with trio.open_nursery() as nursery:
        nursery.start_soon(shorten)
        await times_of(lambda: interval, work, 200)
    assert times[0] == pytest.approx(100, abs=5.1)
    assert times[1] == pytest.approx(times[0] + 60)


async def test_a_long_pass_makes_no_storm_of_later_ones(
    autojump_clock: trio.testing.MockClock,
) -> None:
    starts: list[float] = []

    async def work() -> None:
        starts.append(trio.current_time())
        if len(starts) == 1:
            await trio.sleep(95)

    await times_of(lambda: 10, work, 130, first_after=0)
    assert starts == pytest.approx([0, 95, 105, 115, 125])


async def test_a_zero_interval_still_lets_others_run(
    autojump_clock: trio.testing.MockClock,
) -> None:
    passes = 0

    async def work() -> None:
        nonlocal passes
        passes += 1

    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:

            async def stop() -> None:
                for _ in range(10):
                    await trio.lowlevel.checkpoint()
                scope.cancel()

            nursery.start_soon(stop)
            await every(lambda: 0, work, name="test")
    assert 1 <= passes <= 20


async def test_it_reports_that_it_started(autojump_clock: trio.testing.MockClock) -> None:
    async def work() -> None:
        raise AssertionError("too early")

    async def service(task_status: trio.TaskStatus[None]) -> None:
        await every(lambda: 60, work, name="test", task_status=task_status)

    async with trio.open_nursery() as nursery:
        await nursery.start(service)
        nursery.cancel_scope.cancel()
