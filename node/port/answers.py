"""Answers to fast recalls as frames, put together from records that were encoded before.

What stands in a frame is `messages.Answer` to the byte; only the request's number, the scores and
the marks are new in each.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from node.http.views import project_label
from node.memory.encoded import Encoded, EncodedRecords
from node.memory.nearest import Search
from node.memory.ranking import Source
from node.port import messages, records
from node.port.codec import HEADER, FrameTooLarge, encode
from storage.model import Resident

if TYPE_CHECKING:
    from node.services import Services

_encode = msgspec.msgpack.encode
_FLOAT: Final = b"\xcb"
_ANSWER: Final = b"\x94" + _encode(messages.Answer.__struct_config__.tag)
"""An answer is an array of four: its tag, its number, its hits, its marks."""
_HIT: Final = struct.pack(">BH", 0xDC, len(messages.Hit.__struct_fields__)) + _FLOAT
"""A hit is an array of more than 15 elements, and the first is its score."""
_SOURCE: Final = _encode(Source.VECTOR) + _encode("hot") + _FLOAT
_NO_WORDS: Final = _encode(0.0)
_WHY: Final = struct.Struct(f">{len(_HIT)}sd{len(_SOURCE)}sd{len(_NO_WORDS)}s")
_TEMPLATE: Final = np.frombuffer(_WHY.pack(_HIT, 0, _SOURCE, 0, _NO_WORDS), np.uint8)
_SCORE: Final = slice(len(_HIT), len(_HIT) + 8)
_COSINE: Final = slice(_SCORE.stop + len(_SOURCE), _SCORE.stop + len(_SOURCE) + 8)


class Answers:
    """Makes the frames of one node's answers."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._encoded = EncodedRecords(services.memory, self._record)

    def frames(
        self, asked: Sequence[tuple[int, Search]], degraded: tuple[str, ...]
    ) -> tuple[list[bytes], list[int]]:
        """The frames that answer requests by number, and how many hits each of them found.

        Of hits that are too long for one the last are left out, and `size` says so; when a lone
        one is too long, the frame refuses the request.
        """
        if not asked:
            return [], []
        answers = self._encoded.answers([search for _, search in asked])
        whys = self._whys(answers)
        marks = _encode(degraded)
        frames: list[bytes] = []
        begin = 0
        for (number, _), answer in zip(asked, answers, strict=True):
            end = begin + len(answer.records)
            frames.append(_frame(number, whys[begin:end], answer.records, degraded, marks))
            begin = end
        return frames, [len(answer.records) for answer in answers]

    def count(self) -> None:
        """Count the hits of the last frames as recalled."""
        self._encoded.count()

    def _whys(self, answers: Sequence[Encoded]) -> list[bytes]:
        """What stands before the record of each hit of all answers."""
        cosines = np.concatenate([answer.cosines for answer in answers]).astype(np.float64)
        np.maximum(cosines, 0.0, out=cosines)
        made = np.empty((len(cosines), _WHY.size), np.uint8)
        made[:] = _TEMPLATE
        made[:, _SCORE] = _doubles(self._services.memory.settings.alpha * cosines)
        made[:, _COSINE] = _doubles(cosines)
        told = made.tobytes()
        return [told[at : at + _WHY.size] for at in range(0, len(told), _WHY.size)]

    def _record(self, resident: Resident) -> bytes:
        services = self._services
        return encode_record(
            resident,
            services.agents.label(resident.agent_id),
            project_label(services, resident.project_id),
        )


def encode_record(resident: Resident, agent: str, project: str | None) -> bytes:
    """What stands in a `messages.Hit` behind its scores."""
    rest = (
        resident.id,
        resident.content,
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
    return _encode(rest)[1:]  # without the header of an array of up to 15


def _doubles(numbers: NDArray[np.float64]) -> NDArray[np.uint8]:
    """The bytes of each number as msgpack has them, of shape (n, 8)."""
    return numbers.astype(">f8").view(np.uint8).reshape(-1, 8)


def _frame(
    number: int, whys: list[bytes], rest: list[bytes], degraded: tuple[str, ...], marks: bytes
) -> bytes:
    while True:
        count = len(rest)
        opening = _ANSWER + _encode(number) + _array(count)
        parts = [b""] * (2 * count)
        parts[::2], parts[1::2] = whys, rest
        body = b"".join((opening, *parts, marks))
        if len(body) <= messages.MAX_FRAME:
            return len(body).to_bytes(HEADER, "big") + body
        if count == 1:
            too_long = FrameTooLarge(
                f"a frame of {len(body)} bytes, {messages.MAX_FRAME} are allowed"
            )
            return encode(records.failed(number, too_long))
        whys, rest = whys[: count // 2], rest[: count // 2]
        marks = _encode((*degraded, "size"))


def _array(count: int) -> bytes:
    """The header of an array of at most 65,535 elements."""
    return bytes((0x90 | count,)) if count < 16 else struct.pack(">BH", 0xDC, count)
