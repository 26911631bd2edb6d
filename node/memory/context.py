"""What every memory use case needs, handed in by the composition root."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import trio

from node.agents import AgentDirectory
from node.embed.base import Embedder
from node.memory.cold import ColdTier
from node.memory.commits import SharedCommits
from node.memory.commonwords import CommonWords
from node.memory.handing import HandingDesk
from node.memory.residency import Residency
from node.memory.settings import MemorySettings
from storage.access import LiveAccess
from storage.gate import Epochs
from storage.local import LocalNode
from storage.model import AgentId, ProjectId
from storage.pool import Database


@dataclass(slots=True)
class MemoryContext:
    """Dependencies of the use cases; `settings` is replaced whole by a reload.

    `walk_energy` gives the energy in milli-units that an announcement about a vector in a
    project starts with, and `announced` wakes the mesh after a commit. `desk` hands memories to
    the agents of this node, and `commits` lets remembers that come together share one. `epochs`
    are those under which the last commits wrote; they are checked again by whoever uses them.
    `changing` keeps changes of memories, and what follows them here, in one order.
    """

    node: LocalNode
    db: Database
    residency: Residency
    embedder: Embedder
    agents: AgentDirectory
    access: LiveAccess
    settings: MemorySettings
    walk_energy: Callable[[ProjectId, bytes], int]
    announced: Callable[[], None]
    desk: HandingDesk
    commits: SharedCommits[Any, Any] = field(default_factory=SharedCommits)
    epochs: dict[tuple[AgentId, ProjectId | None], Epochs] = field(default_factory=dict)
    changing: trio.Lock = field(default_factory=trio.Lock)
    cold: ColdTier = field(default_factory=ColdTier)
    common_words: CommonWords = field(default_factory=CommonWords)

    def now(self) -> datetime:
        """The wall clock, aware, UTC."""
        return self.node.wall()
