"""Names that a caller writes into the filters of a question, made into ids.

Shared by HTTP and the agent port, so that both know the same filters and refuse the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING

from node.agents import AgentDirectory
from node.http.auth import Credential, choose_project
from storage.content import check_text
from storage.errors import InvalidInput
from storage.filters import Filters
from storage.model import AgentId, MemoryKind, ProjectId, Visibility, parse_id

if TYPE_CHECKING:
    from node.services import Services

ASKABLE = frozenset(MemoryKind) - {MemoryKind.AGENT}


def named_filters(
    services: Services,
    credential: Credential,
    *,
    agent: Iterable[str] = (),
    project: Iterable[str] = (),
    kind: Iterable[str] = (),
    type: Iterable[str] = (),
    tags: Iterable[str] = (),
    who: Iterable[str] = (),
    since: datetime | None = None,
    until: datetime | None = None,
    importance_min: float | None = None,
    pinned: bool | None = None,
    visibility: str | None = None,
    scope: str | None = None,
) -> Filters:
    """The filters of a request.

    Raises InvalidInput naming the filter, NotFound for an unknown project, and AccessDenied for
    one that the credential does not reach.
    """
    if importance_min is not None and not (
        math.isfinite(importance_min) and 0 <= importance_min <= 1
    ):
        raise InvalidInput("importance_min is invalid")
    return Filters(
        agents=frozenset(agent_named(services.agents, name, "agent") for name in agent),
        projects=frozenset(_project(services, credential, name) for name in project),
        kinds=frozenset(_kind(name) for name in kind),
        types=frozenset(check_text(name, "type") for name in type),
        tags=frozenset(check_text(name, "tags") for name in tags),
        who=frozenset(check_text(name, "who") for name in who),
        since=since,
        until=until,
        importance_min=importance_min,
        pinned=pinned,
        visibility=_visibility(visibility),
        scope_label=None if scope is None else check_text(scope, "scope"),
    )


def agent_named(agents: AgentDirectory, text: str, field: str) -> AgentId:
    """The id of an agent by its name here or its UUID, also of one that lives elsewhere."""
    for profile in agents.all():
        if profile.name == text:
            return profile.id
    return parse_id(text, field)


def _project(services: Services, credential: Credential, name: str) -> ProjectId:
    found = choose_project(credential, name, services.access.current)
    if found is None:
        raise InvalidInput("project is invalid")
    return found


def _kind(name: str) -> MemoryKind:
    if name not in ASKABLE:
        raise InvalidInput("kind is invalid")
    return MemoryKind(name)


def _visibility(name: str | None) -> Visibility | None:
    if name is None:
        return None
    if name not in (Visibility.GLOBAL, Visibility.PRIVATE):
        raise InvalidInput("visibility is invalid")
    return Visibility(name)
