"""Rows of `agents`, `projects` and `node_state`: who acts here, and small durable facts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from storage.model import AgentId, AgentProfile, ProjectId, ReadPolicy
from storage.pool import Tx
from storage.queries import load

SQL = load("principals")


@dataclass(frozen=True, slots=True)
class Project:
    """A project and its newest signed access list."""

    project_id: ProjectId
    name: str
    public_key: bytes
    acl: bytes
    acl_version: int


async def put_agent(tx: Tx, agent: AgentProfile, now: datetime) -> None:
    """Add or update an agent of this node."""
    await tx.execute(
        SQL.upsert_agent,
        agent_id=agent.id,
        name=agent.name,
        description=agent.description,
        read_policy=agent.read_policy.value,
        policy_group=agent.policy_group,
        project_id=agent.project_id,
        now=now,
    )


async def remove_agent(tx: Tx, agent_id: AgentId) -> None:
    """Take an agent of this node away."""
    await tx.execute(SQL.remove_agent, agent_id=agent_id)


async def agents(tx: Tx) -> list[AgentProfile]:
    """All agents of this node."""
    return [
        AgentProfile(
            id=row["agent_id"],
            name=row["name"],
            description=row["description"],
            read_policy=ReadPolicy(row["read_policy"]),
            policy_group=row["policy_group"],
            project_id=row["project_id"],
        )
        for row in await tx.fetch(SQL.agents)
    ]


async def put_project(tx: Tx, project: Project, now: datetime) -> bool:
    """Keep a project's access list; False when this version or a newer one stands."""
    stored = await tx.fetchval(
        SQL.upsert_project,
        project_id=project.project_id,
        name=project.name,
        public_key=project.public_key,
        acl=project.acl,
        acl_version=project.acl_version,
        now=now,
    )
    return stored is not None


async def projects(tx: Tx) -> list[Project]:
    """All projects of this node."""
    return [Project(**dict(row)) for row in await tx.fetch(SQL.projects)]


async def state(tx: Tx, key: str) -> bytes | None:
    """A small durable fact, None when it was never set."""
    value = await tx.fetchval(SQL.state, key=key)
    return bytes(value) if value is not None else None


async def set_state(tx: Tx, key: str, value: bytes) -> None:
    """Keep a small durable fact."""
    await tx.execute(SQL.set_state, key=key, value=value)
