"""The only way in and out of the JSON that is signed, hashed and kept as evidence.

RFC 8785 on a narrow domain: text, integers up to 2^53-1, booleans, null, arrays, and objects
with ASCII keys. Numbers with a fraction have no place here, because two writers would print
them differently. Reading is strict, so that each value has exactly one accepted byte form.
Part of the offline verifier: never touches files, the network or the database.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, ClassVar, NoReturn, TypeAlias

import rfc8785

Json: TypeAlias = bool | int | str | list[Any] | dict[str, Any] | None

MAX_BYTES = 1 << 20
MAX_DEPTH = 16
MAX_INTEGER = (1 << 53) - 1
_INTEGER_CHARACTERS = 17

_STRUCTURE = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)


class Malformed(ValueError):
    """The bytes or the value are outside the canonical domain."""

    code: ClassVar[str] = "malformed"
    retryable: ClassVar[bool] = False


def encode(value: object) -> bytes:
    """Canonical bytes of `value`; the same value gives the same bytes on every machine.

    Raises Malformed for fractions, other types, integers out of range, keys that are not
    ASCII text, lone surrogates, nesting deeper than 16 and results above 1 MiB.
    """
    _check(value, 0)
    data = bytes(rfc8785.dumps(value))  # type: ignore[arg-type]
    if len(data) > MAX_BYTES:
        raise Malformed(f"more than {MAX_BYTES} bytes")
    return data


def read(data: bytes) -> Json:
    """The value of JSON from a stranger, whatever its spacing and key order.

    For containers whose own bytes are not signed. Size and depth are checked before the parser
    runs. Raises Malformed for what `encode` refuses, and for repeated keys.
    """
    if len(data) > MAX_BYTES:
        raise Malformed(f"more than {MAX_BYTES} bytes")
    _check_nesting(data)
    try:
        text = data.decode("utf-8")
        value: Json = json.loads(
            text,
            object_pairs_hook=_object,
            parse_int=_integer,
            parse_float=_fraction,
            parse_constant=_fraction,
        )
    except Malformed:
        raise
    except (ValueError, RecursionError) as error:
        raise Malformed("not JSON") from error
    _check(value, 0)
    return value


def decode(data: bytes) -> Json:
    """`read`, for bytes that were signed or hashed: they must be the canonical form."""
    value = read(data)
    if encode(value) != data:
        raise Malformed("not in canonical form")
    return value


def _check_nesting(data: bytes) -> None:
    depth = 0
    for match in _STRUCTURE.finditer(data):
        token = match.group()
        if token in b"[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise Malformed(f"deeper than {MAX_DEPTH}")
        elif token in b"]}":
            depth -= 1


def _check(value: object, depth: int) -> None:
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, int):
        if abs(value) > MAX_INTEGER:
            raise Malformed("an integer is out of range")
    elif isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise Malformed("text with a lone surrogate") from error
    elif isinstance(value, list | tuple | Mapping):
        if depth == MAX_DEPTH:
            raise Malformed(f"deeper than {MAX_DEPTH}")
        if isinstance(value, Mapping):
            for key in value:
                if not isinstance(key, str) or not key.isascii():
                    raise Malformed("a key is not ASCII text")
        for item in value.values() if isinstance(value, Mapping) else value:
            _check(item, depth + 1)
    else:
        raise Malformed(f"a {type(value).__name__} has no canonical form")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Malformed("a key is repeated")
    return found


def _integer(text: str) -> int:
    if len(text) > _INTEGER_CHARACTERS:
        raise Malformed("an integer is out of range")
    return int(text)


def _fraction(text: str) -> NoReturn:
    raise Malformed("a number is not an integer")
