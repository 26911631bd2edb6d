"""Wake a service when another transaction has written work for it.

`NOTIFY channel` in a transaction arrives here after its commit, on a connection of its own, and
opens the latch of every subscription to that channel. This only saves waiting: notifications
are lost while the connection is down, so each subscriber also looks at its table at its own
interval, which is what `wait` returns for. Payloads are ignored; nothing travels but the fact.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable, Iterable
from contextlib import suppress

import trio

from storage.errors import StartRefused
from storage.island import Island
from storage.pool import DRIVER_ERRORS, Target, connect
from storage.settings import DatabaseSettings

BACKOFF_FIRST = 0.2
BACKOFF_LAST = 10.0

_CHANNEL = re.compile(r"[a-z][a-z0-9_]{0,62}\Z")


class Subscription:
    """A latch: a wake-up that comes while nobody waits is kept, several become one."""

    def __init__(self) -> None:
        self._open, self._waiting = trio.open_memory_channel[None](1)

    def wake(self) -> None:
        """Open the latch; from the trio thread."""
        with suppress(trio.WouldBlock):
            self._open.send_nowait(None)

    async def wait(self, timeout: float) -> bool:
        """Wait for the latch, at most `timeout` seconds, and close it; False on timeout."""
        with trio.move_on_after(timeout):
            await self._waiting.receive()
            return True
        return False


class Wakeups:
    """The channels that this node listens to and who waits for them."""

    def __init__(self, island: Island, target: Target, settings: DatabaseSettings) -> None:
        self._island = island
        self._target = target
        self._settings = settings
        self._subscriptions: dict[str, list[Subscription]] = {}
        self.listening = False

    def subscribe(self, channel: str) -> Subscription:
        """A new latch for a channel; subscribe before `run` starts to listen."""
        if not _CHANNEL.match(channel):
            raise ValueError(f"{channel!r} is not a channel name")
        subscription = Subscription()
        self._subscriptions.setdefault(channel, []).append(subscription)
        return subscription

    def wake(self, channels: Iterable[str]) -> None:
        """Open the latches of these channels, without the database."""
        for channel in channels:
            for subscription in self._subscriptions.get(channel, ()):
                subscription.wake()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Listen until cancelled; reconnects for ever. Started when it listens first.

        Everybody is woken after each (re)connection, because of what may have been missed.
        """
        channels = tuple(self._subscriptions)
        token = trio.lowlevel.current_trio_token()
        delay = BACKOFF_FIRST
        announced = False

        def notified(channel: str) -> None:
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(self.wake, (channel,))

        def ready() -> None:
            nonlocal delay, announced
            delay = BACKOFF_FIRST
            self.listening = True
            self.wake(channels)
            if not announced:
                announced = True
                task_status.started()

        def listening() -> None:
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(ready)

        while True:
            try:
                await self._island.call(self._listen, channels, notified, listening)
            finally:
                self.listening = False
            await trio.sleep(random.uniform(delay / 2, delay))
            delay = min(BACKOFF_LAST, delay * 2)

    async def _listen(
        self,
        channels: tuple[str, ...],
        notified: Callable[[str], None],
        listening: Callable[[], None],
    ) -> None:
        """On the island: listen on one connection until it is lost."""
        lost = asyncio.Event()
        try:
            connection = await connect(self._target, self._settings)
        except StartRefused:
            return
        try:
            connection.add_termination_listener(lambda _connection: lost.set())

            def heard(_connection: object, _pid: int, channel: str, _payload: object) -> None:
                notified(channel)

            for channel in channels:
                await connection.add_listener(channel, heard)
            listening()
            await lost.wait()
        except DRIVER_ERRORS:
            return
        finally:
            connection.terminate()
