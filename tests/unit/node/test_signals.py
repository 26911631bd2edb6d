"""Signals become events, and stay caught until the service ends."""

from __future__ import annotations

import os
import signal

import trio

from node.signals import Signals, receive_signals


async def test_sigterm_asks_for_the_stop_and_a_second_for_a_quick_one() -> None:
    signals = Signals()
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            await nursery.start(receive_signals, signals)
            os.kill(os.getpid(), signal.SIGTERM)
            await signals.stop.wait()
            assert not signals.stop_now.is_set()
            os.kill(os.getpid(), signal.SIGINT)
            await signals.stop_now.wait()
            nursery.cancel_scope.cancel()


async def test_sighup_asks_for_a_reload_and_not_for_the_stop() -> None:
    signals = Signals()
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            await nursery.start(receive_signals, signals)
            os.kill(os.getpid(), signal.SIGHUP)
            await signals.wait_reload()
            assert not signals.stop.is_set()
            nursery.cancel_scope.cancel()


async def test_many_hangups_are_one_reload() -> None:
    signals = Signals()
    for _ in range(1000):
        signals.note(signal.SIGHUP)
    with trio.fail_after(60):
        await signals.wait_reload()
    with trio.move_on_after(0) as scope:
        await signals.wait_reload()
    assert scope.cancelled_caught


async def test_a_hangup_during_a_reload_is_not_lost() -> None:
    signals = Signals()
    signals.note(signal.SIGHUP)
    with trio.fail_after(60):
        await signals.wait_reload()
        signals.note(signal.SIGHUP)
        await signals.wait_reload()


async def test_former_handlers_are_back_afterwards() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            await nursery.start(receive_signals, Signals())
            assert signal.getsignal(signal.SIGTERM) is not before
            nursery.cancel_scope.cancel()
    assert signal.getsignal(signal.SIGTERM) is before
