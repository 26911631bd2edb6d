"""Watch over HTTP: one line, or one server-sent event, for each memory handed to an agent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field

from node.http.problems import Unauthenticated, encode
from node.http.routing import NDJSON, Call, Reply, Routes
from node.http.shapes import Name, Shape, whole
from node.http.tokens import Permission
from node.http.views import memory_view
from node.memory.watch import PAGE, Feed, Handed, follow
from storage.errors import InvalidInput, NotFound
from storage.model import AgentId, AgentProfile

EVENTS: Final = "text/event-stream"
BEAT_S: Final = 15.0
"""Seconds of silence after which a sign of life goes out."""
MAX_SEQ: Final = (1 << 63) - 1

routes = Routes()

After = Annotated[
    Annotated[int, Field(ge=0, le=MAX_SEQ)] | None,
    BeforeValidator(whole),
]


class WatchQuery(Shape):
    """Whom to follow, and behind which number; without one, from now on."""

    agent_id: Name | None = None
    after: After = None


@routes.add("GET", "/api/memory/watch", need=Permission.RECALL, shape=WatchQuery)
async def watch(call: Call, given: WatchQuery) -> Reply:
    """Follow what the node hands to an agent.

    NDJSON, or server-sent events for a client that accepts them; such a client resumes by its
    `Last-Event-ID`.
    """
    events = EVENTS in call.headers.get("accept", "")
    agent = call.agent(given.agent_id)
    after = given.after
    if events and "last-event-id" in call.headers:
        after = _seq(call.headers["last-event-id"])
    feed = await follow(call.services.memory, lambda: _still(call, agent.id), after)
    parts = _events(call, feed) if events else _lines(call, feed)
    return Reply(stream=parts, media_type=EVENTS if events else NDJSON)


async def _lines(call: Call, feed: Feed) -> AsyncIterator[bytes]:
    yield encode({"watching": True, "after": feed.after}) + b"\n"
    while True:
        found = await feed.read(PAGE, BEAT_S)
        yield b"".join(encode(_view(call, each)) + b"\n" for each in found) or b"\n"


async def _events(call: Call, feed: Feed) -> AsyncIterator[bytes]:
    yield b"event: watching\ndata: " + encode({"after": feed.after}) + b"\n\n"
    while True:
        found = await feed.read(PAGE, BEAT_S)
        yield b"".join(_event(_view(call, each)) for each in found) or b": still here\n\n"


def _event(view: dict[str, Any]) -> bytes:
    return b"id: %d\nevent: memory\ndata: %b\n\n" % (view["seq"], encode(view))


def _view(call: Call, handed: Handed) -> dict[str, Any]:
    return {"seq": handed.seq, "memory": memory_view(call.services, handed.memory)}


def _still(call: Call, agent_id: AgentId) -> AgentProfile:
    """The agent as it is now. Raises when the caller may not follow it any more."""
    claims = call.who.claims
    if claims is not None and call.services.memory.now().timestamp() >= claims.exp:
        raise Unauthenticated("token expired")
    agent = call.services.agents.get(agent_id)
    if agent is None:
        raise NotFound("the agent is gone")
    return agent


def _seq(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and int(text) <= MAX_SEQ):
        raise InvalidInput("Last-Event-ID is invalid")
    return int(text)
