"""Projects: who belongs to them, and how a node gets in.

A project is made on one node, which keeps its key. That node admits others by their certificate:
it signs the next access list and writes an invitation, a file that the new node reads once. The
invitation holds the mesh's handle key, so it is as secret as a key file.
"""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gossip.tls import check_admissible
from node.agents import AgentDirectory
from storage import gate, principals, records
from storage.access import LiveAccess, ProjectAccess, open_acl
from storage.content import check_text
from storage.errors import Conflict, Forbidden, InvalidInput, NotFound
from storage.keyring import KeyStore, node_id_of, public_bytes
from storage.local import LocalNode
from storage.pool import Database, Tx
from storage.principals import Project
from storage.records import AclBody, AclNode

MAX_NAME = 64
INVITATION_KEYS = {"v", "mesh_id", "handle_key", "project_key", "acl", "addresses"}


@dataclass(frozen=True, slots=True)
class Invitation:
    """What a new member needs: the mesh's name and handle key, the project and its list."""

    mesh_id: str
    handle_key: bytes
    project_key: bytes
    acl: bytes
    addresses: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """The form of the invitation file."""
        return {
            "v": 1,
            "mesh_id": self.mesh_id,
            "handle_key": self.handle_key.hex(),
            "project_key": self.project_key.hex(),
            "acl": base64.b64encode(self.acl).decode("ascii"),
            "addresses": list(self.addresses),
        }


class ProjectDesk:
    """Makes, opens and closes projects on this node.

    `members_changed` lets gossip follow a new access list at once.
    """

    def __init__(
        self,
        node: LocalNode,
        db: Database,
        access: LiveAccess,
        agents: AgentDirectory,
        address: Callable[[], str],
        members_changed: Callable[[], Awaitable[None]],
    ) -> None:
        self._node = node
        self._db = db
        self._access = access
        self._agents = agents
        self._address = address
        self._members_changed = members_changed

    def all(self) -> list[ProjectAccess]:
        """Projects of this node by name."""
        return sorted(self._access.current.projects.values(), key=lambda each: each.name)

    def resolve(self, text: str) -> ProjectAccess:
        """The project with this name or id text. Raises NotFound."""
        for project in self._access.current.projects.values():
            if text in (project.name, project.project_id.hex()) or text.replace("-", "") == (
                project.project_id.hex()
            ):
                return project
        raise NotFound(f"project not found: {text[:MAX_NAME]}")

    async def create(self, name: str) -> ProjectAccess:
        """Make a project with this node as its first member. Raises InvalidInput, Conflict."""
        check_text(name, "name")
        if not name.strip() or len(name) > MAX_NAME:
            raise InvalidInput(f"name must have 1 to {MAX_NAME} characters")
        if any(project.name == name for project in self.all()):
            raise Conflict(f"project exists: {name}")
        project_id = self._node.new_id()
        key = self._node.keys.create_project(project_id)
        body = AclBody(
            mesh=self._node.mesh_id,
            project=project_id,
            name=name,
            version=1,
            nodes=(AclNode(certificate=self._node.identity.certificate_der, addr=self._address()),),
            operators=(public_bytes(self._node.keys.operator_key()),),
        )
        wire = records.seal(key, records.DOMAIN_ACL, body)
        await self._keep(Project(project_id, name, public_bytes(key), wire, 1))
        return self._access.current.projects[project_id]

    async def admit(
        self, name: str, certificate_pem: str, address: str, domain: str = ""
    ) -> dict[str, Any]:
        """Admit a node by its certificate; the invitation that it needs to join.

        Admitting it again renews its address and returns a fresh invitation. Raises NotFound,
        Forbidden without the project key, InvalidInput for an unusable certificate.
        """
        project = self.resolve(name)
        der = _der(certificate_pem)
        node_id = check_admissible(der)
        kept = [node for node in project.acl.nodes if node_id_of(node.certificate) != node_id]
        own = self._node.identity.certificate_der
        nodes = [
            AclNode(certificate=own, addr=self._address(), domain=node.domain)
            if node.certificate == own
            else node
            for node in kept
        ]
        nodes.append(AclNode(certificate=der, addr=address, domain=domain))
        if node_id in project.acl.retired:
            raise Conflict("the node was revoked; it may join again only with a new key")
        wire = await self._sign(project, tuple(nodes), project.acl.retired)
        handle_key = self._node.gate.handle_key
        return Invitation(
            self._node.mesh_id,
            handle_key,
            project.public_key,
            wire,
            tuple(node.addr for node in nodes if node.addr and node.certificate != der),
        ).as_dict()

    async def revoke(self, name: str, node_id_hex: str) -> None:
        """Remove a node from a project for good. Raises NotFound, Forbidden."""
        project = self.resolve(name)
        try:
            node_id = bytes.fromhex(node_id_hex)
        except ValueError as error:
            raise InvalidInput("node_id is not an id") from error
        if node_id not in project.nodes or node_id == self._node.node_id:
            raise NotFound("node not found")
        await self._sign(project, project.acl.nodes, (*project.acl.retired, node_id))

    async def join(self, invitation: Mapping[str, Any]) -> dict[str, Any]:
        """Join a project. In another mesh than the present one it takes a restart.

        Raises InvalidInput, BadSignature, Conflict, and Forbidden when the invitation is for
        another node.
        """
        parsed = parse_invitation(invitation)
        check_invited(parsed, self._node.identity.certificate_der)
        if parsed.handle_key == self._node.gate.handle_key:
            project = _project(parsed)
            await self._keep(project)
            return {"joined": project.name, "pending": False}
        if self._access.current.projects:
            raise Conflict("this node belongs to another mesh")
        self._node.keys.keep_invitation(json.dumps(parsed.as_dict()).encode("ascii"))
        return {"joined": None, "pending": True}

    async def _sign(
        self,
        project: ProjectAccess,
        nodes: tuple[AclNode, ...],
        retired: tuple[bytes, ...],
    ) -> bytes:
        key = self._node.keys.project(project.project_id)
        if key is None:
            raise Forbidden("the project key is not on this node")
        body = AclBody(
            mesh=project.acl.mesh,
            project=project.project_id,
            name=project.name,
            version=project.acl.version + 1,
            nodes=nodes,
            operators=project.acl.operators,
            retired=retired,
        )
        wire = records.seal(key, records.DOMAIN_ACL, body)
        await self._keep(
            Project(project.project_id, project.name, project.public_key, wire, body.version)
        )
        return wire

    async def _keep(self, project: Project) -> None:
        await self._db.transact(principals.put_project, project, self._node.wall())
        await self._access.reload(self._db)
        await self._agents.vouch(project.project_id)
        await self._members_changed()


def parse_invitation(raw: Mapping[str, Any]) -> Invitation:
    """An invitation from its file form, with its access list verified.

    Raises InvalidInput naming the field, BadSignature.
    """
    if not isinstance(raw, Mapping) or set(raw) != INVITATION_KEYS or raw["v"] != 1:
        raise InvalidInput("not an invitation of this version")
    try:
        invitation = Invitation(
            mesh_id=str(raw["mesh_id"]),
            handle_key=bytes.fromhex(raw["handle_key"]),
            project_key=bytes.fromhex(raw["project_key"]),
            acl=base64.b64decode(raw["acl"], validate=True),
            addresses=tuple(str(address) for address in raw["addresses"]),
        )
    except (ValueError, TypeError) as error:
        raise InvalidInput("the invitation is damaged") from error
    if len(invitation.handle_key) != 32 or len(invitation.project_key) != 32:
        raise InvalidInput("the invitation is damaged")
    acl = open_acl(invitation.acl, invitation.project_key)
    if acl.mesh != invitation.mesh_id:
        raise InvalidInput("mesh_id does not fit the access list")
    return invitation


def check_invited(invitation: Invitation, certificate_der: bytes) -> None:
    """Raises Forbidden unless the access list names this certificate."""
    acl = open_acl(invitation.acl, invitation.project_key)
    if all(node.certificate != certificate_der for node in acl.nodes):
        raise Forbidden("the invitation is for another node")


async def use_invitation(
    db: Database, keys: KeyStore, certificate_der: bytes, wall: Callable[[], datetime]
) -> None:
    """Join what a kept invitation names, before anything else of the mesh starts.

    Steps can be repeated after a crash: the handle key last, then the file goes. Raises Conflict
    when this node has erased something under its present handles.
    """
    data = keys.invitation()
    if data is None:
        return
    invitation = parse_invitation(json.loads(data))
    check_invited(invitation, certificate_der)
    await db.transact(_join, invitation, wall)
    keys.change_handle_key(invitation.handle_key)
    keys.drop_invitation()


async def _join(tx: Tx, invitation: Invitation, wall: Callable[[], datetime]) -> None:
    if not await gate.change_mesh(tx, invitation.handle_key):
        raise Conflict("something was erased on this node; it cannot move to another mesh")
    await principals.set_state(tx, "mesh_id", invitation.mesh_id.encode("utf-8"))
    await principals.put_project(tx, _project(invitation), wall())


def _project(invitation: Invitation) -> Project:
    acl = open_acl(invitation.acl, invitation.project_key)
    return Project(acl.project, acl.name, invitation.project_key, invitation.acl, acl.version)


def _der(pem: str) -> bytes:
    try:
        return ssl.PEM_cert_to_DER_cert(pem.strip())
    except (ValueError, TypeError) as error:
        raise InvalidInput("certificate_pem is no PEM certificate") from error
