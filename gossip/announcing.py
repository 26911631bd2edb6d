"""The signed announcement of a memory, and announcing again what a late member lacks.

Announcements live a day; memories live on. A member that joins later asks for everything, and
this node then signs anew, with no energy to walk on, what is its own, is wanted there, and is
not known to be there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from gossip.affinity import quantise_wire, quantised
from gossip.apply import pass_gate_of_row
from gossip.mesh import Mesh
from gossip.profile import Profile
from storage import clock, diffs, memories, records
from storage.diffs import Diff, Seen
from storage.errors import InvalidInput, ScopeErased, Tombstoned
from storage.local import LocalNode
from storage.memories import Stored
from storage.model import Memory, ProjectId
from storage.pool import Tx
from storage.records import DiffKind

PAGE = 250
HOUR_MS = 3_600_000
WIRE_DTYPE = "<f2"
REVIVED = "revived"


def announcement(
    node: LocalNode,
    memory: Memory,
    vector: NDArray[np.float32],
    kind: DiffKind,
    *,
    model: str,
    energy: int,
    ttl_ms: int,
    hop_max: int,
    grace_ms: int,
    now: datetime,
) -> Diff:
    """The signed announcement of a memory, by its agent's own key, with so much energy (milli).

    Raises InvalidInput unless the agent is at home here and the memory has a project.
    """
    key = node.keys.agent(memory.agent_id)
    if key is None or memory.project_id is None:
        raise InvalidInput("only an agent of this node announces, and only within a project")
    embedding = vector.astype(WIRE_DTYPE).tobytes()
    encoded = memory.content.encode("utf-8")
    inline = len(encoded) <= records.INLINE_BYTES
    body = records.encode(
        records.DiffBody(
            kind=kind,
            project=memory.project_id,
            agent=memory.agent_id,
            origin=memory.origin_node,
            agent_epoch=memory.agent_epoch,
            project_epoch=memory.project_epoch,
            hlc=clock.to_bytes(memory.hlc),
            nonce=node.random_bytes(16),
            memory=memory.id,
            mkind=memory.kind.value,
            model=model,
            emb=embedding,
            content=memory.content if inline else None,
            content_ref=None
            if inline
            else records.ContentRef(digest=records.content_digest(encoded), length=len(encoded)),
            meta=records.DiffMeta(
                type=memory.type,
                tags=memory.tags,
                who=memory.who,
                importance_ppm=round(memory.importance * 1_000_000),
                pinned=memory.pinned,
                created_ms=int(memory.created_at.timestamp() * 1000),
                expires_ms=int(memory.expires_at.timestamp() * 1000) if memory.expires_at else None,
                scope_label=memory.scope_label,
            ),
            e0_milli=energy,
            ttl_ms=ttl_ms,
            hop_max=hop_max,
        )
    )
    expires_at = now + timedelta(milliseconds=ttl_ms)
    return Diff(
        diff_id=records.record_id(records.DOMAIN_DIFF, body),
        kind=kind,
        project_id=memory.project_id,
        agent_id=memory.agent_id,
        agent_epoch=memory.agent_epoch,
        project_epoch=memory.project_epoch,
        memory_id=memory.id,
        origin_node=memory.origin_node,
        hlc=memory.hlc,
        model=model,
        q8=quantise_wire(embedding, "f16").raw,
        body=body,
        sig=records.sign(key, records.DOMAIN_DIFF, body),
        expires_at=expires_at,
        drop_after=expires_at + timedelta(milliseconds=grace_ms),
    )


async def announce_again(mesh: Mesh, project: ProjectId, profile: Profile) -> int:
    """Sign anew what a peer wants of this node's memories and cannot find among the diffs.

    How many. A peer may cause it once an hour; what it is known to store is left out.
    """
    key = (profile.node_id, project)
    mono = mesh.mono_ms()
    if mono - mesh.announced_again.get(key, -HOUR_MS) < HOUR_MS:
        return 0
    mesh.announced_again[key] = mono
    made, after = 0, b""
    while True:
        page = await mesh.db.read(
            memories.unannounced,
            project,
            mesh.node.node_id,
            profile.node_id,
            mesh.model,
            mesh.node.wall(),
            after,
            PAGE,
        )
        wanted = [each for each in page if _wanted(profile, each)]
        if wanted:
            made += await mesh.db.transact(_announce, mesh, wanted)
        if len(page) < PAGE:
            return made
        after = page[-1].memory.id


def _wanted(profile: Profile, stored: Stored) -> bool:
    wire = stored.vector.astype(WIRE_DTYPE).tobytes()
    return profile.wants(quantised(quantise_wire(wire, "f16").raw))


async def _announce(tx: Tx, mesh: Mesh, wanted: Sequence[Stored]) -> int:
    """New diffs beside rows that say that their walk is over."""
    rows = await memories.by_ids(tx, [each.memory.id for each in wanted], lock=True)
    live = {row.id: row for row in rows if row.deleted_at is None}
    now, made = mesh.node.wall(), 0
    for stored in wanted:
        row = live.get(stored.memory.id)
        if row is None or mesh.node.keys.agent(row.agent_id) is None:
            continue
        try:
            await pass_gate_of_row(tx, mesh, row)
        except (ScopeErased, Tombstoned):
            continue
        diff = announcement(
            mesh.node,
            replace(row, hlc=mesh.node.clock.now()),
            stored.vector,
            "add",
            model=mesh.model,
            energy=0,
            ttl_ms=mesh.settings.ttl_s * 1000,
            hop_max=mesh.settings.hop_max,
            grace_ms=mesh.diff_grace_h * HOUR_MS,
            now=now,
        )
        seen = Seen(diff.diff_id, diff.hlc, 0, 0, 0, (), (), REVIVED)
        await diffs.save_seen(tx, seen, diff.expires_at, diff.drop_after)
        made += await diffs.insert(tx, diff)
    return made
