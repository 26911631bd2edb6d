"""Which memories a question is about, judged alike for residents and for rows.

`passes` is the Python twin of the conditions in `storage/sql/memories.sql`. A filter narrows what
a reader may see and never widens it. Nothing here parses what callers wrote.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from storage.model import AgentId, MemoryKind, ProjectId, Resident, Visibility

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_REAL: Final = struct.Struct("f")


def real(value: float) -> float:
    """`value` in the precision in which the database keeps it."""
    rounded: float = _REAL.unpack(_REAL.pack(value))[0]
    return rounded


def to_ms(moment: datetime) -> int:
    """Whole milliseconds since 1970, rounded down."""
    return (moment - EPOCH) // timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Filters:
    """Conditions that all must hold; an empty or missing one asks for nothing.

    Of `agents`, `projects`, `kinds`, `types` and `who` one value is enough, of `tags` all are
    wanted. `since` is included, `until` is not; both count in milliseconds.
    """

    agents: frozenset[AgentId] = frozenset()
    projects: frozenset[ProjectId] = frozenset()
    kinds: frozenset[MemoryKind] = frozenset()
    types: frozenset[str] = frozenset()
    tags: frozenset[str] = frozenset()
    who: frozenset[str] = frozenset()
    since: datetime | None = None
    until: datetime | None = None
    importance_min: float | None = None
    pinned: bool | None = None
    visibility: Visibility | None = None
    scope_label: str | None = None

    @property
    def beyond_agents(self) -> bool:
        """Whether anything but the agents is asked for."""
        return self is not NO_FILTERS and self != Filters(agents=self.agents)


NO_FILTERS: Final = Filters()


def passes(memory: Resident, filters: Filters) -> bool:
    """Whether a resident meets all conditions."""
    if filters.agents and memory.agent_id not in filters.agents:
        return False
    if filters.projects and memory.project_id not in filters.projects:
        return False
    if filters.kinds and memory.kind not in filters.kinds:
        return False
    if filters.types and memory.type not in filters.types:
        return False
    if filters.tags and not filters.tags.issubset(memory.tags):
        return False
    if filters.who and memory.who not in filters.who:
        return False
    if filters.since is not None and memory.created_ms < _up(filters.since):
        return False
    if filters.until is not None and memory.created_ms >= _up(filters.until):
        return False
    if filters.importance_min is not None and real(memory.importance) < real(
        filters.importance_min
    ):
        return False
    if filters.pinned is not None and memory.pinned is not filters.pinned:
        return False
    if filters.visibility is not None and memory.visibility is not filters.visibility:
        return False
    return filters.scope_label is None or memory.scope_label == filters.scope_label


def arguments(filters: Filters) -> dict[str, Any]:
    """The parameters of the same conditions in SQL; None asks for nothing."""
    return {
        "of_agents": sorted(filters.agents) or None,
        "of_projects": sorted(filters.projects) or None,
        "of_kinds": sorted(filters.kinds) or None,
        "of_types": sorted(filters.types) or None,
        "with_tags": sorted(filters.tags) or None,
        "by_who": sorted(filters.who) or None,
        "since": None if filters.since is None else _moment(_up(filters.since)),
        "until": None if filters.until is None else _moment(_up(filters.until)),
        "importance_min": filters.importance_min,
        "is_pinned": filters.pinned,
        "of_visibility": filters.visibility,
        "of_label": filters.scope_label,
    }


def _up(moment: datetime) -> int:
    """Whole milliseconds, rounded up: a row's time below a millisecond then counts for nothing."""
    return -((EPOCH - moment) // timedelta(milliseconds=1))


def _moment(milliseconds: int) -> datetime:
    return EPOCH + timedelta(milliseconds=milliseconds)
