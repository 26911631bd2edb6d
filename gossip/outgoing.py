"""What waits to be sent to one peer: acks, pings, profiles and the copies of walks.

Whoever posts never waits, so a peer that reads slowly delays nobody but itself and the reader of
a link never blocks on its own writer. What does not fit is dropped and counted: acks and copies
are repeated, the rest comes again in time. A copy is looked up and its memory asked for at the
moment of sending, so nothing leaves whose end was committed while it waited.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Collection
from typing import Protocol, TypeAlias

import trio
from msgspec import structs

from gossip.channel import LinkGated, PeerChannel
from gossip.copies import Send
from gossip.relay import Body
from gossip.wire.messages import Copy, Message
from storage.model import MemoryId

MAX_WAITING = 512

Serveable: TypeAlias = Callable[[Collection[MemoryId]], Awaitable[set[MemoryId]]]


class Counting(Protocol):
    """Where a message that was not sent is counted."""

    def __call__(self, name: str, label: str = "", n: int = 1) -> None: ...


class Outgoing:
    """The queue of one link; `run` is its only writer.

    `body` finds the bytes of a diff, `serveable` names those memories that may still leave.
    """

    def __init__(
        self,
        channel: PeerChannel,
        body: Callable[[bytes], Body | None],
        serveable: Serveable,
        mono_ms: Callable[[], int],
        count: Counting,
    ) -> None:
        self._channel = channel
        self._body = body
        self._serveable = serveable
        self._mono_ms = mono_ms
        self._count = count
        self._waiting: deque[tuple[Message | Send, int]] = deque()
        self._due = trio.Event()

    def post(self, item: Message | Send) -> bool:
        """Take a message for sending; False when the link is gone or too much waits."""
        if self._channel.closed or len(self._waiting) >= MAX_WAITING:
            self._count("send_failed_total", "closed" if self._channel.closed else "full")
            return False
        self._waiting.append((item, self._mono_ms()))
        self._due.set()
        return True

    async def run(self) -> None:
        """Send in order until the link ends. Raises LinkError."""
        while True:
            while self._waiting:
                item, posted = self._waiting.popleft()
                message = await self._copy(item, posted) if isinstance(item, Send) else item
                if message is None:
                    continue
                try:
                    await self._channel.send(message)
                except LinkGated as error:
                    self._count("send_failed_total", error.code)
            self._due = trio.Event()
            await self._due.wait()

    async def _copy(self, send: Send, posted: int) -> Copy | None:
        body = self._body(send.diff_id)
        if body is None or body.memory_id not in await self._serveable([body.memory_id]):
            self._count("send_failed_total", "gone")
            return None
        waited = max(0, self._mono_ms() - posted)
        hop = structs.replace(send.hop, age_ms=send.hop.age_ms + waited)
        return Copy(body.body, body.sig, hop, False)
