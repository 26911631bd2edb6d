"""The parts of a running node, as the edges (HTTP, signals, workers) receive them.

Made once by the composition root; nothing here is looked up by name.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime

from erasure.context import ErasureContext
from gossip.service import Mesh
from node.agents import AgentDirectory
from node.memory.context import MemoryContext
from node.projects import ProjectDesk
from node.reload import Reloader
from node.telemetry.metrics import Metrics
from node.workspace import Workspace
from storage.access import LiveAccess
from storage.island import Island
from storage.local import LocalNode
from storage.pool import Database


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
    sweep: Callable[[], Awaitable[dict[str, object]]]
    started_at: datetime
    not_ready: str | None = "starting"
