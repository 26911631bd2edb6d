"""What answers say: records as plain JSON values.

Ids of memories and projects are UUID text, of nodes hex; agents and projects go by their names
here. Times are UTC with milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from node.memory.recall import Answer, RecallHit, Stage
from node.memory.remember import Remembered
from storage.history import Event
from storage.model import AgentProfile, Memory, ProjectId, Resident, id_text

if TYPE_CHECKING:
    from node.services import Services


def when(moment: datetime | None) -> str | None:
    """ISO 8601 in UTC with milliseconds and `Z`."""
    if moment is None:
        return None
    text = moment.astimezone(UTC).isoformat(timespec="milliseconds")
    return f"{text.removesuffix('+00:00')}Z"


def when_ms(milliseconds: int | None) -> str | None:
    """The same of milliseconds since 1970."""
    if milliseconds is None:
        return None
    seconds = datetime.fromtimestamp(milliseconds // 1000, UTC).isoformat()[:19]
    return f"{seconds}.{milliseconds % 1000:03}Z"


def project_label(services: Services, project_id: ProjectId | None) -> str | None:
    """The project's name here, or the UUID of an unknown one."""
    if project_id is None:
        return None
    project = services.access.current.projects.get(project_id)
    return project.name if project else id_text(project_id)


def memory_view(services: Services, memory: Memory) -> dict[str, Any]:
    """A row, without its vector."""
    return {
        "id": id_text(memory.id),
        "kind": memory.kind.value,
        "agent_id": services.agents.label(memory.agent_id),
        "project": project_label(services, memory.project_id),
        "scope": memory.scope_label,
        "content": memory.content,
        "type": memory.type,
        "tags": list(memory.tags),
        "who": memory.who,
        "importance": round(memory.importance, 6),
        "pinned": memory.pinned,
        "visibility": memory.visibility.value,
        "source_type": memory.source_type,
        "source_id": memory.source_id,
        "idempotency_key": memory.idempotency_key,
        "seen_count": memory.seen_count,
        "access_count": memory.access_count,
        "superseded_by": id_text(memory.superseded_by) if memory.superseded_by else None,
        "expires_at": when(memory.expires_at),
        "created_at": when(memory.created_at),
        "updated_at": when(memory.updated_at),
        "updated_by": memory.updated_by,
        "origin_node": memory.origin_node.hex(),
    }


def remembered_view(services: Services, result: Remembered) -> dict[str, Any]:
    """The reply to a remember: the row that now stands, tags joined by commas."""
    memory = result.memory
    if result.deduped:
        return {
            "id": id_text(memory.id),
            "type": memory.type,
            "tags": ",".join(memory.tags),
            "pinned": memory.pinned,
            "importance": round(memory.importance, 6),
            "content": memory.content,
            "embedded": True,
            "deduped": True,
        }
    return memory_view(services, memory) | {
        "tags": ",".join(memory.tags),
        "embedded": True,
        "deduped": False,
    }


def hit_view(services: Services, hit: RecallHit) -> dict[str, Any]:
    """One hit with its score and the parts of it."""
    memory = hit.memory
    shown = record_view(
        memory,
        services.agents.label(memory.agent_id),
        project_label(services, memory.project_id),
    )
    scores = {
        "score": round(hit.score, 6),
        "source": hit.source.value,
        "tier": hit.tier,
        "cosine": round(hit.cosine, 6),
        "words": round(hit.words, 6),
    }
    return shown | scores


def record_view(memory: Resident, agent: str, project: str | None) -> dict[str, Any]:
    """What a hit says of a memory, before its scores.

    No graph names entities yet, so there are none.
    """
    return {
        "id": id_text(memory.id),
        "content": memory.content,
        "kind": memory.kind.value,
        "agent_id": agent,
        "project": project,
        "scope": memory.scope_label,
        "type": memory.type,
        "tags": list(memory.tags),
        "who": memory.who,
        "importance": round(memory.importance, 6),
        "pinned": memory.pinned,
        "foreign": memory.foreign,
        "expires_at": when_ms(memory.expires_ms),
        "created_at": when_ms(memory.created_ms),
        "entities": [],
    }


def explanation(services: Services, hit: RecallHit) -> dict[str, Any]:
    """What a score is made of: each channel's own score, its weight, and their product."""
    alpha = services.memory.settings.alpha
    return {
        name: {"score": round(own, 6), "weight": round(weight, 6), "part": round(own * weight, 6)}
        for name, own, weight in (("meaning", hit.cosine, alpha), ("words", hit.words, 1 - alpha))
    }


def answer_view(
    services: Services, answer: Answer, limit: int, *, explain: bool = False
) -> dict[str, Any]:
    """The reply to a question. Constraints come from the graph, which is not there yet."""
    results = [hit_view(services, hit) for hit in answer.hits]
    if explain:
        for shown, hit in zip(results, answer.hits, strict=True):
            shown["explain"] = explanation(services, hit)
    return {
        "results": results,
        "constraints": [],
        "limit": limit,
        "meta": meta_view(answer.degraded, answer.stages),
    }


def meta_view(degraded: Sequence[str], stages: Sequence[Stage]) -> dict[str, Any]:
    """Which searches did not answer, and what each took; nothing traverses a graph yet."""
    return {
        "degraded": list(degraded),
        "timedOut": any(name.endswith("deadline") for name in degraded),
        "stages": [
            {"name": one.name, "durationMs": round(one.seconds * 1000, 3), "count": one.count}
            for one in stages
        ],
        "traversal": None,
    }


def event_view(event: Event) -> dict[str, Any]:
    """One event of a memory's history."""
    return {
        "id": event.id,
        "memory_id": id_text(event.memory_id),
        "event": event.event,
        "old_content": event.old_content,
        "new_content": event.new_content,
        "changed_by": event.changed_by,
        "reason": event.reason,
        "metadata": event.metadata,
        "created_at": when(event.created_at),
    }


def agent_view(services: Services, agent: AgentProfile) -> dict[str, Any]:
    """A local agent."""
    return {
        "id": id_text(agent.id),
        "name": agent.name,
        "description": agent.description,
        "read_policy": agent.read_policy.value,
        "policy_group": agent.policy_group,
        "project": project_label(services, agent.project_id),
    }
