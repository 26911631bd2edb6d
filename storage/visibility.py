"""The Python twin of the SQL function `memory_visible`, for residents of the hot graph."""

from __future__ import annotations

from typing import NamedTuple

from storage.model import (
    AgentId,
    MemoryKind,
    ProjectId,
    Reader,
    ReadPolicy,
    Resident,
    Visibility,
)


class AccessClass(NamedTuple):
    """What a resident has in common with all that `visible` cannot tell from it.

    The one thing it leaves open is whether a memory that `expires` has expired.
    """

    kind: MemoryKind
    agent_id: AgentId
    project_id: ProjectId | None
    visibility: Visibility
    superseded: bool
    expires: bool

    @classmethod
    def of(cls, memory: Resident) -> AccessClass:
        """The class of a resident."""
        return cls(
            memory.kind,
            memory.agent_id,
            memory.project_id,
            memory.visibility,
            memory.superseded,
            memory.expires_ms is not None,
        )

    def unexpired(self) -> Resident:
        """A resident of this class, apart from the expiry, to judge the others by."""
        return Resident(
            id=b"",
            kind=self.kind,
            agent_id=self.agent_id,
            project_id=self.project_id,
            visibility=self.visibility,
            content="",
            created_ms=0,
            superseded=self.superseded,
        )


def visible(memory: Resident, reader: Reader, now_ms: int, *, superseded: bool = False) -> bool:
    """May `reader` see this resident at `now_ms`.

    Deleted, tombstoned and fenced memories are not resident at all, so only expiry, supersession,
    visibility, read policy and project membership are left to judge.
    """
    if memory.expires_ms is not None and memory.expires_ms <= now_ms:
        return False
    if memory.superseded and not superseded:
        return False
    if memory.visibility is Visibility.ARCHIVED:
        return False
    if memory.project_id is not None and memory.project_id not in reader.projects:
        return False
    if memory.agent_id == reader.agent_id:
        return True
    if memory.visibility is not Visibility.GLOBAL:
        return False
    if reader.policy is ReadPolicy.SHARED:
        return True
    return reader.policy is ReadPolicy.GROUP and memory.agent_id in reader.group
