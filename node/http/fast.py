"""Fast recalls by vector over HTTP: answered on the loop that read them, without a way to trio.

They touch nothing but the hot graph, which is for any thread. Those that wait at the same moment
are searched in one call, and records go out as the bytes that they were encoded to before. What
is refused or unusual in any way takes the plain way and so has the plain way's answer.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import numpy as np
from msgspec import Meta

from node.http.routing import Call, Reply, counted
from node.http.shapes import MAX_NAME
from node.http.views import meta_view, project_label, record_view
from node.memory.encoded import Encoded, EncodedRecords
from node.memory.nearest import Search, lacking
from node.memory.ranking import Source
from node.memory.recall import MAX_LIMIT, Question, Stage, checked, search_of
from storage.model import Resident

if TYPE_CHECKING:
    from node.services import Services

MOST: Final = 64
"""Of one call, so that neither the loop nor a writer of the graph waits long for it."""


class FastBody(msgspec.Struct, forbid_unknown_fields=True):
    """The part of `RecallBody` that is answered here: a vector, and no filters."""

    vector: Annotated[list[float], Meta(min_length=1, max_length=8192)]
    fast: bool
    query: str = ""
    agent_id: Annotated[str, Meta(min_length=1, max_length=MAX_NAME)] | None = None
    limit: int = 10
    include_superseded: bool = False
    deadline_ms: Annotated[int, Meta(ge=1, le=60_000)] | None = None


_json: Final = msgspec.json.Encoder()
_bodies: Final = msgspec.json.Decoder(FastBody)


def read(raw: bytes) -> FastBody | None:
    """The body of a fast recall; None for any other, also for one that must be refused.

    A doubled name shows as a doubled text between quotes, where nothing is escaped.
    """
    if b"\\" in raw:
        return None
    texts = raw.split(b'"')[1::2]
    if len(set(texts)) < len(texts):
        return None
    try:
        body = _bodies.decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return body if body.fast else None


class FastRecalls:
    """The fast recalls of one application; for tasks of its loop."""

    def __init__(self, services: Services) -> None:
        self.calls = 0
        self._services = services
        self.encoded = EncodedRecords(services.memory, self._record)
        self._waiting: list[tuple[Search, asyncio.Future[Encoded]]] = []

    async def answer(self, call: Call) -> Reply | None:
        """The reply to a request that belongs here. Raises as `recall` does."""
        given = read(call.raw)
        if given is None:
            return None
        services = self._services
        limit = min(max(given.limit, 1), MAX_LIMIT)
        context = services.memory
        with counted(services, "recall"):
            vector = np.asarray(given.vector, np.float32)
            question = Question(
                query=given.query,
                agent=call.reader(given.agent_id),
                limit=limit,
                superseded=given.include_superseded,
                fast=True,
                vector=vector,
            )
            checked(question)
            reader = context.agents.reader(question.agent)
            begun = time.perf_counter()
            found = await self._found(search_of(context, question, vector, reader))
            seconds = time.perf_counter() - begun
        services.metrics.memory.recall_hits.observe(len(found.records))
        return Reply(raw=self.encode(found, limit, seconds))

    async def _found(self, search: Search) -> Encoded:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Encoded] = loop.create_future()
        self._waiting.append((search, future))
        if len(self._waiting) == 1:
            loop.call_soon(self._search)
        return await future

    def _search(self) -> None:
        """Answer those that came until now; runs behind all that the loop had to do already."""
        batch, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._search)
        self.calls += 1
        try:
            found = self.encoded.answers([search for search, _ in batch])
        except Exception as error:  # noqa: BLE001 - raised where each of them waits
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), answer in zip(batch, found, strict=True):
            if not future.done():
                future.set_result(answer)
        asyncio.get_running_loop().call_soon(self.encoded.count)

    def encode(self, found: Encoded, limit: int, seconds: float) -> bytes:
        """The answer that these hits are, as `answer_view` says it, found in so long."""
        context = self._services.memory
        alpha = context.settings.alpha
        rows = [
            b'%b,"score":%a,"source":"%b","tier":"hot","cosine":%a,"words":0.0}'
            % (record, round(alpha * near, 6), _SOURCE, round(near, 6))
            for near, record in zip(
                np.maximum(found.cosines, 0).tolist(), found.records, strict=True
            )
        ]
        stages = (Stage("hot", seconds, len(found.records)),)
        meta = _json.encode(meta_view(lacking(context), stages))
        return b'{"results":[%b],"constraints":[],"limit":%d,"meta":%b}' % (
            b",".join(rows),
            limit,
            meta,
        )

    def _record(self, resident: Resident) -> bytes:
        """What stands in a hit before its scores."""
        services = self._services
        shown = record_view(
            resident,
            services.agents.label(resident.agent_id),
            project_label(services, resident.project_id),
        )
        return _json.encode(shown)[:-1]


_SOURCE: Final = Source.VECTOR.value.encode("ascii")
