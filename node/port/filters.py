"""Filters of a recall, as the client's caller names them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from node.port import messages
from node.port.messages import Filters
from storage.errors import InvalidInput


def filters(
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    importance_min: float | None = None,
    pinned: bool | None = None,
    visibility: str | None = None,
    scope: str | None = None,
    **several: str | Iterable[str],
) -> Filters:
    """Filters of a recall: `agent`, `project`, `kind`, `type`, `tags` and `who` take one or many.

    Raises InvalidInput for an unknown filter and a time without a zone.
    """
    known = ("agent", "project", "kind", "type", "tags", "who")
    for name in several:
        if name not in known:
            raise InvalidInput(f"unknown filter: {name}")
    lists: Mapping[str, tuple[str, ...]] = {
        name: (value,) if isinstance(value, str) else tuple(value)
        for name, value in several.items()
    }
    try:
        since_ms, until_ms = messages.moment_ms(since), messages.moment_ms(until)
    except ValueError as error:
        raise InvalidInput(str(error)) from error
    return Filters(
        **lists,
        since_ms=since_ms,
        until_ms=until_ms,
        importance_min=importance_min,
        pinned=pinned,
        visibility=visibility,
        scope=scope,
    )
