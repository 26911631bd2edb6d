"""Routes of the end of memories: delete, forget, recover; of some, or of all that match."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from node.http.memory import filters_of
from node.http.routing import Call, Reply, Routes
from node.http.shapes import BulkFilters, EndBody, OneIdBody, parse
from node.http.tokens import Permission
from node.http.views import answer_view, memory_view
from node.memory import forget as ending
from node.memory.recall import Question, recall
from storage.errors import InvalidInput
from storage.filters import Filters
from storage.model import AgentProfile, MemoryId, MemoryKind, id_text, parse_id

COUNTED: Final = 100_000
"""A dry run counts up to here."""

routes = Routes()


@routes.add("POST", "/api/memory/delete", need=Permission.FORGET, shape=EndBody, use_case="delete")
async def delete(call: Call, given: EndBody) -> Reply:
    """Hide memories for the recovery window; peers drop their copies at once."""
    agent = call.agent(given.agent_id)
    if given.query is not None:
        return await _candidates(call, agent, given)
    if given.filters is not None:
        return await _all_matching(call, agent, given, ending.soft_delete_matching)
    ids = _ids(call, given)
    hidden = await ending.soft_delete(
        call.services.memory, agent, ids, actor=call.who.actor, reason=given.reason
    )
    already = [one for one in ids if one not in set(hidden)]
    return Reply({"deleted": [*map(id_text, hidden)], "already": [*map(id_text, already)]})


@routes.add("POST", "/api/memory/forget", need=Permission.FORGET, shape=EndBody, use_case="forget")
async def forget(call: Call, given: EndBody) -> Reply:
    """Remove memories for good, here and at every peer."""
    agent = call.agent(given.agent_id)
    if given.query is not None:
        return await _candidates(call, agent, given)
    if given.filters is not None:
        return await _all_matching(call, agent, given, ending.forget_matching)
    ids = _ids(call, given)
    done = await ending.forget(
        call.services.memory, agent, ids, actor=call.who.actor, reason=given.reason
    )
    already = set(done.already)
    told = {
        "forgotten": [id_text(one) for one in ids if one not in already],
        "already": [*map(id_text, done.already)],
    }
    return Reply(told | ({"held": [*map(id_text, done.kept)]} if done.kept else {}))


@routes.add(
    "POST",
    "/api/memory/recover",
    need=Permission.RECOVER,
    shape=OneIdBody,
    operation="modify",
    use_case="recover",
)
async def recover(call: Call, given: OneIdBody) -> Reply:
    """Undo a delete within its window."""
    agent = call.agent(given.agent_id)
    done = await ending.recover(
        call.services.memory, agent, parse_id(given.id, "id"), actor=call.who.actor
    )
    view = memory_view(call.services, done.memory)
    return Reply(view | {"recovered_from": id_text(done.recovered_from)})


async def _candidates(call: Call, agent: AgentProfile, given: EndBody) -> Reply:
    """What the caller may mean by a text: its own memories that match. Nothing is ended by text."""
    _alone(given, "query")
    call.authority.require(call.who, Permission.RECALL)
    own = Filters(agents=frozenset((agent.id,)), kinds=frozenset((MemoryKind.CELL,)))
    question = Question(query=given.query or "", agent=agent, filters=own)
    answer = await recall(call.services.memory, question)
    view = answer_view(call.services, answer, question.limit)
    return Reply({"dry_run": True, "candidates": view["results"], "limit": question.limit})


async def _all_matching(
    call: Call, agent: AgentProfile, given: EndBody, end: Callable[..., Awaitable[int]]
) -> Reply:
    """End all own memories that match, or with `dry_run` count them."""
    _alone(given, "filters")
    named = parse(BulkFilters, given.filters or {}, kind="filter")
    filters = filters_of(call, named)
    if given.dry_run:
        count = await ending.count_matching(call.services.memory, agent, filters, COUNTED)
        return Reply({"dry_run": True, "count": count, "limit": COUNTED})
    call.spend("batchForget")
    count = await end(
        call.services.memory, agent, filters, actor=call.who.actor, reason=given.reason
    )
    return Reply({"count": count})


def _alone(given: EndBody, name: str) -> None:
    for other in ("ids", "id", "query", "filters"):
        if other != name and getattr(given, other) is not None:
            raise InvalidInput(f"{name} and {other} exclude each other")
    if given.dry_run and name != "filters":
        raise InvalidInput("dry_run belongs to filters")


def _ids(call: Call, given: EndBody) -> list[MemoryId]:
    if (given.id is None) == (given.ids is None):
        raise InvalidInput("id or ids is required")
    if given.dry_run:
        raise InvalidInput("dry_run belongs to filters")
    texts = given.ids if given.ids is not None else [str(given.id)]
    call.spend("forget" if len(texts) == 1 else "batchForget")
    return list(
        dict.fromkeys(parse_id(text, "ids" if given.id is None else "id") for text in texts)
    )
