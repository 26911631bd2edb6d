"""Filters of a recall, as the client's caller names them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from node.port.messages import Filters
from node.port.values import moment, several
from storage.errors import InvalidInput


def filters(
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    importance_min: float | None = None,
    pinned: bool | None = None,
    visibility: str | None = None,
    scope: str | None = None,
    **lists: str | Iterable[str] | None,
) -> Filters:
    """Filters of a recall: `agent`, `project`, `kind`, `type`, `tags` and `who` take one or many.

    Raises InvalidInput for an unknown filter and a time without a zone.
    """
    known = ("agent", "project", "kind", "type", "tags", "who")
    for name in lists:
        if name not in known:
            raise InvalidInput(f"unknown filter: {name}")
    named: Mapping[str, tuple[str, ...]] = {
        name: several(value) for name, value in lists.items() if value is not None
    }
    return Filters(
        **named,
        since_ms=moment(since, "since"),
        until_ms=moment(until, "until"),
        importance_min=importance_min,
        pinned=pinned,
        visibility=visibility,
        scope=scope,
    )
