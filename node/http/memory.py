"""Routes of memories: remember, recall, read, modify."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import numpy as np

from node.asking import agent_named, named_filters
from node.http.problems import body_of, status_of
from node.http.routing import Call, Reply, Routes
from node.http.shapes import (
    AgentQuery,
    BatchBody,
    BulkFilters,
    FilterFields,
    HistoryQuery,
    ModifyBody,
    PageQuery,
    RecallBody,
    RememberBody,
    SaveBody,
    SearchQuery,
    parse,
    read_cursor,
    read_number,
    write_cursor,
)
from node.http.tokens import Permission
from node.http.views import (
    answer_view,
    event_view,
    memory_view,
    remembered_view,
)
from node.memory import reading
from node.memory.chunks import remember_chunks
from node.memory.drafts import Draft
from node.memory.modify import Changes, modify
from node.memory.recall import Question, recall
from node.memory.remember import MAX_BATCH, Remembered, remember, remember_batch
from storage.errors import ContentTooLarge, InvalidInput, MnemeshError
from storage.filters import Filters
from storage.model import (
    AgentId,
    Visibility,
    id_text,
    parse_id,
)

routes = Routes()


@routes.add(
    "POST",
    "/api/memory/remember",
    need=Permission.REMEMBER,
    shape=SaveBody,
    use_case="remember",
)
async def remember_one(call: Call, given: SaveBody) -> Reply:
    """Store a memory, or count the equal one that is there; with `chunks` a text in parts."""
    if given.chunks is not None:
        return await _remember_chunks(call, given, given.chunks)
    result = await remember(call.services.memory, draft(call, given))
    if result.deduped:
        call.services.metrics.memory.deduped_total.inc()
    return Reply(remembered_view(call.services, result))


async def _remember_chunks(call: Call, given: SaveBody, texts: list[str]) -> Reply:
    if given.content:
        raise InvalidInput("content and chunks exclude each other")
    done = await remember_chunks(call.services.memory, draft(call, given), texts)
    return Reply(
        {
            "chunked": True,
            "chunk_count": len(done.parts),
            "group_id": done.group_id,
            "ids": [id_text(part.id) for part in done.parts],
            "deduped": done.deduped,
        }
    )


@routes.add(
    "POST",
    "/api/memory/remember/batch",
    need=Permission.REMEMBER,
    shape=BatchBody,
    use_case="remember_batch",
)
async def remember_many(call: Call, given: BatchBody) -> Reply:
    """Store up to 500 memories; each has its own result."""
    if not 1 <= len(given.memories) <= MAX_BATCH:
        raise InvalidInput(f"memories must have 1 to {MAX_BATCH} items")
    defaults = {"agent_id": given.agent_id, "project": given.project}
    return Reply(tally(await store(call, given.memories, defaults)))


async def store(
    call: Call, items: list[Any], defaults: dict[str, str | None]
) -> list[dict[str, Any]]:
    """One result per raw item, in order: its row, or its own error."""
    results: list[dict[str, Any]] = [{} for _ in items]
    drafts: dict[int, Draft] = {}
    for position, item in enumerate(items):
        try:
            drafts[position] = draft(call, _item(item, defaults))
        except MnemeshError as error:
            results[position] = _failure(error)
    if drafts:
        stored = await remember_batch(call.services.memory, list(drafts.values()))
        for position, outcome in zip(drafts, stored, strict=True):
            if isinstance(outcome, Remembered):
                call.services.metrics.memory.deduped_total.inc(outcome.deduped)
                results[position] = {"status": 200} | remembered_view(call.services, outcome)
            else:
                results[position] = _failure(outcome)
    return results


def tally(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Results with their counts."""
    failed = sum("error" in result for result in results)
    deduped = sum(result.get("deduped", False) for result in results)
    return {
        "results": results,
        "stored": len(results) - failed - deduped,
        "deduped": deduped,
        "failed": failed,
    }


def draft(call: Call, given: RememberBody) -> Draft:
    """What a body asks to remember. Raises InvalidInput and whatever the scope refuses."""
    agent = call.agent(given.agent_id)
    limit = call.services.memory.settings.max_bytes
    if len(given.content) > limit:
        raise ContentTooLarge(f"content exceeds {limit} bytes")
    return Draft(
        content=given.content,
        agent_id=agent.id,
        project_id=call.project(given.project),
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
        expires_at=_expiry(call, given),
        created_at=given.created_at,
        vector=None if given.vector is None else np.asarray(given.vector, np.float32),
        actor=call.who.actor,
    )


@routes.add(
    "POST", "/api/memory/recall", need=Permission.RECALL, shape=RecallBody, use_case="recall"
)
async def recall_for(call: Call, given: RecallBody) -> Reply:
    """Answer a question from memory."""
    fields = parse(FilterFields, given.filters, kind="filter")
    question = Question(
        query=given.query,
        agent=call.reader(given.agent_id or _session_agent(given.session_key)),
        limit=given.limit,
        filters=filters_of(call, fields, given.about, given.project, given.scope),
        superseded=given.include_superseded,
        fast=given.fast,
        vector=None if given.vector is None else np.asarray(given.vector, np.float32),
        deadline_s=_seconds(given.deadline_ms),
    )
    return await _answered(call, question, given.explain)


@routes.add(
    "GET", "/api/memory/search", need=Permission.RECALL, shape=SearchQuery, use_case="recall"
)
async def search(call: Call, given: SearchQuery) -> Reply:
    """Answer a question given in the query string."""
    question = Question(
        query=given.q,
        agent=call.reader(given.agent_id or _session_agent(given.session_key)),
        limit=given.limit,
        filters=filters_of(call, given, given.about),
        superseded=given.include_superseded,
        fast=given.fast,
        deadline_s=_seconds(given.deadline_ms),
    )
    return await _answered(call, question, given.explain)


@routes.add(
    "POST",
    "/api/memory/modify",
    need=Permission.MODIFY,
    shape=ModifyBody,
    operation="modify",
    use_case="modify",
)
async def modify_one(call: Call, given: ModifyBody) -> Reply:
    """Change a memory; an announced one whose text or visibility changes gets a new id."""
    changes = Changes(
        content=given.content,
        type=given.type,
        tags=given.tags,
        importance=given.importance,
        pinned=given.pinned,
        visibility=None if given.visibility is None else Visibility(given.visibility),
    )
    agent = call.agent(given.agent_id)
    done = await modify(
        call.services.memory, agent, parse_id(given.id, "id"), changes, actor=call.who.actor
    )
    view = memory_view(call.services, done.memory)
    return Reply(view | {"recovered_from": id_text(done.recovered_from)})


@routes.add("GET", "/api/memory/{id}", need=Permission.RECALL, shape=AgentQuery)
async def get(call: Call, given: AgentQuery) -> Reply:
    """One memory."""
    agent = call.reader(given.agent_id)
    memory = await reading.get(call.services.memory, agent, parse_id(call.path["id"], "id"))
    return Reply(memory_view(call.services, memory))


@routes.add("GET", "/api/memory/{id}/history", need=Permission.RECALL, shape=HistoryQuery)
async def history(call: Call, given: HistoryQuery) -> Reply:
    """What happened to a memory, also after it is gone."""
    agent = call.reader(given.agent_id)
    memory_id = parse_id(call.path["id"], "id")
    events, more = await reading.events_page(
        call.services.memory,
        agent,
        memory_id,
        limit=given.limit,
        after=read_number(given.cursor),
        offset=given.offset,
    )
    body: dict[str, Any] = {
        "id": id_text(memory_id),
        "events": [event_view(event) for event in events],
        "limit": given.limit,
        "offset": given.offset,
    }
    if more:
        body["nextCursor"] = str(events[-1].id)
    return Reply(body)


@routes.add("GET", "/api/memories", need=Permission.RECALL, shape=PageQuery)
async def page(call: Call, given: PageQuery) -> Reply:
    """A page of memories, newest first."""
    rows, more = await reading.page(
        call.services.memory,
        call.reader(given.agent_id),
        limit=given.limit,
        about=_about(call, given.about),
        before=read_cursor(given.cursor),
        offset=given.offset,
    )
    body: dict[str, Any] = {
        "memories": [memory_view(call.services, row) for row in rows],
        "limit": given.limit,
        "offset": given.offset,
    }
    if more:
        body["nextCursor"] = write_cursor(rows[-1].created_at, rows[-1].id)
    return Reply(body)


async def _answered(call: Call, question: Question, explain: bool) -> Reply:
    answer = await recall(call.services.memory, question)
    call.services.metrics.memory.recall_hits.observe(len(answer.hits))
    return Reply(answer_view(call.services, answer, question.limit, explain=explain))


def filters_of(
    call: Call,
    fields: BulkFilters,
    about: str | None = None,
    project: str | None = None,
    scope: str | None = None,
) -> Filters:
    """The filters of a request; `about`, `project` and `scope` may also stand beside them."""
    agents, kinds = (fields.agent, fields.kind) if isinstance(fields, FilterFields) else ((), ())
    for name, beside, inside in (
        ("about", about, agents),
        ("project", project, fields.project),
        ("scope", scope, fields.scope),
    ):
        if beside is not None and inside:
            raise InvalidInput(f"{name} is given twice")
    return named_filters(
        call.services,
        call.who,
        agent=agents if about is None else (about,),
        project=fields.project if project is None else (project,),
        kind=kinds,
        type=fields.type,
        tags=fields.tags,
        who=fields.who,
        since=fields.since,
        until=fields.until,
        importance_min=fields.importance_min,
        pinned=fields.pinned,
        visibility=fields.visibility,
        scope=fields.scope if scope is None else scope,
    )


def _session_agent(session_key: str | None) -> str | None:
    """The agent that a session's key names, if it names one."""
    kind, _, rest = (session_key or "").partition(":")
    name, colon, _ = rest.partition(":")
    return name if kind == "agent" and name and colon else None


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def _item(raw: object, defaults: dict[str, str | None]) -> RememberBody:
    fields = raw if isinstance(raw, dict) else {}
    given = {name: value for name, value in defaults.items() if value is not None}
    return parse(RememberBody, given | fields)


def _failure(error: MnemeshError) -> dict[str, Any]:
    return {"status": status_of(error)} | body_of(error)


def _expiry(call: Call, given: RememberBody) -> datetime | None:
    if given.ttl_seconds is None:
        return given.expires_at
    if given.expires_at is not None:
        raise InvalidInput("ttl_seconds and expires_at exclude each other")
    return call.services.memory.now() + timedelta(seconds=given.ttl_seconds)


def _about(call: Call, given: str | None) -> AgentId | None:
    return None if given is None else agent_named(call.services.agents, given, "about")
