"""What the edges of a node receive, made of real use cases; only the mesh is a stand-in."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
import yaml
from prometheus_client import CollectorRegistry

from erasure import apply
from erasure.context import ErasureContext
from erasure.parts import Software
from erasure.settings import ErasureSettings
from gossip.relay import RelayCache
from node.agents import AgentDirectory
from node.config import Config, load_config, parse_config
from node.embed.bundled import BundledEmbedder, load_bundled
from node.http import server
from node.http.app import build
from node.http.auth import Authority
from node.http.guard import Guard
from node.http.tokens import Claims, sign
from node.memory.context import MemoryContext
from node.projects import ProjectDesk
from node.reload import Reloader, ReloadResult
from node.telemetry.metrics import Metrics, build_metrics
from node.tiers import build_tiers, drop_scope
from node.workers.snapshots import Snapshots
from node.workspace import Workspace
from storage.access import LiveAccess
from storage.hot.snapshot import Owner, SnapshotFolder
from storage.island import Island
from storage.local import LocalNode
from storage.pool import Database
from tests.support.memory import World, make_world

SECRET = bytes(range(32))
PORT = 3850


@cache
def bundled() -> BundledEmbedder:
    """The real embedder, loaded once for the session."""
    return load_bundled()


class FakeMesh:
    """A mesh without members."""

    def members(self) -> list[Any]:
        return []

    def status(self) -> Mapping[str, Any]:
        return {"members": 0}


async def _nobody_to_tell() -> None:
    """Without a mesh nobody follows a new access list."""


@dataclass
class EdgeServices:
    """The fields of `node.services.Services` that the edges use."""

    workspace: Workspace
    reloader: Reloader
    island: Island
    db: Database
    local: LocalNode
    access: LiveAccess
    agents: AgentDirectory
    projects: ProjectDesk
    memory: MemoryContext
    erasure: ErasureContext
    mesh: FakeMesh
    metrics: Metrics
    snapshots: Snapshots
    started_at: datetime
    not_ready: str | None = None
    swept: list[None] = field(default_factory=list)

    async def reload(self) -> ReloadResult:
        return await self.reloader.reload()

    async def sweep(self) -> dict[str, object]:
        self.swept.append(None)
        return {"removed": 0}


@dataclass
class Edge:
    """A node's HTTP side without a socket."""

    world: World
    services: EdgeServices
    authority: Authority
    guard: Guard
    island: Island
    url: str = ""

    def configure(self, **sections: Any) -> None:
        """Put another configuration in force."""
        self.services.reloader.current = config(**sections)

    def token(self, role: str, scope: dict[str, str] | None = None, **claims: Any) -> str:
        """A token that holds for an hour."""
        now = int(self.world.now[0].timestamp())
        given: dict[str, Any] = {"iat": now, "exp": now + 3600} | claims
        return sign(Claims(f"token:{role}", role, scope or {}, **given), SECRET)

    async def request(
        self,
        method: str,
        path: str,
        *,
        token: str | None = None,
        peer: str = "127.0.0.1",
        headers: Mapping[str, str] | None = None,
        **content: Any,
    ) -> httpx.Response:
        """One request through the whole application, inside the island."""
        sent = dict(headers or {})
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"

        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.guard, client=(peer, 40000))
            async with httpx.AsyncClient(
                transport=transport, base_url=f"http://127.0.0.1:{PORT}"
            ) as client:
                return await client.request(method, path, headers=sent, **content)

        return await self.island.call(ask)

    async def get(self, path: str, **options: Any) -> httpx.Response:
        return await self.request("GET", path, **options)

    async def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        """A JSON body, encoded so that even lone surrogates go through."""
        headers = {"Content-Type": "application/json"} | options.pop("headers", {})
        return await self.request(
            "POST", path, content=json.dumps(body).encode(), headers=headers, **options
        )


def config(**sections: Any) -> Config:
    """A configuration of these sections; anything else is a default."""
    return parse_config(sections, {}).config


def edge_services(world: World, island: Island, folder: Path, settings: Config) -> EdgeServices:
    """Services over a world; `folder` becomes the workspace."""
    workspace = Workspace(folder)
    workspace.prepare()
    relay, residency = RelayCache(), world.context.residency
    agents = world.context.agents
    owner = Owner(world.node.node_id, residency.model, world.context.embedder.dimension, 1)
    files = SnapshotFolder(workspace.hot, owner)
    snapshots = Snapshots(residency, world.db, world.node, files)
    erasure = ErasureContext(
        node=world.node,
        db=world.db,
        access=world.access,
        settings=ErasureSettings(),
        tiers=build_tiers(
            world.db, residency, relay, workspace, world.node.keys, agents, snapshots
        ),
        ledger_dir=workspace.ledger,
        software=Software(version="0.1.0", commit="0" * 40, schema=1),
        fenced=lambda scope: drop_scope(residency, relay, agents, scope),
    )
    return EdgeServices(
        workspace=workspace,
        reloader=Reloader(settings, lambda: load_config(folder, {})),
        island=island,
        db=world.db,
        local=world.node,
        access=world.access,
        agents=world.context.agents,
        projects=ProjectDesk(
            world.node,
            world.db,
            world.access,
            world.context.agents,
            lambda: "127.0.0.1:3851",
            _nobody_to_tell,
        ),
        memory=world.context,
        erasure=erasure,
        mesh=FakeMesh(),
        metrics=build_metrics(CollectorRegistry()),
        snapshots=snapshots,
        started_at=world.now[0],
    )


def open_edge(services: EdgeServices, world: World, island: Island) -> Edge:
    """The application over services."""
    authority = Authority(
        SECRET, lambda: services.reloader.current.auth, lambda: world.now[0].timestamp()
    )
    guard = build(services, authority, PORT)  # type: ignore[arg-type]
    return Edge(world, services, authority, guard, island)


@pytest.fixture
async def edge(db: Database, island: Island, tmp_path: Path) -> AsyncIterator[Edge]:
    """The HTTP side of a node on an empty database; a test has two minutes."""
    with trio.fail_after(120):
        (tmp_path / "node").mkdir(mode=0o700)
        world = await make_world(db, tmp_path, embedder=bundled())
        services = edge_services(world, island, tmp_path / "workspace", config())
        yield open_edge(services, world, island)


@pytest.fixture
async def served(edge: Edge, nursery: trio.Nursery) -> Edge:
    """The same on a real socket, with the loop that drives erasures; see `Edge.url`."""
    edge.configure(network={"port": 0})
    await nursery.start(apply.run, edge.services.erasure)
    edge.url = await nursery.start(server.serve, edge.services)
    return edge


def write_config(folder: Path, **sections: Any) -> None:
    """An `agent.yaml` in a workspace."""
    (folder / "agent.yaml").write_text(yaml.safe_dump(sections), encoding="utf-8")
