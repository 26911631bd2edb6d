"""One commit for what comes while another is under way.

A commit waits for the disk, and PostgreSQL does a hundred rows in hardly more time than one. So
whoever comes while somebody commits waits for that, and then all who wait are stored together by
the first of them. Nobody waits when nobody else commits. What follows a commit in this process
runs while the next one waits for the disk, in the order of the commits. Knows nothing of what is
stored.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

import trio

MOST: Final = 64

I = TypeVar("I")  # noqa: E741 - an item
C = TypeVar("C")
R = TypeVar("R")


@dataclass(slots=True, eq=False)
class Entry(Generic[I, R]):
    """An item and what became of it; neither result nor error when it was left out.

    `leave` asks whether the item is not wanted any more, when its commit begins.
    """

    item: I
    leave: Callable[[], bool]
    result: R | None = None
    error: Exception | None = None


@dataclass(slots=True, eq=False)
class _Waiting(Generic[I, R]):
    """Entries that came together."""

    entries: Sequence[Entry[I, R]]
    turn: trio.Event = field(default_factory=trio.Event)
    taken: bool = False
    """Their commit has begun."""
    done: bool = False
    apart: bool = False
    """The shared commit failed: each of these goes alone."""


class SharedCommits(Generic[I, R]):
    """Turns of one kind of work that takes many items at once; for tasks of one trio run."""

    def __init__(self) -> None:
        self.commits = 0
        self._busy = False
        self._waiting: list[_Waiting[I, R]] = []
        self._following = trio.Lock()

    async def share(
        self,
        entries: Sequence[Entry[I, R]],
        commit: Callable[[Sequence[I]], Awaitable[C]],
        follow: Callable[[C], Awaitable[Sequence[R]]],
    ) -> None:
        """Give each entry its result of `follow` after `commit`, or what they raise for it alone.

        A cancelled caller leaves its items out, unless their commit has begun.
        """
        mine: _Waiting[I, R] = _Waiting(entries)
        self._waiting.append(mine)
        try:
            while not (mine.done or mine.apart):
                if self._busy or mine.taken:
                    await mine.turn.wait()
                    mine.turn = trio.Event()
                else:
                    await self._lead(mine, commit, follow)
        finally:
            if mine in self._waiting:
                self._waiting.remove(mine)
                self._hand_over()
        if mine.apart:
            async with trio.open_nursery() as nursery:
                for entry in entries:
                    nursery.start_soon(self._alone, entry, commit, follow)

    async def _lead(
        self,
        mine: _Waiting[I, R],
        commit: Callable[[Sequence[I]], Awaitable[C]],
        follow: Callable[[C], Awaitable[Sequence[R]]],
    ) -> None:
        """Commit for those that wait now; the first that is left leads the next."""
        batch = self._take()
        entries = [entry for each in batch for entry in each.entries if not entry.leave()]
        apart = False
        try:
            if entries:
                await self._settle(entries, batch == [mine], commit, follow)
        except Exception as error:  # noqa: BLE001 - told to whoever shares
            if len(entries) == 1:
                entries[0].error = error
            else:
                apart = True
        finally:
            for each in batch:
                each.done, each.apart = not apart, apart
                each.turn.set()

    async def _settle(
        self,
        entries: Sequence[Entry[I, R]],
        alone: bool,
        commit: Callable[[Sequence[I]], Awaitable[C]],
        follow: Callable[[C], Awaitable[Sequence[R]]],
    ) -> None:
        self.commits += 1
        self._busy = True
        try:
            with trio.CancelScope(shield=not alone):
                done = await commit([entry.item for entry in entries])
        finally:
            self._busy = False
            self._hand_over()
        with trio.CancelScope(shield=True):
            try:
                self._following.acquire_nowait()  # as a rule free, and waiting for it is a turn
            except trio.WouldBlock:
                await self._following.acquire()
            try:
                results = await follow(done)
            finally:
                self._following.release()
        for entry, result in zip(entries, results, strict=True):
            entry.result = result

    def _take(self) -> list[_Waiting[I, R]]:
        """Those that have waited longest, as many as fit into one commit."""
        count = size = 0
        for each in self._waiting:
            size += len(each.entries)
            if count and size > MOST:
                break
            count += 1
            each.taken = True
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        return batch

    async def _alone(
        self,
        entry: Entry[I, R],
        commit: Callable[[Sequence[I]], Awaitable[C]],
        follow: Callable[[C], Awaitable[Sequence[R]]],
    ) -> None:
        if entry.leave():
            return
        try:
            done = await commit([entry.item])
            with trio.CancelScope(shield=True):
                entry.result = (await follow(done))[0]
        except Exception as error:  # noqa: BLE001 - told to whoever shares
            entry.error = error

    def _hand_over(self) -> None:
        if self._waiting and not self._busy:
            self._waiting[0].turn.set()
