"""Changing, ending and saving many memories over HTTP, and what replies say of a list."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote

import pytest

from erasure import apply
from node.http import problems
from node.memory import forget as ending
from storage.errors import SaveFailed, Tombstoned
from storage.gate import Epochs
from storage.model import ReadPolicy, id_text, parse_id
from storage.pool import Tx
from tests.support.memory import lit
from tests.support.port import Port, port
from tests.support.services import Edge, edge, served

__all__ = ["edge", "port", "served"]

pytestmark = pytest.mark.postgres

TEAM = {"mode": "team"}


async def remember(edge: Edge, content: str, **fields: Any) -> dict[str, Any]:
    answer = await edge.post("/api/memory/remember", {"content": content} | fields)
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]


async def texts(edge: Edge, **query: Any) -> list[str]:
    """What a list shows, in the order of the texts."""
    page = (await edge.get("/api/memories", params={"limit": "200"} | query)).json()
    return sorted(row["content"] for row in page["memories"])


# --- modify ---------------------------------------------------------------------------------------


async def test_modify_answers_with_the_row_as_it_is_now(edge: Edge) -> None:
    row = await remember(edge, "the deploy runs on fridays", tags=["ops"])
    change = {"id": row["id"], "content": "the deploy runs on mondays", "tags": "ops, deploy"}
    answer = await edge.post("/api/memory/modify", change | {"importance": 1, "pinned": True})
    body = answer.json()
    assert answer.status_code == 200
    assert (body["id"], body["recovered_from"]) == (row["id"], row["id"])
    assert (body["content"], body["tags"]) == ("the deploy runs on mondays", ["ops", "deploy"])
    assert (body["importance"], body["pinned"]) == (1.0, True)
    found = (await edge.get(f"/api/memory/{row['id']}")).json()
    assert found == {name: value for name, value in body.items() if name != "recovered_from"}
    history = (await edge.get(f"/api/memory/{row['id']}/history")).json()
    assert [event["event"] for event in history["events"]] == ["created", "updated"]


async def test_a_fast_recall_shows_a_changed_memory_as_it_is_now(edge: Edge) -> None:
    row = await remember(edge, "the harbour opens at dawn")
    (vector,) = await edge.world.context.embedder.embed(["harbour"])
    body = {"vector": vector.tolist(), "fast": True}

    async def shown() -> list[tuple[str, list[str]]]:
        found = (await edge.post("/api/memory/recall", body)).json()["results"]
        return [(hit["content"], hit["tags"]) for hit in found]

    assert await shown() == [("the harbour opens at dawn", [])]
    await edge.post("/api/memory/modify", {"id": row["id"], "tags": ["sea"]})
    assert await shown() == [("the harbour opens at dawn", ["sea"])]
    await edge.post("/api/memory/modify", {"id": row["id"], "content": "the harbour is closed"})
    assert await shown() == [("the harbour is closed", ["sea"])]


async def test_modify_names_the_memory_that_has_the_text(edge: Edge) -> None:
    standing, row = await remember(edge, "tea"), await remember(edge, "coffee")
    answer = await edge.post("/api/memory/modify", {"id": row["id"], "content": "Tea."})
    assert answer.status_code == 409
    assert (answer.json()["status"], answer.json()["id"]) == ("duplicate", standing["id"])


@pytest.mark.parametrize(
    ("body", "status", "error"),
    [
        ({}, 400, "id is required"),
        ({"id": "0" * 32}, 400, "nothing to change is given"),
        ({"id": "x", "pinned": True}, 400, "id is not an id"),
        ({"id": "0" * 32, "pinned": True}, 404, "memory not found"),
        ({"id": "0" * 32, "pinned": "yes"}, 400, "pinned is invalid"),
        ({"id": "0" * 32, "visibility": "public"}, 400, "visibility is invalid"),
        ({"id": "0" * 32, "colour": "red"}, 400, "unknown field: colour"),
        ({"id": "0" * 32, "content": ""}, 400, "content is required"),
        ({"id": "0" * 32, "content": "x" * 1_100_000}, 413, "content exceeds 1048576 bytes"),
    ],
)
async def test_a_change_that_does_not_fit_is_refused(
    edge: Edge, body: dict[str, Any], status: int, error: str
) -> None:
    answer = await edge.post("/api/memory/modify", body)
    assert (answer.status_code, answer.json()["error"]) == (status, error)


async def test_l_48_another_agents_memory_cannot_be_changed(edge: Edge) -> None:
    for name in ("a1", "a2"):
        await edge.world.agent(name, ReadPolicy.SHARED)
    row = await remember(edge, "of a1", agent_id="a1")
    change = {"agent_id": "a2", "content": "of a2"}
    theirs = await edge.post("/api/memory/modify", {"id": row["id"]} | change)
    missing = await edge.post("/api/memory/modify", {"id": "0" * 32} | change)
    assert (theirs.status_code, theirs.text) == (404, missing.text)
    assert await texts(edge, agent_id="a1") == ["of a1"]


async def test_changes_spend_their_own_allowance(edge: Edge) -> None:
    edge.configure(auth=TEAM | {"rate_limits": {"modify": {"max": 1}}})
    token = edge.token("agent", {"agent": "default"})
    change = {"id": "0" * 32, "pinned": True}
    first = await edge.post("/api/memory/modify", change, token=token)
    second = await edge.post("/api/memory/modify", change, token=token)
    assert (first.status_code, second.status_code) == (404, 429)


# --- all that match -------------------------------------------------------------------------------


async def a_shelf(edge: Edge) -> None:
    """Seven memories of a1, five of them scratch, and one of a2 that is scratch too."""
    for name in ("a1", "a2"):
        await edge.world.agent(name, ReadPolicy.SHARED)
    for number in range(5):
        await remember(edge, f"scratch {number}", agent_id="a1", tags=["scratch"])
    await remember(edge, "kept", agent_id="a1", tags=["plan"])
    await remember(edge, "kept too", agent_id="a1")
    await remember(edge, "of a2", agent_id="a2", tags=["scratch"])


@pytest.mark.parametrize("verb", ["delete", "forget"])
async def test_all_own_memories_that_match_end_and_are_counted(
    edge: Edge, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await a_shelf(edge)
    monkeypatch.setattr(ending._matching, "__defaults__", (2,))
    body = {"agent_id": "a1", "filters": {"tags": ["scratch"]}}
    before = await edge.post(f"/api/memory/{verb}", body | {"dry_run": True})
    assert before.json() == {"dry_run": True, "count": 5, "limit": 100_000}
    done = await edge.post(f"/api/memory/{verb}", body)
    assert (done.status_code, done.json()) == (200, {"count": 5})
    assert await texts(edge, agent_id="a1") == ["kept", "kept too", "of a2"]
    rows = "SELECT count(*) FROM memories WHERE kind = 'cell'"
    assert await edge.world.value(rows) == (8 if verb == "delete" else 3)
    again = await edge.post(f"/api/memory/{verb}", body)
    assert again.json() == {"count": 0}


@pytest.mark.parametrize("verb", ["delete", "forget"])
@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"filters": {}}, "filters must name what is to go"),
        ({"filters": {"tags": []}}, "filters must name what is to go"),
        ({"filters": {"type": " , "}}, "filters must name what is to go"),
        ({"filters": {"a' OR 1=1": "x"}}, "unknown filter: a' OR 1=1"),
        ({"filters": {"agent": "a1"}}, "unknown filter: agent"),
        ({"filters": {"kind": "cell"}}, "unknown filter: kind"),
        ({"filters": {"until": "2030-01-01T00:00:00"}}, "until must carry a time zone"),
        ({"filters": "all"}, "filters is invalid"),
        ({"filters": None}, "id or ids is required"),
        ({"filters": {"tags": "x"}, "id": "0" * 32}, "filters and id exclude each other"),
        ({"filters": {"tags": "x"}, "query": "x"}, "query and filters exclude each other"),
        ({"id": "0" * 32, "dry_run": True}, "dry_run belongs to filters"),
    ],
)
async def test_no_filter_ever_means_everything(
    edge: Edge, verb: str, body: dict[str, Any], error: str
) -> None:
    await remember(edge, "stays")
    answer = await edge.post(f"/api/memory/{verb}", body)
    assert (answer.status_code, answer.json()["error"]) == (400, error)
    assert await texts(edge) == ["stays"]


@pytest.mark.parametrize(
    ("filters", "left"),
    [
        ({"type": "note"}, ["b", "c"]),
        ({"who": "eve,ann"}, ["a"]),
        ({"pinned": True}, ["a", "b"]),
        ({"importance_min": 0.9}, ["a", "c"]),
        ({"since": "2026-08-01T13:00:00Z"}, ["a", "b"]),
        ({"until": "2026-08-01T15:00:00+02:00"}, ["c"]),
        ({"scope": "x:y"}, ["a", "c"]),
        ({"visibility": "private"}, ["b", "c"]),
        ({"visibility": "private", "who": "eve"}, ["a", "b", "c"]),
    ],
)
async def test_each_filter_of_a_bulk_delete_counts(
    edge: Edge, filters: dict[str, Any], left: list[str]
) -> None:
    await remember(edge, "a", type="note", visibility="private")
    await remember(edge, "b", who="eve", importance=0.95, scope="x:y")
    edge.world.pass_time(hours=1)
    await remember(edge, "c", who="ann", pinned=True)
    await edge.post("/api/memory/delete", {"filters": filters})
    assert await texts(edge) == left


async def test_many_at_once_spend_the_allowance_of_batches(edge: Edge) -> None:
    edge.configure(auth=TEAM | {"rate_limits": {"batchForget": {"max": 1}}})
    token = edge.token("agent", {"agent": "default"})
    body = {"filters": {"type": "none"}}
    answers = [
        (await edge.post("/api/memory/forget", body | extra, token=token)).status_code
        for extra in ({"dry_run": True}, {}, {})
    ]
    assert answers == [200, 200, 429]


# --- every way out leaves a tombstone -------------------------------------------------------------

Way = Callable[[Port, str], Awaitable[object]]


async def forget_by_id(port: Port, memory_id: str) -> object:
    return await port.edge.post("/api/memory/forget", {"id": memory_id, "agent_id": "bob"})


async def forget_by_filter(port: Port, memory_id: str) -> object:
    body = {"filters": {"type": "fact"}, "agent_id": "bob"}
    return await port.edge.post("/api/memory/forget", body)


async def delete_by_id(port: Port, memory_id: str) -> object:
    return await port.edge.post("/api/memory/delete", {"id": memory_id, "agent_id": "bob"})


async def delete_by_filter(port: Port, memory_id: str) -> object:
    body = {"filters": {"type": "fact"}, "agent_id": "bob"}
    return await port.edge.post("/api/memory/delete", body)


async def rewrite(port: Port, memory_id: str) -> object:
    body = {"id": memory_id, "content": "another text", "agent_id": "bob"}
    return await port.edge.post("/api/memory/modify", body)


async def withdraw(port: Port, memory_id: str) -> object:
    body = {"id": memory_id, "visibility": "private", "agent_id": "bob"}
    return await port.edge.post("/api/memory/modify", body)


async def remove_agent(port: Port, memory_id: str) -> object:
    return await port.edge.request("DELETE", "/api/agents/bob")


async def purge_agent(port: Port, memory_id: str) -> object:
    return await port.edge.request("DELETE", "/api/agents/bob", params={"purge": "true"})


async def forget_by_port(port: Port, memory_id: str) -> object:
    async with port.client("bob") as client:
        return await client.forget(memory_id)


async def expire(port: Port, memory_id: str) -> object:
    port.edge.world.pass_time(days=2)
    return await port.edge.world.retention().sweep()


WAYS: tuple[Way, ...] = (
    forget_by_id,
    forget_by_filter,
    delete_by_id,
    delete_by_filter,
    rewrite,
    withdraw,
    remove_agent,
    purge_agent,
    forget_by_port,
    expire,
)


@pytest.mark.parametrize("way", WAYS)
async def test_es_03_every_way_out_leaves_a_tombstone_that_refuses_copies(
    port: Port, way: Way
) -> None:
    world = port.edge.world
    project = await world.project("harbour")
    agent = await world.agent("bob", project_id=project)
    row = await remember(
        port.edge, "on its way out", agent_id="bob", project="harbour", ttl_seconds=86_400
    )
    await way(port, row["id"])
    memory_id = parse_id(row["id"], "id")

    async def bring(tx: Tx) -> None:
        await world.node.gate.for_foreign(
            tx,
            agent_id=agent.id,
            project_id=project,
            epochs=Epochs(1, 1),
            hlc=world.node.clock.now(),
            memory_id=memory_id,
        )

    with pytest.raises(Tombstoned):
        await world.db.transact(bring)
    assert memory_id not in world.graph


# --- agents ---------------------------------------------------------------------------------------


async def test_a_removed_agent_leaves_nothing_that_is_read(edge: Edge) -> None:
    await edge.world.agent("a1")
    await edge.world.agent("a2", ReadPolicy.SHARED)
    row = await remember(edge, "the harbour opens", agent_id="a1")
    answer = await edge.request("DELETE", "/api/agents/a1")
    body = answer.json()
    assert (answer.status_code, body["removed"]) == (200, "a1")
    assert (body["archived"], body["forgotten"]) == (1, 0)
    for reader in ("a2", "a1", body["id"]):
        assert await texts(edge, agent_id=reader) == []
        path = f"/api/memory/{row['id']}"
        assert (await edge.get(path, params={"agent_id": reader})).status_code == 404
    listed = (await edge.get("/api/agents")).json()["agents"]
    assert [one["name"] for one in listed] == ["a2", "default"]
    gone = await edge.request("DELETE", "/api/agents/a1")
    assert (gone.status_code, gone.json()["error"]) == (404, "agent not found: a1")


async def test_a_purged_agent_leaves_no_row(edge: Edge) -> None:
    await edge.world.agent("a1")
    await remember(edge, "secret", agent_id="a1")
    answer = await edge.request("DELETE", "/api/agents/a1", params={"purge": "true"})
    assert (answer.json()["archived"], answer.json()["forgotten"]) == (0, 1)
    assert await edge.world.value("SELECT count(*) FROM memories WHERE kind = 'cell'") == 0


async def test_the_nodes_own_agents_cannot_be_removed(edge: Edge) -> None:
    await edge.world.agent("host")
    edge.configure(agent={"name": "host"})
    for name in ("default", "host"):
        answer = await edge.request("DELETE", f"/api/agents/{name}")
        assert answer.status_code == 400
        assert "cannot be removed" in answer.json()["error"]
    assert len((await edge.get("/api/agents")).json()["agents"]) == 2


async def test_purging_agents_spends_the_allowance_of_force(edge: Edge) -> None:
    edge.configure(auth=TEAM | {"rate_limits": {"forceDelete": {"max": 1}}})
    token = edge.token("admin")
    codes = []
    for name in ("a1", "a2"):
        await edge.world.agent(name)
        purge = {"purge": "true"}
        path = f"/api/agents/{name}"
        answer = await edge.request("DELETE", path, params=purge, token=token)
        codes.append(answer.status_code)
    assert codes == [200, 429]


async def test_a_removed_agent_can_still_be_erased_by_its_id(edge: Edge) -> None:
    await edge.world.agent("a1", project_id=await edge.world.project("harbour"))
    await remember(edge, "secret", agent_id="a1", project="harbour")
    removed = (await edge.request("DELETE", "/api/agents/a1")).json()
    assert removed["archived"] == 1
    scope = {"kind": "agent", "id": removed["id"]}
    begun = await edge.post("/api/erasures", {"scope": scope})
    assert begun.status_code in (200, 201, 202), begun.text
    await apply.drive(edge.services.erasure, begun.json()["erasure_id"])
    assert await edge.world.value("SELECT count(*) FROM memories WHERE kind = 'cell'") == 0


async def test_l_2_es_04_an_erased_agent_stores_and_recovers_nothing(edge: Edge) -> None:
    agent = await edge.world.agent("a1")
    row = await remember(edge, "before", agent_id="a1")
    await edge.post("/api/memory/delete", {"id": row["id"], "agent_id": "a1"})
    begun = await edge.post("/api/erasures", {"scope": {"kind": "agent", "id": "a1"}})
    await apply.drive(edge.services.erasure, begun.json()["erasure_id"])
    line = json.dumps({"content": "from an archive", "agent_id": "a1"}).encode()
    imported = await edge.request(
        "POST",
        "/api/memory/import",
        content=line,
        headers={"Content-Type": "application/x-ndjson"},
    )
    assert [one["status"] for one in imported.json()["results"]] == [410]
    for name in ("a1", id_text(agent.id)):
        late = await edge.post("/api/memory/remember", {"content": "after", "agent_id": name})
        assert (late.status_code, late.json()["code"]) == (410, "scope_erased")
        back = await edge.post("/api/memory/recover", {"id": row["id"], "agent_id": name})
        assert back.status_code == 410
    rows = f"SELECT count(*) FROM memories WHERE agent_id = {lit(agent.id)}"
    assert await edge.world.value(rows) == 0


async def test_l_2_an_erased_project_stores_nothing(edge: Edge) -> None:
    await edge.world.project("harbour")
    await remember(edge, "before", project="harbour")
    begun = await edge.post("/api/erasures", {"scope": {"kind": "project", "id": "harbour"}})
    await apply.drive(edge.services.erasure, begun.json()["erasure_id"])
    late = await edge.post("/api/memory/remember", {"content": "after", "project": "harbour"})
    assert late.status_code == 410, late.text
    assert await edge.world.value("SELECT count(*) FROM memories WHERE kind = 'cell'") == 0


# --- texts in parts -------------------------------------------------------------------------------


async def test_a_text_in_parts_answers_with_its_group(edge: Edge) -> None:
    body = {"chunks": ["the harbour opens", "the market closes"], "idempotency_key": "k"}
    first = (await edge.post("/api/memory/remember", body)).json()
    assert (first["chunked"], first["chunk_count"], first["deduped"]) == (True, 2, False)
    again = (await edge.post("/api/memory/remember", body)).json()
    assert again == first | {"deduped": True}
    parts = [(await edge.get(f"/api/memory/{one}")).json() for one in first["ids"]]
    assert [one["content"] for one in parts] == body["chunks"]
    assert {one["source_type"] for one in parts} == {"chunk"}
    assert [one["source_id"].partition(":")[0] for one in parts] == [first["group_id"]] * 2


@pytest.mark.parametrize(
    ("body", "status", "error"),
    [
        (
            {"chunks": ["new", "stands"]},
            409,
            "chunk content already exists for this agent and scope",
        ),
        (
            {"chunks": ["new"], "idempotency_key": "single"},
            409,
            "idempotency_key stands for single content",
        ),
        (
            {"content": "new", "idempotency_key": "parts"},
            409,
            "idempotency_key stands for chunked content",
        ),
        ({"content": "x", "chunks": ["y"]}, 400, "content and chunks exclude each other"),
        ({"chunks": []}, 400, "chunks must have 1 to 500 items"),
        ({"chunks": "text"}, 400, "chunks is invalid"),
        ({"chunks": ["x"], "source_id": "s"}, 400, "chunks have sources of their own"),
        ({"chunks": ["x"], "vector": [1.0]}, 400, "vector and chunks exclude each other"),
        ({"chunks": ["new", ""]}, 400, "content is required"),
    ],
)
async def test_a_text_in_parts_that_does_not_fit_stores_nothing(
    edge: Edge, body: dict[str, Any], status: int, error: str
) -> None:
    await remember(edge, "stands", idempotency_key="single")
    await edge.post("/api/memory/remember", {"chunks": ["one part"], "idempotency_key": "parts"})
    answer = await edge.post("/api/memory/remember", body)
    assert (answer.status_code, answer.json()["error"]) == (status, error)
    assert await texts(edge) == ["one part", "stands"]


async def test_an_item_of_a_batch_is_no_text_in_parts(edge: Edge) -> None:
    answer = await edge.post(
        "/api/memory/remember/batch", {"memories": [{"content": "x", "chunks": ["x"]}]}
    )
    assert answer.json()["results"][0]["error"] == "unknown field: chunks"


def test_a_memory_that_cannot_be_saved_is_told_so() -> None:
    answer = problems.answer(SaveFailed(), "r")
    told = json.loads(bytes(answer.body))
    assert (answer.status_code, told["error"]) == (500, "Failed to save memory")


# --- who reads, and what a reply says -------------------------------------------------------------


async def test_an_unknown_agent_reads_as_an_isolated_one(edge: Edge) -> None:
    row = await remember(edge, "the harbour opens at dawn")
    unknown: dict[str, str] = {"agent_id": "nobody"}
    asked = {"query": "harbour"} | unknown
    (vector,) = await edge.world.context.embedder.embed(["harbour"])
    swift = {"vector": vector.tolist(), "fast": True} | unknown
    for body in (asked, asked | {"fast": True}, swift):
        answer = await edge.post("/api/memory/recall", body)
        assert (answer.status_code, answer.json()["results"]) == (200, [])
    search = await edge.get("/api/memory/search", params={"q": "harbour"} | unknown)
    assert (search.status_code, search.json()["results"]) == (200, [])
    assert await texts(edge, **unknown) == []
    for path in (f"/api/memory/{row['id']}", f"/api/memory/{row['id']}/history"):
        assert (await edge.get(path, params=unknown)).status_code == 404


async def test_an_agent_without_a_row_reads_its_own_by_its_id(edge: Edge) -> None:
    agent = await edge.world.agent("a1")
    row = await remember(edge, "the harbour opens at dawn", agent_id="a1")
    await edge.world.change(f"DELETE FROM agents WHERE agent_id = {lit(agent.id)}")
    edge.world.context.agents._leave(agent.id)
    body = {"query": "harbour", "agent_id": row["id"]}
    assert (await edge.post("/api/memory/recall", body)).json()["results"] == []
    reader = id_text(agent.id)
    (hit,) = (await edge.post("/api/memory/recall", body | {"agent_id": reader})).json()["results"]
    assert (hit["id"], hit["agent_id"]) == (row["id"], reader)


async def test_what_changes_something_needs_an_agent_that_is_known(edge: Edge) -> None:
    for path, body in (
        ("remember", {"content": "x"}),
        ("forget", {"id": "0" * 32}),
        ("delete", {"id": "0" * 32}),
        ("modify", {"id": "0" * 32, "pinned": True}),
        ("recover", {"id": "0" * 32}),
    ):
        answer = await edge.post(f"/api/memory/{path}", body | {"agent_id": "nobody"})
        assert (answer.status_code, answer.json()["error"]) == (404, "agent not found: nobody")


async def test_a_search_takes_its_agent_from_a_session(edge: Edge) -> None:
    await edge.world.agent("a1")
    await remember(edge, "the plan of the garden", agent_id="a1", visibility="private")
    query = {"q": "garden plan", "session_key": "agent:a1:42"}
    found = (await edge.get("/api/memory/search", params=query)).json()
    assert [hit["content"] for hit in found["results"]] == ["the plan of the garden"]


async def test_a_reply_tells_what_was_done_for_it(edge: Edge) -> None:
    await remember(edge, "the harbour opens at dawn")
    body = (await edge.post("/api/memory/recall", {"query": "harbour"})).json()
    assert list(body) == ["results", "constraints", "limit", "meta"]
    assert (body["constraints"], body["results"][0]["entities"]) == ([], [])
    assert (body["meta"]["traversal"], body["meta"]["timedOut"]) == (None, False)
    stages = {stage["name"]: stage for stage in body["meta"]["stages"]}
    assert list(stages) == ["embed", "hot", "text", "fuse"]
    assert [stages[name]["count"] for name in ("hot", "text", "fuse")] == [1, 1, 1]
    assert all(stage["durationMs"] >= 0 for stage in stages.values())
    fast = (await edge.post("/api/memory/recall", {"query": "harbour", "fast": True})).json()
    assert [stage["name"] for stage in fast["meta"]["stages"]] == ["hot"]


@pytest.mark.parametrize("deadline", [0, -5, 10**9, "soon", "1_000"])
async def test_a_deadline_is_moved_into_its_bounds(edge: Edge, deadline: Any) -> None:
    body = {"query": "harbour", "deadline_ms": deadline}
    assert (await edge.post("/api/memory/recall", body)).status_code == 200


# --- lists ----------------------------------------------------------------------------------------


async def test_a_list_takes_an_offset_and_says_whether_there_is_more(edge: Edge) -> None:
    for number in range(5):
        await remember(edge, f"memory {number}")
        edge.world.pass_time(seconds=1)

    async def page(**query: str) -> tuple[list[str], bool]:
        body = (await edge.get("/api/memories", params=query)).json()
        assert body["offset"] == int(query.get("offset", "0"))
        return [row["content"][-1] for row in body["memories"]], "nextCursor" in body

    assert await page(limit="2", offset="1") == (["3", "2"], True)
    assert await page(limit="2", offset="3") == (["1", "0"], False)
    assert await page(limit="5") == (["4", "3", "2", "1", "0"], False)
    assert await page(limit="5", offset="9") == ([], False)


@pytest.mark.parametrize(("given", "force"), [("-1", 0), ("many", 0), ("9999999", 100_000)])
async def test_an_offset_is_moved_into_its_bounds(edge: Edge, given: str, force: int) -> None:
    page = (await edge.get("/api/memories", params={"offset": given})).json()
    assert page == {"memories": [], "limit": 50, "offset": force}


async def test_a_history_has_pages(edge: Edge) -> None:
    row = await remember(edge, "text 0")
    for number in range(1, 5):
        change = {"id": row["id"], "content": f"text {number}"}
        assert (await edge.post("/api/memory/modify", change)).status_code == 200
    path = f"/api/memory/{row['id']}/history"
    seen: list[str] = []
    query = {"limit": "2"}
    while True:
        body = (await edge.get(path, params=query)).json()
        assert body["limit"] == 2
        seen += [event["new_content"] for event in body["events"]]
        if "nextCursor" not in body:
            break
        query["cursor"] = body["nextCursor"]
    assert seen == [f"text {number}" for number in range(5)]
    last = (await edge.get(path, params={"offset": "4", "limit": "99999"})).json()
    assert ([one["new_content"] for one in last["events"]], last["limit"]) == (["text 4"], 1000)
    bad = await edge.get(path, params={"cursor": "x"})
    assert (bad.status_code, bad.json()["error"]) == (400, "cursor is invalid")


# --- texts and names of any kind ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("東京の会議は金曜日", "会議"),
        ("회의는 금요일에 열립니다", "금요일"),
        ("カタカナのテスト", "テスト"),
        ("การประชุมวันศุกร์", "การประชุมวันศุกร์"),
        ("ўçñ Ünïcödé ṩ", "ünïcödé"),
        ('it\'s 100% "quoted" \\ back', "quoted"),
        ("$$; DROP TABLE memories; --", "drop table"),
        ("a:b & c|d !e <-> (f) *", "a:b"),
        ("\u202eright to left\u202c", "right"),
        ("👩‍💻 ships 🔥", "ships"),
    ],
)
async def test_l_56_l_57_any_text_is_stored_found_changed_and_forgotten(
    edge: Edge, text: str, query: str
) -> None:
    row = await remember(edge, text)
    found = (await edge.get("/api/memory/search", params={"q": query})).json()
    assert found["meta"]["degraded"] == []
    assert [(hit["id"], hit["content"]) for hit in found["results"]] == [(row["id"], text)]
    assert found["results"][0]["words"] > 0
    changed = await edge.post("/api/memory/modify", {"id": row["id"], "content": f"{text} again"})
    assert changed.json()["content"] == f"{text} again"
    assert await texts(edge) == [f"{text} again"]
    await edge.post("/api/memory/forget", {"id": row["id"]})
    assert await texts(edge) == []


@pytest.mark.parametrize("name", ["team-a", "a:b", 'a"b', "a'b", "a%b", "a b", "名前"])
async def test_l_52_any_name_of_agent_and_scope_works_on_every_route(edge: Edge, name: str) -> None:
    made = await edge.post("/api/agents", {"name": name})
    assert made.status_code == 201, made.text
    act = {"agent_id": name}
    row = await remember(edge, "the deploy is on Monday", scope=name, **act)
    asked = {"query": "deploy Monday", "scope": name} | act
    (hit,) = (await edge.post("/api/memory/recall", asked)).json()["results"]
    assert (hit["id"], hit["scope"], hit["agent_id"]) == (row["id"], name, name)
    assert await texts(edge, **act) == ["the deploy is on Monday"]
    gone = await edge.post("/api/memory/delete", {"filters": {"scope": name}} | act)
    assert gone.json() == {"count": 1}
    back = await edge.post("/api/memory/recover", {"id": row["id"]} | act)
    assert back.json()["id"] == row["id"]
    forgotten = await edge.post("/api/memory/forget", {"id": row["id"]} | act)
    assert forgotten.json()["forgotten"] == [row["id"]]
    removed = await edge.request("DELETE", f"/api/agents/{quote(name, safe='')}")
    assert removed.json().get("removed") == name, removed.text


async def test_l_55_a_mebibyte_is_changed_kept_and_found(edge: Edge) -> None:
    row = await remember(edge, "short")
    words = " ".join(f"word{number:06d}" for number in range(95_000))
    changed = await edge.post("/api/memory/modify", {"id": row["id"], "content": words})
    assert changed.status_code == 200
    found = (await edge.get("/api/memory/search", params={"q": "word020000"})).json()
    assert [hit["id"] for hit in found["results"]] == [row["id"]]
    assert (await edge.get(f"/api/memory/{row['id']}")).json()["content"] == words
