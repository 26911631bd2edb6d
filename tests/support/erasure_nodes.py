"""Nodes for erasure tests: real databases, keys and graphs, and the outbox carried by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from erasure import notices, receipts
from erasure.context import ErasureContext
from erasure.envelope import Envelope
from erasure.envelope import public_bytes as raw_public
from erasure.parts import Software
from erasure.requests import EraseRequest
from erasure.settings import ErasureSettings
from erasure.tiers import TierRegistry
from storage import (
    clock,
    deliveries,
    diffs,
    history,
    memories,
    outbox,
    peers,
    principals,
    records,
)
from storage.access import Access, LiveAccess
from storage.clock import HybridClock
from storage.content import normalize
from storage.diffs import Diff
from storage.gate import Epochs, Gate
from storage.hot.graph import HotGraph
from storage.hot.settings import HotSettings
from storage.keyring import KeyStore, public_bytes
from storage.local import LocalNode
from storage.model import AgentProfile, Memory, MemoryKind, Scope, ScopeKind
from storage.outbox import Topic
from storage.peers import Card
from storage.pool import Database, Tx
from storage.principals import Project

MESH = "mesh-test"
HANDLE_KEY = bytes(range(32))
MODEL = "test:8"
DIM = 8
SOFTWARE = Software("0.1.0", "0" * 40, 1)


@dataclass
class Wall:
    """A clock that tests move by hand."""

    now: datetime = field(default_factory=lambda: datetime(2026, 11, 30, 9, 0, tzinfo=UTC))

    def __call__(self) -> datetime:
        return self.now

    def ms(self) -> int:
        """Milliseconds since 1970."""
        return int(self.now.timestamp() * 1000)

    def pass_(self, **delta: float) -> None:
        """Let time go by."""
        self.now += timedelta(**delta)


@dataclass
class ErasureNode:
    """One node with what its erasures need."""

    ctx: ErasureContext
    graph: HotGraph
    wall: Wall
    fenced: list[Scope] = field(default_factory=list)

    @property
    def id(self) -> bytes:
        return self.ctx.node.node_id

    @property
    def db(self) -> Database:
        return self.ctx.db

    async def sql(self, text: str, *args: Any) -> list[Any]:
        """Rows of a statement of the test's own."""

        async def work(tx: Tx) -> list[Any]:
            return list(await tx._connection.fetch(text, *args))

        return await self.db.transact(work)

    async def one(self, text: str, *args: Any) -> Any:
        """The first value of a statement of the test's own."""
        return (await self.sql(text, *args))[0][0]


def make_node(db: Database, folder: Path, wall: Wall, **settings: Any) -> ErasureNode:
    """A node with fresh keys in `folder`."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    keys = KeyStore(folder / "keys")
    keys.prepare()
    if keys.handle_key() is None:
        keys.set_handle_key(HANDLE_KEY)
    node = LocalNode(
        identity=keys.node(),
        keys=keys,
        clock=HybridClock(wall.ms),
        gate=Gate(HANDLE_KEY),
        mesh_id=MESH,
        wall=wall,
    )
    graph = HotGraph(DIM, HotSettings(ceiling=1000), wall.ms)
    made = ErasureNode(
        ErasureContext(
            node=node,
            db=db,
            access=LiveAccess(Access()),
            settings=ErasureSettings(**settings),
            tiers=TierRegistry(graph=graph),
            ledger_dir=folder / "ledger",
            software=SOFTWARE,
        ),
        graph,
        wall,
    )
    made.ctx.fenced = made.fenced.append
    return made


async def join(nodes: Sequence[ErasureNode], name: str = "p1") -> bytes:
    """Make the nodes members of a new project, whose key the first one holds; its id."""
    owner = nodes[0].ctx.node
    project_id = owner.new_id()
    key = owner.keys.create_project(project_id)
    acl = records.seal(
        key,
        records.DOMAIN_ACL,
        records.AclBody(
            mesh=MESH,
            project=project_id,
            name=name,
            version=1,
            nodes=tuple(
                records.AclNode(certificate=one.ctx.node.identity.certificate_der) for one in nodes
            ),
        ),
    )
    for one in nodes:
        await one.db.transact(
            principals.put_project,
            Project(project_id, name, public_bytes(key), acl, 1),
            one.wall(),
        )
        for other in nodes:
            await one.db.transact(_meet, other, project_id, one.wall())
        await one.ctx.access.reload(one.db)
    return project_id


async def _meet(tx: Tx, other: ErasureNode, project_id: bytes, now: datetime) -> None:
    node = other.ctx.node
    await peers.put_member(
        tx,
        project_id,
        node.node_id,
        addr="127.0.0.1:1",
        operator_domain="",
        certificate=node.identity.certificate_der,
        hlc=1,
    )
    await peers.met(
        tx,
        node.node_id,
        proto=1,
        features=(),
        models=(),
        cert_fp=node.identity.fingerprint,
        now=now,
    )
    await peers.set_keys(
        tx,
        node.node_id,
        raw_public(node.keys.erasure_key()),
        raw_public(node.keys.ledger_key()),
    )


async def add_agent(
    home: ErasureNode,
    name: str,
    project_id: bytes | None = None,
    others: Sequence[ErasureNode] = (),
) -> bytes:
    """An agent at home on one node, vouched for on the others; its id."""
    node = home.ctx.node
    agent_id = node.new_id()
    public = public_bytes(node.keys.create_agent(agent_id))
    profile = AgentProfile(agent_id, name, project_id=project_id)

    async def put(tx: Tx) -> None:
        await node.gate.for_write(tx, agent_id, project_id)
        await principals.put_agent(tx, profile, home.wall())

    await home.db.transact(put)
    if project_id is not None:
        stamp = node.clock.now()
        wire = records.seal(
            node.identity.private_key,
            records.DOMAIN_CARD,
            records.AgentCard(
                agent=agent_id,
                project=project_id,
                home=node.node_id,
                public=public,
                hlc=clock.to_bytes(stamp),
            ),
        )
        card = Card(agent_id, project_id, node.node_id, public, stamp, wire)
        for one in (home, *others):
            await one.db.transact(peers.put_card, card)
            await one.ctx.access.reload(one.db)
    return agent_id


def vector_of(seed: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """A unit vector that is the same for the same seed."""
    raw = np.random.default_rng(seed).normal(size=DIM).astype(np.float32)
    unit: np.ndarray[Any, np.dtype[np.float32]] = raw / np.linalg.norm(raw)
    return unit


async def remember(
    at: ErasureNode,
    agent_id: bytes,
    text: str,
    project_id: bytes | None = None,
    *,
    kind: MemoryKind = MemoryKind.CELL,
    seed: int = 1,
    holders: Sequence[ErasureNode] = (),
) -> Memory:
    """A memory with vector, history, announcement and holder rows, resident in the graph."""
    node, now = at.ctx.node, at.wall()

    async def work(tx: Tx) -> Memory:
        epochs = await node.gate.for_write(tx, agent_id, project_id)
        content = normalize(text)
        memory = Memory(
            id=node.new_id(),
            kind=kind,
            agent_id=agent_id,
            project_id=project_id,
            content=content.storage,
            normalized_content=content.normalized,
            content_hash=content.content_hash if kind is MemoryKind.CELL else None,
            created_at=now,
            updated_at=now,
            origin_node=node.node_id,
            agent_epoch=epochs.agent,
            project_epoch=epochs.project,
            hlc=node.clock.now(),
            announced_at=now if project_id else None,
        )
        await store(tx, node, memory, seed, now)
        for holder in holders:
            await deliveries.hold(
                tx,
                memory.id,
                holder.id,
                memory.project_id or bytes(16),
                agent_id,
                state="stored",
                seq=1,
            )
        return memory

    memory = await at.db.transact(work)
    _make_resident(at, memory, seed)
    return memory


async def copy_to(peer: ErasureNode, memory: Memory, seed: int = 1) -> None:
    """The peer's copy of a foreign memory, through the gate."""
    node = peer.ctx.node

    async def work(tx: Tx) -> None:
        await node.gate.for_foreign(
            tx,
            agent_id=memory.agent_id,
            project_id=memory.project_id or bytes(16),
            epochs=Epochs(memory.agent_epoch, memory.project_epoch),
            hlc=memory.hlc,
            memory_id=memory.id,
        )
        await store(tx, node, memory, seed, peer.wall())

    await peer.db.transact(work)
    _make_resident(peer, memory, seed)


async def store(tx: Tx, node: LocalNode, memory: Memory, seed: int, now: datetime) -> None:
    """The rows of a memory."""
    await memories.insert(tx, memory)
    await memories.insert_vector(tx, memory, MODEL, vector_of(seed))
    await history.record(
        tx, memory, "created", now=now, changed_by="test", new_content=memory.content
    )
    if memory.project_id is None:
        return
    diff_id = node.random_bytes(32)
    await diffs.insert(
        tx,
        Diff(
            diff_id=diff_id,
            kind="add",
            project_id=memory.project_id,
            agent_id=memory.agent_id,
            agent_epoch=memory.agent_epoch,
            project_epoch=memory.project_epoch,
            memory_id=memory.id,
            origin_node=memory.origin_node,
            hlc=memory.hlc,
            model=MODEL,
            q8=bytes(DIM),
            body=memory.content.encode("utf-8"),
            sig=bytes(64),
            expires_at=now + timedelta(days=1),
            drop_after=now + timedelta(days=2),
        ),
    )
    await tx._connection.execute(
        "INSERT INTO diff_marks VALUES ($1, 'promoted', $2)", diff_id, memory.hlc
    )


def _make_resident(at: ErasureNode, memory: Memory, seed: int) -> None:
    at.graph.insert([memories.resident(memory, at.id)], vector_of(seed)[None, :])


def request(scope: Scope, request_id: str = "req-1", **fields: Any) -> EraseRequest:
    """A well-formed request."""
    return EraseRequest(scope, "gdpr-17-1-b", request_id, **fields)


def agent(agent_id: bytes) -> Scope:
    """Agent(id)."""
    return Scope(ScopeKind.AGENT, agent_id)


def project(project_id: bytes) -> Scope:
    """Project(id)."""
    return Scope(ScopeKind.PROJECT, project_id)


async def carry(
    source: ErasureNode, target: ErasureNode, *topics: Topic, settle: bool = True
) -> list[tuple[str, str]]:
    """Hand frames that are ready for the target over, as the dispatcher would; the verdicts."""
    said = []
    for item in await source.db.read(outbox.ready, target.id, source.wall(), 500):
        topic = Topic(item.topic)
        if topics and topic not in topics:
            continue
        verdict = await deliver(target, topic, item.body, source.id)
        said.append((topic.value, verdict))
        if settle and not verdict.startswith("refused"):
            await source.db.transact(
                outbox.mark_done, topic, target.id, [item.subject], source.wall()
            )
    return said


async def deliver(target: ErasureNode, topic: Topic, body: bytes, source: bytes) -> str:
    """What the receiving end of the dispatcher does with a frame."""
    if topic is Topic.FENCE:
        return await notices.accept_fence(target.ctx, body, source)
    if topic is Topic.NOTICE:
        return await notices.accept_notice(target.ctx, body, source)
    if topic is Topic.HEAD:
        return await receipts.record_head(target.ctx, source, body)
    return await receipts.record_document(target.ctx, source, body)


def predicate(envelope: bytes | None) -> dict[str, Any]:
    """What a document says."""
    assert envelope is not None
    told: dict[str, Any] = json.loads(Envelope.from_bytes(envelope).payload)["predicate"]
    return told


def counts(envelope: bytes | None) -> dict[str, int]:
    """Tiers in which a document found anything."""
    tiers = predicate(envelope)["tiers"]
    return {name: entry["found"] for name, entry in tiers.items() if entry["found"]}
