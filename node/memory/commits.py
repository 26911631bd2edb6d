"""One commit for what comes while another is under way.

A commit waits for the disk, and PostgreSQL does a hundred rows in hardly more time than one. So
whoever comes while somebody commits waits for that, and then all who wait are stored together by
the first of them. Nobody waits when nobody else commits. Knows nothing of what is stored.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

import trio

MOST: Final = 64

I = TypeVar("I")  # noqa: E741 - an item
R = TypeVar("R")


@dataclass(slots=True, eq=False)
class _Waiting(Generic[I, R]):
    item: I
    turn: trio.Event = field(default_factory=trio.Event)
    result: R | None = None
    apart: bool = False
    """The shared commit failed: this one goes alone."""


class SharedCommits(Generic[I, R]):
    """Turns of one kind of work that takes many items at once; for tasks of one trio run."""

    def __init__(self) -> None:
        self.commits = 0
        self._busy = False
        self._waiting: list[_Waiting[I, R]] = []

    async def share(self, item: I, work: Callable[[Sequence[I]], Awaitable[Sequence[R]]]) -> R:
        """The result of `work` for this item; raises what it raises for the item alone.

        A cancelled caller leaves its item out, unless its commit has begun.
        """
        mine: _Waiting[I, R] = _Waiting(item)
        self._waiting.append(mine)
        try:
            while mine.result is None and not mine.apart:
                if self._busy:
                    await mine.turn.wait()
                    mine.turn = trio.Event()
                else:
                    await self._lead(mine, work)
        finally:
            if mine in self._waiting:
                self._waiting.remove(mine)
                self._hand_over()
        if mine.result is None:
            return (await work([item]))[0]
        return mine.result

    async def _lead(
        self, mine: _Waiting[I, R], work: Callable[[Sequence[I]], Awaitable[Sequence[R]]]
    ) -> None:
        """Commit for those that wait now; the first that is left leads the next."""
        self._busy = True
        batch, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
        try:
            self.commits += 1
            if batch == [mine]:
                mine.result = (await work([mine.item]))[0]
                return
            with trio.CancelScope(shield=True):
                results = await work([each.item for each in batch])
            for each, result in zip(batch, results, strict=True):
                each.result = result
        except Exception:
            if batch == [mine]:
                raise
            for each in batch:
                each.apart = True
        finally:
            self._busy = False
            for each in batch:
                each.turn.set()
            self._hand_over()

    def _hand_over(self) -> None:
        if self._waiting and not self._busy:
            self._waiting[0].turn.set()
