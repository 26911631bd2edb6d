"""How answers look on a terminal: tables and short lines, safe against what memories contain."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from erasure.report import printable

PLAIN_WIDTH: Final = 120
_STEPS: Final = ((86_400 * 365, "y"), (86_400, "d"), (3_600, "h"), (60, "m"))


def console() -> Console:
    """Standard output; a fixed width when nobody watches, so that files look the same anywhere."""
    return Console(
        file=sys.stdout,
        width=None if sys.stdout.isatty() else PLAIN_WIDTH,
        highlight=False,
        emoji=False,
    )


def table(heads: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "") -> None:
    """A table whose last column takes the room that is left; `none` without a row."""
    rows = list(rows)
    if not rows:
        sys.stdout.write("none\n")
        return
    made = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False)
    for position, head in enumerate(heads):
        last = position + 1 == len(heads)
        made.add_column(head, overflow="fold", no_wrap=not last, ratio=1 if last else None)
    for row in rows:
        made.add_row(*(cell if isinstance(cell, Text) else Text(safe(cell)) for cell in row))
    console().print(made)


def facts(pairs: Iterable[tuple[str, object]]) -> None:
    """Names and values, one pair a line."""
    known = [(name, safe(value)) for name, value in pairs]
    width = max((len(name) for name, _ in known), default=0)
    for name, value in known:
        sys.stdout.write(f"{name:<{width}}  {value}\n")


def safe(value: object) -> str:
    """Text for a terminal: line ends stay, whatever could steer the terminal does not."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(safe(one) for one in value) or "-"
    return "\n".join(printable(line) for line in str(value).split("\n"))


def age(text: str | None, now: datetime | None = None) -> str:
    """How long ago a time of an answer was: `5m`, `3h`, `12d`."""
    if text is None:
        return "-"
    moment = datetime.fromisoformat(text)
    seconds = int(((now or datetime.now(UTC)) - moment).total_seconds())
    for size, unit in _STEPS:
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{max(seconds, 0)}s"


def memory_rows(memories: Iterable[dict[str, Any]]) -> list[tuple[object, ...]]:
    """Rows of a list of memories: id, age, agent, type, text."""
    return [
        (one["id"], age(one["created_at"]), one["agent_id"], one["type"], one["content"])
        for one in memories
    ]
