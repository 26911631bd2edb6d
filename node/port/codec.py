"""Frames of the agent port: a length of four bytes, big endian, then one message.

The length is judged before the body is kept, and a message is decoded by its type alone, so a
stranger's bytes fail before they cost memory. Used by both ends; does no IO.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeVar

import msgspec

from node.port.messages import MAX_FRAME, Reply, Request
from storage.errors import MnemeshError

HEADER: Final = 4

T = TypeVar("T")


class PortError(MnemeshError):
    """The other side broke the rules of the agent port."""

    code = "protocol"


class FrameTooLarge(PortError):
    """The frame is larger than allowed."""

    code = "frame_too_large"


class Malformed(PortError):
    """The frame is not a valid message."""

    code = "malformed"


class FrameBuffer:
    """Bytes as they come to whole frames. Keeps at most one unfinished frame and one read."""

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self.limit = limit
        self._data = bytearray()

    @property
    def unfinished(self) -> bool:
        """Whether a frame has begun."""
        return bool(self._data)

    def feed(self, data: bytes | bytearray) -> list[bytes]:
        """The bodies of the frames that are complete now.

        Raises FrameTooLarge on a header alone, Malformed for an empty frame; feed nothing after.
        """
        held = self._data
        if not held:
            frames, start = self._whole(data)
            held += data[start:]
            return frames
        held += data
        frames, start = self._whole(held)
        if start:
            del held[:start]
        return frames

    def _whole(self, data: bytes | bytearray) -> tuple[list[bytes], int]:
        """The bodies of the frames that are whole, and where the rest begins."""
        frames: list[bytes] = []
        start, end = 0, len(data)
        while end - start >= HEADER:
            length = int.from_bytes(data[start : start + HEADER], "big")
            if length > self.limit:
                raise FrameTooLarge(f"a frame of {length} bytes, {self.limit} are allowed")
            if length == 0:
                raise Malformed("an empty frame")
            stop = start + HEADER + length
            if stop > end:
                break
            frames.append(bytes(data[start + HEADER : stop]))
            start = stop
        return frames, start


_encoder = msgspec.msgpack.Encoder()
_requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_replies: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


def encode(message: Request | Reply) -> bytes:
    """The frame of a message. Raises FrameTooLarge."""
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME:
        raise FrameTooLarge(f"a frame of {len(body)} bytes, {MAX_FRAME} are allowed")
    return len(body).to_bytes(HEADER, "big") + body


def encode_all(messages: Iterable[Request | Reply]) -> bytes:
    """The frames of several messages, one behind the other. Raises FrameTooLarge."""
    return b"".join(map(encode, messages))


def read_request(body: bytes) -> Request:
    """What an agent said. Raises Malformed, and nothing else."""
    return _read(_requests, body)


def check_request(body: bytes) -> None:
    """What is wrong with a request of this side's own. Raises msgspec's ValidationError."""
    _requests.decode(body)


def read_reply(body: bytes) -> Reply:
    """What the node said. Raises Malformed, and nothing else."""
    return _read(_replies, body)


def _read(decoder: msgspec.msgpack.Decoder[T], body: bytes) -> T:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError):
        raise Malformed() from None
