"""Erasures over HTTP, on real PostgreSQL and with real keys."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from erasure import apply
from erasure.envelope import Envelope
from erasure.verify import verify_files
from tests.support.services import Edge, edge

__all__ = ["edge"]

pytestmark = pytest.mark.postgres


async def filled(edge: Edge, name: str = "bob") -> str:
    """An agent with a memory; its id."""
    await edge.world.agent(name)
    await edge.post("/api/memory/remember", {"content": f"{name} likes tea", "agent_id": name})
    return str((await edge.get(f"/api/agents/{name}")).json()["id"])


async def erased(edge: Edge, scope_id: str, **fields: Any) -> str:
    """The id of an erasure that is certified."""
    body = {"scope": {"kind": "agent", "id": scope_id}} | fields
    begun = await edge.post("/api/erasures", body)
    assert begun.status_code == 202, begun.text
    erasure_id = str(begun.json()["erasure_id"])
    assert begun.headers["location"] == f"/api/erasures/{erasure_id}"
    await apply.drive(edge.services.erasure, erasure_id)
    return erasure_id


async def test_an_agent_is_erased_and_the_repeat_gets_the_same_certificate(edge: Edge) -> None:
    agent_id = await filled(edge)
    erasure_id = await erased(edge, "bob", request_id="r1")
    told = (await edge.get(f"/api/erasures/{erasure_id}")).json()
    assert told["state"] == "closed"
    assert told["certificate"]["payloadType"].startswith("application/")
    body = {"scope": {"kind": "agent", "id": agent_id}, "request_id": "r2"}
    again = await edge.post("/api/erasures", body)
    assert (again.status_code, again.json()["removed_now"]) == (200, 0)
    assert again.json()["certificate"] == told["certificate"]


async def test_a_certificate_leaves_byte_for_byte_under_a_strong_tag(edge: Edge) -> None:
    await filled(edge)
    erasure_id = await erased(edge, "bob")
    answer = await edge.get(f"/api/erasures/{erasure_id}/certificate")
    payload = Envelope.from_bytes(answer.content).payload
    tag = f'"{hashlib.sha256(payload).hexdigest()}"'
    assert answer.headers["content-type"] == "application/vnd.dsse+json"
    assert answer.headers["etag"] == tag
    same = await edge.get(f"/api/erasures/{erasure_id}/certificate", headers={"If-None-Match": tag})
    assert (same.status_code, same.content) == (304, b"")


async def test_the_fetched_documents_verify_without_the_node(edge: Edge, tmp_path: Path) -> None:
    await filled(edge)
    erasure_id = await erased(edge, "bob")
    files: dict[str, Path] = {}
    for name in ("certificate", "closure", "proof", "head", "trust"):
        answer = await edge.get(f"/api/erasures/{erasure_id}/{name}")
        assert answer.status_code == 200, name
        files[name] = tmp_path / f"{name}.json"
        files[name].write_bytes(answer.content)
    report = verify_files(
        files["certificate"],
        files["trust"],
        closure=files["closure"],
        proof=files["proof"],
        head=files["head"],
    )
    assert [cause.message for cause in report.causes] == []


async def test_an_erased_agent_writes_no_more(edge: Edge) -> None:
    agent_id = await filled(edge)
    await erased(edge, "bob")
    answer = await edge.post("/api/memory/remember", {"content": "x", "agent_id": agent_id})
    assert answer.status_code == 410
    listed = (await edge.get("/api/erasures", params={"state": "closed"})).json()
    assert [one["kind"] for one in listed["erasures"]] == ["agent"]


async def test_a_dry_run_counts_and_changes_nothing(edge: Edge) -> None:
    await filled(edge)
    body = {"scope": {"kind": "agent", "id": "bob"}, "dry_run": True}
    answer = await edge.post("/api/erasures", body)
    assert (answer.status_code, answer.json()["state"]) == (200, "planned")
    assert answer.json()["plan"]["tiers"]
    assert await edge.world.value("SELECT count(*) FROM erasures") == 0


@pytest.mark.parametrize(
    ("scope", "status", "code"),
    [
        ({"kind": "agent", "id": ""}, 400, "scope_invalid"),
        ({"kind": "agent", "id": "*"}, 400, "scope_invalid"),
        ({"kind": "agent", "id": "0" * 32}, 400, "scope_invalid"),
        ({"kind": "world", "id": "1" * 32}, 400, "scope_invalid"),
        ({"kind": "agent", "id": "1" * 32}, 404, "not_found"),
        ({"kind": "agent"}, 400, "invalid"),
        ({}, 400, "invalid"),
    ],
)
async def test_there_is_no_default_scope(
    edge: Edge, scope: dict[str, str], status: int, code: str
) -> None:
    answer = await edge.post("/api/erasures", {"scope": scope})
    assert (answer.status_code, answer.json()["code"]) == (status, code)


async def test_one_request_id_stands_for_one_scope(edge: Edge) -> None:
    await filled(edge, "bob")
    await filled(edge, "eve")
    await erased(edge, "bob", request_id="same")
    body = {"scope": {"kind": "agent", "id": "eve"}, "request_id": "same"}
    answer = await edge.post("/api/erasures", body)
    assert (answer.status_code, answer.json()["code"]) == (409, "request_id_conflict")


async def test_an_officer_of_one_agent_meets_no_other(edge: Edge) -> None:
    await filled(edge, "bob")
    eve = await filled(edge, "eve")
    erasure_id = await erased(edge, "bob")
    edge.configure(auth={"mode": "team"})
    token = edge.token("officer", {"agent": eve})
    foreign = await edge.get(f"/api/erasures/{erasure_id}", token=token)
    missing = await edge.get(f"/api/erasures/er_{'0' * 32}", token=token)
    assert (foreign.status_code, foreign.text) == (404, missing.text)
    admin = edge.token("admin")
    await edge.world.agent("third")
    body = {"scope": {"kind": "agent", "id": "third"}}
    assert (await edge.post("/api/erasures", body, token=token)).status_code == 404
    assert (await edge.get(f"/api/erasures/{erasure_id}", token=admin)).status_code == 200


async def test_an_erased_agent_can_be_reopened(edge: Edge) -> None:
    agent_id = await filled(edge)
    await erased(edge, "bob")
    answer = await edge.post("/api/scopes/reopen", {"scope": {"kind": "agent", "id": agent_id}})
    assert (answer.status_code, answer.json().get("epoch")) == (200, 2), answer.text


async def test_the_ledger_head_is_signed(edge: Edge) -> None:
    assert (await edge.get("/api/ledger/head")).status_code == 404
    await filled(edge)
    await erased(edge, "bob")
    answer = await edge.get("/api/ledger/head")
    assert json.loads(Envelope.from_bytes(answer.content).payload)["size"] > 1
