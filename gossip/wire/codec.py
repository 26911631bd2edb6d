"""The typed door for frames: bytes to messages and back, and the errors of the wire.

The session's reader and writer call it for every frame. Whatever a stranger sends, the answer
is a Message or a WireError; a bomb fails at its first wrong type, before memory is spent.
Error texts name a position in the frame, never what stood there.
"""

from __future__ import annotations

import re
from typing import get_args

import msgspec

from gossip.wire.messages import MAX_FRAME, Message
from storage.errors import MnemeshError


class WireError(MnemeshError):
    """The peer broke the rules of the wire."""

    code = "wire"


class FrameTooLarge(WireError):
    """The frame is larger than allowed."""

    code = "frame_too_large"


class EmptyFrame(WireError):
    """The frame has no content."""

    code = "frame_empty"


class Malformed(WireError):
    """The frame is not a valid message."""

    code = "malformed"


class UnknownMessage(WireError):
    """The message type is not known."""

    code = "unknown_message"


class Unsendable(WireError):
    """The message breaks a limit of its own type, so it is not sent."""

    code = "unsendable"


_decoder = msgspec.msgpack.Decoder(Message)
_encoder = msgspec.msgpack.Encoder()
_PLACE = re.compile(r" - at `\$((?:\[\d*(?:\.\.\.)?\])*)`\Z")
MESSAGE_TYPES: tuple[type[Message], ...] = get_args(Message)


def decode(frame: bytes) -> Message:
    """The message of one frame's body.

    Raises FrameTooLarge, EmptyFrame, UnknownMessage or Malformed; nothing else escapes.
    """
    if len(frame) > MAX_FRAME:
        raise FrameTooLarge()
    if not frame:
        raise EmptyFrame()
    try:
        return _decoder.decode(frame)
    except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError) as error:
        raise _translated(error) from None


def encode(message: Message) -> bytes:
    """The frame body of a message.

    Read back under the peer's limits first, so that a mistake on this side is an Unsendable
    here and not a closed link over there. Raises Unsendable.
    """
    try:
        frame = _encoder.encode(message)
        if len(frame) > MAX_FRAME:
            raise Unsendable(f"{type(message).__name__} takes {len(frame)} bytes")
        _decoder.decode(frame)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError, OverflowError) as error:
        where = _place(error)
        raise Unsendable(f"{type(message).__name__} breaks its limits{where}") from None
    return frame


def _translated(error: Exception) -> WireError:
    where = _place(error)
    if where == " at [0]" and str(error).startswith("Invalid value"):
        return UnknownMessage()
    return Malformed(f"the frame is not a valid message{where}")


def _place(error: Exception) -> str:
    found = _PLACE.search(str(error))
    return f" at {found[1]}" if found else ""
