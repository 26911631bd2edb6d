"""From the reader of a link to the task that asked: answers in their order, and what was fetched.

Bounded, and open only while somebody asks. A full queue makes the reader wait, which is the back
pressure that the peer feels; an answer that nobody asked for is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import trio

ANSWER_S = 20.0
ROOM = 4

A = TypeVar("A")


class Answers(Generic[A]):
    """The answers to one kind of question over one link."""

    def __init__(self) -> None:
        self._send: trio.MemorySendChannel[A] | None = None
        self._receive: trio.MemoryReceiveChannel[A] | None = None

    @property
    def asked(self) -> bool:
        """Whether somebody waits."""
        return self._send is not None

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Let answers through; one asker at a time."""
        self._send, self._receive = trio.open_memory_channel[A](ROOM)
        try:
            yield
        finally:
            self._receive.close()
            self._send = self._receive = None

    async def put(self, answer: A) -> bool:
        """Hand over an answer, waiting for room; False when nobody wants it."""
        if self._send is None:
            return False
        try:
            await self._send.send(answer)
        except trio.BrokenResourceError:
            return False
        return True

    async def get(self) -> A:
        """The next answer. Raises trio.TooSlowError."""
        assert self._receive is not None  # only between `asking` and its end
        with trio.fail_after(ANSWER_S):
            return await self._receive.receive()


@dataclass(slots=True)
class Fetching:
    """Announcements that were asked for by id, until each was stored or refused.

    A copy that claims to answer and was not asked for is none.
    """

    _open: set[bytes] = field(default_factory=set)
    _taken: set[bytes] = field(default_factory=set)
    _kept: int = 0
    _settled: trio.Event = field(default_factory=trio.Event)

    def ask(self, ids: Sequence[bytes]) -> None:
        """These are asked for now, and nothing else."""
        self._open, self._taken, self._kept = set(ids), set(), 0
        self._settled = trio.Event()

    def take(self, diff_id: bytes) -> bool:
        """A copy arrived; False when it was not asked for or came before."""
        if diff_id not in self._open:
            return False
        self._open.remove(diff_id)
        self._taken.add(diff_id)
        return True

    def settle(self, diff_id: bytes, kept: bool) -> None:
        """It is known what became of a copy that was taken."""
        if diff_id in self._taken:
            self._taken.remove(diff_id)
            self._kept += kept
            if not self._taken:
                self._settled.set()
                self._settled = trio.Event()

    async def kept(self, seconds: float) -> int:
        """How many copies were kept, once all that arrived are settled or time is up."""
        with trio.move_on_after(seconds):
            while self._taken:
                await self._settled.wait()
        self._open = set()
        return self._kept
