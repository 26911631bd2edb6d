"""One connection of an agent: its hello, its requests, its answers, its end.

Requests of one connection run side by side, each with a deadline; answers come in any order.
Fast recalls by vector that arrived together are searched in one call and answered at once;
remembers that arrived together are stored together and answered in one write. What a
client may cost is bounded: unread answers stop the reading, a stalled one is cut off, and the
first broken rule ends the connection and nothing else.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import trio

from node.http.auth import TRUSTED_LOCAL, Authority, Credential, Need, choose_agent
from node.http.problems import NotServing, Unauthenticated
from node.http.tokens import Permission
from node.memory.nearest import Search, lacking
from node.memory.recall import Question, searches_of
from node.port import messages, records
from node.port.answers import Answers
from node.port.codec import FrameBuffer, FrameTooLarge, PortError, encode, read_request
from node.port.requests import Caller, handle
from node.port.settings import PortSettings
from node.port.storing import Answered, One, Together
from node.port.watching import Grant, stream
from storage.errors import MnemeshError, NotFound

if TYPE_CHECKING:
    from node.services import Services

log = logging.getLogger(__name__)

READ: Final = 64 * 1024
WRITE: Final = 256 * 1024
"""Answers of a group that are written at once; each such write has the client's patience anew."""
FLUSH_S: Final = 1.0

NEEDS: Final[dict[type[messages.Message], Need]] = {
    messages.Remember: Permission.REMEMBER,
    messages.RememberBatch: Permission.REMEMBER,
    messages.Recall: Permission.RECALL,
    messages.Get: Permission.RECALL,
    messages.History: Permission.RECALL,
    messages.Forget: Permission.FORGET,
    messages.Watch: Permission.RECALL,
}


class Deadline(MnemeshError):
    """The request took too long."""

    code = "deadline"
    retryable = True


class TooManyWatches(MnemeshError):
    """The connection follows as much as it may."""

    code = "too_many_watches"


class Session:
    """The node's end of one connection. `local` tells that the peer is the node's own user."""

    def __init__(
        self,
        services: Services,
        authority: Authority,
        settings: PortSettings,
        answers: Answers,
        stream: trio.abc.Stream,
        *,
        local: bool,
        peer: str | None = None,
    ) -> None:
        self._services = services
        self._authority = authority
        self._settings = settings
        self._answers = answers
        self._stream = stream
        self._local = local
        self._peer = peer
        self._who = Credential("", "nobody", frozenset())
        self._agent_id = b""
        self._buffer = FrameBuffer(messages.MAX_HELLO)
        self._sending = trio.Lock()
        self._unsent = 0
        self._drained = trio.Event()
        self._slots = trio.Semaphore(settings.in_flight)
        self._open: dict[int, trio.CancelScope | One] = {}
        self._grants: dict[int, Grant] = {}

    async def run(self) -> None:
        """Serve until the client leaves, breaks a rule, or stalls; raises Cancelled alone."""
        refusal: MnemeshError | None = None
        try:
            async with trio.open_nursery() as nursery:
                try:
                    later = await self._greet()
                    if later is not None:
                        await self._serve(nursery, later)
                except MnemeshError as error:
                    refusal = error
                nursery.cancel_scope.cancel()
        except* (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
            log.debug("an agent left or stalled")
        if refusal is not None:
            await self._say_goodbye(refusal)

    # --- the opening -------------------------------------------------------------------------

    async def _greet(self) -> list[bytes] | None:
        """Hear the hello and answer it; frames that came behind it, None when nobody spoke."""
        with trio.move_on_after(self._settings.hello_s):
            frames: list[bytes] = []
            while not frames:
                data = await self._stream.receive_some(messages.MAX_HELLO)
                if not data:
                    return None
                frames = self._buffer.feed(data)
            hello = read_request(frames[0])
            if not isinstance(hello, messages.Hello):
                raise PortError("the first message must be a hello")
            if hello.version != messages.VERSION:
                raise PortError(f"version {messages.VERSION} is spoken here")
            self._who = self._identify(hello.token)
            own = self._services.reloader.current.agent.name
            agent = choose_agent(self._who, hello.agent, self._services.agents, own)
            self._agent_id = agent.id
            self._buffer.limit = messages.MAX_FRAME
            context = self._services.memory
            await self._send(
                encode(
                    messages.Welcome(
                        messages.VERSION,
                        self._services.local.node_id,
                        agent.name,
                        context.embedder.model_id,
                        context.embedder.dimension,
                        int(context.now().timestamp() * 1000),
                    )
                )
            )
            return frames[1:]
        return None

    def _identify(self, token: str | None) -> Credential:
        if self._local and token is None:
            return TRUSTED_LOCAL
        header = None if token is None else f"Bearer {token}"
        return self._authority.identify(header, self._peer)

    def _caller(self) -> Caller:
        """On whose behalf requests run now. Raises when that ended."""
        claims = self._who.claims
        if claims is not None and self._services.memory.now().timestamp() >= claims.exp:
            raise Unauthenticated("token expired")
        agent = self._services.agents.get(self._agent_id)
        if agent is None:
            raise NotFound("the agent is gone")
        return Caller(self._services, self._authority, self._who, agent)

    # --- requests ----------------------------------------------------------------------------

    async def _serve(self, nursery: trio.Nursery, frames: list[bytes]) -> None:
        began = trio.current_time()
        while True:
            if frames:
                await self._take(nursery, frames)
                began = trio.current_time()
            while self._unsent > self._settings.backlog_bytes:
                await self._drained.wait()
            patience = (
                began + self._settings.frame_s
                if self._buffer.unfinished
                else trio.current_time() + self._settings.idle_s
            )
            with trio.move_on_at(patience) as waiting:
                data = await self._stream.receive_some(READ)
            if waiting.cancelled_caught:
                if self._buffer.unfinished:
                    raise PortError("nothing came in time")
                if not self._open:
                    return  # no fault of the client, whose next request may be on its way
                frames = []
                continue
            if not data:
                return
            if not self._buffer.unfinished:
                began = trio.current_time()
            frames = self._buffer.feed(data)

    async def _take(self, nursery: trio.Nursery, frames: Sequence[bytes]) -> None:
        caller = self._caller()
        at_once: list[messages.Recall] = []
        by_text: list[messages.Recall] = []
        together = Together(caller)
        for body in frames:
            request = read_request(body)
            if isinstance(request, messages.Hello):
                raise PortError("a second hello")
            if isinstance(request, messages.Cancel):
                self._cancel(request.id)
            elif isinstance(request, messages.Credit):
                if request.id in self._grants:
                    self._grants[request.id].add(request.more)
            elif isinstance(request, messages.Recall) and request.fast and not request.filters:
                (by_text if request.vector is None else at_once).append(request)
            elif isinstance(request, messages.Remember):
                together = await self._join(nursery, together, caller, request)
            else:
                together = self._launch(nursery, together, caller)
                await self._start(nursery, caller, request)
        self._launch(nursery, together, caller)
        step = self._settings.slice
        for first in range(0, len(by_text), step):
            await self._slots.acquire()
            nursery.start_soon(self._embedded, caller, by_text[first : first + step])
        for first in range(0, len(at_once), step):
            await self._answer_fast(caller, at_once[first : first + step])

    async def _start(self, nursery: trio.Nursery, caller: Caller, request: messages.Asked) -> None:
        self._check_free(request.id)
        if isinstance(request, messages.Watch) and len(self._grants) >= self._settings.watches:
            error = TooManyWatches(f"a connection has at most {self._settings.watches} watches")
            await self._send(encode(records.failed(request.id, error)))
            return
        scope = self._open[request.id] = trio.CancelScope()
        if isinstance(request, messages.Watch):
            self._grants[request.id] = Grant(request.credit)
            nursery.start_soon(self._watch, request, scope)
            return
        await self._slots.acquire()
        nursery.start_soon(self._run, caller, request, scope)

    async def _join(
        self, nursery: trio.Nursery, together: Together, caller: Caller, request: messages.Remember
    ) -> Together:
        """Put a remember into the group of its read; the group that the next one joins."""
        self._check_free(request.id)
        try:
            self._slots.acquire_nowait()
        except trio.WouldBlock:
            together = self._launch(nursery, together, caller)
            await self._slots.acquire()
        self._open[request.id] = together.add(request)
        return together

    def _launch(self, nursery: trio.Nursery, together: Together, caller: Caller) -> Together:
        """Start a group, so that it gives its slots back; the group that comes behind it."""
        if not together.requests:
            return together
        nursery.start_soon(self._store, together)
        return Together(caller)

    def _check_free(self, request_id: int) -> None:
        if request_id in self._open:
            raise PortError("a request's number is still in use")

    def _cancel(self, request_id: int) -> None:
        scope = self._open.get(request_id)
        if scope is not None:
            scope.cancel()

    async def _run(self, caller: Caller, request: messages.Asked, scope: trio.CancelScope) -> None:
        """One request in a task of its own, from permission to answer."""
        request_id = request.id
        reply: messages.Reply | None = None
        try:
            with scope:
                reply = await self._reply(caller, request, request_id)
        finally:
            del self._open[request_id]
            self._slots.release()
        if reply is not None:
            await self._send(self._fitting(request_id, reply))

    async def _store(self, together: Together) -> None:
        """Remembers that came together, from permission to answers."""
        replies: Sequence[Answered] = ()
        try:
            with together.scope:
                replies = await self._replies(together)
        finally:
            for request in together.requests:
                del self._open[request.id]
                self._slots.release()
        for data in _joined([self._fitting(reply.id, reply) for reply in replies]):
            await self._send(data)

    async def _replies(self, together: Together) -> Sequence[Answered]:
        try:
            self._admit(together.requests[0])
            with trio.fail_after(self._settings.request_s):
                return await together.store()
        except trio.TooSlowError:
            return together.failed(Deadline())
        except Exception as error:  # noqa: BLE001 - answered, and logged there if it is a fault
            return together.failed(error)

    async def _watch(self, request: messages.Watch, scope: trio.CancelScope) -> None:
        """One subscription in a task of its own; it ends with a refusal or the connection."""
        reply: messages.Reply | None = None
        try:
            with scope:
                self._admit(request)
                await stream(self._caller, request, self._grants[request.id], self._send)
        except MnemeshError as error:
            reply = records.failed(request.id, error)
        finally:
            del self._open[request.id], self._grants[request.id]
        if reply is not None:
            await self._send(encode(reply))

    async def _reply(
        self, caller: Caller, request: messages.Asked, request_id: int
    ) -> messages.Reply:
        try:
            self._admit(request)
            with trio.fail_after(self._settings.request_s):
                return await handle(caller, request)
        except trio.TooSlowError:
            return records.failed(request_id, Deadline())
        except MnemeshError as error:
            return records.failed(request_id, error)
        except Exception:
            log.exception("a request of the agent port failed")
            return messages.Failed(request_id, "internal", "internal error")

    def _admit(self, request: messages.Asked) -> None:
        if self._services.not_ready is not None:
            raise NotServing(self._services.not_ready)
        need = NEEDS.get(type(request))
        if need is not None:
            self._authority.require(self._who, need)

    # --- fast recalls ------------------------------------------------------------------------

    async def _embedded(self, caller: Caller, asked: Sequence[messages.Recall]) -> None:
        try:
            await self._answer_fast(caller, asked)
        finally:
            self._slots.release()

    async def _answer_fast(self, caller: Caller, asked: Sequence[messages.Recall]) -> None:
        """Answer recalls that came together, from residents alone."""
        begun = time.perf_counter()
        context = self._services.memory
        searches: Sequence[Search | MnemeshError]
        try:
            self._admit(asked[0])
            searches = await searches_of(context, [_question(caller, each) for each in asked])
        except MnemeshError as error:
            searches = [error] * len(asked)
        degraded = lacking(context)
        good: list[tuple[int, Search]] = []
        refused: list[MnemeshError] = []
        frames: list[bytes] = []
        for request, each in zip(asked, searches, strict=True):
            if isinstance(each, Search):
                good.append((request.id, each))
            else:
                refused.append(each)
                frames.append(encode(records.failed(request.id, each)))
        answered, hits = self._answers.frames(good, degraded)
        frames += answered
        seconds = time.perf_counter() - begun
        try:
            await self._send(b"".join(frames))
        finally:
            self._answers.count()
            self._count(hits, refused, seconds)

    def _count(self, hits: Sequence[int], refused: Iterable[MnemeshError], seconds: float) -> None:
        metrics = self._services.metrics.memory
        timing = metrics.seconds.labels(operation="recall")
        for error in refused:
            metrics.operations_total.labels(operation="recall", result=error.code).inc()
            timing.observe(seconds)
        if hits:
            metrics.operations_total.labels(operation="recall", result="ok").inc(len(hits))
        for found in hits:
            timing.observe(seconds)
            metrics.recall_hits.observe(found)

    # --- answers -----------------------------------------------------------------------------

    def _fitting(self, request_id: int, reply: messages.Reply) -> bytes:
        """The frame of an answer; of hits that are too long for one, the last are left out."""
        try:
            return encode(reply)
        except FrameTooLarge as error:
            if isinstance(reply, messages.Answer) and len(reply.hits) > 1:
                kept = reply.hits[: len(reply.hits) // 2]
                rest = tuple(one for one in reply.degraded if one != "size")
                return self._fitting(request_id, messages.Answer(request_id, kept, (*rest, "size")))
            return encode(records.failed(request_id, error))

    async def _send(self, data: bytes) -> None:
        """Send whole frames, one caller at a time. Raises TooSlowError for a client that stalls."""
        self._unsent += len(data)
        try:
            self._sending.acquire_nowait()  # as a rule free, and waiting for it is a turn
        except trio.WouldBlock:
            await self._sending.acquire()
        try:
            with trio.fail_after(self._settings.send_s):
                await self._stream.send_all(data)
            self._unsent -= len(data)
        finally:
            self._sending.release()
        if self._unsent <= self._settings.backlog_bytes:
            self._drained.set()
            self._drained = trio.Event()

    async def _say_goodbye(self, error: MnemeshError) -> None:
        """Tell why the connection ends, if the client still listens."""
        try:
            with trio.move_on_after(FLUSH_S):
                await self._send(encode(records.failed(0, error)))
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
            return


def _joined(frames: Sequence[bytes]) -> Iterator[bytes]:
    """Frames one behind the other, in pieces that are not much longer than `WRITE`."""
    piece: list[bytes] = []
    size = 0
    for frame in frames:
        piece.append(frame)
        size += len(frame)
        if size >= WRITE:
            yield b"".join(piece)
            piece, size = [], 0
    if piece:
        yield b"".join(piece)


def _question(caller: Caller, request: messages.Recall) -> Question:
    return Question(
        query=request.query,
        agent=caller.agent,
        limit=request.limit,
        superseded=request.superseded,
        fast=True,
        vector=records.vector(request.vector),
    )
