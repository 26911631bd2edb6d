"""Every way to read meets one rule: what is gone is gone on all of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from erasure import apply
from node.client import Refused
from node.memory.watch import Feed, newest
from storage.model import ReadPolicy, id_text, parse_id
from tests.support.port import Port, port
from tests.support.services import Edge, edge

__all__ = ["edge", "port"]

pytestmark = pytest.mark.postgres

TEXT = "the harbour opens at dawn"


async def nothing(edge: Edge, memory_id: str) -> None:
    """Leave the memory alone."""


async def delete(edge: Edge, memory_id: str) -> None:
    await edge.post("/api/memory/delete", {"id": memory_id, "agent_id": "bob"})


async def forget(edge: Edge, memory_id: str) -> None:
    await edge.post("/api/memory/forget", {"id": memory_id, "agent_id": "bob"})


async def expire(edge: Edge, memory_id: str) -> None:
    edge.world.pass_time(hours=2)


async def evict(edge: Edge, memory_id: str) -> None:
    edge.world.context.residency.evict([parse_id(memory_id, "id")])


async def supersede(edge: Edge, memory_id: str) -> None:
    await edge.world.change(
        "UPDATE memories SET superseded_by = decode(repeat('11', 16), 'hex'), "
        "superseded_at = now() WHERE kind = 'cell'"
    )
    await edge.world.restart()


async def erase(edge: Edge, memory_id: str) -> None:
    begun = await edge.post("/api/erasures", {"scope": {"kind": "agent", "id": "bob"}})
    await apply.drive(edge.services.erasure, begun.json()["erasure_id"])


@pytest.mark.parametrize(
    ("happen", "seen"),
    [
        (nothing, True),
        (evict, True),
        (delete, False),
        (forget, False),
        (expire, False),
        (supersede, False),
        (erase, False),
    ],
)
async def test_all_reads_agree_on_each_state(
    port: Port, happen: Callable[[Edge, str], Awaitable[None]], seen: bool
) -> None:
    edge = port.edge
    project = await edge.world.project("harbour")
    await edge.world.agent("bob")
    reader = await edge.world.agent("reader", ReadPolicy.SHARED, description=TEXT)
    await edge.world.context.agents.vouch(project)
    await edge.world.place_agents()
    body = {"content": TEXT, "agent_id": "bob", "ttl_seconds": 3600, "project": "harbour"}
    row = (await edge.post("/api/memory/remember", body)).json()
    assert await newest(edge.world.context, reader.id) > 0
    (vector,) = await edge.world.context.embedder.embed([TEXT])
    by_vector = {"vector": vector.tolist(), "fast": True, "agent_id": "bob"}
    before = (await edge.post("/api/memory/recall", by_vector)).json()["results"]
    assert [one["id"] for one in before] == [row["id"]]
    await happen(edge, row["id"])
    watched = Feed(edge.world.context, lambda: reader, 0)
    assert [id_text(one.memory.id) for one in await watched.read(9, 0.05)] == [row["id"]] * seen
    for agent in ("bob", "default", "reader"):
        if happen is erase and agent == "bob":
            assert (await edge.get("/api/memories", params={"agent_id": "bob"})).status_code == 404
            continue
        who = {"agent_id": agent}
        async with port.client(agent) as client:
            quick = await client.recall(TEXT, fast=True)
            at_once = await client.recall(vector=vector, fast=True)
            full = await client.recall(TEXT)
            try:
                got = (await client.get(row["id"])).id == row["id"]
            except Refused as error:
                got = error.code != "not_found"
        page = (await edge.get("/api/memories", params=who)).json()["memories"]
        found = (await edge.get("/api/memory/search", params=who | {"q": TEXT})).json()
        asked = (await edge.post("/api/memory/recall", who | {"query": TEXT})).json()
        by_vector = who | {"vector": vector.tolist(), "fast": True}
        swift = (await edge.post("/api/memory/recall", by_vector)).json()
        fetched = await edge.get(f"/api/memory/{row['id']}", params=who)
        told = {
            "page": [one["id"] for one in page] == [row["id"]],
            "search": [one["id"] for one in found["results"]] == [row["id"]],
            "recall": [one["id"] for one in asked["results"]] == [row["id"]],
            "get": fetched.status_code == 200,
            "port recall": [hit.id for hit in full.hits] == [row["id"]],
            "port get": got,
        }
        if happen is evict:
            assert quick.hits == () or [hit.id for hit in quick.hits] == [row["id"]]
        else:
            told["port fast recall"] = [hit.id for hit in quick.hits] == [row["id"]]
            told["port recall at once"] = [hit.id for hit in at_once.hits] == [row["id"]]
            told["recall at once"] = [one["id"] for one in swift["results"]] == [row["id"]]
        assert told == dict.fromkeys(told, seen), agent
    if happen not in (erase, supersede):
        export = await edge.get("/api/memory/export", params={"agent_id": "bob"})
        assert (TEXT in export.text) is seen


async def test_a_recovery_that_meets_the_same_text_names_it(edge: Edge) -> None:
    first = (await edge.post("/api/memory/remember", {"content": TEXT})).json()
    await edge.post("/api/memory/delete", {"id": first["id"]})
    second = (await edge.post("/api/memory/remember", {"content": TEXT})).json()
    answer = await edge.post("/api/memory/recover", {"id": first["id"]})
    assert answer.status_code == 409
    assert (answer.json()["status"], answer.json()["id"]) == ("duplicate", second["id"])
