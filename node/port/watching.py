"""A subscription on the agent port: deliveries out, as many as the agent granted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from node.memory.watch import follow
from node.port import messages, records
from node.port.codec import encode
from node.port.requests import Caller


class Grant:
    """How many more deliveries an agent takes now."""

    def __init__(self, credit: int) -> None:
        self._credit = credit
        self._more = trio.Event()

    def add(self, more: int) -> None:
        """The agent dealt with some."""
        self._credit = min(self._credit + more, messages.MAX_CREDIT)
        self._more.set()
        self._more = trio.Event()

    async def available(self) -> int:
        """Wait until the agent takes any; how many."""
        while self._credit == 0:
            await self._more.wait()
        return self._credit

    def spend(self) -> None:
        """One is sent."""
        self._credit -= 1


async def stream(
    caller: Callable[[], Caller],
    request: messages.Watch,
    grant: Grant,
    send: Callable[[bytes], Awaitable[None]],
) -> None:
    """Send what is handed to the agent until cancelled.

    `caller` gives the caller as it is now; raises what it raises when the caller may not go on.
    """
    services = caller().services
    feed = await follow(services.memory, lambda: caller().agent, request.after)
    await send(encode(messages.Watching(request.id, feed.after)))
    while True:
        for handed in await feed.read(await grant.available()):
            grant.spend()
            memory = records.memory(services, handed.memory)
            await send(encode(messages.Delivery(request.id, handed.seq, memory)))
