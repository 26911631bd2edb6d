"""The client's end of a connection: requests out, answers in, again after a break.

Used by `node/client.py` alone. All requests are safe to repeat (a repeated remember meets the
memory that the first one stored), so whatever was under way when a connection broke is sent again
on the next one. A refusal that another try cannot change fails what was under way instead.
"""

from __future__ import annotations

import hashlib
import random
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec
import trio

from node.port import messages
from node.port.codec import HEADER, FrameBuffer, PortError, encode, read_reply, read_request
from storage.errors import InvalidInput, MnemeshError, Unavailable

READ: Final = 64 * 1024
CONNECT_S: Final = 10.0
PAUSE_FIRST: Final = 0.05
PAUSE_LAST: Final = 2.0
UNSENT: Final = 4 << 20

R = TypeVar("R")
_BROKEN: Final = (
    trio.BrokenResourceError,
    trio.ClosedResourceError,
    trio.TooSlowError,
    OSError,
    ssl.SSLError,
)


class Refused(MnemeshError):
    """The node refused; `code` and `retryable` are the node's own."""

    code: str  # type: ignore[misc]
    retryable: bool  # type: ignore[misc]

    def __init__(self, code: str, text: str, retryable: bool = False) -> None:
        super().__init__(text)
        self.code = code
        self.retryable = retryable


@dataclass(frozen=True, slots=True)
class Place:
    """Where the node listens: `path` of its unix socket, or `host` and `port` over TLS.

    `fingerprint` is the SHA-256 of the node's certificate in hex; over TLS it is required.
    """

    path: str | None = None
    host: str = ""
    port: int = 0
    fingerprint: str | None = None

    async def connect(self) -> trio.abc.Stream:
        """A stream to the node. Raises OSError and Refused for another node's certificate."""
        if self.path is not None:
            return await trio.open_unix_socket(self.path)
        tcp = await trio.open_tcp_stream(self.host, self.port)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        stream = trio.SSLStream(tcp, context, https_compatible=True)
        try:
            await stream.do_handshake()
            shown = hashlib.sha256(stream.getpeercert(binary_form=True) or b"").hexdigest()
            if shown != (self.fingerprint or "").lower().replace(":", ""):
                raise Refused("certificate", "the node shows another certificate")
        except BaseException:
            tcp.socket.close()
            raise
        return stream


@dataclass(slots=True, eq=False)
class Waiting:
    """A request under way and what came back."""

    frame: bytes
    done: trio.Event = field(default_factory=trio.Event)
    reply: messages.Reply | None = None
    error: MnemeshError | None = None

    def settle(self, reply: messages.Reply | None, error: MnemeshError | None = None) -> None:
        """Wake whoever waits."""
        self.reply, self.error = reply, error
        self.done.set()


class Followed:
    """A subscription on the client's side: what came, and how much more may come."""

    def __init__(self, number: int, after: int | None, credit: int) -> None:
        self.number = number
        self.after = after
        self.credit = credit
        self.arrived: deque[messages.Delivery] = deque()
        self.changed = trio.Event()
        self.error: MnemeshError | None = None
        self._consumed = 0

    def opening(self) -> messages.Watch:
        """What to say on a new connection: behind the last one received, room for the rest."""
        self._consumed = 0
        free = max(1, self.credit - len(self.arrived))
        return messages.Watch(self.number, self.after, free)

    def receive(self, delivery: messages.Delivery) -> None:
        """Keep a delivery; one that was seen before is left out."""
        if self.after is None or delivery.seq > self.after:
            self.after = delivery.seq
            self.arrived.append(delivery)
            self.wake()

    def take(self) -> tuple[messages.Delivery, int]:
        """The oldest delivery, and how many more to ask the node for now."""
        delivery = self.arrived.popleft()
        self._consumed += 1
        more = 0
        if self._consumed * 2 >= self.credit:
            more, self._consumed = self._consumed, 0
        return delivery, more

    def fail(self, error: MnemeshError) -> None:
        """End it."""
        self.error = error
        self.wake()

    def wake(self) -> None:
        """Something changed."""
        self.changed.set()
        self.changed = trio.Event()


class Link:
    """One logical connection. `patience_s` bounds how long a call waits for the node to be back."""

    def __init__(self, place: Place, hello: messages.Hello, patience_s: float) -> None:
        self.welcome: messages.Welcome | None = None
        self._place = place
        self._hello = hello
        self._patience = patience_s
        self._number = 0
        self._waiting: dict[int, Waiting] = {}
        self._followed: dict[int, Followed] = {}
        self._out: list[bytes] = []
        self._unsent = 0
        self._work = trio.Event()
        self._room = trio.Event()
        self._crowded = False
        self._connected = False

    async def run(self) -> None:
        """Keep a connection while anybody needs one; ends when cancelled."""
        while True:
            while not (self._waiting or self._followed):
                await self._work.wait()
                self._work = trio.Event()
            await self._connect_and_serve()
            await trio.sleep(random.uniform(PAUSE_FIRST / 2, PAUSE_FIRST))

    async def ask(self, make: Callable[[int], messages.Asked], kind: type[R]) -> R:
        """Send the request that `make` builds from its number; the answer, of type `kind`.

        Raises Refused as the node refuses, InvalidInput for what the port cannot carry, and
        Unavailable when the node stays away.
        """
        number = self._next()
        waiting = Waiting(_checked(make(number)))
        while self._unsent > UNSENT:
            self._crowded = True
            await self._room.wait()
        self._waiting[number] = waiting
        self._post(waiting.frame)
        try:
            await waiting.done.wait()
        finally:
            if self._waiting.pop(number, None) is not None and not waiting.done.is_set():
                self._post(encode(messages.Cancel(number)))
        if waiting.error is not None:
            raise waiting.error
        if isinstance(waiting.reply, messages.Failed):
            failed = waiting.reply
            raise Refused(failed.code, failed.text, failed.retryable)
        if not isinstance(waiting.reply, kind):
            raise PortError("the answer is not one to this request")
        return waiting.reply

    def follow(self, after: int | None, credit: int) -> Followed:
        """Subscribe, now and after each break, until `unfollow`."""
        followed = Followed(self._next(), after, credit)
        frame = _checked(followed.opening())
        self._followed[followed.number] = followed
        self._post(frame)
        return followed

    def grant(self, followed: Followed, more: int) -> None:
        """Let the node send more."""
        self._post(encode(messages.Credit(followed.number, more)))

    def unfollow(self, followed: Followed) -> None:
        """End a subscription."""
        if self._followed.pop(followed.number, None) is not None:
            self._post(encode(messages.Cancel(followed.number)))

    # --- one connection ----------------------------------------------------------------------

    async def _connect_and_serve(self) -> None:
        stream = await self._reach()
        if stream is None:
            return
        try:
            async with stream:
                buffer = FrameBuffer()
                await self._open(stream, buffer)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write, stream)
                    await self._read(stream, buffer)
                    nursery.cancel_scope.cancel()
        except* _BROKEN:
            self._connected = False
        except* MnemeshError as group:
            self._fail(_first(group))
        finally:
            self._connected = False

    async def _reach(self) -> trio.abc.Stream | None:
        """A stream, after as many tries as patience allows; None when it ran out."""
        pause = PAUSE_FIRST
        deadline = trio.current_time() + self._patience
        while True:
            try:
                with trio.fail_after(CONNECT_S):
                    return await self._place.connect()
            except Refused as error:
                self._fail(error)
                return None
            except _BROKEN:
                if trio.current_time() + pause > deadline:
                    self._fail(Unavailable("the node cannot be reached"))
                    return None
            await trio.sleep(random.uniform(pause / 2, pause))
            pause = min(PAUSE_LAST, pause * 2)

    async def _open(self, stream: trio.abc.Stream, buffer: FrameBuffer) -> None:
        await stream.send_all(encode(self._hello))
        with trio.fail_after(CONNECT_S):
            frames: list[bytes] = []
            while not frames:
                data = await stream.receive_some(READ)
                if not data:
                    raise trio.BrokenResourceError
                frames = buffer.feed(data)
        reply = read_reply(frames[0])
        if isinstance(reply, messages.Failed):
            raise Refused(reply.code, reply.text, reply.retryable)
        if not isinstance(reply, messages.Welcome):
            raise PortError("the node did not say welcome")
        self.welcome = reply
        self._out = [waiting.frame for waiting in self._waiting.values()]
        self._out += [encode(each.opening()) for each in self._followed.values()]
        self._unsent = sum(map(len, self._out))
        self._connected = True
        self._wake()

    async def _read(self, stream: trio.abc.Stream, buffer: FrameBuffer) -> None:
        while data := await stream.receive_some(READ):
            for body in buffer.feed(data):
                self._arrived(read_reply(body))

    async def _write(self, stream: trio.abc.Stream) -> None:
        while True:
            while not self._out:
                await self._work.wait()
                self._work = trio.Event()
            frames, self._out = self._out, []
            self._unsent = 0
            if self._crowded:
                self._crowded = False
                self._room.set()
                self._room = trio.Event()
            await stream.send_all(b"".join(frames))

    def _arrived(self, reply: messages.Reply) -> None:
        if isinstance(reply, messages.Welcome):
            raise PortError("a second welcome")
        if isinstance(reply, messages.Delivery):
            followed = self._followed.get(reply.id)
            if followed is not None:
                followed.receive(reply)
        elif isinstance(reply, messages.Watching):
            followed = self._followed.get(reply.id)
            if followed is not None and followed.after is None:
                followed.after = reply.after
            if followed is not None:
                followed.wake()
        elif isinstance(reply, messages.Failed) and reply.id == 0:
            raise Refused(reply.code, reply.text, reply.retryable)
        elif isinstance(reply, messages.Failed) and reply.id in self._followed:
            ended = self._followed.pop(reply.id)
            ended.fail(Refused(reply.code, reply.text, reply.retryable))
        else:
            waiting = self._waiting.pop(reply.id, None)
            if waiting is not None:
                waiting.settle(reply)

    def _fail(self, error: MnemeshError) -> None:
        """Give up what is under way, unless it may go well on the next connection."""
        if error.retryable and not isinstance(error, Unavailable):
            return
        waiting, self._waiting = self._waiting, {}
        for each in waiting.values():
            each.settle(None, error)
        followed, self._followed = self._followed, {}
        for one in followed.values():
            one.fail(error)

    def _post(self, frame: bytes) -> None:
        if self._connected:
            self._out.append(frame)
            self._unsent += len(frame)
        self._wake()

    def _wake(self) -> None:
        """Whoever waits takes a new event when it has seen this one."""
        self._work.set()

    def _next(self) -> int:
        self._number = self._number % ((1 << 32) - 1) + 1
        return self._number


def _checked(request: messages.Asked) -> bytes:
    """The frame of a request. Raises InvalidInput for one that the node would not even read."""
    try:
        frame = encode(request)
        read_request(frame[HEADER:])
    except (PortError, msgspec.MsgspecError, TypeError, OverflowError) as error:
        raise InvalidInput("the request holds a value that is too long or of another type") from (
            error
        )
    except UnicodeEncodeError as error:
        raise InvalidInput("a text contains a character that cannot be stored") from error
    return frame


def _first(group: BaseExceptionGroup[MnemeshError]) -> MnemeshError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, MnemeshError)
    return error
