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
class _Waiting(Generic[I, R]):
    item: I
    turn: trio.Event = field(default_factory=trio.Event)
    result: R | None = None
    taken: bool = False
    """Its commit has begun."""
    apart: bool = False
    """The shared commit failed: this one goes alone."""


class SharedCommits(Generic[I, R]):
    """Turns of one kind of work that takes many items at once; for tasks of one trio run."""

    def __init__(self) -> None:
        self.commits = 0
        self._busy = False
        self._waiting: list[_Waiting[I, R]] = []
        self._following = trio.Lock()

    async def share(
        self,
        item: I,
        commit: Callable[[Sequence[I]], Awaitable[C]],
        follow: Callable[[C], Awaitable[Sequence[R]]],
    ) -> R:
        """The result for this item of `follow` after `commit`; raises what they raise for it alone.

        A cancelled caller leaves its item out, unless its commit has begun.
        """
        mine: _Waiting[I, R] = _Waiting(item)
        self._waiting.append(mine)
        try:
            while mine.result is None and not mine.apart:
                if self._busy or mine.taken:
                    await mine.turn.wait()
                    mine.turn = trio.Event()
                else:
                    await self._lead(mine, commit, follow)
        finally:
            if mine in self._waiting:
                self._waiting.remove(mine)
                self._hand_over()
        if mine.result is None:
            return (await follow(await commit([item])))[0]
        return mine.result

    async def _lead(
        self,
        mine: _Waiting[I, R],
        commit: Callable[[Sequence[I]], Awaitable[C]],
        follow: Callable[[C], Awaitable[Sequence[R]]],
    ) -> None:
        """Commit for those that wait now; the first that is left leads the next."""
        batch, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
        alone = batch == [mine]
        for each in batch:
            each.taken = True
        self.commits += 1
        self._busy = True
        try:
            try:
                with trio.CancelScope(shield=not alone):
                    done = await commit([each.item for each in batch])
            finally:
                self._busy = False
                self._hand_over()
            with trio.CancelScope(shield=True):
                async with self._following:
                    results = await follow(done)
            for each, result in zip(batch, results, strict=True):
                each.result = result
        except Exception:
            if alone:
                raise
            for each in batch:
                each.apart = True
        finally:
            for each in batch:
                each.turn.set()

    def _hand_over(self) -> None:
        if self._waiting and not self._busy:
            self._waiting[0].turn.set()
