"""Answers to fast recalls as frames, put together from records that were encoded before.

What stands in a frame is `messages.Answer` to the byte; only the request's number, the scores and
the marks are new in each.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from node.memory.encoded import EncodedRecords, Pieces
from node.memory.ranking import Source
from node.port import messages, records
from node.port.codec import HEADER, FrameTooLarge, encode
from storage.hot.reports import Hit
from storage.model import Resident

if TYPE_CHECKING:
    from node.services import Services

_encode = msgspec.msgpack.encode
_FLOAT: Final = b"\xcb"
_HIT: Final = struct.pack(">BH", 0xDC, len(messages.Hit.__struct_fields__))
"""A hit is an array of more than 15 elements."""
_ANSWER: Final = b"\x94" + _encode(messages.Answer.__struct_config__.tag)
"""An answer is an array of four: its tag, its number, its hits, its marks."""
_SOURCE: Final = _encode(Source.VECTOR) + _encode("hot")
_NO_WORDS: Final = _encode(0.0)
_WHY: Final = struct.Struct(f">cd{len(_SOURCE)}scd{len(_NO_WORDS)}s")


class Answers:
    """Makes the frames of one node's answers."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._encoded = EncodedRecords(encode_record, services.memory.residency.graph)

    def frame(self, number: int, hits: Sequence[Hit], degraded: tuple[str, ...]) -> bytes:
        """The frame that answers the request of this number.

        Of hits that are too long for one the last are left out, and `size` says so; when a lone
        one is too long, the frame refuses the request.
        """
        services = self._services
        alpha = services.memory.settings.alpha
        label = services.agents.label
        pieces = self._encoded.pieces
        parts: list[bytes] = []
        for hit in hits:
            resident = hit.resident
            project = resident.project_id
            name = None if project is None else records.project_name(services, project)
            head, tail = pieces(resident, label(resident.agent_id), name)
            cosine = max(hit.score, 0.0)
            why = _WHY.pack(_FLOAT, alpha * cosine, _SOURCE, _FLOAT, cosine, _NO_WORDS)
            parts += (head, why, tail)
        try:
            return _fitting(number, parts, degraded)
        except FrameTooLarge as error:
            return encode(records.failed(number, error))


def encode_record(resident: Resident, agent: str, project: str | None) -> Pieces:
    """What stands in a `messages.Hit` before its score, and what behind its last."""
    rest = (
        resident.kind,
        agent,
        resident.type,
        resident.tags,
        resident.importance,
        resident.pinned,
        resident.foreign,
        resident.created_ms,
        project,
        resident.scope_label,
        resident.who,
        resident.expires_ms,
    )
    head = _HIT + _encode(resident.id) + _encode(resident.content)
    return head, b"".join(map(_encode, rest))


def _fitting(number: int, parts: Sequence[bytes], degraded: tuple[str, ...]) -> bytes:
    marks = _encode(degraded)
    while True:
        count = len(parts) // 3
        opening = _ANSWER + _encode(number) + _array(count)
        length = len(opening) + sum(map(len, parts)) + len(marks)
        if length <= messages.MAX_FRAME:
            return b"".join((length.to_bytes(HEADER, "big"), opening, *parts, marks))
        if count == 1:
            raise FrameTooLarge(f"a frame of {length} bytes, {messages.MAX_FRAME} are allowed")
        parts = parts[: 3 * (count // 2)]
        marks = _encode((*degraded, "size"))


def _array(count: int) -> bytes:
    """The header of an array of at most 65,535 elements."""
    return bytes((0x90 | count,)) if count < 16 else struct.pack(">BH", 0xDC, count)
