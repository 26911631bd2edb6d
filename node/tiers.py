"""Places above the database that can hold a copy of a memory, as an erasure sees them."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path

from erasure.tiers import MemoryTier, Probe, Target, TierRegistry
from gossip.relay import RelayCache
from node.agents import AgentDirectory
from node.memory.residency import Residency
from node.workers.snapshots import Snapshots
from node.workspace import Workspace
from storage import memories
from storage.hot.snapshot import SnapshotFailed
from storage.keyring import KeyStore
from storage.model import MemoryId, Scope, ScopeKind
from storage.pool import Database


def build_tiers(
    db: Database,
    residency: Residency,
    relay: RelayCache,
    workspace: Workspace,
    keys: KeyStore,
    agents: AgentDirectory,
    snapshots: Snapshots,
) -> TierRegistry:
    """The hot graph, its file, the relay cache, files of agents; and the read paths to probe."""

    async def by_id(ids: Collection[MemoryId]) -> int:
        return len(await db.read(memories.by_ids, list(ids)))

    async def resident(ids: Collection[MemoryId]) -> int:
        return sum(memory_id in residency.graph for memory_id in ids)

    async def reloadable(ids: Collection[MemoryId]) -> int:
        return len(await db.read(memories.with_vectors, list(ids), residency.model))

    return TierRegistry(
        graph=residency.graph,
        memory=(_relayed(relay), _snapshot(snapshots), _agent_files(workspace, keys, agents)),
        probes=(
            Probe("fetch by id", by_id),
            Probe("hot graph", resident),
            Probe("re-load of cold rows", reloadable),
        ),
    )


def drop_scope(
    residency: Residency, relay: RelayCache, agents: AgentDirectory, scope: Scope
) -> None:
    """A scope's epoch was closed: nothing of it may be found from now on."""
    relay.drop(relay.about(scope.id))
    residency.fence(scope)
    if scope.kind is ScopeKind.AGENT:
        agents.drop(scope.id)


def _relayed(relay: RelayCache) -> MemoryTier:
    def named(target: Target) -> list[str]:
        diffs = set(relay.of_memories(target.ids))
        if target.scope is not None and target.all_of_scope:
            diffs |= set(relay.about(target.scope.id))
        return [diff_id.hex() for diff_id in sorted(diffs)]

    def remove(target: Target, names: Collection[str]) -> int:
        return relay.drop([bytes.fromhex(name) for name in names])

    return MemoryTier(
        "mem.gossip", named, remove, lambda target: len(named(target)), level="L1", how="drain"
    )


def _snapshot(snapshots: Snapshots) -> MemoryTier:
    """Files of the hot graph: a new one without the target takes the place of all that hold it.

    Erasing without room for a new file unlinks the old ones: the next start is slower.
    """
    folder = snapshots.folder

    def holding(target: Target) -> list[str]:
        ids = frozenset(target.ids)
        scope = target.scope.id if target.scope is not None and target.all_of_scope else None
        return folder.holders_of(
            lambda memory, agent, project: memory in ids or scope in (agent, project)
        )

    def remove(target: Target, names: Collection[str]) -> int:
        held = {*names, *holding(target)}
        if not held:
            return 0
        try:
            snapshots.write_now()
        except SnapshotFailed:
            folder.remove(sorted(held))
        folder.remove(holding(target))
        return len(held)

    return MemoryTier(
        "file.snapshot",
        holding,
        remove,
        lambda target: len(holding(target)),
        level="L2",
        how="rewrite",
    )


def _agent_files(workspace: Workspace, keys: KeyStore, agents: AgentDirectory) -> MemoryTier:
    """The agent's signing key and its folder of identity files, at its home node."""

    def folder(target: Target) -> Path | None:
        if target.scope is None or target.scope.kind is not ScopeKind.AGENT:
            return None
        name = agents.former_name(target.scope.id)
        path = workspace.agents / name if name else None
        return (
            path if path is not None and path.is_dir() and path.parent == workspace.agents else None
        )

    def named(target: Target) -> list[str]:
        if target.scope is None or target.scope.kind is not ScopeKind.AGENT:
            return []
        if not target.all_of_scope:
            return []
        found = ["signing key"] if keys.has_agent(target.scope.id) else []
        return [*found, "identity files"] if folder(target) else found

    def remove(target: Target, names: Collection[str]) -> int:
        removed = 0
        if target.scope is not None and "signing key" in names:
            removed += keys.remove_agent(target.scope.id)
        path = folder(target)
        if path is not None and "identity files" in names:
            shutil.rmtree(path)
            removed += 1
        return removed

    return MemoryTier(
        "file.agent", named, remove, lambda target: len(named(target)), level="L2", how="unlink"
    )
