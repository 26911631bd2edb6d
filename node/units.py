"""Durations and sizes as people write them, parsed in this one place.

Internally a duration is whole milliseconds and a size whole bytes. A bare whole number is taken
as exactly that; text needs its unit, because `30` in quotes says nothing.
"""

from __future__ import annotations

import re
from typing import Final

MAX_MS: Final = 1000 * 365 * 86_400_000
"""1000 years; longer is a typing error."""
MAX_BYTES: Final = 1 << 50

_MS = {
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "y": 365 * 86_400_000,
}
_BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_QUANTITY = re.compile(r"([0-9]{1,18})([A-Za-z]{1,3})", re.ASCII)

DURATION_HELP: Final = "expected a duration such as 30d, 6h, 15m, 10s, 500ms or milliseconds"
SIZE_HELP: Final = "expected a size such as 512KiB, 1MiB or bytes"


def parse_duration(value: object) -> int:
    """Milliseconds of `30d`, `6h`, `15m`, `10s`, `500ms`, `6y` (365 days each) or a whole number.

    Raises ValueError for another type, a missing or unknown unit, a negative or an absurd value.
    """
    return _parse(value, _MS, MAX_MS, DURATION_HELP)


def parse_size(value: object) -> int:
    """Bytes of `512KiB`, `1MiB`, `2GiB`, `100B` or a whole number. Raises ValueError."""
    return _parse(value, _BYTES, MAX_BYTES, SIZE_HELP)


def format_duration(ms: int) -> str:
    """The shortest text that `parse_duration` reads back as `ms`."""
    if ms == 0:
        return "0s"
    unit = next(unit for unit, size in sorted(_MS.items(), key=_by_size) if ms % size == 0)
    return f"{ms // _MS[unit]}{unit}"


def _by_size(item: tuple[str, int]) -> int:
    return -item[1]


def _parse(value: object, units: dict[str, int], limit: int, wanted: str) -> int:
    if isinstance(value, str):
        match = _QUANTITY.fullmatch(value.strip())
        if match is None or match[2] not in units:
            raise ValueError(wanted)
        amount = int(match[1]) * units[match[2]]
    elif isinstance(value, int) and not isinstance(value, bool):
        amount = value
    else:
        raise ValueError(wanted)
    if not 0 <= amount <= limit:
        raise ValueError(f"{wanted}; this one is out of bounds")
    return amount
