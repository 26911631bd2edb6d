"""Questions to the hot graph that wait at the same moment, answered in one call.

A question that comes alone is answered on the spot: no task switch, no thread. When one follows
another at once, more may be about to come: it lets them come to the same point and then asks for
all. Many go to a worker thread, where the graph uses all its cores while the loop goes on.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import trio

from storage.errors import MnemeshError
from storage.hot.graph import HotGraph
from storage.hot.reports import Hit
from storage.hot.searching import Asked

LULL_S: Final = 0.001
"""A question is alone when none came within this time before it."""
INLINE: Final = 8
"""Up to so many are answered on the loop: below that hnswlib uses one core anyway."""
MOST: Final = 64
"""Of one call, so that a writer never waits long for the graph's lock."""


@dataclass(slots=True, eq=False)
class _Waiting:
    asked: Asked
    turn: trio.Event = field(default_factory=trio.Event)
    answer: list[Hit] | Exception | None = None


class Gathering:
    """The questions of one graph; for tasks of one loop."""

    def __init__(self, graph: HotGraph) -> None:
        self.calls = 0
        self._graph = graph
        self._waiting: list[_Waiting] = []
        self._led = False
        self._last = -LULL_S

    async def ask(self, asked: Asked) -> list[Hit]:
        """The answer of `HotGraph.search`; raises what it raises."""
        now = time.perf_counter()
        lone, self._last = now - self._last > LULL_S, now
        if lone and not self._led and not self._waiting:
            self.calls += 1
            return self._graph.search(
                asked.query, asked.k, agents=asked.agents, accept=asked.accept
            )
        mine = _Waiting(asked)
        self._waiting.append(mine)
        try:
            while mine.answer is None:
                if self._led:
                    await mine.turn.wait()
                    mine.turn = trio.Event()
                else:
                    await self._lead()
        finally:
            if mine in self._waiting:
                self._waiting.remove(mine)
                self._hand_over()
        if isinstance(mine.answer, Exception):
            raise mine.answer
        return mine.answer

    async def _lead(self) -> None:
        """Answer one call's worth of those that wait; the first that is left leads the next."""
        self._led = True
        try:
            await trio.lowlevel.cancel_shielded_checkpoint()
            batch, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
            for each, answer in zip(batch, await self._answers(batch), strict=True):
                each.answer = answer
                each.turn.set()
        finally:
            self._led = False
            self._hand_over()

    async def _answers(self, batch: Sequence[_Waiting]) -> Sequence[list[Hit] | Exception]:
        questions = [each.asked for each in batch]
        self.calls += 1
        answers: list[list[Hit]] = []
        try:
            if len(batch) <= INLINE:
                answers = self._graph.search_many(questions)
            else:
                with trio.CancelScope(shield=True):
                    answers = await trio.to_thread.run_sync(self._graph.search_many, questions)
        except MnemeshError as error:
            return [error] * len(batch)
        return answers

    def _hand_over(self) -> None:
        if self._waiting and not self._led:
            self._waiting[0].turn.set()
