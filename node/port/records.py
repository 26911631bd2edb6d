"""Records of the node as messages of the agent port, and drafts as they are stored."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from node.http.auth import Credential, choose_project
from node.http.views import project_label
from node.memory.drafts import Draft
from node.memory.recall import Answer, RecallHit
from node.memory.remember import Remembered
from node.port import messages
from storage import history
from storage.errors import InvalidInput, MnemeshError
from storage.filters import to_ms
from storage.model import AgentProfile, Memory, NodeId, Visibility

if TYPE_CHECKING:
    from node.services import Services


def draft(
    services: Services, credential: Credential, agent: AgentProfile, given: messages.Draft
) -> Draft:
    """What an agent wants stored. Raises InvalidInput and whatever the project refuses."""
    if given.visibility not in (Visibility.GLOBAL, Visibility.PRIVATE):
        raise InvalidInput("visibility is invalid")
    now = services.memory.now()
    return Draft(
        content=given.content,
        agent_id=agent.id,
        project_id=choose_project(credential, given.project, services.access.current),
        type=given.type,
        tags=given.tags,
        who=given.who,
        importance=given.importance,
        pinned=given.pinned,
        visibility=Visibility(given.visibility),
        scope_label=given.scope,
        source_type=given.source_type,
        source_id=given.source_id,
        idempotency_key=given.idempotency_key,
        expires_at=None if given.ttl_ms is None else now + timedelta(milliseconds=given.ttl_ms),
        created_at=moment(given.created_ms),
        vector=vector(given.vector),
        actor=credential.actor,
    )


def vector(raw: bytes | None) -> NDArray[np.float32] | None:
    """The numbers of a vector on the wire. Raises InvalidInput."""
    if raw is None:
        return None
    if len(raw) % 4:
        raise InvalidInput("vector is no whole number of float32")
    return np.frombuffer(raw, dtype="<f4")


def moment(milliseconds: int | None) -> datetime | None:
    """A time of the wire. Raises InvalidInput."""
    if milliseconds is None:
        return None
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (OverflowError, ValueError) as error:
        raise InvalidInput("a time is invalid") from error


def memory(services: Services, row: Memory) -> messages.Memory:
    """A stored row."""
    return messages.Memory(
        raw_id=row.id,
        kind=row.kind.value,
        agent=services.agents.label(row.agent_id),
        content=row.content,
        type=row.type,
        tags=row.tags,
        importance=row.importance,
        pinned=row.pinned,
        visibility=row.visibility.value,
        created_ms=to_ms(row.created_at),
        updated_ms=to_ms(row.updated_at),
        project=project_label(services, row.project_id),
        scope=row.scope_label,
        who=row.who,
        source_type=row.source_type,
        source_id=row.source_id,
        idempotency_key=row.idempotency_key,
        expires_ms=None if row.expires_at is None else to_ms(row.expires_at),
        seen_count=row.seen_count,
        superseded_by=row.superseded_by,
        foreign=_foreign(row, services.local.node_id),
    )


def hit(services: Services, found: RecallHit) -> messages.Hit:
    """One hit of a recall. Text enumerations go out as they are: the codec writes their text."""
    resident = found.memory
    return messages.Hit(
        found.score,
        found.source,
        found.tier,
        found.cosine,
        found.words,
        resident.id,
        resident.content,
        resident.kind,
        services.agents.label(resident.agent_id),
        resident.type,
        resident.tags,
        resident.importance,
        resident.pinned,
        resident.foreign,
        resident.created_ms,
        project_label(services, resident.project_id),
        resident.scope_label,
        resident.who,
        resident.expires_ms,
    )


def answer(services: Services, request_id: int, given: Answer) -> messages.Answer:
    """The hits of a recall."""
    hits = tuple([hit(services, one) for one in given.hits])
    return messages.Answer(request_id, hits, given.degraded)


def outcome(result: Remembered | MnemeshError) -> messages.Outcome:
    """What became of one draft."""
    if isinstance(result, MnemeshError):
        return messages.Outcome(fault=fault(result))
    return messages.Outcome(result.memory.id, result.deduped)


def fault(error: MnemeshError) -> messages.Fault:
    """An error as an item of a batch tells it."""
    return messages.Fault(error.code, str(error), error.retryable)


def failed(request_id: int, error: MnemeshError) -> messages.Failed:
    """An error as the answer to a request."""
    return messages.Failed(request_id, error.code, str(error), error.retryable)


def event(one: history.Event) -> messages.Event:
    """One event of a memory."""
    return messages.Event(
        event=one.event,
        at_ms=to_ms(one.created_at),
        changed_by=one.changed_by,
        old_content=one.old_content,
        new_content=one.new_content,
        reason=one.reason,
    )


def _foreign(row: Memory, node_id: NodeId) -> bool:
    return row.origin_node != node_id
