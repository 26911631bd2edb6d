"""Memories over HTTP, on real PostgreSQL."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import httpx
import pytest

from node.http.auth import TRUSTED_LOCAL
from node.http.fast import FastRecalls
from node.http.routing import Call, Reply
from storage.model import ReadPolicy
from tests.support.services import Edge, edge

__all__ = ["edge"]

pytestmark = pytest.mark.postgres


async def remember(edge: Edge, content: str, **fields: Any) -> dict[str, Any]:
    answer = await edge.post("/api/memory/remember", {"content": content} | fields)
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]


def timeless(answer: httpx.Response) -> str:
    """An answer without the time that its stages took."""
    return re.sub(r'"durationMs":[0-9.e-]+', "", answer.text)


async def count(edge: Edge) -> int:
    return int(await edge.world.value("SELECT count(*) FROM memories WHERE kind = 'cell'"))


async def test_what_was_remembered_is_recalled_first(edge: Edge) -> None:
    await remember(edge, "The deploy runs on Fridays at noon")
    await remember(edge, "Cats sleep sixteen hours a day")
    answer = await edge.post("/api/memory/recall", {"query": "when does the deploy run"})
    found = answer.json()
    assert answer.status_code == 200
    assert found["results"][0]["content"] == "The deploy runs on Fridays at noon"
    assert found["results"][0]["tier"] == "hot"
    assert (found["meta"]["degraded"], found["meta"]["timedOut"]) == ([], False)


async def test_remember_answers_with_the_row(edge: Edge) -> None:
    row = await remember(edge, "Ünïcode  CAFÉ.", tags=["a", "b"], importance=0.25, who="eve")
    assert row["content"] == "Ünïcode CAFÉ."
    assert row["tags"] == "a,b"
    assert (row["importance"], row["who"], row["agent_id"]) == (0.25, "eve", "default")
    assert row["deduped"] is False
    assert row["created_at"] == "2026-08-01T12:00:00.000Z"


async def test_l_27_the_same_text_twice_is_one_memory(edge: Edge) -> None:
    first = await remember(edge, "T")
    again = await remember(edge, "T")
    assert again == {
        "id": first["id"],
        "type": "fact",
        "tags": "",
        "pinned": False,
        "importance": 0.5,
        "content": "T",
        "embedded": True,
        "deduped": True,
    }
    row = (await edge.get(f"/api/memory/{first['id']}")).json()
    assert row["seen_count"] == 2


async def test_l_25_two_agents_storing_one_text_have_two_memories(edge: Edge) -> None:
    await edge.world.agent("a1")
    await edge.world.agent("a2")
    first = await remember(edge, "T", agent_id="a1")
    second = await remember(edge, "T", agent_id="a2")
    assert second["id"] != first["id"]
    assert second["deduped"] is False


@pytest.mark.parametrize("ttl", ["soon", 0, -1, 1.5, True, [1]])
async def test_l_05_a_ttl_that_is_none_stores_nothing(edge: Edge, ttl: Any) -> None:
    answer = await edge.post("/api/memory/remember", {"content": "x", "ttl_seconds": ttl})
    assert (answer.status_code, answer.json()["error"]) == (400, "ttl_seconds is invalid")
    assert await count(edge) == 0


async def test_l_54_one_bad_item_of_a_batch_fails_alone(edge: Edge) -> None:
    for bad in ("nul \x00", "surrogate \ud800"):
        items = [{"content": f"one {bad[:3]}"}, {"content": bad}, {"content": f"two {bad[:3]}"}]
        answer = await edge.post("/api/memory/remember/batch", {"memories": items})
        body = answer.json()
        assert answer.status_code == 200
        assert [result["status"] for result in body["results"]] == [200, 400, 200]
        assert body["results"][1]["error"] == "content contains a character that cannot be stored"
        assert (body["stored"], body["failed"]) == (2, 1)
    assert await count(edge) == 4


async def test_items_of_a_batch_name_their_own_faults(edge: Edge) -> None:
    items = [{"content": "ok"}, {"text": "x"}, {"content": "y", "agent_id": "nobody"}, 7]
    body = (await edge.post("/api/memory/remember/batch", {"memories": items})).json()
    assert [(one["status"], one.get("error")) for one in body["results"]] == [
        (200, None),
        (400, "content is required"),
        (404, "agent not found: nobody"),
        (400, "content is required"),
    ]


async def test_l_55_too_much_is_refused_and_a_mebibyte_is_kept(edge: Edge) -> None:
    huge = await edge.post("/api/memory/remember", {"content": "x" * 5_000_000})
    assert (huge.status_code, huge.json()["error"]) == (413, "the body exceeds 2097152 bytes")
    large = await edge.post("/api/memory/remember", {"content": "x" * 1_100_000})
    assert (large.status_code, large.json()["error"]) == (413, "content exceeds 1048576 bytes")
    words = " ".join(f"word{number:06d}" for number in range(95_000))
    row = await remember(edge, words)
    found = (await edge.get("/api/memory/search", params={"q": "word020000"})).json()
    assert [hit["id"] for hit in found["results"]] == [row["id"]]


@pytest.mark.parametrize("query", ['"foo (bar', "c++ -x", "AND", "a:b*", "%", "\\", "'"])
async def test_l_57_no_query_text_is_syntax(edge: Edge, query: str) -> None:
    await remember(edge, "foo bar c++ x and a:b")
    answer = await edge.get("/api/memory/search", params={"q": query})
    assert answer.status_code == 200


async def test_l_58_times_are_instants_and_naive_ones_are_refused(edge: Edge) -> None:
    east = await remember(edge, "east", created_at="2026-07-01T12:00:00+09:00")
    west = await remember(edge, "west", created_at="2026-07-01T00:00:00-08:00")
    assert east["created_at"] == "2026-07-01T03:00:00.000Z"
    page = (await edge.get("/api/memories")).json()
    assert [row["id"] for row in page["memories"]] == [west["id"], east["id"]]
    naive = await edge.post(
        "/api/memory/remember", {"content": "n", "created_at": "2026-07-01T12:00:00"}
    )
    assert (naive.status_code, naive.json()["error"]) == (400, "created_at must carry a time zone")


async def test_l_59_pages_have_no_gap_while_others_write(edge: Edge) -> None:
    wanted: list[str] = []
    for start in range(0, 1005, 335):
        items = [{"content": f"memory {number}"} for number in range(start, start + 335)]
        body = (await edge.post("/api/memory/remember/batch", {"memories": items})).json()
        wanted += [result["id"] for result in body["results"]]
        edge.world.pass_time(seconds=1)
    seen: list[str] = []
    cursor: str | None = None
    while True:
        params = {"limit": "999"} | ({"cursor": cursor} if cursor else {})
        page = (await edge.get("/api/memories", params=params)).json()
        assert page["limit"] == 200
        seen += [row["id"] for row in page["memories"]]
        edge.world.pass_time(seconds=1)
        late = [{"content": f"late {len(seen)} {number}"} for number in range(10)]
        await edge.post("/api/memory/remember/batch", {"memories": late})
        cursor = page.get("nextCursor")
        if cursor is None:
            break
    assert len(seen) == len(set(seen))
    assert sorted(seen) == sorted(wanted)


@pytest.mark.parametrize(("given", "force"), [("abc", 50), ("-3", 1), ("999", 200), ("7", 7)])
async def test_a_clamped_limit_is_told(edge: Edge, given: str, force: int) -> None:
    page = (await edge.get("/api/memories", params={"limit": given})).json()
    assert page == {"memories": [], "limit": force, "offset": 0}


async def test_l_46_an_isolated_agent_recalls_only_its_own(edge: Edge) -> None:
    await edge.world.agent("a1")
    await edge.world.agent("a2")
    mine = await remember(edge, "the plan of the garden", agent_id="a1")
    await remember(edge, "the plan of the garden too", agent_id="a2", visibility="private")
    found = await edge.post("/api/memory/recall", {"query": "garden plan", "agent_id": "a1"})
    assert [hit["id"] for hit in found.json()["results"]] == [mine["id"]]


async def test_l_48_another_agents_id_is_as_missing(edge: Edge) -> None:
    await edge.world.agent("a1")
    await edge.world.agent("a2")
    row = await remember(edge, "a secret of a1", agent_id="a1")
    before = await edge.world.rows("SELECT id, deleted_at, updated_at FROM memories ORDER BY id")
    as_a2 = {"agent_id": "a2"}
    answers = [
        await edge.get(f"/api/memory/{row['id']}", params=as_a2),
        await edge.get(f"/api/memory/{row['id']}/history", params=as_a2),
        await edge.post("/api/memory/forget", {"id": row["id"]} | as_a2),
        await edge.post("/api/memory/delete", {"ids": [row["id"]]} | as_a2),
        await edge.post("/api/memory/recover", {"id": row["id"]} | as_a2),
    ]
    unknown = await edge.get(f"/api/memory/{'0' * 32}", params=as_a2)
    assert [answer.status_code for answer in answers] == [404] * 5
    assert {answer.text for answer in answers} == {unknown.text}
    exported = await edge.get("/api/memory/export", params=as_a2)
    assert exported.text == ""
    after = await edge.world.rows("SELECT id, deleted_at, updated_at FROM memories ORDER BY id")
    assert after == before


@pytest.mark.parametrize("verb", ["delete", "forget"])
async def test_by_text_nothing_is_ended_and_only_own_memories_are_shown(
    edge: Edge, verb: str
) -> None:
    for name in ("a1", "a2"):
        await edge.world.agent(name, ReadPolicy.SHARED)
    mine = await remember(edge, "the plan of the garden", agent_id="a1")
    await remember(edge, "the plan of the garden, later", agent_id="a2")
    path, as_a1 = f"/api/memory/{verb}", {"agent_id": "a1"}
    told = (await edge.post(path, {"query": "garden plan"} | as_a1)).json()
    assert told["dry_run"] is True
    assert [one["id"] for one in told["candidates"]] == [mine["id"]]
    assert await count(edge) == 2
    both = await edge.post(path, {"query": "garden plan", "id": mine["id"]} | as_a1)
    assert (both.status_code, both.json()["error"]) == (400, "query and id exclude each other")
    for empty in ({}, {"query": ""}):
        assert (await edge.post(path, empty | as_a1)).status_code == 400


@pytest.mark.parametrize(
    ("body", "seen"),
    [
        ({"session_key": "agent:a1:42"}, True),
        ({"session_key": "agent:a1:42", "agent_id": "default"}, False),
        ({"session_key": "agent:a1"}, False),
        ({"session_key": "tty:a1:42"}, False),
        ({}, False),
    ],
)
async def test_a_session_key_names_the_agent(edge: Edge, body: dict[str, str], seen: bool) -> None:
    await edge.world.agent("a1")
    await remember(edge, "the plan of the garden", agent_id="a1", visibility="private")
    found = await edge.post("/api/memory/recall", {"query": "garden plan"} | body)
    assert bool(found.json()["results"]) is seen


async def test_delete_hides_and_recover_brings_back(edge: Edge) -> None:
    row = await remember(edge, "to be hidden")
    gone = await edge.post("/api/memory/delete", {"id": row["id"], "reason": "test"})
    assert gone.json() == {"deleted": [row["id"]], "already": []}
    assert (await edge.get(f"/api/memory/{row['id']}")).status_code == 404
    back = await edge.post("/api/memory/recover", {"id": row["id"]})
    assert (back.json()["id"], back.json()["recovered_from"]) == (row["id"], row["id"])
    again = await edge.post("/api/memory/recover", {"id": row["id"]})
    assert (again.status_code, again.json()["status"]) == (409, "not_deleted")


async def test_a_recovery_that_meets_the_same_text_names_it(edge: Edge) -> None:
    text = "the harbour opens at dawn"
    first = await remember(edge, text)
    await edge.post("/api/memory/delete", {"id": first["id"]})
    second = await remember(edge, text)
    answer = await edge.post("/api/memory/recover", {"id": first["id"]})
    assert answer.status_code == 409
    assert (answer.json()["status"], answer.json()["id"]) == ("duplicate", second["id"])


async def test_a_recovery_after_its_window_is_told(edge: Edge) -> None:
    row = await remember(edge, "hidden for long")
    await edge.post("/api/memory/delete", {"id": row["id"]})
    edge.world.pass_time(days=31)
    answer = await edge.post("/api/memory/recover", {"id": row["id"]})
    assert answer.status_code == 409
    assert answer.json()["status"] == "retention_expired"
    assert answer.json()["error"] == "Recover window expired (30 days)"


async def test_forget_is_final_and_idempotent(edge: Edge) -> None:
    row = await remember(edge, "to be forgotten")
    first = await edge.post("/api/memory/forget", {"ids": [row["id"]]})
    again = await edge.post("/api/memory/forget", {"ids": [row["id"]]})
    assert first.json() == {"forgotten": [row["id"]], "already": []}
    assert again.json() == {"forgotten": [], "already": [row["id"]]}
    history = (await edge.get(f"/api/memory/{row['id']}/history")).json()
    assert "to be forgotten" not in json.dumps(history)
    assert history["events"][-1]["event"] == "deleted"


async def test_an_export_can_be_imported_by_another_agent(edge: Edge) -> None:
    await edge.world.agent("twin")
    await remember(edge, "first", tags=["x,y", "z"], type="decision")
    await remember(edge, "second", ttl_seconds=60)
    exported = await edge.get("/api/memory/export")
    lines = [json.loads(line) for line in exported.text.splitlines()]
    assert exported.headers["content-type"].startswith("application/x-ndjson")
    moved = "\n".join(json.dumps(line | {"agent_id": "twin"}) for line in lines)
    done = await edge.request(
        "POST",
        "/api/memory/import",
        content=moved.encode(),
        headers={"Content-Type": "application/x-ndjson"},
    )
    assert (done.json()["stored"], done.json()["failed"]) == (2, 0)
    twin = await edge.get("/api/memory/export", params={"agent_id": "twin"})
    ours = sorted((one["content"], one["tags"], one["type"]) for one in lines)
    theirs = [json.loads(line) for line in twin.text.splitlines()]
    assert sorted((one["content"], one["tags"], one["type"]) for one in theirs) == ours


async def test_each_line_of_an_import_has_its_result(edge: Edge) -> None:
    body = b'{"content": "good"}\n{broken\n\n{"content": ""}\n{"content": "good"}\n'
    answer = await edge.request(
        "POST",
        "/api/memory/import",
        content=body,
        headers={"Content-Type": "application/x-ndjson"},
    )
    told = [
        (one["line"], one["status"], one.get("error"), one.get("deduped"))
        for one in answer.json()["results"]
    ]
    assert told == [
        (1, 200, None, False),
        (2, 400, "the body is not valid JSON", None),
        (4, 400, "content is required", None),
        (5, 200, None, True),
    ]


async def test_an_unknown_field_is_named(edge: Edge) -> None:
    body = await edge.post("/api/memory/remember", {"content": "x", "colour": "red"})
    assert (body.status_code, body.json()["error"]) == (400, "unknown field: colour")
    query = await edge.get("/api/memories", params={"colour": "red"})
    assert (query.status_code, query.json()["error"]) == (400, "unknown filter: colour")


async def test_a_body_that_is_no_object_counts_as_an_empty_one(edge: Edge) -> None:
    answer = await edge.post("/api/memory/remember", [1])
    assert (answer.status_code, answer.json()["error"]) == (400, "content is required")


async def test_a_fast_answer_by_vector_is_that_of_the_plain_way_to_the_byte(edge: Edge) -> None:
    await remember(edge, "The harbour — ünïcode", tags=["a"], who="eve", scope="x:y")
    await remember(edge, "Cats sleep", importance=0.25, pinned=True, ttl_seconds=60)
    (vector,) = await edge.world.context.embedder.embed(["when does the harbour sleep"])
    body = {"vector": vector.tolist(), "fast": True, "limit": 5}
    plain = await edge.post("/api/memory/recall", body | {"explain": False})
    for _ in range(2):
        swift = await edge.post("/api/memory/recall", body)
        assert (swift.status_code, timeless(swift)) == (200, timeless(plain))
        own = {"x-request-id": "", "content-length": ""}
        assert {**swift.headers, **own} == {**plain.headers, **own}
    assert len(plain.json()["results"]) == 2


@pytest.mark.parametrize("wrong", [{"vector": [1.0]}, {"vector": [0.0] * 256}, {"agent_id": ""}])
async def test_a_fast_question_is_refused_as_on_the_plain_way(
    edge: Edge, wrong: dict[str, Any]
) -> None:
    body: dict[str, Any] = {"vector": [1.0] * 256, "fast": True} | wrong
    swift = await edge.post("/api/memory/recall", body)
    plain = await edge.post("/api/memory/recall", body | {"explain": False})
    assert swift.status_code == 400
    assert (swift.status_code, swift.content) == (plain.status_code, plain.content)


async def test_fast_questions_that_wait_together_share_a_search(edge: Edge) -> None:
    row = await remember(edge, "The harbour opens at six")
    (vector,) = await edge.world.context.embedder.embed(["harbour"])
    recalls = FastRecalls(edge.services)  # type: ignore[arg-type]
    raw = json.dumps({"vector": vector.tolist(), "fast": True}).encode()
    call = Call(edge.services, edge.authority, TRUSTED_LOCAL, {}, {}, "", raw)  # type: ignore[arg-type]

    async def ask_all() -> list[Reply | None]:
        return await asyncio.gather(*(recalls.answer(call) for _ in range(16)))

    replies = await edge.island.call(ask_all)
    assert recalls.calls == 1
    for reply in replies:
        assert reply is not None
        assert reply.raw is not None
        assert [hit["id"] for hit in json.loads(reply.raw)["results"]] == [row["id"]]
