"""Routes of agents and projects: who lives on this node, and with whom they share."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from node.http.routing import Call, Reply, Routes
from node.http.shapes import Flag, Name, Nothing, Shape
from node.http.tokens import Permission
from node.http.views import agent_view
from node.memory.leaving import remove_agent
from storage.access import ProjectAccess
from storage.errors import InvalidInput
from storage.model import ReadPolicy, id_text

routes = Routes()


class AgentBody(Shape):
    """An agent to make or change."""

    name: Name
    description: str | None = None
    read_policy: Literal["isolated", "shared", "group"] | None = None
    policy_group: Name | None = None
    project: Name | None = None


class RemoveQuery(Shape):
    """Whether the memories of a removed agent are forgotten rather than archived."""

    purge: Flag = False


class ProjectBody(Shape):
    """A project to found."""

    name: Name


class AdmitBody(Shape):
    """A node to admit: its certificate and where peers dial it."""

    certificate_pem: Annotated[str, Field(min_length=1, max_length=8192)]
    address: Annotated[str, Field(max_length=262)] = ""
    domain: Annotated[str, Field(max_length=128)] = ""


class JoinBody(Shape):
    """An invitation as `admit` returned it."""

    invitation: dict[str, Any]


class RevokeBody(Shape):
    """A node to exclude, by its hex id."""

    node_id: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


@routes.add("GET", "/api/agents", need=Permission.RECALL, shape=Nothing)
async def list_agents(call: Call, given: Nothing) -> Reply:
    """The agents of this node that the credential reaches."""
    agents = call.services.agents.all()
    if call.who.bound_agent is not None:
        agents = [call.agent(None)]
    return Reply({"agents": [agent_view(call.services, agent) for agent in agents]})


@routes.add("POST", "/api/agents", need=Permission.ADMIN, shape=AgentBody, operation="admin")
async def put_agent(call: Call, given: AgentBody) -> Reply:
    """Make an agent, or change the one of that name."""
    directory = call.services.agents
    known = any(agent.name == given.name for agent in directory.all())
    agent = await directory.put(
        given.name,
        description=given.description,
        read_policy=ReadPolicy(given.read_policy) if given.read_policy else None,
        policy_group=given.policy_group,
        project_id=call.project(given.project),
    )
    return Reply(agent_view(call.services, agent), status=200 if known else 201)


@routes.add("GET", "/api/agents/{name}", need=Permission.RECALL, shape=Nothing)
async def get_agent(call: Call, given: Nothing) -> Reply:
    """One agent by name or id."""
    return Reply(agent_view(call.services, call.agent(call.path["name"])))


@routes.add(
    "DELETE", "/api/agents/{name}", need=Permission.ADMIN, shape=RemoveQuery, operation="admin"
)
async def delete_agent(call: Call, given: RemoveQuery) -> Reply:
    """Remove an agent: its memories are archived, or with `purge` forgotten."""
    agent = call.services.agents.resolve(call.path["name"])
    if agent.name == call.services.reloader.current.agent.name:
        raise InvalidInput("the node's own agent cannot be removed")
    if given.purge:
        call.spend("forceDelete")
    left = await remove_agent(call.services.memory, agent, purge=given.purge, actor=call.who.actor)
    return Reply(
        {
            "removed": agent.name,
            "id": id_text(agent.id),
            "archived": left.archived,
            "forgotten": left.forgotten,
        }
    )


@routes.add("GET", "/api/projects", need=Permission.RECALL, shape=Nothing)
async def list_projects(call: Call, given: Nothing) -> Reply:
    """The projects of this node that the credential reaches."""
    bound = call.who.bound_project
    projects = [
        project
        for project in call.services.projects.all()
        if bound is None or bound in (project.name, id_text(project.project_id))
    ]
    return Reply({"projects": [project_view(project) for project in projects]})


@routes.add("POST", "/api/projects", need=Permission.ADMIN, shape=ProjectBody, operation="admin")
async def create_project(call: Call, given: ProjectBody) -> Reply:
    """Found a project with this node as its first member."""
    return Reply(project_view(await call.services.projects.create(given.name)), status=201)


@routes.add("POST", "/api/projects/join", need=Permission.ADMIN, shape=JoinBody, operation="admin")
async def join_project(call: Call, given: JoinBody) -> Reply:
    """Take part in a project by an invitation."""
    return Reply(await call.services.projects.join(given.invitation))


@routes.add(
    "POST",
    "/api/projects/{name}/admit",
    need=Permission.ADMIN,
    shape=AdmitBody,
    operation="admin",
)
async def admit_node(call: Call, given: AdmitBody) -> Reply:
    """Admit a node to a project; the invitation is for that node."""
    invitation = await call.services.projects.admit(
        call.path["name"], given.certificate_pem, given.address, given.domain
    )
    return Reply({"invitation": invitation})


@routes.add(
    "POST",
    "/api/projects/{name}/revoke",
    need=Permission.ADMIN,
    shape=RevokeBody,
    operation="admin",
)
async def revoke_node(call: Call, given: RevokeBody) -> Reply:
    """Exclude a node from a project."""
    await call.services.projects.revoke(call.path["name"], given.node_id)
    return Reply({"revoked": given.node_id})


def project_view(project: ProjectAccess) -> dict[str, Any]:
    """A project and its member nodes."""
    return {
        "id": id_text(project.project_id),
        "name": project.name,
        "public_key": project.public_key.hex(),
        "version": project.acl.version,
        "nodes": [
            {"node_id": node.node_id.hex(), "address": node.addr, "domain": node.domain}
            for node in sorted(project.nodes.values(), key=lambda one: one.node_id)
        ],
        "agents": sorted(id_text(agent_id) for agent_id in project.cards),
    }
