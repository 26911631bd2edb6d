"""Whole nodes in one process: databases, keys, memories and gossip over real loopback TLS.

`meshes` gives a `Town`: a maker of nodes that shares one PostgreSQL server. A node can be
stopped and started again; its rows, keys and port stay. Periods are short, limits are wide.
"""

from __future__ import annotations

import random
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from erasure.context import ErasureContext
from erasure.parts import Software
from erasure.settings import ErasureSettings
from erasure.tiers import TierRegistry
from gossip import introductions, service
from gossip.channel import PeerChannel
from gossip.limits import LinkLimits
from gossip.links import Links
from gossip.liveness import Liveness
from gossip.mesh import Interests, Mesh, MeshHooks
from gossip.settings import (
    GossipSettings,
    LimitSettings,
    MembershipSettings,
    OutboxSettings,
    RepairSettings,
)
from gossip.tls import Admitted
from gossip.transport import dial
from gossip.walk import Walk
from gossip.wire.handshake import PROTO, TOMB_GATE
from gossip.wire.messages import Hello
from node.agents import AgentDirectory
from node.interests import interests, positions
from node.memory.context import MemoryContext
from node.memory.drafts import Draft
from node.memory.forget import forget
from node.memory.handing import HandingDesk
from node.memory.remember import Remembered, remember, remember_batch
from node.memory.residency import Residency
from node.memory.settings import MemorySettings
from node.projects import ProjectDesk
from storage.access import Access, LiveAccess
from storage.clock import HybridClock
from storage.embedded import EmbeddedServer
from storage.gate import Gate
from storage.hot.graph import HotGraph
from storage.hot.settings import HotSettings
from storage.island import Island
from storage.keyring import KeyStore
from storage.local import LocalNode
from storage.memories import Stored
from storage.model import AgentProfile, Memory, MemoryId, NodeId, ProjectId
from storage.pool import Database, Tx, open_database
from storage.reserve import keep_reserve, read_reserve
from tests.support.memory import FakeEmbedder, lit, statement
from tests.support.postgres import SETTINGS, create_database, drop_database

HANDLE_KEY = bytes(range(32))
MESH_ID = "town"
FAST = GossipSettings(
    tau=0.4,
    listen="127.0.0.1:0",
    repair=RepairSettings(period_s=0.4),
    outbox=OutboxSettings(retry_min_s=0.2, retry_max_s=0.5),
    membership=MembershipSettings(ping_s=0.2, suspect_s=5.0, dead_s=5.0),
    limits=LimitSettings(
        agent_diffs_per_s=1_000, repair_per_min=6_000, peer_bytes_per_s=1 << 26, profiles_per_min=60
    ),
)
SLOW_REPAIR = replace(FAST, repair=replace(FAST.repair, period_s=600.0))


class OtherEmbedder(FakeEmbedder):
    """The same texts in a space of another name."""

    model_id = "other@64#0000"


async def until(condition: Callable[[], Awaitable[Any]], what: str, seconds: float = 60.0) -> Any:
    """Wait for a truth about a running mesh; its value. Fails with `what` after `seconds`."""
    value = None
    deadline = trio.current_time() + seconds
    while trio.current_time() < deadline:
        value = await condition()
        if value:
            return value
        await trio.sleep(0.03)
    pytest.fail(f"did not come true in {seconds:g} s: {what} (last: {value!r})")


@dataclass
class MeshNode:
    """One node: what stays of it while it is stopped, and what runs."""

    name: str
    island: Island
    target: dict[str, Any]
    folder: Path
    nursery: trio.Nursery
    settings: GossipSettings = FAST
    embedder: FakeEmbedder = field(default_factory=FakeEmbedder)
    skew: timedelta = timedelta()
    features: tuple[str, ...] = (TOMB_GATE,)
    counted: Counter[tuple[str, str]] = field(default_factory=Counter)
    _scope: trio.CancelScope | None = None
    _ended: trio.Event = field(default_factory=trio.Event)
    db: Database = field(init=False)
    local: LocalNode = field(init=False)
    access: LiveAccess = field(init=False)
    agents: AgentDirectory = field(init=False)
    context: MemoryContext = field(init=False)
    mesh: Mesh = field(init=False)
    desk: ProjectDesk = field(init=False)

    @property
    def id(self) -> NodeId:
        return self.local.node_id

    @property
    def running(self) -> bool:
        return self._scope is not None

    def wall(self) -> datetime:
        return datetime.now(UTC) + self.skew

    def wall_ms(self) -> int:
        return int(self.wall().timestamp() * 1000)

    async def start(self, *, down_ms: int = 0, gossiping: bool = True) -> None:
        """Open the database and gossip; ready when the listener is bound.

        A node that does not gossip can still be asked, and dial others by hand.
        """
        assert not self.running
        await self.nursery.start(self._live, down_ms, gossiping)

    async def stop(self) -> None:
        """End like a process that is killed: links break, nothing is written any more."""
        assert self._scope is not None
        self._scope.cancel()
        await self._ended.wait()
        self._scope = None

    async def _live(
        self,
        down_ms: int,
        gossiping: bool,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        self._ended = trio.Event()
        scope = trio.CancelScope()
        try:
            with scope:
                async with AsyncExitStack() as stack:
                    self.db = await stack.enter_async_context(
                        open_database(self.island, self.target, SETTINGS)
                    )
                    await self._compose()
                    if not gossiping:
                        await introductions.admit_members(self.mesh)
                        self._scope = scope
                        task_status.started()
                        await trio.sleep_forever()
                    async with trio.open_nursery() as nursery:
                        bound = await nursery.start(
                            partial(service.run, self.mesh, down_ms=down_ms)
                        )
                        if bound:
                            self.settings = replace(self.settings, listen=bound[0])
                        self._scope = scope
                        task_status.started()
        finally:
            self._ended.set()

    async def _compose(self) -> None:
        keys = KeyStore(self.folder / "keys")
        keys.prepare()
        if keys.handle_key() is None:
            keys.set_handle_key(HANDLE_KEY)
        life = await read_reserve(self.db, self.folder)
        clock = HybridClock(self.wall_ms, life.start)
        self.local = LocalNode(keys.node(), keys, clock, Gate(HANDLE_KEY), MESH_ID, self.wall)
        await keep_reserve(self.db, clock, self.folder, self.wall)
        self.access = LiveAccess(Access())
        await self.access.reload(self.db)
        self.agents = AgentDirectory(self.local, self.db, self.access, self.embedder)
        graph = HotGraph(self.embedder.dimension, HotSettings(ceiling=5_000), self.wall_ms)
        residency = Residency(graph, self.local, self.embedder.model_id)
        erasure = ErasureContext(
            node=self.local,
            db=self.db,
            access=self.access,
            settings=ErasureSettings(),
            tiers=TierRegistry(graph=graph),
            ledger_dir=self.folder / "ledger",
            software=Software("0.1.0", "0" * 40, 1),
        )
        self.handing = HandingDesk(self.local, self.agents, lambda: 300_000)
        self.mesh = self._mesh(erasure, residency)
        erasure.wake = self.mesh.wake_outbox
        self.context = MemoryContext(
            node=self.local,
            db=self.db,
            residency=residency,
            embedder=self.embedder,
            agents=self.agents,
            access=self.access,
            settings=MemorySettings(),
            walk_energy=self.mesh.walk_energy,
            announced=self.mesh.wake,
            desk=self.handing,
        )
        self.desk = ProjectDesk(
            self.local, self.db, self.access, self.agents, self.mesh.address, self._members_changed
        )
        self.agents.on_change(partial(service.announce_cards, self.mesh))
        await self.agents.load()
        await residency.load(self.db)

    async def _members_changed(self) -> None:
        await introductions.admit_members(self.mesh)
        for project_id in self.access.current.projects:
            service.watch_project(self.mesh, project_id)
        await service.relink(self.mesh)

    def _mesh(self, erasure: ErasureContext, residency: Residency) -> Mesh:
        async def stored(rows: Sequence[Stored]) -> None:
            await residency.add([(row.memory, row.vector) for row in rows])
            self.handing.told_of(rows)

        async def forgotten(ids: Sequence[MemoryId]) -> None:
            await residency.forget(ids)

        async def wanted() -> Interests:
            return await interests(
                self.db, self.local, self.embedder.model_id, self.agents.all(), 1_000
            )

        def count(name: str, label: str = "", n: int = 1) -> None:
            self.counted[name, label] += n

        def hello(nonce: bytes) -> Hello:
            return self.hello(nonce)

        return Mesh(
            node=self.local,
            db=self.db,
            access=self.access,
            erasure=erasure,
            settings=self.settings,
            hooks=MeshHooks(stored, forgotten, wanted, count, self.handing.hand_copy),
            model=self.embedder.model_id,
            dim=self.embedder.dimension,
            mono_ms=lambda: time.monotonic_ns() // 1_000_000,
            rng=random.Random(self.name),
            links=Links(
                admitted=Admitted(self.local.identity),
                hello=hello,
                projects_of=lambda peer: [
                    each.project_id for each in self.access.current.shared_with(peer)
                ],
            ),
            liveness=Liveness(self.settings.membership),
            limits=LinkLimits(self.settings.limits),
            walk=Walk(self.local.node_id, self.settings, random.Random(self.name)),
        )

    def hello(self, nonce: bytes) -> Hello:
        """What this node says of itself when a link opens."""
        profile = self.mesh.own_profile
        return Hello(
            PROTO,
            self.features,
            self.id,
            MESH_ID,
            nonce,
            tuple((p.project_id, p.acl.version) for p in self.access.current.projects.values()),
            (self.embedder.model_id,),
            profile.version if profile else 0,
            self.local.clock.now(),
            self.mesh.quarantined(),
            self.mesh.address(),
        )

    # What a user does

    async def agent(self, name: str, interest: str, project: ProjectId) -> AgentProfile:
        """An agent at home here that cares about something, advertised at once."""
        made = await self.agents.put(name, description=interest, project_id=project)
        self.mesh.own_profile_at -= 60_000
        await service.refresh_profile(self.mesh)
        return made

    async def place_agents(self) -> None:
        """Let the desk know where the agents stand."""
        found = await positions(
            self.db, self.local, self.embedder.model_id, self.agents.all(), 1_000
        )
        self.handing.place(found)

    async def remember(self, agent: AgentProfile, content: str, **options: Any) -> Memory:
        """Store one new memory in the agent's project."""
        done = await remember(
            self.context,
            Draft(content=content, agent_id=agent.id, project_id=agent.project_id, **options),
        )
        assert not done.deduped
        return done.memory

    async def remember_many(self, agent: AgentProfile, texts: Sequence[str]) -> list[MemoryId]:
        """Store new memories in one commit; their ids."""
        drafts = [Draft(content=t, agent_id=agent.id, project_id=agent.project_id) for t in texts]
        done = await remember_batch(self.context, drafts)
        return [each.memory.id for each in done if isinstance(each, Remembered)]

    async def forget(self, agent: AgentProfile, *ids: MemoryId) -> None:
        """Forget memories of an agent at home here."""
        await forget(self.context, agent, ids)

    # Looking

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

    async def live(self, *, kinds: str = "'cell'") -> set[MemoryId]:
        """Ids of the cells that live here."""
        rows = await self.rows(
            f"SELECT id FROM memories WHERE kind IN ({kinds}) AND deleted_at IS NULL"
        )
        return {row["id"] for row in rows}

    async def has(self, memory_id: MemoryId) -> bool:
        """Whether a memory lives here, in rows or in the graph."""
        found = await self.value(f"SELECT count(*) FROM memories WHERE id = {lit(memory_id)}")
        return bool(found) or memory_id in self.context.residency.graph

    async def traces(self, memory_id: MemoryId) -> int:
        """Rows that hold content of a memory, and bodies in the relay cache."""
        rows = await self.value(
            f"SELECT (SELECT count(*) FROM memories WHERE id = {lit(memory_id)})"
            f" + (SELECT count(*) FROM diffs WHERE memory_id = {lit(memory_id)})"
        )
        graph = memory_id in self.context.residency.graph
        return int(rows) + len(self.mesh.relay.of_memories([memory_id])) + int(graph)

    async def tombstoned(self, memory_id: MemoryId) -> bool:
        return bool(
            await self.value(f"SELECT count(*) FROM tombstones WHERE memory_id = {lit(memory_id)}")
        )

    async def holders(self, memory_id: MemoryId) -> dict[NodeId, str]:
        """State by peer of this node's holder rows."""
        rows = await self.rows(
            f"SELECT peer_id, state FROM holders WHERE memory_id = {lit(memory_id)}"
        )
        return {row["peer_id"]: row["state"] for row in rows}

    async def delivered(self, memory_id: MemoryId, peer: NodeId) -> list[str]:
        """Statuses of the delivery rows to a peer, in their order."""
        rows = await self.rows(
            f"SELECT status FROM deliveries WHERE memory_id = {lit(memory_id)}"
            f" AND recipient = {lit(peer)} ORDER BY seq"
        )
        return [row["status"] for row in rows]

    async def outbox(self, memory_id: MemoryId) -> dict[NodeId, str]:
        """State by peer of the outbox rows about a memory."""
        rows = await self.rows(f"SELECT peer, state FROM outbox WHERE subject = {lit(memory_id)}")
        return {row["peer"]: row["state"] for row in rows}

    def count(self, name: str, label: str | None = None) -> int:
        """What was counted under a name, of one label or of all."""
        return sum(
            n for (key, tag), n in self.counted.items() if key == name and label in (None, tag)
        )

    async def linked(self, *others: MeshNode) -> None:
        """Wait for exactly one link to each of the others, with profiles exchanged."""

        async def done() -> bool:
            return all(
                len(self.mesh.links.live(other.id)) == 1
                and len(other.mesh.links.live(self.id)) == 1
                and other.mesh.profiles.get(self.id) == self.mesh.own_profile
                and self.mesh.profiles.get(other.id) == other.mesh.own_profile
                for other in others
            )

        await until(done, f"links of {self.name}")

    async def dial(self, other: MeshNode) -> PeerChannel:
        """A bare link to another node in this node's name, for saying anything over it."""
        return await dial(other.mesh.bound[0], self.mesh.links, other.id)


@dataclass
class Town:
    """Makes nodes and projects on one PostgreSQL server."""

    island: Island
    server: EmbeddedServer
    template: str
    folder: Path
    nursery: trio.Nursery
    nodes: list[MeshNode] = field(default_factory=list)

    async def node(self, name: str, *, started: bool = True, **options: Any) -> MeshNode:
        """A new node with a database of its own."""
        target = await create_database(self.island, self.server, self.template)
        folder = self.folder / name
        folder.mkdir(mode=0o700)
        made = MeshNode(name, self.island, target, folder, self.nursery, **options)
        self.nodes.append(made)
        if started:
            await made.start()
        return made

    async def join(self, project: str, *nodes: MeshNode) -> ProjectId:
        """A project of these running nodes, made by the first, who keeps its key."""
        first, *others = nodes
        made = await first.desk.create(project)
        await self.admit(project, first, *others)
        return made.project_id

    async def admit(self, project: str, first: MeshNode, *others: MeshNode) -> None:
        """Further nodes join a project; the last invitation knows them all."""
        for other in others:
            pem = ssl.DER_cert_to_PEM_cert(other.local.identity.certificate_der)
            await first.desk.admit(project, pem, other.mesh.address())
        for other in others:
            pem = ssl.DER_cert_to_PEM_cert(other.local.identity.certificate_der)
            await other.desk.join(await first.desk.admit(project, pem, other.mesh.address()))

    async def close(self) -> None:
        for each in self.nodes:
            if each.running:
                await each.stop()
            await drop_database(self.island, self.server, each.target)


@pytest.fixture
async def town(
    island: Island,
    postgres_server: EmbeddedServer,
    migrated_template: str,
    tmp_path: Path,
    nursery: trio.Nursery,
) -> AsyncIterator[Town]:
    """Room for nodes; a test has 60 seconds."""
    with trio.fail_after(120):
        made = Town(island, postgres_server, migrated_template, tmp_path, nursery)
        yield made
    with trio.fail_after(120):
        await made.close()
