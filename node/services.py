"""The parts of a running node, as the edges (HTTP, signals, workers) receive them.

Made once by the composition root; nothing here is looked up by name.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from datetime import datetime

import trio

from erasure.context import ErasureContext
from gossip.mesh import Mesh
from node.agents import AgentDirectory
from node.interests import positions
from node.memory.context import MemoryContext
from node.projects import ProjectDesk
from node.reload import Reloader, ReloadResult
from node.telemetry.metrics import Metrics
from node.workers.consolidation import Consolidation
from node.workers.eviction import Eviction
from node.workers.retention import Retention
from node.workers.snapshots import Snapshots
from node.workspace import Workspace
from storage.access import LiveAccess
from storage.island import Island
from storage.local import LocalNode
from storage.pool import Database
from storage.reserve import LastLife

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Services:
    """Everything an edge may call. `not_ready` is the reason why the node does not serve yet."""

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
    mesh: Mesh
    metrics: Metrics
    retention: Retention
    eviction: Eviction
    snapshots: Snapshots
    consolidation: Consolidation
    last_life: LastLife
    started_at: datetime
    roster_due: trio.Event = field(default_factory=trio.Event)
    not_ready: str | None = "starting"

    async def reload(self) -> ReloadResult:
        """Take the configuration file over, all or nothing; keys are logged, values never."""
        result = await self.reloader.reload()
        self.metrics.reload.reloads_total.labels(result.status).inc()
        self.metrics.reload.restart_pending.set(len(result.restart))
        log.log(
            logging.WARNING if result.status == "rejected" else logging.INFO,
            "the configuration was read again",
            extra={
                "data": {
                    "result": result.status,
                    "changed": list(result.changed),
                    "restart": list(result.restart),
                    "problem": list(result.problems),
                }
            },
        )
        return result

    async def sweep(self) -> dict[str, object]:
        """All steps of retention, now."""
        return await self.retention.sweep()

    async def place_agents(self) -> None:
        """Let the desk know where the local agents stand and what they may read."""
        found = await positions(
            self.db,
            self.local,
            self.memory.embedder.model_id,
            self.agents.all(),
            self.erasure.settings.k_min,
        )
        self.memory.desk.place(found)
