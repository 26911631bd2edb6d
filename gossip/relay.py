"""Bodies of diffs on their way through: kept a few minutes for forwarding and for retries.

Memory only, bounded in bytes and age, oldest out first. Dropped at once when the memory of a
body is forgotten, since a copy here is a copy.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass

from storage.model import AgentId, MemoryId, ProjectId


@dataclass(frozen=True, slots=True)
class Body:
    """The signed bytes of a diff and whom they are about."""

    diff_id: bytes
    memory_id: MemoryId
    agent_id: AgentId
    project_id: ProjectId
    body: bytes
    sig: bytes


class RelayCache:
    """Bodies by diff id, at most `max_bytes` and `max_age_ms` old."""

    def __init__(self, max_bytes: int = 64 << 20, max_age_ms: int = 600_000) -> None:
        self.max_bytes = max_bytes
        self.max_age_ms = max_age_ms
        self.size = 0
        self._bodies: OrderedDict[bytes, tuple[int, Body]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._bodies)

    def put(self, body: Body, mono_ms: int) -> None:
        """Keep a body; the oldest leave when there is no room."""
        self.drop([body.diff_id])
        self._bodies[body.diff_id] = (mono_ms, body)
        self.size += len(body.body)
        self._trim(mono_ms)

    def get(self, diff_id: bytes, mono_ms: int) -> Body | None:
        """A body that is still kept."""
        self._trim(mono_ms)
        held = self._bodies.get(diff_id)
        return held[1] if held else None

    def drop(self, diff_ids: Collection[bytes]) -> int:
        """Drop bodies by diff; how many there were."""
        return sum(self._remove(diff_id) for diff_id in diff_ids)

    def drop_memories(self, ids: Collection[MemoryId]) -> int:
        """Drop all bodies about these memories; how many there were."""
        return self.drop(self.of_memories(ids))

    def of_memories(self, ids: Collection[MemoryId]) -> list[bytes]:
        """Diff ids of bodies about these memories."""
        wanted = set(ids)
        return [key for key, (_, body) in list(self._bodies.items()) if body.memory_id in wanted]

    def about(self, scope_id: bytes) -> list[bytes]:
        """Diff ids of bodies that belong to an agent or a project."""
        return [
            key
            for key, (_, body) in list(self._bodies.items())
            if scope_id in (body.agent_id, body.project_id)
        ]

    def _trim(self, mono_ms: int) -> None:
        while self._bodies:
            key, (at, _) = next(iter(self._bodies.items()))
            if self.size <= self.max_bytes and mono_ms - at <= self.max_age_ms:
                return
            self._remove(key)

    def _remove(self, diff_id: bytes) -> bool:
        held = self._bodies.pop(diff_id, None)
        if held is None:
            return False
        self.size -= len(held[1].body)
        return True
