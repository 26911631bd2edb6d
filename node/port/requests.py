"""The use cases behind the agent port's requests; for single remembers see `storing`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from node.asking import named_filters
from node.http.auth import Authority, Credential
from node.http.routing import counted
from node.memory import forget as ending
from node.memory import reading
from node.memory.drafts import Draft
from node.memory.recall import Question, recall
from node.memory.remember import Remembered, remember_batch
from node.port import messages, records
from storage.errors import InvalidInput, MnemeshError
from storage.filters import NO_FILTERS, Filters
from storage.model import AgentProfile

if TYPE_CHECKING:
    from node.services import Services


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and what may be used to answer."""

    services: Services
    authority: Authority
    who: Credential
    agent: AgentProfile


async def handle(caller: Caller, request: messages.Asked) -> messages.Reply:
    """The answer to a request. Raises MnemeshError as the use cases do."""
    match request:
        case messages.RememberBatch():
            return await _remember_batch(caller, request)
        case messages.Recall():
            return await _recall(caller, request)
        case messages.Get():
            row = await reading.get(caller.services.memory, caller.agent, request.memory)
            return messages.Found(request.id, records.memory(caller.services, row))
        case messages.Forget():
            return await _forget(caller, request)
        case messages.History():
            found = await reading.events(caller.services.memory, caller.agent, request.memory)
            return messages.Events(request.id, tuple(map(records.event, found)))
        case messages.Ping():
            return messages.Pong(request.id)
        case _:
            raise InvalidInput("the request is not known here")


async def _remember_batch(caller: Caller, request: messages.RememberBatch) -> messages.Reply:
    services = caller.services
    outcomes: list[messages.Outcome] = [messages.Outcome()] * len(request.drafts)
    drafts: dict[int, Draft] = {}
    with counted(services, "remember_batch"):
        for place, given in enumerate(request.drafts):
            try:
                drafts[place] = records.draft(services, caller.who, caller.agent, given)
            except MnemeshError as error:
                outcomes[place] = messages.Outcome(fault=records.fault(error))
        if drafts:
            results = await remember_batch(services.memory, list(drafts.values()))
            for place, result in zip(drafts, results, strict=True):
                outcomes[place] = records.outcome(result)
                if isinstance(result, Remembered):
                    services.metrics.memory.deduped_total.inc(result.deduped)
    return messages.BatchRemembered(request.id, tuple(outcomes))


async def _recall(caller: Caller, request: messages.Recall) -> messages.Reply:
    services = caller.services
    with counted(services, "recall"):
        question = Question(
            query=request.query,
            agent=caller.agent,
            limit=request.limit,
            filters=_filters(caller, request.filters),
            superseded=request.superseded,
            fast=request.fast,
            vector=records.vector(request.vector),
            deadline_s=None if request.deadline_ms is None else request.deadline_ms / 1000,
        )
        answer = await recall(services.memory, question)
    services.metrics.memory.recall_hits.observe(len(answer.hits))
    return records.answer(services, request.id, answer)


async def _forget(caller: Caller, request: messages.Forget) -> messages.Reply:
    ids = list(dict.fromkeys(request.memories))
    caller.authority.spend(caller.who, "forget" if len(ids) == 1 else "batchForget")
    with counted(caller.services, "forget"):
        done = await ending.forget(
            caller.services.memory,
            caller.agent,
            ids,
            actor=caller.who.actor,
            reason=request.reason,
        )
    already = frozenset(done.already)
    gone = tuple(one for one in ids if one not in already)
    return messages.Forgotten(request.id, gone, tuple(done.already))


def _filters(caller: Caller, given: messages.Filters | None) -> Filters:
    if given is None:
        return NO_FILTERS
    return named_filters(
        caller.services,
        caller.who,
        agent=given.agent,
        project=given.project,
        kind=given.kind,
        type=given.type,
        tags=given.tags,
        who=given.who,
        since=records.moment(given.since_ms),
        until=records.moment(given.until_ms),
        importance_min=given.importance_min,
        pinned=given.pinned,
        visibility=given.visibility,
        scope=given.scope,
    )
