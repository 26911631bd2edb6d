"""The bridge between trio and the loop: results, errors and cancellation, both ways."""

from __future__ import annotations

import asyncio
import threading
import traceback
from contextvars import ContextVar

import pytest
import trio
import trio.testing

from storage.island import Island, IslandClosed, open_island


class Odd(Exception):
    pass


async def fail_on_loop() -> None:
    await asyncio.sleep(0)
    raise Odd("from the loop")


async def fail_in_trio() -> None:
    await trio.lowlevel.checkpoint()
    raise Odd("from trio")


async def test_a_call_runs_on_the_loop_and_returns(island: Island) -> None:
    async def where(word: str) -> tuple[str, str]:
        await asyncio.sleep(0)
        return word, threading.current_thread().name

    with trio.fail_after(60):
        assert await island.call(where, "hello") == ("hello", "island")


async def test_an_exception_of_the_loop_keeps_type_and_frames(island: Island) -> None:
    with trio.fail_after(60), pytest.raises(Odd, match="from the loop") as caught:
        await island.call(fail_on_loop)
    frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert "fail_on_loop" in frames


async def test_an_exception_of_trio_crosses_to_the_loop_and_back(island: Island) -> None:
    with trio.fail_after(60), pytest.raises(Odd, match="from trio") as caught:
        await island.call(island.to_trio, fail_in_trio)
    frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert "fail_in_trio" in frames


async def test_a_value_crosses_to_the_loop_and_back(island: Island) -> None:
    async def double(number: int) -> int:
        await trio.lowlevel.checkpoint()
        return number * 2

    with trio.fail_after(60):
        assert await island.call(island.to_trio, double, 21) == 42


async def test_cancelling_trio_cancels_the_call_and_waits_for_its_end(island: Island) -> None:
    started, ended = trio.Event(), threading.Event()
    token = trio.lowlevel.current_trio_token()

    async def wait_long() -> None:
        token.run_sync_soon(started.set)
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            ended.set()

    with trio.fail_after(60):
        async with trio.open_nursery() as inner:
            inner.start_soon(island.call, wait_long)
            await started.wait()
            inner.cancel_scope.cancel()
    assert ended.is_set()


async def test_a_call_that_ends_despite_cancellation_returns_its_value(island: Island) -> None:
    started = trio.Event()
    token = trio.lowlevel.current_trio_token()

    async def stubborn() -> str:
        token.run_sync_soon(started.set)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "finished"
        return "never"

    results: list[str] = []
    with trio.fail_after(60):
        async with trio.open_nursery() as inner:

            async def call() -> None:
                results.append(await island.call(stubborn))

            inner.start_soon(call)
            await started.wait()
            inner.cancel_scope.cancel()
    assert results == ["finished"]


async def test_a_call_that_is_cancelled_before_it_starts_never_runs(island: Island) -> None:
    ran = False

    async def mark() -> None:
        nonlocal ran
        ran = True

    with trio.fail_after(60), trio.CancelScope() as scope:
        scope.cancel()
        await island.call(mark)
    assert (scope.cancelled_caught, ran) == (True, False)


async def test_cancelling_the_loop_cancels_trio_and_waits_for_its_end(island: Island) -> None:
    started, ended = trio.Event(), threading.Event()

    async def wait_long() -> None:
        started.set()
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.lowlevel.checkpoint()
            ended.set()

    async def drive() -> bool:
        task = asyncio.ensure_future(island.to_trio(wait_long))
        await island.to_trio(started.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return ended.is_set()

    with trio.fail_after(60):
        assert await island.call(drive)


async def test_context_variables_travel_to_the_loop_only(island: Island) -> None:
    word: ContextVar[str] = ContextVar("word", default="unset")
    word.set("set in trio")

    async def in_trio() -> str:
        await trio.lowlevel.checkpoint()
        return word.get()

    async def on_loop() -> tuple[str, str]:
        there = word.get()
        word.set("set on the loop")
        return there, await island.to_trio(in_trio)

    with trio.fail_after(60):
        there, back = await island.call(on_loop)
    assert (there, back) != ("set in trio", "set on the loop")
    assert there == "set in trio"


async def test_a_cancelled_nursery_fails_inbound_calls(island: Island) -> None:
    async def nothing() -> None:
        await trio.lowlevel.checkpoint()

    token = trio.lowlevel.current_trio_token()
    with trio.fail_after(60):
        async with trio.open_nursery() as dying:
            island.bind(token, dying)
            dying.cancel_scope.cancel()
        with pytest.raises(IslandClosed):
            await island.call(island.to_trio, nothing)


async def test_refusing_inbound_fails_present_and_later_calls(island: Island) -> None:
    entered, left = trio.Event(), trio.Event()

    async def wait_long() -> None:
        entered.set()
        try:
            await trio.sleep_forever()
        finally:
            left.set()

    with trio.fail_after(60):
        async with trio.open_nursery() as inner:

            async def call() -> None:
                with pytest.raises(IslandClosed):
                    await island.call(island.to_trio, wait_long)

            inner.start_soon(call)
            await entered.wait()
            island.refuse_inbound()
            await left.wait()
        with pytest.raises(IslandClosed):
            await island.call(island.to_trio, wait_long)


async def test_a_closed_island_refuses_calls() -> None:
    with trio.fail_after(60):
        async with open_island() as island:
            assert await island.call(asyncio.sleep, 0, "up") == "up"
        with pytest.raises(IslandClosed) as refused:
            await island.call(asyncio.sleep, 0)
    assert (refused.value.code, refused.value.retryable) == ("unavailable", True)


async def test_closing_releases_a_waiting_call() -> None:
    outcomes: list[str] = []
    with trio.fail_after(60):
        async with trio.open_nursery() as outer, open_island() as island:

            async def call() -> None:
                try:
                    await island.call(asyncio.sleep, 60)
                except IslandClosed:
                    outcomes.append("closed")

            outer.start_soon(call)
            await trio.testing.wait_all_tasks_blocked()
    assert outcomes == ["closed"]


async def kill_loop() -> None:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(60)


async def test_f25_a_dead_loop_fails_the_body_and_every_call() -> None:
    async def use() -> None:
        async with open_island() as island:
            with pytest.raises(IslandClosed):
                await island.call(kill_loop)
            await trio.sleep_forever()

    with trio.fail_after(60), pytest.raises(IslandClosed, match="ended unasked"):
        await use()


async def test_f25_a_dead_loop_refuses_new_calls() -> None:
    island = Island()
    island.start()
    with trio.fail_after(60):
        for _ in range(2):
            with pytest.raises(IslandClosed):
                await island.call(kill_loop)
        with pytest.raises(IslandClosed):
            await island.watch()
    assert island.open_calls == 0
    island.close()


async def test_f25_a_stuck_loop_is_abandoned_and_its_callers_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("storage.island.STOP_TIMEOUT", 0.05)
    stuck, free = threading.Event(), threading.Event()

    async def block() -> None:
        stuck.set()
        free.wait(10)

    island = Island()
    island.start()
    released: list[str] = []

    async def call() -> None:
        try:
            await island.call(block)
        except IslandClosed:
            released.append("released")

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await trio.to_thread.run_sync(stuck.wait)
            await trio.to_thread.run_sync(island.close)
    free.set()
    assert released == ["released"]


async def test_a_single_error_leaves_the_island_unwrapped() -> None:
    with trio.fail_after(60), pytest.raises(Odd, match="plain"):
        async with open_island():
            raise Odd("plain")


async def test_closing_twice_is_harmless() -> None:
    island = Island()
    island.start()
    island.close()
    island.close()
    with trio.fail_after(60):
        await island.watch()
