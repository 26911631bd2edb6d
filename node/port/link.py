"""The client's end of a connection: requests out, answers in, again after a break.

Used by `node/client.py` alone. All requests are safe to repeat (a repeated remember meets the
memory that the first one stored), so whatever was under way when a connection broke is sent again
on the next one, and so is what a node refused only because it starts, stops or waits for its
database. A refusal that another try cannot change fails what was under way instead.
"""

from __future__ import annotations

import math
import random
import ssl
from collections import deque
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec
import trio

from node.port import faults, messages
from node.port.codec import HEADER, FrameBuffer, PortError, check_request, encode, read_reply
from node.port.place import Place
from node.port.refusal import Closed, Refused
from storage.errors import InvalidInput, MnemeshError, Unavailable

READ: Final = 64 * 1024
CONNECT_S: Final = 10.0
PAUSE_FIRST: Final = 0.05
PAUSE_LAST: Final = 2.0
UNSENT: Final = 4 << 20
BEAT_S: Final = 30.0
SILENCE_S: Final = 90.0
"""Seconds after which a node that answers nothing, not even a ping, counts as gone; longer than
the node takes for any request."""
STOOD_S: Final = 5.0
"""Seconds after which a connection counts as one that stood, even if it brought no answer."""
AGAIN_S: Final = 1.0
"""Seconds after which a subscription that a node could not serve is opened again."""

R = TypeVar("R")
_BROKEN: Final = (
    trio.BrokenResourceError,
    trio.ClosedResourceError,
    trio.TooSlowError,
    OSError,
    ssl.SSLError,
)


class Waiting:
    """A request under way and what came back; one task waits for it.

    Without an event: that would be a fifth of what a fast request costs at this end.
    """

    __slots__ = ("_task", "error", "frame", "is_settled", "reply")

    def __init__(self, frame: bytes) -> None:
        self.frame = frame
        self.is_settled = False
        self.reply: messages.Reply | None = None
        self.error: MnemeshError | None = None
        self._task: trio.lowlevel.Task | None = None

    async def wait(self) -> None:
        """Until it is settled."""
        if self.is_settled:
            await trio.lowlevel.checkpoint()
            return
        self._task = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._leave)

    def settle(self, reply: messages.Reply | None, error: MnemeshError | None = None) -> None:
        """Wake whoever waits."""
        self.reply, self.error, self.is_settled = reply, error, True
        task, self._task = self._task, None
        if task is not None:
            trio.lowlevel.reschedule(task)

    def _leave(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED


class Followed:
    """A subscription on the client's side: what came, and how much more may come."""

    def __init__(self, number: int, after: int | None, credit: int) -> None:
        self.number = number
        self.after = after
        self.credit = credit
        self.arrived: deque[messages.Delivery] = deque()
        self.changed = trio.Event()
        self.error: MnemeshError | None = None
        self.stands = False
        self._consumed = 0
        self._refused_since = 0.0
        self._refused_last = -math.inf

    def opening(self) -> messages.Watch:
        """What to say on a new connection: behind the last one received, room for the rest."""
        self._consumed = 0
        free = max(1, self.credit - len(self.arrived))
        return messages.Watch(self.number, self.after, free)

    def begin(self, after: int) -> None:
        """The node follows behind this number."""
        self.stands = True
        if self.after is None:
            self.after = after
        self.wake()

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

    def refused_for(self, now: float) -> float:
        """A node could not serve it at this time; seconds since that began."""
        if now - self._refused_last > 10 * AGAIN_S:
            self._refused_since = now
        self._refused_last = now
        return now - self._refused_since

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
        self._closed = False
        self._answered = False
        """Whether the present connection brought more than a welcome."""
        self._welcomed = math.inf
        """When it was welcomed, if it was, and is not known to be silent."""
        self._heard = 0.0
        self._nursery: trio.Nursery | None = None

    async def run(self) -> None:
        """Keep a connection while anybody needs one; ends when cancelled, and all calls with it."""
        try:
            while True:
                while not (self._waiting or self._followed):
                    await self._work.wait()
                    self._work = trio.Event()
                await self._stay()
        finally:
            self._closed = True
            self._give_up(Closed())

    async def _stay(self) -> None:
        """Connect again and again until nobody waits; no longer than patience without an answer."""
        pause, deadline = PAUSE_FIRST, trio.current_time() + self._patience
        while self._waiting or self._followed:
            self._answered, self._welcomed = False, math.inf
            away = await self._connect_and_serve()
            if self._answered or trio.current_time() - self._welcomed > STOOD_S:
                pause, deadline = PAUSE_FIRST, trio.current_time() + self._patience
            elif trio.current_time() + pause > deadline:
                self._give_up(away)
                return
            await trio.sleep(random.uniform(pause / 2, pause))
            pause = min(PAUSE_LAST, pause * 2)

    async def ask(self, make: Callable[[int], messages.Asked], kind: type[R]) -> R:
        """Send the request that `make` builds from its number; the answer, of type `kind`.

        Raises Refused as the node refuses, InvalidInput for what the port cannot carry,
        Unavailable when the node stays away, and Closed.
        """
        pause, deadline = PAUSE_FIRST, trio.current_time() + self._patience
        while True:
            reply = await self._once(make)
            if isinstance(reply, kind):
                return reply
            if not isinstance(reply, messages.Failed):
                raise PortError("the answer is not one to this request")
            if not _away(reply) or trio.current_time() + pause > deadline:
                raise Refused(reply.code, reply.text, reply.retryable)
            await trio.sleep(random.uniform(pause / 2, pause))
            pause = min(PAUSE_LAST, pause * 2)

    async def _once(self, make: Callable[[int], messages.Asked]) -> messages.Reply | None:
        self._check_open()
        number = self._next()
        waiting = Waiting(_checked(make(number)))
        while self._unsent > UNSENT:
            self._crowded = True
            await self._room.wait()
            self._check_open()
        self._waiting[number] = waiting
        self._post(waiting.frame)
        try:
            await waiting.wait()
        finally:
            if self._waiting.pop(number, None) is not None and not waiting.is_settled:
                self._post(encode(messages.Cancel(number)))
        if waiting.error is not None:
            raise waiting.error
        return waiting.reply

    def follow(self, after: int | None, credit: int) -> Followed:
        """Subscribe, now and after each break, until `unfollow`."""
        self._check_open()
        followed = Followed(self._next(), after, credit)
        frame = _checked(followed.opening())
        self._followed[followed.number] = followed
        self._post(frame)
        return followed

    def grant(self, followed: Followed, more: int) -> None:
        """Let the node send more."""
        self._post(encode(messages.Credit(followed.number, more)))

    def unfollow(self, followed: Followed) -> None:
        """End a subscription, also for a task that waits for its next delivery."""
        if self._followed.pop(followed.number, None) is not None:
            self._post(encode(messages.Cancel(followed.number)))
        followed.fail(followed.error or Closed("the subscription is closed"))

    # --- one connection ----------------------------------------------------------------------

    async def _connect_and_serve(self) -> MnemeshError:
        """One connection from its first byte to its last; why there is none any more."""
        away: MnemeshError = Unavailable(f"the node at {self._place} broke off or is silent")
        try:
            with trio.fail_after(CONNECT_S):
                stream = await self._place.connect()
        except Refused as error:
            self._give_up(error)
            return error
        except _BROKEN as error:
            away = Unavailable(f"no node answers at {self._place}{_reason(error)}")
            if isinstance(error, PermissionError):
                self._give_up(away)
            return away
        try:
            async with stream:
                buffer = FrameBuffer()
                await self._open(stream, buffer)
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    nursery.start_soon(self._write, stream)
                    nursery.start_soon(self._beat)
                    await self._read(stream, buffer)
                    nursery.cancel_scope.cancel()
        except* _BROKEN:
            self._connected = False
        except* MnemeshError as group:
            away = _first(group)
            if not away.retryable:
                self._give_up(away)
        finally:
            self._connected = False
            self._nursery = None
            self._make_room()
        return away

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
        self._welcomed = trio.current_time()
        self._out = [waiting.frame for waiting in self._waiting.values()]
        self._out += [encode(each.opening()) for each in self._followed.values()]
        self._unsent = sum(map(len, self._out))
        self._connected = True
        self._wake()

    async def _read(self, stream: trio.abc.Stream, buffer: FrameBuffer) -> None:
        while data := await stream.receive_some(READ):
            self._heard = trio.current_time()
            for body in buffer.feed(data):
                self._arrived(read_reply(body))

    async def _write(self, stream: trio.abc.Stream) -> None:
        while True:
            while not self._out:
                await self._work.wait()
                self._work = trio.Event()
            frames, self._out = self._out, []
            self._make_room()
            await stream.send_all(b"".join(frames))

    async def _beat(self) -> None:
        """Ask whether the node is there while anybody waits. Raises TooSlowError when it is not."""
        self._heard = trio.current_time()
        while True:
            await trio.sleep(BEAT_S)
            if not (self._waiting or self._followed):
                self._heard = trio.current_time()
            elif trio.current_time() - self._heard > SILENCE_S:
                self._welcomed = math.inf
                raise trio.TooSlowError
            else:
                self._post(encode(messages.Ping(self._next())))

    def _arrived(self, reply: messages.Reply) -> None:
        if isinstance(reply, messages.Welcome):
            raise PortError("a second welcome")
        if isinstance(reply, messages.Failed) and reply.id == 0:
            raise Refused(reply.code, reply.text, reply.retryable)
        self._answered = True
        if isinstance(reply, messages.Delivery):
            followed = self._followed.get(reply.id)
            if followed is not None:
                followed.receive(reply)
        elif isinstance(reply, messages.Watching):
            followed = self._followed.get(reply.id)
            if followed is not None:
                followed.begin(reply.after)
        elif isinstance(reply, messages.Failed) and reply.id in self._followed:
            self._refused(self._followed[reply.id], reply)
        else:
            waiting = self._waiting.pop(reply.id, None)
            if waiting is not None:
                waiting.settle(reply)

    def _refused(self, followed: Followed, failed: messages.Failed) -> None:
        """End a subscription, or open it again in a while when the node may serve it then."""
        if (
            _away(failed)
            and self._nursery is not None
            and followed.refused_for(trio.current_time()) < self._patience
        ):
            self._nursery.start_soon(self._open_again, followed)
            return
        del self._followed[followed.number]
        followed.fail(Refused(failed.code, failed.text, failed.retryable))

    async def _open_again(self, followed: Followed) -> None:
        await trio.sleep(AGAIN_S)
        if followed.number in self._followed:
            self._post(encode(followed.opening()))

    def _give_up(self, error: MnemeshError) -> None:
        """Fail what is under way."""
        waiting, self._waiting = self._waiting, {}
        for each in waiting.values():
            each.settle(None, error)
        followed, self._followed = self._followed, {}
        for one in followed.values():
            one.fail(error)
        self._make_room()

    def _make_room(self) -> None:
        self._unsent = 0
        if self._crowded:
            self._crowded = False
            self._room.set()
            self._room = trio.Event()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed

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
        check_request(frame[HEADER:])
    except msgspec.ValidationError as error:
        raise InvalidInput(faults.told(request, error)) from error
    except (PortError, msgspec.MsgspecError, TypeError, OverflowError) as error:
        raise InvalidInput(f"the request cannot be sent: {error}") from error
    except UnicodeEncodeError as error:
        raise InvalidInput("a text contains a character that cannot be stored") from error
    return frame


def _away(failed: messages.Failed) -> bool:
    """Whether the node could not serve at that moment, so that asking again is right."""
    return failed.retryable and failed.code == Unavailable.code


def _reason(error: BaseException) -> str:
    """What the system says of a failed connection, for people."""
    if not isinstance(error, OSError):
        return ""
    return f": {error.strerror or error}"


def _first(group: BaseExceptionGroup[MnemeshError]) -> MnemeshError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, MnemeshError)
    return error
