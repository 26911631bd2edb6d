"""The Python twin of the SQL function `memory_visible`, for residents of the hot graph."""

from __future__ import annotations

from storage.model import Reader, ReadPolicy, Resident, Visibility


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
