"""Times on the command line: as answers show ages (`7d`), or as ISO 8601 with a zone."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

import click

_AGO: Final = re.compile(r"(\d{1,6})([smhdy])")
_SIZES: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "y": 86_400 * 365}


def moment(context: click.Context, option: click.Parameter, given: str | None) -> str | None:
    """An option's callback: its text as ISO 8601 in UTC."""
    if given is None:
        return None
    ago = _AGO.fullmatch(given)
    try:
        if ago is not None:
            seconds = int(ago[1]) * _SIZES[ago[2]]
            made = datetime.now(UTC) - timedelta(seconds=seconds)
        else:
            made = datetime.fromisoformat(given)
    except (ValueError, OverflowError):
        made = None
    if made is None or made.tzinfo is None:
        raise click.BadParameter(
            f"{given!r} is no time: expected 7d, 12h or 30m for so long ago, or ISO 8601 with a "
            "zone as 2026-08-01T12:00:00Z",
            context,
            option,
        )
    return made.astimezone(UTC).isoformat()
