"""Who belongs to which project, and whose signature counts for what.

A project's access list is signed by the project key and pins the certificates of its nodes. An
agent's key is vouched for by its home node. `Access` is an immutable picture of both, made anew
when a list or a card changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from storage import peers, principals, records
from storage.keyring import certificate_key, fingerprint_of, node_id_of
from storage.model import AgentId, Handle, NodeId, ProjectId, Scope, ScopeKind
from storage.peers import Card
from storage.pool import Database, Tx
from storage.principals import Project
from storage.records import (
    AclBody,
    AgentCard,
    BadSignature,
    FenceBody,
    InvalidRecord,
    TombstoneBody,
)


@dataclass(frozen=True, slots=True)
class NodeEntry:
    """A member node of a project."""

    node_id: NodeId
    certificate: bytes
    fingerprint: bytes
    public_key: bytes
    addr: str
    domain: str


@dataclass(frozen=True, slots=True)
class ProjectAccess:
    """One project: its list, its nodes by id, its agents' cards by id."""

    project_id: ProjectId
    name: str
    public_key: bytes
    acl: AclBody
    acl_wire: bytes
    nodes: Mapping[NodeId, NodeEntry]
    cards: Mapping[AgentId, Card]

    def signers_for(self, agent_id: AgentId) -> list[bytes]:
        """Public keys that may speak for an agent's memories: its own, project, operators."""
        card = self.cards.get(agent_id)
        own = [card.public_key] if card else []
        return [*own, self.public_key, *self.acl.operators]


@dataclass(frozen=True, slots=True)
class Access:
    """All projects of this node."""

    projects: Mapping[ProjectId, ProjectAccess] = field(default_factory=dict)

    @property
    def project_ids(self) -> frozenset[ProjectId]:
        """Projects whose rows local agents may read and write."""
        return frozenset(self.projects)

    def nodes(self) -> dict[NodeId, NodeEntry]:
        """Member nodes of all projects."""
        return {
            node_id: entry
            for project in self.projects.values()
            for node_id, entry in project.nodes.items()
        }

    def shared_with(self, node_id: NodeId) -> list[ProjectAccess]:
        """Projects that a node belongs to."""
        return [project for project in self.projects.values() if node_id in project.nodes]

    def check_card(self, wire: bytes) -> Card:
        """The agent card in `wire`, if a member node of its project signed it.

        Raises BadSignature, InvalidRecord.
        """
        sealed = records.open_sealed(wire, max_bytes=2048)
        card = records.decode(sealed.b, AgentCard)
        project = self.projects.get(card.project)
        home = project.nodes.get(card.home) if project else None
        if home is None:
            raise InvalidRecord("the card's home is no member of its project")
        if not records.verified(home.public_key, records.DOMAIN_CARD, sealed.b, sealed.s):
            raise BadSignature()
        return Card(
            card.agent, card.project, card.home, card.public, int.from_bytes(card.hlc, "big"), wire
        )

    def check_tombstone(self, wire: bytes) -> TombstoneBody:
        """The tombstone in `wire`, if somebody entitled to the memory's agent signed it.

        Raises BadSignature, InvalidRecord.
        """
        sealed = records.open_sealed(wire, max_bytes=4096)
        body = records.decode(sealed.b, TombstoneBody)
        project = self.projects.get(body.project) if body.project else None
        if project is None:
            raise InvalidRecord("the tombstone is of no project that this node belongs to")
        if not _signed_by(project.signers_for(body.agent), records.DOMAIN_TOMBSTONE, sealed):
            raise BadSignature()
        return body

    def check_fence(self, wire: bytes, handle_key: bytes) -> FenceBody:
        """The fence in `wire`, if a key entitled to its scope signed it.

        For an agent that is its own key, a key of a project it belongs to, or an operator there;
        for a project its key or an operator. Raises BadSignature, InvalidRecord.
        """
        sealed = records.open_sealed(wire, max_bytes=4096)
        body = records.decode(sealed.b, FenceBody)
        if not _signed_by(self._fence_signers(body, handle_key), records.DOMAIN_FENCE, sealed):
            raise BadSignature()
        return body

    def _fence_signers(self, body: FenceBody, handle_key: bytes) -> set[bytes]:
        signers: set[bytes] = set()
        for project in self.projects.values():
            owners = {project.public_key, *project.acl.operators}
            if body.scope_kind == "project":
                if _handle(ScopeKind.PROJECT, project.project_id, handle_key) == body.scope_handle:
                    signers |= owners
                continue
            for card in project.cards.values():
                if _handle(ScopeKind.AGENT, card.agent_id, handle_key) == body.scope_handle:
                    signers |= {card.public_key, *owners}
        if body.scope_kind == "agent" and not signers:
            # An agent that this node has no card of: only who could have admitted it counts.
            for project in self.projects.values():
                signers |= {project.public_key, *project.acl.operators}
        return signers


def open_acl(wire: bytes, public_key: bytes) -> AclBody:
    """The access list in `wire`, if the project key signed it.

    Raises BadSignature, InvalidRecord (also for a certificate that is none or not Ed25519).
    """
    body = records.unseal(wire, AclBody, records.DOMAIN_ACL, public_key)
    for node in body.nodes:
        try:
            certificate_key(node.certificate)
        except ValueError as error:
            raise InvalidRecord("an access list names an unusable certificate") from error
    return body


def picture(projects: Iterable[Project], cards: Iterable[Card]) -> Access:
    """Access as rows describe it. Raises BadSignature when a stored list does not verify."""
    by_project: dict[ProjectId, dict[AgentId, Card]] = {}
    for card in cards:
        by_project.setdefault(card.project_id, {})[card.agent_id] = card
    made: dict[ProjectId, ProjectAccess] = {}
    for project in projects:
        acl = open_acl(project.acl, project.public_key)
        nodes = {
            (node_id := node_id_of(node.certificate)): NodeEntry(
                node_id=node_id,
                certificate=node.certificate,
                fingerprint=fingerprint_of(node.certificate),
                public_key=certificate_key(node.certificate),
                addr=node.addr,
                domain=node.domain,
            )
            for node in acl.nodes
        }
        made[project.project_id] = ProjectAccess(
            project_id=project.project_id,
            name=project.name,
            public_key=project.public_key,
            acl=acl,
            acl_wire=project.acl,
            nodes={key: node for key, node in nodes.items() if key not in acl.retired},
            cards=by_project.get(project.project_id, {}),
        )
    return Access(made)


def _handle(kind: ScopeKind, raw_id: bytes, handle_key: bytes) -> Handle:
    return Scope(kind, raw_id).handle(handle_key)


def _signed_by(keys: Iterable[bytes], domain: bytes, sealed: records.Sealed) -> bool:
    return any(records.verified(key, domain, sealed.b, sealed.s) for key in keys)


class LiveAccess:
    """The present picture; replaced whole when an access list or a card changed."""

    def __init__(self, current: Access) -> None:
        self.current = current

    async def reload(self, db: Database) -> Access:
        """Read the picture again. Called from trio."""
        self.current = await db.read(read_access)
        return self.current


async def read_access(tx: Tx) -> Access:
    """The picture as the database describes it."""
    projects = await principals.projects(tx)
    cards = [card for project in projects for card in await peers.cards(tx, project.project_id)]
    return picture(projects, cards)
