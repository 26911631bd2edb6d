"""Length-prefixed frames on a trio stream: four bytes big endian, then the body.

The length is judged before a byte of the body is read, and a frame that began must end before
its deadline, so neither a giant header nor a trickle costs more than one small buffer.
Bodies are opaque here; `gossip/wire/codec.py` gives them types.
"""

from __future__ import annotations

import math

import trio

from gossip.wire.codec import EmptyFrame, FrameTooLarge, WireError
from gossip.wire.messages import MAX_FRAME

HEADER_BYTES = 4
_PIECE = 16 * 1024


class FrameTimeout(WireError):
    """The frame did not end before its deadline."""

    code = "frame_timeout"


class StreamIdle(WireError):
    """No frame began before the deadline."""

    code = "idle"


class StreamEnded(WireError):
    """The stream ended."""

    code = "ended"
    retryable = True


class FrameReader:
    """Frames of one stream, one caller at a time.

    Reads exactly what a frame holds. A cancelled `read` loses nothing: the next one goes on
    where it stopped, under the deadline of the frame's first byte.
    """

    def __init__(self, stream: trio.abc.ReceiveStream, max_bytes: int = MAX_FRAME) -> None:
        self._stream = stream
        self._max_bytes = max_bytes
        self._header = bytearray()
        self._body = bytearray()
        self._began: float | None = None

    async def read(self, *, timeout: float, idle: float) -> bytes:
        """The body of the next frame.

        `idle` seconds may pass before its first byte, `timeout` from there to its last.
        Raises FrameTooLarge and EmptyFrame on the header alone, StreamIdle, FrameTimeout, and
        StreamEnded when the stream ends or breaks, in the middle of a frame too.
        """
        if self._began is None:
            with trio.move_on_after(idle):
                self._header += await self._some(1)
            if not self._header:
                raise StreamIdle()
            self._began = trio.current_time()
        with trio.move_on_at(self._began + timeout):
            return await self._rest()
        raise FrameTimeout()

    async def _rest(self) -> bytes:
        while len(self._header) < HEADER_BYTES:
            self._header += await self._some(HEADER_BYTES - len(self._header))
        length = int.from_bytes(self._header, "big")
        if length > self._max_bytes:
            raise FrameTooLarge(f"a frame of {length} bytes, {self._max_bytes} are allowed")
        if length == 0:
            raise EmptyFrame()
        while len(self._body) < length:
            self._body += await self._some(length - len(self._body))
        frame = bytes(self._body)
        self._header.clear()
        self._body.clear()
        self._began = None
        return frame

    async def _some(self, wanted: int) -> bytes | bytearray:
        try:
            data = await self._stream.receive_some(min(wanted, _PIECE))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise StreamEnded() from error
        if not data:
            raise StreamEnded()
        return data


async def read_frame(
    stream: trio.abc.ReceiveStream, max_bytes: int, timeout: float, idle: float = math.inf
) -> bytes:
    """One frame from a stream that no FrameReader owns; see `FrameReader.read`.

    A cancelled call loses what it read: close the stream then.
    """
    return await FrameReader(stream, max_bytes).read(timeout=timeout, idle=idle)


async def write_frame(
    stream: trio.abc.SendStream, body: bytes, timeout: float, max_bytes: int = MAX_FRAME
) -> None:
    """Send one frame within `timeout` seconds.

    Raises EmptyFrame, FrameTooLarge before a byte is sent; FrameTimeout and StreamEnded, after
    either of which, or a cancellation, the stream must be closed.
    """
    if not body:
        raise EmptyFrame()
    if len(body) > max_bytes:
        raise FrameTooLarge(f"a frame of {len(body)} bytes, {max_bytes} are allowed")
    try:
        with trio.fail_after(timeout):
            await stream.send_all(len(body).to_bytes(HEADER_BYTES, "big") + body)
    except trio.TooSlowError:
        raise FrameTimeout() from None
    except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
        raise StreamEnded() from error
