"""What callers of the client give, in the form of the wire. Each raises InvalidInput."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from node.port import messages
from storage.errors import InvalidInput


def several(given: str | Iterable[str]) -> tuple[str, ...]:
    """One text or many."""
    return (given,) if isinstance(given, str) else tuple(given)


def moment(given: datetime | None, name: str = "created_at") -> int | None:
    """Milliseconds since 1970 of an aware time."""
    try:
        return messages.moment_ms(given)
    except ValueError as error:
        raise InvalidInput(f"{name}: {error}") from error


def vector_of(given: Any) -> bytes | None:
    """An array, or any sequence of numbers, as float32."""
    try:
        return messages.vector_bytes(given)
    except (ValueError, TypeError) as error:
        raise InvalidInput("vector: a sequence of numbers is expected") from error


def raw_id(given: str | bytes) -> bytes:
    """A memory's id as UUID text or as its bytes."""
    if isinstance(given, bytes):
        return given
    try:
        return uuid.UUID(given).bytes
    except (ValueError, AttributeError, TypeError) as error:
        raise InvalidInput("a memory's id is no UUID") from error
