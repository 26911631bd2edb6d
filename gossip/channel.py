"""One open link to one peer: typed messages in and out, every wait bounded.

Made by `gossip/transport.py` after both hellos were accepted; the session above owns its
reader and its pings. A frame that was begun and not finished, an error on the wire or a Bye ends
the link for good. Never interprets a message beyond Hello, Accepted and Bye.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TypeAlias

import trio

from gossip.wire.codec import WireError, decode, encode
from gossip.wire.frames import FrameReader, StreamEnded, write_frame
from gossip.wire.handshake import gates_tombstones, may_pass, shared_projects
from gossip.wire.messages import Accepted, Bye, Hello, Message
from storage.errors import MnemeshError
from storage.model import NodeId, ProjectId

Meter: TypeAlias = Callable[[str, str, int], None]
"""(event, label, amount): `in`, `out` and `gated` count a message type and its frame's bytes;
`refused` counts a reason of this side's own list, amount 1."""


class LinkError(MnemeshError):
    """The link to a peer failed. `reason` is a short word for people and logs."""

    code = "link"
    retryable = True

    def __init__(self, reason: str) -> None:
        super().__init__(f"{(type(self).__doc__ or '').splitlines()[0]} ({reason})")
        self.reason = reason


class LinkClosed(LinkError):
    """The link is closed."""

    code = "link_closed"


class LinkBusy(LinkError):
    """Too much waits to be sent to this peer already; the link stays open."""

    code = "link_busy"


class LinkGated(LinkError):
    """The peer does not check copies against tombstones, so content may not go there."""

    code = "link_gated"
    retryable = False


class OutOfTurn(WireError):
    """A message that has no place here in the exchange."""

    code = "out_of_turn"


@dataclass(frozen=True, slots=True)
class LinkLimits:
    """Deadlines in seconds, counts of links; reached limits end a link, never the node."""

    connect_s: float = 5.0
    handshake_s: float = 5.0
    frame_s: float = 10.0
    idle_s: float = 90.0
    send_s: float = 15.0
    bye_s: float = 1.0
    half_open: int = 32
    half_open_per_source: int = 16
    per_peer: int = 4
    waiting_senders: int = 64


class PeerChannel:
    """An accepted link. One task may receive at a time, any number may send.

    `own_nonce` belongs to this side's hello and must stand in the peer's acks; `peer_nonce` to
    the peer's and must stand in ours.
    """

    def __init__(
        self,
        stream: trio.abc.Stream,
        reader: FrameReader,
        *,
        peer_id: NodeId,
        hello: Hello,
        own: Hello,
        outbound: bool,
        address: str,
        allowed: Callable[[], Collection[ProjectId]],
        limits: LinkLimits,
        meter: Meter,
        sever: Callable[[], None],
        ended: Callable[[PeerChannel], None],
    ) -> None:
        self.peer_id = peer_id
        self.hello = hello
        self.own = own
        self.outbound = outbound
        self.address = address
        self.tombstones_only = not gates_tombstones(hello)
        self._stream = stream
        self._reader = reader
        self._allowed = allowed
        self._limits = limits
        self._meter = meter
        self._sever = sever
        self._ended = ended
        self._writing = trio.Lock()
        self._end_reason: str | None = None

    def __repr__(self) -> str:
        way = "to" if self.outbound else "from"
        return f"<PeerChannel {way} {self.peer_id.hex()} {self._end_reason or 'open'}>"

    @property
    def own_nonce(self) -> bytes:
        return self.own.nonce

    @property
    def peer_nonce(self) -> bytes:
        return self.hello.nonce

    @property
    def closed(self) -> bool:
        return self._end_reason is not None

    @property
    def shared_projects(self) -> frozenset[ProjectId]:
        """Projects that both hellos named and whose ACL lists the peer at this moment."""
        return shared_projects(self.hello, self.own, self._allowed())

    async def send(self, message: Message) -> None:
        """Hand one message to the socket; returns when its last byte is with the kernel.

        Raises LinkGated and Unsendable before anything happens; LinkBusy when too many wait or
        the turn does not come in time; LinkClosed. A send that is cancelled or times out in the
        middle of its frame ends the link, since the peer could not read on.
        """
        if not may_pass(message, gated=not self.tombstones_only):
            raise LinkGated(type(message).__name__)
        frame = encode(message)
        self._check_open()
        if self._writing.statistics().tasks_waiting >= self._limits.waiting_senders:
            raise LinkBusy("senders")
        with trio.move_on_after(self._limits.send_s) as scope:
            async with self._writing:
                self._check_open()
                await self._write(frame)
        if scope.cancelled_caught:
            self._check_open()
            raise LinkBusy("turn")
        self._meter("out", type(message).__name__, len(frame))

    async def receive(self) -> Message:
        """The next message, never a Hello, Accepted or Bye. Safe to cancel and call again.

        Raises LinkClosed with the peer's reason, or `ended`, or this side's own; WireError when
        the peer broke a rule, was silent for the idle deadline or too slow with a frame: the
        link is closed then, and the peer told.
        """
        while True:
            self._check_open()
            try:
                frame = await self._reader.read(
                    timeout=self._limits.frame_s, idle=self._limits.idle_s
                )
                message = decode(frame)
                if isinstance(message, Hello | Accepted):
                    raise OutOfTurn()
            except StreamEnded:
                self._end("ended")
                raise LinkClosed(self._end_reason or "ended") from None
            except WireError as error:
                await self.aclose(error.code)
                raise
            name = type(message).__name__
            self._meter("in", name, len(frame))
            if isinstance(message, Bye):
                self._end(message.reason)
                raise LinkClosed(message.reason)
            if may_pass(message, gated=not self.tombstones_only):
                return message
            self._meter("gated", name, len(frame))

    async def aclose(self, reason: str = "closing") -> None:
        """Say Bye if that goes within a second, cancelled or not, and close. Idempotent."""
        if not self.closed:
            with trio.move_on_after(self._limits.bye_s, shield=True):
                async with self._writing:
                    await self._say_bye(reason)
        self._end(reason)

    def cut(self, reason: str) -> None:
        """Close at once, without a word; whoever sends or receives gets LinkClosed(reason)."""
        self._end(reason)

    async def _say_bye(self, reason: str) -> None:
        if not self.closed:
            try:
                await write_frame(self._stream, encode(Bye(reason)), self._limits.bye_s)
            except WireError:
                self._end(reason)

    async def _write(self, frame: bytes) -> None:
        whole = False
        try:
            await write_frame(self._stream, frame, self._limits.send_s)
            whole = True
        except WireError as error:
            self._end(error.code)
            raise LinkClosed(self._end_reason or error.code) from None
        finally:
            if not whole:
                self._end("send_cut")

    def _end(self, reason: str) -> None:
        if self._end_reason is None:
            self._end_reason = reason
            self._sever()
            self._ended(self)

    def _check_open(self) -> None:
        if self._end_reason is not None:
            raise LinkClosed(self._end_reason)
