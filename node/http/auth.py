"""Who calls, and what the caller may do: decided here and nowhere else.

A route only declares what it needs. The peer's address comes from the socket, never from a
header, and an unknown peer is not local.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from node.agents import AgentDirectory
from node.http import tokens
from node.http.problems import AccessDenied, Unauthenticated
from node.http.rates import RateLimiter
from node.http.tokens import ROLES, Claims, Permission
from node.sections import AuthSection, is_loopback
from storage.access import Access
from storage.errors import InvalidInput, NotFound, ScopeErased
from storage.model import AgentProfile, ProjectId, id_text

OPEN: Final = "open"
"""Anybody, without a credential."""
AUTHENTICATED: Final = "authenticated"
"""Anybody with a credential that holds."""

Need = Literal["open", "authenticated"] | Permission | tuple[Permission, ...]
"""What a route asks of its caller; of several permissions one is enough."""


@dataclass(frozen=True, slots=True)
class Credential:
    """The caller. `claims` is None for one who needed no token."""

    actor: str
    role: str
    permissions: frozenset[str]
    scope: Mapping[str, str] = field(default_factory=dict)
    claims: Claims | None = None

    @property
    def is_admin(self) -> bool:
        """Admins are bound to no scope."""
        return self.role == "admin"

    @property
    def bound_agent(self) -> str | None:
        """The one agent, by name or id, that this credential may act for."""
        return None if self.is_admin else self.scope.get("agent")

    @property
    def bound_project(self) -> str | None:
        """The one project that this credential may touch."""
        return None if self.is_admin else self.scope.get("project")


TRUSTED_LOCAL: Final = Credential("local", "admin", ROLES["admin"])


class Authority:
    """Judges credentials. `settings` gives the section in force, `now` seconds since 1970."""

    def __init__(
        self, secret: bytes, settings: Callable[[], AuthSection], now: Callable[[], float]
    ) -> None:
        self._secret = secret
        self._settings = settings
        self._now = now
        self._rates = RateLimiter(lambda: int(now() * 1000))

    @property
    def mode(self) -> str:
        """`local`, `team` or `hybrid`."""
        return self._settings().mode

    def identify(self, authorization: str | None, peer: str | None) -> Credential:
        """The caller behind a request. Raises Unauthenticated."""
        mode = self.mode
        if mode == "local":
            return TRUSTED_LOCAL
        if authorization is None:
            if mode == "hybrid" and peer is not None and is_loopback(peer):
                return TRUSTED_LOCAL
            raise Unauthenticated("authentication required")
        kind, _, token = authorization.partition(" ")
        if kind.lower() != "bearer" or not token.strip():
            raise Unauthenticated("authentication required")
        claims = tokens.read(token.strip(), self._secret, self._now())
        granted = frozenset(one.value for one in ROLES[claims.role])
        if claims.permissions is not None:
            granted &= claims.permissions
        return Credential(claims.sub, claims.role, granted, claims.scope, claims)

    def require(self, who: Credential, need: Need) -> None:
        """Let the caller pass to a route. Raises AccessDenied."""
        if need == OPEN:
            return
        if need != AUTHENTICATED:
            wanted = need if isinstance(need, tuple) else (Permission(need),)
            if not any(one.value in who.permissions for one in wanted):
                if any(one in ROLES[who.role] for one in wanted):
                    raise AccessDenied(f"credential lacks '{wanted[0].value}' permission")
                raise AccessDenied(f"role '{who.role}' lacks '{wanted[0].value}' permission")
        if not who.is_admin and not who.scope:
            raise AccessDenied("credential has no scope")

    def spend(self, who: Credential, operation: str) -> None:
        """Count one call of a limited operation. Raises TooManyRequests."""
        settings = self._settings()
        if settings.mode != "local":
            limit = settings.rate_limits.by_operation()[operation]
            self._rates.spend(who.actor, operation, limit)

    def issue(self, role: str, scope: Mapping[str, str], ttl_ms: int | None) -> tuple[str, int]:
        """A new token and the second in which it expires. Raises InvalidInput."""
        if role not in ROLES:
            raise InvalidInput("role is invalid")
        now = int(self._now())
        exp = now + max(1, (ttl_ms or self._settings().default_token_ttl) // 1000)
        claims = Claims(f"token:{role}", role, dict(scope), now, exp)
        return tokens.sign(claims, self._secret), exp


def choose_agent(
    who: Credential, given: str | None, agents: AgentDirectory, own: str, *, reads: bool = False
) -> AgentProfile:
    """The agent that a request acts for.

    The given one if the credential reaches it, else the credential's, else, for callers who are
    bound to none, the node's `own`. One that is unknown here is not found, or isolated when the
    request only `reads`. Raises AccessDenied, InvalidInput, NotFound, ScopeErased.
    """
    find = agents.reader_named if reads else agents.resolve
    bound = who.bound_agent
    if bound is not None:
        if given is not None and given != bound and not _same_agent(given, bound, agents):
            raise AccessDenied(f"scope restricted to agent '{bound}'")
        profile = find(bound)
    elif given is not None:
        profile = find(given)
    elif who.is_admin:
        profile = find(own)
    else:
        raise InvalidInput("agent_id is required")
    return profile


def choose_project(who: Credential, given: str | None, access: Access) -> ProjectId | None:
    """The project that a request names, by name or UUID. Raises AccessDenied, NotFound."""
    if given is None:
        return None
    bound = who.bound_project
    found = [
        project
        for project in access.projects.values()
        if given in (project.name, id_text(project.project_id), project.project_id.hex())
    ]
    if bound is not None and not any(
        bound in (project.name, id_text(project.project_id)) for project in found
    ):
        raise AccessDenied(f"scope restricted to project '{bound}'")
    if not found:
        raise NotFound("project not found")
    return found[0].project_id


def _same_agent(given: str, bound: str, agents: AgentDirectory) -> bool:
    try:
        return agents.resolve(given).id == agents.resolve(bound).id
    except (NotFound, ScopeErased):
        return False
