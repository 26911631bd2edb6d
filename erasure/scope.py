"""Which scope is meant, who may close it, and whom its end concerns.

There is no default scope: what is empty, a wildcard or malformed is refused at the edge. A fence
is signed by the agent's own key where the agent is at home, else by the key of a project it
belongs to or by an operator named there.
"""

from __future__ import annotations

import hashlib
import hmac

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from erasure.forget import NoSigningKey
from storage import erasures
from storage.access import Access, ProjectAccess
from storage.errors import InvalidInput
from storage.keyring import public_bytes
from storage.local import LocalNode
from storage.model import (
    ID_BYTES,
    AgentId,
    Handle,
    NodeId,
    ProjectId,
    Scope,
    ScopeKind,
    parse_id,
)
from storage.pool import Tx
from storage.tiers import Bounds

_REQUEST_LABEL = b"mnemesh/erasure/request-id/v1\x00"


class InvalidScope(InvalidInput):
    """The scope is not one agent or one project."""

    code = "scope_invalid"


def parse_scope(kind: object, scope_id: object) -> Scope:
    """The scope of a request's two texts. Raises InvalidScope."""
    if not isinstance(kind, str) or kind not in (ScopeKind.AGENT, ScopeKind.PROJECT):
        raise InvalidScope("scope.kind is neither agent nor project")
    if not isinstance(scope_id, str):
        raise InvalidScope("scope.id is not an id")
    try:
        return check_scope(Scope(ScopeKind(kind), parse_id(scope_id, "scope.id")))
    except InvalidScope:
        raise
    except InvalidInput as error:
        raise InvalidScope(str(error)) from error


def check_scope(scope: Scope) -> Scope:
    """The scope, if it names one agent or project. Raises InvalidScope."""
    if not isinstance(scope, Scope) or scope.kind not in (ScopeKind.AGENT, ScopeKind.PROJECT):
        raise InvalidScope()
    if not isinstance(scope.id, bytes) or len(scope.id) != ID_BYTES or not any(scope.id):
        raise InvalidScope("scope.id is not an id")
    return scope


def agent_of(scope: Scope) -> AgentId | None:
    """The raw id when the scope is an agent."""
    return scope.id if scope.kind is ScopeKind.AGENT else None


def project_of(scope: Scope) -> ProjectId | None:
    """The raw id when the scope is a project."""
    return scope.id if scope.kind is ScopeKind.PROJECT else None


def bounds(scope: Scope, erasure_id: str, epoch: int) -> Bounds:
    """What belongs to the erasure of a scope up to an epoch."""
    return Bounds(erasure_id, agent_of(scope), project_of(scope), epoch)


def nothing(erasure_id: str, epoch: int) -> Bounds:
    """The bounds of a scope that this node knows by its handle alone: no row is of it."""
    return Bounds(erasure_id, None, None, epoch)


def entitled_key(
    node: LocalNode, access: Access, scope: Scope, projects: list[ProjectId]
) -> Ed25519PrivateKey:
    """A key of this node that may close the scope; `projects` are those it is known in.

    An agent's own key is known only to those who hold its card. So where the agent is known in
    one project alone and this node signs for that project, the project's key or the operator's
    is taken, which every member can check. Reads key files: call it from a worker thread. Raises
    NoSigningKey.
    """
    known = [access.projects[one] for one in projects if one in access.projects]
    if scope.kind is ScopeKind.AGENT:
        own = node.keys.agent(scope.id)
        if own is not None:
            return (_project_key(node, known) or own) if len(known) == 1 else own
        known = [one for one in access.projects.values() if scope.id in one.cards] or known
    key = _project_key(node, known)
    if key is None:
        raise NoSigningKey()
    return key


def _project_key(node: LocalNode, projects: list[ProjectAccess]) -> Ed25519PrivateKey | None:
    for project in projects:
        key = node.keys.project(project.project_id)
        if key is not None:
            return key
    operator = node.keys.operator_key()
    if any(public_bytes(operator) in project.acl.operators for project in projects):
        return operator
    return None


def scope_of_handle(node: LocalNode, access: Access, kind: str, handle: Handle) -> Scope | None:
    """The scope behind a handle, if this node's access lists or cards name it."""
    for project in access.projects.values():
        ids = [project.project_id] if kind == ScopeKind.PROJECT else list(project.cards)
        for raw_id in ids:
            scope = Scope(ScopeKind(kind), raw_id)
            if hmac.compare_digest(node.handle(scope), handle):
                return scope
    return None


def request_hmac(node: LocalNode, request_id: str) -> bytes:
    """The keyed digest under which a request id is kept: the id itself may name a person."""
    message = _REQUEST_LABEL + request_id.encode("utf-8")
    return hmac.digest(node.gate.handle_key, message, hashlib.sha256)


async def concerned(tx: Tx, node: LocalNode, scope: Scope) -> dict[NodeId, str]:
    """Nodes that must hear of the end of a scope, and why; never this node."""
    projects = await projects_of(tx, scope)
    found = await erasures.nodes_to_tell(tx, projects, agent_of(scope), project_of(scope))
    return {node_id: source for node_id, source in found.items() if node_id != node.node_id}


async def projects_of(tx: Tx, scope: Scope) -> list[ProjectId]:
    """Projects in which the scope left anything here."""
    if scope.kind is ScopeKind.PROJECT:
        return [scope.id]
    return await erasures.projects_of_agent(tx, scope.id)
