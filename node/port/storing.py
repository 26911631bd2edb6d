"""Remembers of one connection that came together: stored together, answered together.

An agent that has many under way sends them in one write, and each in a task of its own, with a
deadline and an answer of its own, would cost more than storing it. Each has its own outcome all the
same, and can be cancelled by itself until its commit begins.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Sequence
from typing import Final, TypeAlias

import trio

from node.memory.drafts import Draft
from node.memory.remember import Remembered, remember_each
from node.port import messages, records
from node.port.requests import Caller
from storage.errors import MnemeshError

log = logging.getLogger(__name__)

Answered: TypeAlias = messages.Remembered | messages.Failed

OPERATION: Final = "remember"


class Together:
    """Requests that are stored together; `scope` is cancelled when all of them are."""

    def __init__(self, caller: Caller) -> None:
        self.requests: list[messages.Remember] = []
        self.scope = trio.CancelScope()
        self._caller = caller
        self._begun = False
        self._dropped: set[int] = set()

    def add(self, request: messages.Remember) -> One:
        """Take a request in, before `store`."""
        self.requests.append(request)
        return One(self, request.id)

    def drop(self, request_id: int) -> None:
        """Do not store a request, unless its commit has begun, and do not answer it."""
        self._dropped.add(request_id)
        if self._begun and len(self._dropped) == len(self.requests):
            self.scope.cancel()

    def failed(self, error: Exception) -> list[Answered]:
        """The same answer to all that are not cancelled."""
        return self._wanted([_failed(request.id, error) for request in self.requests])

    async def store(self) -> list[Answered]:
        """Store them; the answers to those that are not cancelled. Raises what the node itself is
        at fault for."""
        self._begun = True
        begun = time.perf_counter()
        services = self._caller.services
        results: dict[int, Remembered | Exception | None] = {}
        drafts: dict[int, Draft] = {}
        for request in self.requests:
            try:
                drafts[request.id] = records.draft(
                    services, self._caller.who, self._caller.agent, request.draft
                )
            except MnemeshError as error:
                results[request.id] = error
        ids = list(drafts)
        if drafts:
            done = await remember_each(
                services.memory, list(drafts.values()), lambda place: ids[place] in self._dropped
            )
            results |= zip(ids, done, strict=True)
        self._count(list(results.values()), time.perf_counter() - begun)
        return self._wanted(
            [
                _reply(self._caller, request_id, result)
                for request_id, result in results.items()
                if result is not None
            ]
        )

    def _wanted(self, replies: Sequence[Answered]) -> list[Answered]:
        return [reply for reply in replies if reply.id not in self._dropped]

    def _count(self, results: Sequence[Remembered | Exception | None], seconds: float) -> None:
        metrics = self._caller.services.metrics.memory
        for word, count in Counter(map(_word, results)).items():
            metrics.operations_total.labels(operation=OPERATION, result=word).inc(count)
        timing = metrics.seconds.labels(operation=OPERATION)
        for _ in results:
            timing.observe(seconds)
        metrics.deduped_total.inc(
            sum(isinstance(result, Remembered) and result.deduped for result in results)
        )


class One:
    """One request of a group, as whoever cancels it sees it."""

    def __init__(self, together: Together, request_id: int) -> None:
        self._together = together
        self._request_id = request_id

    def cancel(self) -> None:
        """Leave it out."""
        self._together.drop(self._request_id)


def _word(result: Remembered | Exception | None) -> str:
    if isinstance(result, Remembered):
        return "ok"
    if isinstance(result, MnemeshError):
        return result.code
    return "cancelled" if result is None else "failed"


def _reply(caller: Caller, request_id: int, result: Remembered | Exception) -> Answered:
    if isinstance(result, Remembered):
        row = records.memory(caller.services, result.memory)
        return messages.Remembered(request_id, row, result.deduped)
    return _failed(request_id, result)


def _failed(request_id: int, error: Exception) -> Answered:
    if isinstance(error, MnemeshError):
        return records.failed(request_id, error)
    log.error("a remember of the agent port failed", exc_info=error)
    return messages.Failed(request_id, "internal", "internal error")
