"""One node's memories on real PostgreSQL: use cases, agents and projects without any server.

`world` gives a node with an empty database; the clock is a value that tests move.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from numpy.typing import NDArray

from node.agents import AgentDirectory
from node.embed.base import Embedder
from node.interests import positions
from node.memory import remember as remembering
from node.memory.context import MemoryContext
from node.memory.drafts import Draft
from node.memory.handing import HandingDesk
from node.memory.recall import Answer, Question, recall
from node.memory.remember import Remembered
from node.memory.residency import Residency
from node.memory.settings import MemorySettings
from node.workers.retention import Retention
from node.workers.settings import RetentionSettings
from storage import peers, principals, records
from storage.access import Access, LiveAccess
from storage.clock import HybridClock
from storage.gate import Gate
from storage.hot.graph import HotGraph
from storage.hot.settings import HotSettings
from storage.keyring import KeyStore, public_bytes
from storage.local import LocalNode
from storage.model import AgentProfile, Memory, MemoryId, NodeId, ProjectId, ReadPolicy
from storage.pool import Database, Tx
from storage.principals import Project
from storage.queries import Query

START = datetime(2026, 8, 1, 12, tzinfo=UTC)
MESH_KEY = bytes(range(32))
WORD = re.compile(r"\w+")


class FakeEmbedder:
    """Texts with common words are near: the normalised sum of one random vector per word."""

    dimension = 64
    model_id = "fake@64#0000"

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        await trio.lowlevel.checkpoint()
        rows = np.zeros((len(texts), self.dimension), np.float32)
        for row, text in zip(rows, texts, strict=True):
            for word in WORD.findall(text.lower()) or [text]:
                seed = int.from_bytes(blake2b(word.encode(), digest_size=8).digest(), "big")
                row += np.random.default_rng(seed).standard_normal(self.dimension)
            row /= np.linalg.norm(row)
        return rows


def statement(sql: str) -> Query:
    """A query without parameters or with those that its text names, for looking behind."""
    return Query("test", sql, ())


@dataclass
class World:
    """A node, its use cases and a clock that stands still until a test moves it."""

    db: Database
    node: LocalNode
    access: LiveAccess
    context: MemoryContext
    now: list[datetime]
    retention_settings: RetentionSettings = field(default_factory=RetentionSettings)
    announcements: list[None] = field(default_factory=list)

    @property
    def graph(self) -> HotGraph:
        return self.context.residency.graph

    def retention(self) -> Retention:
        """The worker of this node; it reads `retention_settings` anew for each step."""
        return Retention(
            self.node,
            self.db,
            self.context.residency,
            self.access,
            lambda: self.retention_settings,
        )

    def pass_time(self, **delta: float) -> None:
        """Move the wall clock."""
        self.now[0] += timedelta(**delta)

    def configure(self, **changes: Any) -> None:
        """Change memory settings."""
        self.context.settings = replace(self.context.settings, **changes)

    async def agent(
        self, name: str, policy: ReadPolicy = ReadPolicy.ISOLATED, **options: Any
    ) -> AgentProfile:
        """A new agent of this node."""
        return await self.context.agents.put(name, read_policy=policy, **options)

    async def project(self, name: str, *members: bytes) -> ProjectId:
        """A new project with this node and the nodes of these certificates, agents vouched for."""
        project_id = self.node.new_id()
        key = self.node.keys.create_project(project_id)
        certificates = [self.node.identity.certificate_der, *members]
        acl = records.seal(
            key,
            records.DOMAIN_ACL,
            records.AclBody(
                mesh=self.node.mesh_id,
                project=project_id,
                name=name,
                version=1,
                nodes=tuple(records.AclNode(certificate=der) for der in certificates),
            ),
        )
        project = Project(project_id, name, public_bytes(key), acl, 1)
        await self.db.transact(principals.put_project, project, self.context.now())
        await self.access.reload(self.db)
        for entry in self.access.current.projects[project_id].nodes.values():
            await self.member(project_id, entry.node_id, entry.certificate)
        await self.context.agents.vouch(project_id)
        return project_id

    async def member(self, project_id: ProjectId, node_id: NodeId, certificate: bytes) -> None:
        """A member row as the access list would make it."""

        async def put(tx: Tx) -> None:
            await peers.put_member(
                tx,
                project_id,
                node_id,
                addr="",
                operator_domain="",
                certificate=certificate,
                hlc=self.node.clock.now(),
            )

        await self.db.transact(put)

    async def remember(self, agent: AgentProfile, content: str, **options: Any) -> Remembered:
        """Store one memory."""
        return await remembering.remember(
            self.context, Draft(content=content, agent_id=agent.id, **options)
        )

    async def store(self, agent: AgentProfile, content: str, **options: Any) -> Memory:
        """Store one new memory; its row."""
        done = await self.remember(agent, content, **options)
        assert not done.deduped
        return done.memory

    async def recall(self, agent: AgentProfile, query: str, **options: Any) -> Answer:
        """Ask as an agent."""
        return await recall(self.context, Question(query=query, agent=agent, **options))

    async def found(self, agent: AgentProfile, query: str, **options: Any) -> set[MemoryId]:
        """Ids that a recall answers with."""
        return {hit.memory.id for hit in (await self.recall(agent, query, **options)).hits}

    async def rows(self, sql: str) -> list[Any]:
        """Look at the tables."""

        async def look(tx: Tx) -> list[Any]:
            return await tx.fetch(statement(sql))

        return await self.db.read(look)

    async def value(self, sql: str) -> Any:
        """One value of the tables."""
        (row,) = await self.rows(sql)
        return row[0]

    async def change(self, sql: str) -> None:
        """Change the tables behind the node's back."""

        async def work(tx: Tx) -> None:
            await tx.execute(statement(sql))

        await self.db.transact(work)

    async def place_agents(self) -> None:
        """Let the desk know where all agents stand."""
        found = await positions(
            self.db, self.node, self.context.embedder.model_id, self.context.agents.all(), 2
        )
        self.context.desk.place(found)

    async def restart(self) -> None:
        """A new process on the same rows: an empty graph, filled from the database."""
        old = self.context.residency
        graph = HotGraph(
            self.context.embedder.dimension, HotSettings(ceiling=old.graph.stats().ceiling), self.ms
        )
        self.context.residency = Residency(graph, self.node, self.context.embedder.model_id)
        await self.context.residency.load(self.db)

    def ms(self) -> int:
        """The wall clock in milliseconds."""
        return int(self.now[0].timestamp() * 1000)


def lit(raw: bytes) -> str:
    """An id as an SQL literal."""
    return f"'\\x{raw.hex()}'::bytea"


def other_identity(folder: Path) -> KeyStore:
    """The key store of another node."""
    folder.mkdir(mode=0o700)
    keys = KeyStore(folder / "keys")
    keys.prepare()
    return keys


async def make_world(
    db: Database,
    folder: Path,
    *,
    embedder: Embedder | None = None,
    hot: HotSettings | None = None,
) -> World:
    """A node on a migrated database, with its `default` agent."""
    embedder = embedder or FakeEmbedder()
    now = [START]
    keys = KeyStore(folder / "keys")
    keys.prepare()
    keys.set_handle_key(MESH_KEY)

    def ms() -> int:
        return int(now[0].timestamp() * 1000)

    node = LocalNode(
        identity=keys.node(),
        keys=keys,
        clock=HybridClock(ms),
        gate=Gate(MESH_KEY),
        mesh_id="test-mesh",
        wall=lambda: now[0],
    )
    access = LiveAccess(Access())
    agents = AgentDirectory(node, db, access, embedder)
    await agents.load()
    graph = HotGraph(embedder.dimension, hot or HotSettings(ceiling=5_000), ms)
    announcements: list[None] = []
    context = MemoryContext(
        node=node,
        db=db,
        residency=Residency(graph, node, embedder.model_id),
        embedder=embedder,
        agents=agents,
        access=access,
        settings=MemorySettings(),
        walk_energy=lambda project, q8: 1_000,
        announced=lambda: announcements.append(None),
        desk=HandingDesk(node, agents, lambda: 300_000),
    )
    return World(db, node, access, context, now, announcements=announcements)


@pytest.fixture
async def world(db: Database, tmp_path: Path) -> AsyncIterator[World]:
    """A node on an empty database; a test has two minutes."""
    with trio.fail_after(120):
        yield await make_world(db, tmp_path)
