"""The agents of this node: names, read policies, keys and positions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from node.embed.base import Embedder
from storage import clock, history, memories, peers, principals, records
from storage.access import LiveAccess
from storage.content import check_text, normalize
from storage.errors import InvalidInput, NotFound, ScopeErased
from storage.keyring import public_bytes
from storage.local import LocalNode
from storage.model import (
    AgentId,
    AgentProfile,
    Memory,
    MemoryId,
    MemoryKind,
    ProjectId,
    Reader,
    ReadPolicy,
    Scope,
    ScopeKind,
    Visibility,
    id_text,
    parse_id,
)
from storage.peers import Card
from storage.pool import Database, Tx

DEFAULT_AGENT = "default"
MAX_NAME = 128
MAX_DESCRIPTION = 4096


class AgentDirectory:
    """Agents by name and id, kept in memory beside their rows.

    `vectors_of` a position memory and the agent's key live elsewhere; this class is the one
    place that makes an agent whole: row, key, card and position.
    """

    def __init__(
        self, node: LocalNode, db: Database, access: LiveAccess, embedder: Embedder
    ) -> None:
        self._node = node
        self._db = db
        self._access = access
        self._embedder = embedder
        self._by_name: dict[str, AgentProfile] = {}
        self._by_id: dict[AgentId, AgentProfile] = {}
        self._dropped: dict[AgentId, str] = {}
        self._erased: set[AgentId] = set()
        self._nobody = node.new_id()
        self._changed: Callable[[], Awaitable[None]] | None = None
        self.names = 0
        """Counts the changes of what `label` says."""

    async def load(self) -> None:
        """Read all agents; the node's own `default` agent is made on first start."""
        for agent in await self._db.read(principals.agents):
            self._keep(agent)
        if DEFAULT_AGENT not in self._by_name:
            await self.put(DEFAULT_AGENT, read_policy=ReadPolicy.SHARED)

    def on_change(self, told: Callable[[], Awaitable[None]]) -> None:
        """`told` runs after an agent was made or vouched for."""
        self._changed = told

    def all(self) -> list[AgentProfile]:
        """All agents of this node by name."""
        return [self._by_name[name] for name in sorted(self._by_name)]

    def get(self, agent_id: AgentId) -> AgentProfile | None:
        """The local agent with this id."""
        return self._by_id.get(agent_id)

    def resolve(self, text: str | None) -> AgentProfile:
        """The agent with this name or UUID; the node's own without one.

        Raises NotFound, and ScopeErased for one that was erased in this process.
        """
        if text is None:
            return self._by_name[DEFAULT_AGENT]
        found = self._by_name.get(text)
        if found is None:
            try:
                found = self._by_id.get(parse_id(text, "agent_id"))
            except InvalidInput:
                found = None
        if found is None:
            if any(text in (self._dropped.get(one), id_text(one)) for one in self._erased):
                raise ScopeErased()
            raise NotFound(f"agent not found: {text[:MAX_NAME]}")
        return found

    def reader_named(self, text: str | None) -> AgentProfile:
        """As `resolve`, for a read: who has no row here is isolated.

        By its UUID such an agent still reads its own, by an unknown name nothing.
        """
        try:
            return self.resolve(text)
        except (NotFound, ScopeErased):
            name = text or ""
        try:
            return AgentProfile(id=parse_id(name, "agent_id"), name=name)
        except InvalidInput:
            return AgentProfile(id=self._nobody, name=name[:MAX_NAME])

    def label(self, agent_id: AgentId) -> str:
        """The agent's name here, or the UUID of one without a row."""
        agent = self._by_id.get(agent_id)
        return agent.name if agent else id_text(agent_id)

    def reader(self, agent: AgentProfile) -> Reader:
        """On whose behalf a read of this agent runs; for any thread."""
        group: frozenset[AgentId] = frozenset()
        if agent.read_policy is ReadPolicy.GROUP:
            group = frozenset(
                other.id
                for other in list(self._by_id.values())
                if other.policy_group == agent.policy_group and other.policy_group is not None
            )
        return Reader(agent.id, agent.read_policy, group, self._access.current.project_ids)

    async def put(
        self,
        name: str,
        *,
        description: str | None = None,
        read_policy: ReadPolicy | None = None,
        policy_group: str | None = None,
        project_id: ProjectId | None = None,
    ) -> AgentProfile:
        """Make an agent, or change the one of that name; what is None stays as it is.

        A new agent gets its key before its row commits. The description becomes the agent's
        position until it owns memories. Raises InvalidInput.
        """
        check_text(name, "name")
        if not name.strip() or len(name) > MAX_NAME:
            raise InvalidInput(f"name must have 1 to {MAX_NAME} characters")
        if description is not None:
            check_text(description, "description")
            if len(description) > MAX_DESCRIPTION:
                raise InvalidInput(f"description is longer than {MAX_DESCRIPTION} characters")
        if project_id is not None and project_id not in self._access.current.projects:
            raise NotFound("project not found")
        present = self._by_name.get(name)
        agent = present or AgentProfile(id=self._node.new_id(), name=name)
        agent = replace(
            agent,
            description=agent.description if description is None else description,
            read_policy=read_policy or agent.read_policy,
            policy_group=policy_group or agent.policy_group,
            project_id=project_id or agent.project_id,
        )
        if agent.read_policy is ReadPolicy.GROUP and not agent.policy_group:
            raise InvalidInput("policy_group is required for read_policy group")
        vector = None
        if agent.description and (present is None or present.description != agent.description):
            vector = (await self._embedder.embed([agent.description]))[0]
        self._node.keys.create_agent(agent.id)
        await self._db.transact(self._put, agent, vector, self._node.wall())
        self._keep(agent)
        await self._tell()
        return agent

    async def vouch(self, project_id: ProjectId) -> int:
        """Make cards in a project for agents that have none there; how many are new."""
        made = 0
        for agent in self.all():
            if agent.project_id in (None, project_id):
                made += await self._db.transact(self._vouch, agent, project_id)
        await self._tell()
        return made

    def drop(self, agent_id: AgentId) -> None:
        """Forget the names of an agent that is being erased."""
        self._erased.add(agent_id)
        self._leave(agent_id)

    def _leave(self, agent_id: AgentId) -> None:
        agent = self._by_id.pop(agent_id, None)
        if agent is not None:
            self._by_name.pop(agent.name, None)
            self._dropped[agent_id] = agent.name
            self.names += 1

    async def remove(self, agent: AgentProfile) -> MemoryId | None:
        """Take row, name and position of an agent away; the id of its position.

        Its key and its cards stay: they vouch for what it wrote. Whoever wrote for it when this
        began has committed when this returns.
        """
        self._leave(agent.id)
        position = await self._db.transact(self._remove, agent)
        await self._tell()
        return position

    def former_name(self, agent_id: AgentId) -> str | None:
        """The name of an agent, also after it was dropped in this process."""
        agent = self._by_id.get(agent_id)
        return agent.name if agent else self._dropped.get(agent_id)

    async def _tell(self) -> None:
        await self._access.reload(self._db)
        if self._changed is not None:
            await self._changed()

    def _keep(self, agent: AgentProfile) -> None:
        if agent.id not in self._by_id:
            self.names += 1
        self._by_name[agent.name] = agent
        self._by_id[agent.id] = agent

    async def _put(
        self, tx: Tx, agent: AgentProfile, vector: NDArray[np.float32] | None, now: datetime
    ) -> None:
        epochs = await self._node.gate.for_write(tx, agent.id, agent.project_id)
        await principals.put_agent(tx, agent, now)
        if agent.project_id is not None:
            await self._vouch(tx, agent, agent.project_id)
        if vector is None:
            return
        old = await memories.position_of(tx, agent.id)
        if old is not None:
            await memories.purge(tx, [old.id])
        content = normalize(agent.description)
        position = Memory(
            id=self._node.new_id(),
            kind=MemoryKind.AGENT,
            agent_id=agent.id,
            project_id=agent.project_id,
            content=content.storage,
            normalized_content=content.normalized,
            content_hash=None,
            created_at=now,
            updated_at=now,
            origin_node=self._node.node_id,
            agent_epoch=epochs.agent,
            project_epoch=epochs.project,
            hlc=self._node.clock.now(),
            type="position",
            visibility=Visibility.PRIVATE,
        )
        await memories.insert(tx, position)
        await memories.insert_vector(tx, position, self._embedder.model_id, vector)
        await history.record(tx, position, "created", now=now, changed_by="node")

    async def _remove(self, tx: Tx, agent: AgentProfile) -> MemoryId | None:
        await self._node.gate.lock(tx, Scope(ScopeKind.AGENT, agent.id))
        position = await memories.position_of(tx, agent.id)
        if position is not None:
            await memories.purge(tx, [position.id])
        await principals.remove_agent(tx, agent.id)
        return None if position is None else position.id

    async def _vouch(self, tx: Tx, agent: AgentProfile, project_id: ProjectId) -> bool:
        if await peers.card(tx, agent.id, project_id) is not None:
            return False
        stamp = self._node.clock.now()
        public = public_bytes(self._node.keys.create_agent(agent.id))
        wire = records.seal(
            self._node.identity.private_key,
            records.DOMAIN_CARD,
            records.AgentCard(
                agent=agent.id,
                project=project_id,
                home=self._node.node_id,
                public=public,
                hlc=clock.to_bytes(stamp),
            ),
        )
        return await peers.put_card(
            tx, Card(agent.id, project_id, self._node.node_id, public, stamp, wire)
        )
