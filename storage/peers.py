"""Rows of `peers`, `members`, `agent_cards` and `sync_marks`: the mesh as this node knows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from storage.model import AgentId, Hlc, NodeId, ProjectId
from storage.pool import Tx
from storage.queries import load

SQL = load("peers")


@dataclass(frozen=True, slots=True)
class Peer:
    """Another node, as it was when last met."""

    peer_id: NodeId
    proto: int
    features: tuple[str, ...]
    last_contact_at: datetime | None
    score_milli: int
    profile: bytes | None
    profile_version: Hlc | None
    models: tuple[str, ...]
    cert_fp: bytes
    erasure_key: bytes | None
    ledger_key: bytes | None


@dataclass(frozen=True, slots=True)
class Member:
    """A node in the access list of a project."""

    project_id: ProjectId
    node_id: NodeId
    addr: str
    operator_domain: str
    incarnation: int
    status: str
    status_hlc: Hlc
    dead_since: datetime | None
    certificate: bytes


@dataclass(frozen=True, slots=True)
class Card:
    """An agent's public key, vouched for by its home node."""

    agent_id: AgentId
    project_id: ProjectId
    home_node: NodeId
    public_key: bytes
    hlc: Hlc
    wire: bytes


@dataclass(frozen=True, slots=True)
class SyncMark:
    """Tombstone numbers: `acked` of ours the peer has, `received` of the peer's we have."""

    acked: int = 0
    received: int = 0
    synced_hlc: Hlc = 0


async def met(
    tx: Tx,
    peer_id: NodeId,
    *,
    proto: int,
    features: Sequence[str],
    models: Sequence[str],
    cert_fp: bytes,
    now: datetime,
) -> None:
    """Note what a peer said of itself when it connected."""
    await tx.execute(
        SQL.upsert_peer,
        peer_id=peer_id,
        proto=proto,
        features=list(features),
        models=list(models),
        cert_fp=cert_fp,
        now=now,
    )


async def heard(tx: Tx, peer_id: NodeId, now: datetime) -> None:
    """A peer was heard."""
    await tx.execute(SQL.touch_peer, peer_id=peer_id, now=now)


async def set_profile(tx: Tx, peer_id: NodeId, profile: bytes, version: Hlc) -> None:
    """Keep the newest profile of a peer and nothing older."""
    await tx.execute(SQL.set_profile, peer_id=peer_id, profile=profile, version=version)


async def set_keys(tx: Tx, peer_id: NodeId, erasure_key: bytes, ledger_key: bytes) -> None:
    """Keep the keys that sign a peer's erasure documents and tree heads."""
    await tx.execute(SQL.set_keys, peer_id=peer_id, erasure_key=erasure_key, ledger_key=ledger_key)


async def all_peers(tx: Tx) -> list[Peer]:
    """All peers ever met."""
    return [
        Peer(
            **{
                **dict(row),
                "features": tuple(row["features"]),
                "models": tuple(row["models"]),
            }
        )
        for row in await tx.fetch(SQL.peers)
    ]


async def put_member(
    tx: Tx,
    project_id: ProjectId,
    node_id: NodeId,
    *,
    addr: str,
    operator_domain: str,
    certificate: bytes,
    hlc: Hlc,
) -> None:
    """Add or update a member as the access list names it."""
    await tx.execute(
        SQL.upsert_member,
        project_id=project_id,
        node_id=node_id,
        addr=addr,
        operator_domain=operator_domain,
        certificate=certificate,
        hlc=hlc,
    )


async def set_status(tx: Tx, node_id: NodeId, status: str, hlc: Hlc, now: datetime) -> None:
    """What liveness says of a member, in all its projects."""
    await tx.execute(SQL.set_member_status, node_id=node_id, status=status, hlc=hlc, now=now)


async def decommission(
    tx: Tx, project_id: ProjectId, node_id: NodeId, wire: bytes, hlc: Hlc
) -> bool:
    """Remove a member for good, by the signed word of the project. False when it was out."""
    done = await tx.fetchval(
        SQL.decommission, project_id=project_id, node_id=node_id, wire=wire, hlc=hlc
    )
    return done is not None


async def members(tx: Tx) -> list[Member]:
    """Members of all projects."""
    return [Member(**dict(row)) for row in await tx.fetch(SQL.members)]


async def put_card(tx: Tx, card: Card) -> bool:
    """Keep an agent card; False when a newer one or another home's stands."""
    stored = await tx.fetchval(
        SQL.upsert_card,
        agent_id=card.agent_id,
        project_id=card.project_id,
        home_node=card.home_node,
        public_key=card.public_key,
        hlc=card.hlc,
        wire=card.wire,
    )
    return stored is not None


async def cards(tx: Tx, project_id: ProjectId) -> list[Card]:
    """All agent cards of a project."""
    return [Card(**dict(row)) for row in await tx.fetch(SQL.cards, project_id=project_id)]


async def card(tx: Tx, agent_id: AgentId, project_id: ProjectId) -> Card | None:
    """The card of one agent."""
    row = await tx.fetchrow(SQL.card, agent_id=agent_id, project_id=project_id)
    return Card(**dict(row)) if row else None


async def sync_mark(tx: Tx, peer_id: NodeId, project_id: ProjectId) -> SyncMark:
    """How far a peer and this node are with each other's tombstones."""
    row = await tx.fetchrow(SQL.sync_mark, peer_id=peer_id, project_id=project_id)
    if row is None:
        return SyncMark()
    return SyncMark(row["acked_recv_seq"], row["received_recv_seq"], row["synced_hlc"])


async def set_acked(tx: Tx, peer_id: NodeId, project_id: ProjectId, seq: int) -> None:
    """The peer has all our tombstones up to `seq`, and says so itself."""
    await tx.execute(SQL.set_acked, peer_id=peer_id, project_id=project_id, seq=seq)


async def set_received(
    tx: Tx, peer_id: NodeId, project_id: ProjectId, seq: int, now: datetime
) -> None:
    """We have all tombstones of the peer up to its `seq`; falls when the peer counts anew."""
    await tx.execute(SQL.set_received, peer_id=peer_id, project_id=project_id, seq=seq, now=now)
