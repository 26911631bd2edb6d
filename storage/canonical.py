"""The one door to msgpack: canonical bytes that are hashed, signed, stored and forwarded.

Canonical means: map keys sorted bytewise, shortest integer and length forms, no floats, no
extension types. `decode` re-encodes and compares, so every value has exactly one byte form.
Frames between peers do not pass here; gossip/wire/codec.py has its own strict door.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgpack

from storage.errors import InvalidInput

Value: TypeAlias = bool | int | str | bytes | list[Any] | dict[str, Any] | None

MAX_BYTES = 1 << 20
MAX_ITEMS = 4096
MAX_DEPTH = 8


class NonCanonical(InvalidInput):
    """The bytes are not in canonical form."""

    code = "noncanonical"


def encode(value: Value) -> bytes:
    """Canonical bytes of `value`.

    Raises NonCanonical for floats, other types, non-text keys, lone surrogates and depth.
    """
    try:
        return bytes(msgpack.packb(_ordered(value, 0), use_bin_type=True))
    except (TypeError, ValueError, OverflowError) as error:
        raise NonCanonical("the value cannot be written in canonical form") from error


def decode(data: bytes, *, max_bytes: int = MAX_BYTES) -> Value:
    """The value of canonical bytes from a stranger.

    Size is checked first, containers and depth are bounded, and the result must encode to the
    same bytes. Raises NonCanonical.
    """
    if len(data) > max_bytes:
        raise NonCanonical(f"more than {max_bytes} bytes")
    try:
        value: Value = msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=True,
            max_str_len=max_bytes,
            max_bin_len=max_bytes,
            max_array_len=MAX_ITEMS,
            max_map_len=MAX_ITEMS,
            max_ext_len=0,
        )
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise NonCanonical("the bytes do not decode") from error
    if encode(value) != data:
        raise NonCanonical()
    return value


def decode_map(data: bytes, *, max_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """`decode`, for records whose top level is a map."""
    value = decode(data, max_bytes=max_bytes)
    if not isinstance(value, dict):
        raise NonCanonical("the record is not a map")
    return value


def _ordered(value: Value, depth: int) -> Value:
    if depth > MAX_DEPTH:
        raise NonCanonical(f"deeper than {MAX_DEPTH}")
    if value is None or isinstance(value, bool | int | str | bytes):
        return value
    if isinstance(value, list):
        return [_ordered(item, depth + 1) for item in value]
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise NonCanonical("a map key is not text")
        keys = sorted(value, key=lambda key: key.encode("utf-8", "surrogatepass"))
        return {key: _ordered(value[key], depth + 1) for key in keys}
    raise NonCanonical(f"a {type(value).__name__} has no canonical form")
