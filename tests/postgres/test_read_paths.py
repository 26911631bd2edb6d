"""One rule of visibility, on every path by which a memory's text can leave the node.

`PATHS` lists the paths, `CASES` what may have happened to a memory and who may still see it; each
case is asked on each path by each kind of reader. A route or a message that is neither in `PATHS`
nor named as telling nothing fails `test_every_route_and_message_is_judged`.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final, get_args

import httpx
import numpy as np
import pytest
import trio

from erasure import apply
from node.client import Answer, Client, Refused, filters
from node.http import watch
from node.http.app import ROUTES
from node.port import messages
from node.workers.consolidation import Consolidation
from storage.model import ReadPolicy, parse_id
from tests.support.port import Port, port
from tests.support.services import Edge, edge, served

__all__ = ["edge", "port", "served"]

pytestmark = pytest.mark.postgres

TEXT: Final = "the harbour opens at dawn"
LAST: Final = "the harbour opens at dawn, said the crier last"

READERS: Final = ("guest", "loner", "mate", "all", "bob")
"""Those who may see less ask first: a cold memory that somebody sees becomes resident."""
OWNER: Final = frozenset({"bob"})
EVERYBODY: Final = frozenset({"bob", "mate", "all"})
"""The owner, its group, and a shared reader; not another group, and no isolated reader."""
NOBODY: Final[frozenset[str]] = frozenset()


@dataclass
class Asked:
    """A reader in front of one memory."""

    port: Port
    reader: str
    memory_id: str
    vector: Any
    served: Edge
    reading: Client
    last: bool
    """Whether this reader is handed the crier's memory, which ends a watch."""

    @property
    def edge(self) -> Edge:
        return self.port.edge

    async def get(self, path: str, **query: Any) -> str:
        answer = await self.edge.get(path, params={"agent_id": self.reader} | query)
        return answer.text if answer.status_code == 200 else ""

    async def recall(self, **body: Any) -> str:
        asked = {"agent_id": self.reader, "query": TEXT} | body
        answer = await self.edge.post("/api/memory/recall", asked)
        assert answer.status_code in (200, 404), answer.text
        return answer.text if answer.status_code == 200 else ""

    async def candidates(self, verb: str) -> str:
        asked = {"agent_id": self.reader, "query": TEXT}
        answer = await self.edge.post(f"/api/memory/{verb}", asked)
        assert answer.status_code in (200, 404), answer.text
        return answer.text if answer.status_code == 200 else ""

    async def client(self, work: Callable[[Client], Awaitable[object]]) -> str:
        try:
            told = await work(self.reading)
        except Refused as error:
            if error.code != "not_found":
                raise
            return ""
        if isinstance(told, Answer):
            assert not told.partial
        return repr(told)


@dataclass(frozen=True)
class Path:
    """A way to read. `covers` names its route, or its message of the agent port.

    `own` leaves only what is the reader's own; `handed` only what the node handed to the reader.
    `superseded` also shows what was replaced, `past` what is over as long as its text is kept,
    `resident` may miss what is cold.
    """

    covers: str
    ask: Callable[[Asked], Awaitable[str]]
    own: bool = False
    handed: bool = False
    superseded: bool = False
    past: bool = False
    resident: bool = False


async def followed_over_http(asked: Asked, **headers: str) -> str:
    """What a watch tells until the crier's memory, or its first sign of silence."""
    found = ""
    silence = ": still here" if headers else ""

    async def follow() -> None:
        nonlocal found
        query = {"agent_id": asked.reader, "after": "0"}
        async with (
            httpx.AsyncClient(base_url=asked.served.url, timeout=60, verify=False) as client,
            client.stream("GET", "/api/memory/watch", params=query, headers=headers) as answer,
        ):
            if answer.status_code == 404:
                return
            assert answer.status_code == 200
            async for line in answer.aiter_lines():
                found += f"{line}\n"
                if LAST in line or (line == silence and not asked.last):
                    return

    await asked.served.island.call(follow)
    return found


async def followed_over_port(client: Client, last: bool) -> str:
    found: list[str] = []
    async with client.watch(after=0) as deliveries:
        with trio.move_on_after(30 if last else 0.1):
            async for one in deliveries:
                found.append(one.memory.content)
                if one.memory.content == LAST:
                    break
    return json.dumps(found)


def by_port(ask: Callable[[Client, Asked], Awaitable[object]]) -> Callable[[Asked], Awaitable[str]]:
    async def run(asked: Asked) -> str:
        return await asked.client(lambda client: ask(client, asked))

    return run


RECALL = "POST /api/memory/recall"
SEARCH = "GET /api/memory/search"
WATCH = "GET /api/memory/watch"
EVENTS = {"Accept": "text/event-stream"}

PATHS: Final[dict[str, Path]] = {
    "http watch, lines": Path(WATCH, followed_over_http, handed=True),
    "http watch, events": Path(WATCH, lambda a: followed_over_http(a, **EVENTS), handed=True),
    "port watch": Path("Watch", by_port(lambda c, a: followed_over_port(c, a.last)), handed=True),
    "http recall, fast": Path(RECALL, lambda a: a.recall(fast=True), resident=True),
    "http recall": Path(RECALL, lambda a: a.recall()),
    "http recall, explained": Path(RECALL, lambda a: a.recall(explain=True)),
    "http recall, superseded too": Path(
        RECALL, lambda a: a.recall(include_superseded=True), superseded=True
    ),
    "http recall, filtered": Path(RECALL, lambda a: a.recall(filters={"type": "fact"})),
    "http recall, by vector": Path(RECALL, lambda a: a.recall(query="", vector=a.vector)),
    "http recall, fast, by vector": Path(
        RECALL, lambda a: a.recall(query="", vector=a.vector, fast=True), resident=True
    ),
    "http recall, by words": Path(RECALL, lambda a: a.recall(vector=[-x for x in a.vector])),
    "http search": Path(SEARCH, lambda a: a.get("/api/memory/search", q=TEXT)),
    "http search, fast": Path(
        SEARCH, lambda a: a.get("/api/memory/search", q=TEXT, fast="true"), resident=True
    ),
    "http get": Path("GET /api/memory/{id}", lambda a: a.get(f"/api/memory/{a.memory_id}")),
    "http history": Path(
        "GET /api/memory/{id}/history",
        lambda a: a.get(f"/api/memory/{a.memory_id}/history"),
        own=True,
        past=True,
    ),
    "http delete, by text": Path(
        "POST /api/memory/delete", lambda a: a.candidates("delete"), own=True
    ),
    "http forget, by text": Path(
        "POST /api/memory/forget", lambda a: a.candidates("forget"), own=True
    ),
    "http list": Path("GET /api/memories", lambda a: a.get("/api/memories")),
    "http export": Path(
        "GET /api/memory/export",
        lambda a: a.get("/api/memory/export"),
        own=True,
        superseded=True,
    ),
    "port recall": Path("Recall", by_port(lambda c, a: c.recall(TEXT))),
    "port recall, fast": Path(
        "Recall", by_port(lambda c, a: c.recall(TEXT, fast=True)), resident=True
    ),
    "port recall, fast, by vector": Path(
        "Recall", by_port(lambda c, a: c.recall(vector=a.vector, fast=True)), resident=True
    ),
    "port recall, fast, filtered": Path(
        "Recall",
        by_port(lambda c, a: c.recall(TEXT, fast=True, filters=filters(type="fact"))),
        resident=True,
    ),
    "port recall, superseded too": Path(
        "Recall", by_port(lambda c, a: c.recall(TEXT, superseded=True)), superseded=True
    ),
    "port get": Path("Get", by_port(lambda c, a: c.get(a.memory_id))),
    "port history": Path(
        "History", by_port(lambda c, a: c.history(a.memory_id)), own=True, past=True
    ),
}

TELLING_NOTHING: Final = {
    "Hello", "Cancel", "Credit", "Ping", "Forget",
    "GET /health", "GET /ready", "GET /metrics", "GET /api/auth/whoami", "GET /api/status",
    "GET /openapi.json", "GET /docs", "GET /api/node", "GET /api/members", "POST /api/reload",
    "POST /api/auth/token", "POST /api/repair/retention-sweep", "POST /api/audit/graph",
    "GET /api/agents", "POST /api/agents", "GET /api/agents/{name}", "DELETE /api/agents/{name}",
    "GET /api/projects",
    "POST /api/projects", "POST /api/projects/join", "POST /api/projects/{name}/admit",
    "POST /api/projects/{name}/revoke",
    "POST /api/erasures", "GET /api/erasures", "GET /api/erasures/{id}",
    "GET /api/erasures/{id}/certificate", "GET /api/erasures/{id}/closure",
    "GET /api/erasures/{id}/proof", "GET /api/erasures/{id}/head", "GET /api/erasures/{id}/trust",
    "GET /api/erasures/{id}/receipts", "GET /api/erasures/{id}/addenda", "POST /api/scopes/reopen",
    "GET /api/ledger/head",
}  # fmt: skip
"""Routes and messages whose answers hold no memory."""
TELLING_THE_WRITER: Final = {
    "Remember", "RememberBatch", "POST /api/memory/remember", "POST /api/memory/remember/batch",
    "POST /api/memory/import", "POST /api/memory/recover", "POST /api/memory/modify",
}  # fmt: skip
"""Those that answer with the caller's own memory alone."""


def test_every_route_and_message_is_judged() -> None:
    there = {f"{route.method} {route.path}" for route in ROUTES}
    there |= {message.__name__ for message in get_args(messages.Request)}
    judged = {path.covers for path in PATHS.values()} | TELLING_NOTHING | TELLING_THE_WRITER
    assert judged == there


# --- what may have happened -----------------------------------------------------------------------

Happen = Callable[[Edge, str], Awaitable[str | None]]
"""What happens to a memory; the id that it has afterwards where that is another one."""


async def delete(edge: Edge, memory_id: str) -> None:
    await edge.post("/api/memory/delete", {"id": memory_id, "agent_id": "bob"})


async def forget(edge: Edge, memory_id: str) -> None:
    await edge.post("/api/memory/forget", {"id": memory_id, "agent_id": "bob"})


async def expire(edge: Edge, memory_id: str) -> None:
    edge.world.pass_time(hours=2)


async def evict(edge: Edge, memory_id: str) -> None:
    edge.world.context.residency.evict([parse_id(memory_id, "id")])


async def supersede(edge: Edge, memory_id: str) -> None:
    await _row(edge, "superseded_by = decode(repeat('11', 16), 'hex'), superseded_at = now()")


async def archive(edge: Edge, memory_id: str) -> None:
    await _row(edge, "visibility = 'archived'")


async def make_private(edge: Edge, memory_id: str) -> str:
    return await _modified(edge, memory_id, "private")


async def put_away(edge: Edge, memory_id: str) -> str:
    return await _modified(edge, memory_id, "archived")


async def _modified(edge: Edge, memory_id: str, visibility: str) -> str:
    change = {"id": memory_id, "agent_id": "bob", "visibility": visibility}
    answer = await edge.post("/api/memory/modify", change)
    assert answer.status_code == 200, answer.text
    changed: str = answer.json()["id"]
    return changed


async def remove_the_agent(edge: Edge, memory_id: str) -> None:
    removed = await edge.request("DELETE", "/api/agents/bob")
    assert removed.json()["archived"] == 1, removed.text


async def _row(edge: Edge, change: str) -> None:
    await edge.world.change(f"UPDATE memories SET {change} WHERE kind = 'cell'")
    await edge.world.restart()


async def leave_the_project(edge: Edge, memory_id: str) -> None:
    edge.world.access.current = replace(edge.world.access.current, projects={})


async def shrink_policies(edge: Edge, memory_id: str) -> None:
    for name in ("mate", "all"):
        await edge.world.agent(name, ReadPolicy.ISOLATED)


async def erase(edge: Edge, memory_id: str) -> None:
    begun = await edge.post("/api/erasures", {"scope": {"kind": "agent", "id": "bob"}})
    await apply.drive(edge.services.erasure, begun.json()["erasure_id"])


async def sum_up(edge: Edge, memory_id: str) -> None:
    """Let an aggregate carry the same text."""
    world = edge.world
    owner = world.context.agents.resolve(None).id
    consolidation = Consolidation(
        world.node,
        world.db,
        world.context.cold,
        world.context.embedder.model_id,
        owner=lambda: owner,
        k_min=lambda: 1,
    )
    await consolidation.tick()
    kept = await world.value(
        "SELECT count(*) FROM memories WHERE kind = 'cell' AND visibility = 'global' "
        "AND expires_at IS NULL"
    )
    assert await world.value("SELECT count(*) FROM memories WHERE kind = 'l1'") == kept


@dataclass(frozen=True)
class Case:
    """What happens to bob's memory, and who may see it then.

    `past` tells who may see a superseded one on request, `kept` whether its history keeps text.
    """

    happen: tuple[Happen, ...] = ()
    seen_by: frozenset[str] = NOBODY
    body: dict[str, Any] = field(default_factory=dict)
    superseded_by: frozenset[str] | None = None
    kept: bool = True
    gone: bool = False


PRIVATE: Final = {"visibility": "private"}
CASES: Final[dict[str, Case]] = {
    "live": Case((), EVERYBODY),
    "private": Case((), OWNER, PRIVATE),
    "archived": Case((archive,)),
    "made private": Case((make_private,), OWNER, kept=False),
    "put away": Case((put_away,), kept=False),
    "agent removed": Case((remove_the_agent,), kept=False, gone=True),
    "deleted": Case((delete,)),
    "forgotten": Case((forget,), kept=False),
    "expired": Case((expire,)),
    "superseded": Case((supersede,), superseded_by=EVERYBODY),
    "project left": Case((leave_the_project,)),
    "policies shrunk": Case((shrink_policies,), OWNER),
    "erased": Case((erase,), kept=False, gone=True),
    "cold": Case((evict,), EVERYBODY),
    "cold, private": Case((evict,), OWNER, PRIVATE),
    "cold, expired": Case((evict, expire)),
    "cold, deleted": Case((evict, delete)),
    "cold, project left": Case((evict, leave_the_project)),
    "summed up": Case((sum_up,), EVERYBODY),
    "summed up, private": Case((sum_up,), OWNER, PRIVATE),
    "summed up, made private": Case((sum_up, make_private), OWNER, kept=False),
    "summed up, deleted": Case((sum_up, delete)),
    "summed up, forgotten": Case((sum_up, forget), kept=False),
    "summed up, expired": Case((sum_up, expire)),
    "summed up, erased": Case((sum_up, erase), kept=False, gone=True),
}


async def a_harbour(edge: Edge) -> None:
    """Bob and a crier of the group crew, a mate of theirs, and readers of every other policy."""
    project = await edge.world.project("harbour")
    crew = {"policy_group": "crew"}
    await edge.world.agent("bob", ReadPolicy.GROUP, **crew)
    await edge.world.agent("crier", ReadPolicy.GROUP, **crew)
    await edge.world.agent("mate", ReadPolicy.GROUP, description=TEXT, **crew)
    await edge.world.agent("guest", ReadPolicy.GROUP, description=TEXT, policy_group="guests")
    await edge.world.agent("loner", ReadPolicy.ISOLATED, description=TEXT)
    await edge.world.agent("all", ReadPolicy.SHARED, description=TEXT)
    await edge.world.context.agents.vouch(project)
    await edge.world.place_agents()


async def remembered(edge: Edge, agent: str, text: str, **body: Any) -> str:
    given = {"content": text, "agent_id": agent, "project": "harbour"} | body
    answer = await edge.post("/api/memory/remember", given)
    assert answer.status_code == 200, answer.text
    found: str = answer.json()["id"]
    return found


def expected(path: Path, case: Case, reader: str) -> bool | None:
    """Whether the reader sees the text on this path; None where either is right."""
    seen = reader in case.seen_by
    if path.superseded and case.superseded_by is not None:
        seen = reader in case.superseded_by
    if path.past:
        seen = case.kept
    if path.own:
        seen = seen and reader == "bob"
    if path.handed:
        seen = seen and reader in ("mate", "all")
    if seen and path.resident and evict in case.happen:
        return None
    return seen


@pytest.mark.parametrize("name", CASES)
async def test_every_path_shows_a_memory_to_those_who_may_see_it_alone(
    name: str, port: Port, served: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "BEAT_S", 0.05)
    case, edge = CASES[name], port.edge
    await a_harbour(edge)
    lives = {"ttl_seconds": 3600} if expire in case.happen else {}
    memory_id = await remembered(edge, "bob", TEXT, **lives, **case.body)
    (vector,) = await edge.world.context.embedder.embed([TEXT])
    for happen in case.happen:
        memory_id = await happen(edge, memory_id) or memory_id
    ends = not {leave_the_project, shrink_policies} & set(case.happen)
    if ends:
        await remembered(edge, "crier", LAST)
    told: dict[tuple[str, str], bool] = {}
    wanted: dict[tuple[str, str], bool] = {}
    for reader in READERS:
        if case.gone and reader == "bob":
            continue
        last = ends and reader in ("mate", "all")
        async with port.client(reader) as client:
            asked = Asked(
                port, reader, memory_id, np.asarray(vector).tolist(), served, client, last
            )
            for way, path in PATHS.items():
                should = expected(path, case, reader)
                text = (await path.ask(asked)).replace(LAST, "")
                if should is not None:
                    wanted[way, reader], told[way, reader] = should, TEXT in text
    assert told == wanted
