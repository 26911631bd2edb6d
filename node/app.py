"""The composition root: every part of a node, made in one place and handed its dependencies.

`open_node` yields a node that can serve but listens nowhere yet; `node/run.py` starts the
services. Leaving the context closes everything in reverse order.
"""

from __future__ import annotations

import os
import random
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from functools import partial

import trio

from erasure.context import ErasureContext
from erasure.parts import Software
from gossip import introductions, service
from gossip.affinity import PPM
from gossip.limits import LinkLimits
from gossip.links import Links
from gossip.liveness import Liveness
from gossip.mesh import Interests, Mesh, MeshHooks
from gossip.relay import RelayCache
from gossip.settings import GossipSettings
from gossip.tls import Admitted
from gossip.walk import Walk
from gossip.wire.handshake import PROTO, TOMB_GATE
from gossip.wire.messages import Hello
from node.agents import DEFAULT_AGENT, AgentDirectory
from node.config import Config
from node.counting import mesh_counter
from node.embed.base import Embedder
from node.embed.choose import open_embedder
from node.interests import interests
from node.memory.context import MemoryContext
from node.memory.handing import HandingDesk
from node.memory.residency import Residency
from node.memory.settings import MemorySettings
from node.projects import ProjectDesk, use_invitation
from node.reload import Reloader
from node.services import Services
from node.telemetry.metrics import Metrics, build_metrics
from node.tiers import build_tiers, drop_scope
from node.version import COMMIT, VERSION
from node.workers.consolidation import Consolidation
from node.workers.eviction import Eviction
from node.workers.retention import Retention
from node.workers.settings import retention_settings
from node.workers.snapshots import Snapshots
from node.workspace import Workspace
from storage import memories, migrate, principals
from storage.access import Access, LiveAccess
from storage.clock import HybridClock
from storage.embedded import open_embedded
from storage.errors import StartRefused
from storage.gate import Gate
from storage.hot.graph import HotGraph
from storage.hot.snapshot import Owner, SnapshotFolder
from storage.island import Island, open_island
from storage.keyring import KeyStore
from storage.local import LocalNode
from storage.memories import Stored
from storage.model import MemoryId
from storage.pool import Database, Target, open_database
from storage.reserve import LastLife, read_reserve
from storage.settings import DatabaseSettings, EmbeddedSettings


def wall() -> datetime:
    """The wall clock, aware, UTC."""
    return datetime.now(UTC)


def wall_ms() -> int:
    """The wall clock in milliseconds."""
    return time.time_ns() // 1_000_000


def mono_ms() -> int:
    """The monotonic clock in milliseconds."""
    return time.monotonic_ns() // 1_000_000


@asynccontextmanager
async def open_node(
    workspace: Workspace, reloader: Reloader, nursery: trio.Nursery
) -> AsyncIterator[Services]:
    """All parts of a node over a locked workspace, loaded and consistent.

    `nursery` watches the embedded database for the life of the node. Raises StartRefused with one
    line for whatever stands in the way, before any port opens.
    """
    config = reloader.current
    keys = KeyStore(workspace.keys)
    keys.prepare()
    identity = keys.node()
    async with AsyncExitStack() as stack:
        island = await stack.enter_async_context(open_island())
        target = await _database(stack, config, workspace, nursery)
        await migrate.migrate(island, target)
        db = await stack.enter_async_context(open_database(island, target, DatabaseSettings()))
        embedder = await stack.enter_async_context(
            open_embedder(config.embedding.settings(), os.environ)
        )
        await _check_model(db, embedder)
        await use_invitation(db, keys, identity.certificate_der, wall)
        life = await read_reserve(db, workspace.ledger)
        node = LocalNode(
            identity=identity,
            keys=keys,
            clock=HybridClock(wall_ms, life.start),
            gate=Gate(_handle_key(keys)),
            mesh_id=await _mesh_id(db),
            wall=wall,
        )
        services = _compose(workspace, reloader, island, db, node, embedder, life)
        await _load(services)
        yield services


def _compose(
    workspace: Workspace,
    reloader: Reloader,
    island: Island,
    db: Database,
    node: LocalNode,
    embedder: Embedder,
    life: LastLife,
) -> Services:
    """Make every part and hand it what it needs; nothing is read yet."""
    config = reloader.current
    metrics = build_metrics()
    access = LiveAccess(Access())
    agents = AgentDirectory(node, db, access, embedder)
    graph = HotGraph(embedder.dimension, config.eviction.settings(), wall_ms)
    residency = Residency(graph, node, embedder.model_id)
    schema = len(migrate.discover())
    owner = Owner(node.node_id, embedder.model_id, embedder.dimension, schema)
    folder = SnapshotFolder(workspace.hot, owner)
    snapshots = Snapshots(residency, db, node, folder, metrics.hot)
    relay = RelayCache(config.gossip.relay_cache_mib << 20, config.gossip.relay_cache_s * 1000)
    erasure = ErasureContext(
        node=node,
        db=db,
        access=access,
        settings=config.erasure.settings(),
        tiers=build_tiers(db, residency, relay, workspace, node.keys, agents, snapshots),
        ledger_dir=workspace.ledger,
        software=Software(version=VERSION, commit=COMMIT, schema=schema),
    )

    def threshold() -> int:
        if mesh.own_profile is not None:
            return mesh.own_profile.tau_ppm
        fixed = mesh.settings.tau
        return round((mesh.settings.tau_floor if fixed is None else fixed) * PPM)

    desk = HandingDesk(node, agents, threshold)
    mesh = _mesh(config, node, db, access, erasure, residency, agents, embedder, metrics, desk)
    mesh.relay = relay
    erasure.wake = mesh.wake_outbox
    erasure.fenced = partial(drop_scope, residency, relay, agents)
    memory = MemoryContext(
        node=node,
        db=db,
        residency=residency,
        embedder=embedder,
        agents=agents,
        access=access,
        settings=memory_settings(config),
        walk_energy=mesh.walk_energy,
        announced=mesh.wake,
        desk=desk,
    )

    async def regrouped() -> None:
        await memory.cold.refresh(db, embedder.model_id)

    erasure.regrouped = regrouped

    async def members_changed() -> None:
        await introductions.admit_members(mesh)
        for project_id in access.current.projects:
            service.watch_project(mesh, project_id)
        await service.relink(mesh)

    return Services(
        workspace=workspace,
        reloader=reloader,
        island=island,
        db=db,
        local=node,
        access=access,
        agents=agents,
        projects=ProjectDesk(node, db, access, agents, mesh.address, members_changed),
        memory=memory,
        erasure=erasure,
        mesh=mesh,
        metrics=metrics,
        retention=Retention(
            node,
            db,
            residency,
            access,
            lambda: retention_settings(reloader.current),
            metrics.retention,
        ),
        eviction=Eviction(residency, db, wall, metrics.eviction),
        snapshots=snapshots,
        consolidation=Consolidation(
            node,
            db,
            memory.cold,
            embedder.model_id,
            owner=lambda: agents.resolve(DEFAULT_AGENT).id,
            k_min=lambda: erasure.settings.k_min,
            metrics=metrics.hot,
        ),
        last_life=life,
        started_at=wall(),
    )


async def _load(services: Services) -> None:
    """Read what lives in memory: access lists, agents, residents and clusters."""
    await services.access.reload(services.db)
    await services.agents.load()

    async def agents_changed() -> None:
        await services.place_agents()
        await service.announce_cards(services.mesh)

    services.agents.on_change(agents_changed)
    await sync_roster(services, services.reloader.current)
    await services.place_agents()
    await services.snapshots.load()
    await services.memory.cold.refresh(services.db, services.memory.embedder.model_id)
    services.reloader.on_change(partial(apply_config, services))


def _mesh(
    config: Config,
    node: LocalNode,
    db: Database,
    access: LiveAccess,
    erasure: ErasureContext,
    residency: Residency,
    agents: AgentDirectory,
    embedder: Embedder,
    metrics: Metrics,
    desk: HandingDesk,
) -> Mesh:
    settings: GossipSettings = config.gossip
    count = mesh_counter(metrics.gossip)

    async def stored(rows: Sequence[Stored]) -> None:
        await residency.add([(row.memory, row.vector) for row in rows])
        desk.told_of(rows)

    async def forgotten(ids: Sequence[MemoryId]) -> None:
        await residency.forget(ids)

    async def wanted() -> Interests:
        k_min = erasure.settings.k_min
        return await interests(db, node, embedder.model_id, agents.all(), k_min)

    def hello(nonce: bytes) -> Hello:
        projects = access.current.projects.values()
        profile = mesh.own_profile
        return Hello(
            PROTO,
            (TOMB_GATE,),
            node.node_id,
            node.mesh_id,
            nonce,
            tuple((each.project_id, each.acl.version) for each in projects)[:64],
            (embedder.model_id[:64],),
            profile.version if profile else 0,
            node.clock.now(),
            mesh.quarantined(),
            mesh.address(),
        )

    links = Links(
        admitted=Admitted(node.identity),
        hello=hello,
        projects_of=lambda peer: [each.project_id for each in access.current.shared_with(peer)],
        wall=wall,
    )
    mesh = Mesh(
        node=node,
        db=db,
        access=access,
        erasure=erasure,
        settings=settings,
        hooks=MeshHooks(
            stored=stored,
            forgotten=forgotten,
            interests=wanted,
            count=count,
            hand=desk.hand_copy,
        ),
        model=embedder.model_id,
        dim=embedder.dimension,
        mono_ms=mono_ms,
        rng=random.Random(secrets.randbits(128)),
        links=links,
        liveness=Liveness(settings.membership),
        limits=LinkLimits(settings.limits),
        walk=Walk(node.node_id, settings, random.Random(secrets.randbits(128))),
        diff_grace_h=config.retention.diff_grace_h,
    )
    return mesh


async def sync_roster(services: Services, config: Config) -> None:
    """Make or change the agents that the configuration names; others stay as they are."""
    for entry in config.agents.roster:
        await services.agents.put(
            entry.name,
            description=entry.description or None,
            read_policy=entry.read_policy,
            policy_group=entry.policy_group,
        )


def apply_config(services: Services, config: Config) -> None:
    """Take over the reloadable part of a configuration; raises MnemeshError to refuse it."""
    services.memory.residency.graph.set_limits(config.eviction.settings())
    services.memory.settings = memory_settings(config)
    services.erasure.settings = config.erasure.settings()
    services.mesh.settings = config.gossip
    services.mesh.walk.settings = config.gossip
    services.mesh.diff_grace_h = config.retention.diff_grace_h
    services.roster_due.set()


def memory_settings(config: Config) -> MemorySettings:
    """The use cases' part of the configuration."""
    return MemorySettings(
        alpha=config.search.alpha,
        top_k=config.search.top_k,
        min_score=config.search.min_score,
        collapse_storage_whitespace=config.content.collapse_storage_whitespace,
        max_bytes=config.content.max_bytes,
        ttl_ms=config.gossip.ttl_s * 1000,
        hop_max=config.gossip.hop_max,
        diff_grace_ms=config.retention.diff_grace_h * 3_600_000,
        soft_deleted_ttl_ms=config.retention.soft_deleted_ttl,
    )


async def _database(
    stack: AsyncExitStack, config: Config, workspace: Workspace, nursery: trio.Nursery
) -> Target:
    """The DSN of the configuration, or a server of this workspace's own."""
    if config.database.dsn is not None:
        return config.database.dsn
    server = await stack.enter_async_context(
        open_embedded(workspace.pg, workspace.logs / "postgresql.log", EmbeddedSettings())
    )
    nursery.start_soon(server.watch)
    return server.connect_kwargs


async def _check_model(db: Database, embedder: Embedder) -> None:
    stored = await db.read(memories.stored_model)
    if stored is not None and stored != embedder.model_id:
        raise StartRefused(
            f"embedding.model: the memories were embedded with {stored}, the configuration says "
            f"{embedder.model_id}; vectors of two models cannot be compared. `mnemesh reembed` "
            "embeds all memories with the configured one"
        )


async def _mesh_id(db: Database) -> str:
    """The name of this node's mesh; the first node of a mesh makes one."""
    kept = await db.read(principals.state, "mesh_id")
    if kept is not None:
        return kept.decode("utf-8")
    made = f"mesh-{secrets.token_hex(8)}"
    await db.transact(principals.set_state, "mesh_id", made.encode("utf-8"))
    return made


def _handle_key(keys: KeyStore) -> bytes:
    """The mesh's key for scope handles; the first node of a mesh makes one."""
    key = keys.handle_key()
    if key is None:
        key = secrets.token_bytes(32)
        keys.set_handle_key(key)
    return key
