"""Agents, projects and the upkeep of a node over HTTP."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from storage.keyring import KeyStore, NodeIdentity
from tests.support.services import Edge, edge, write_config

__all__ = ["edge"]

pytestmark = pytest.mark.postgres


def other_node(folder: Path) -> NodeIdentity:
    keys = KeyStore(folder)
    keys.prepare()
    return keys.node()


def pem(identity: NodeIdentity) -> str:
    return ssl.DER_cert_to_PEM_cert(identity.certificate_der)


async def test_an_agent_is_made_isolated_and_changed_by_name(edge: Edge) -> None:
    made = await edge.post("/api/agents", {"name": "bob"})
    changed = await edge.post(
        "/api/agents", {"name": "bob", "read_policy": "shared", "description": "billing"}
    )
    assert (made.status_code, made.json()["read_policy"]) == (201, "isolated")
    assert (changed.status_code, changed.json()["id"]) == (200, made.json()["id"])
    shown = (await edge.get(f"/api/agents/{made.json()['id']}")).json()
    assert (shown["name"], shown["read_policy"], shown["description"]) == (
        "bob",
        "shared",
        "billing",
    )


async def test_a_group_policy_without_its_group_is_refused(edge: Edge) -> None:
    answer = await edge.post("/api/agents", {"name": "bob", "read_policy": "group"})
    assert answer.status_code == 400
    assert answer.json()["error"] == "policy_group is required for read_policy group"


async def test_an_unknown_agent_or_project_is_missing(edge: Edge) -> None:
    assert (await edge.get("/api/agents/nobody")).status_code == 404
    answer = await edge.post("/api/memory/remember", {"content": "x", "project": "none"})
    assert (answer.status_code, answer.json()["error"]) == (404, "project not found")


async def test_projects_are_listed_with_their_nodes(edge: Edge) -> None:
    project_id = await edge.world.project("team")
    (project,) = (await edge.get("/api/projects")).json()["projects"]
    assert project["name"] == "team"
    assert project["id"].replace("-", "") == project_id.hex()
    assert [one["node_id"] for one in project["nodes"]] == [edge.world.node.node_id.hex()]


async def test_a_project_is_shared_by_admitting_joining_and_revoking(
    edge: Edge, tmp_path: Path
) -> None:
    other = other_node(tmp_path / "other")
    await edge.post("/api/projects", {"name": "a b"})
    body = {"certificate_pem": pem(other), "address": "host:3851"}

    admitted = await edge.post("/api/projects/a%20b/admit", body)
    assert admitted.status_code == 200
    (project,) = (await edge.get("/api/projects")).json()["projects"]
    assert {one["node_id"]: one["address"] for one in project["nodes"]} == {
        edge.world.node.node_id.hex(): "127.0.0.1:3851",
        other.node_id.hex(): "host:3851",
    }

    joined = await edge.post("/api/projects/join", {"invitation": admitted.json()["invitation"]})
    assert joined.json() == {"joined": "a b", "pending": False}

    revoked = await edge.post("/api/projects/a%20b/revoke", {"node_id": other.node_id.hex()})
    assert revoked.status_code == 200
    (project,) = (await edge.get("/api/projects")).json()["projects"]
    assert [one["node_id"] for one in project["nodes"]] == [edge.world.node.node_id.hex()]
    again = await edge.post("/api/projects/a%20b/admit", body)
    assert again.status_code == 409


@pytest.mark.parametrize("certificate", ["PEM", "-----BEGIN CERTIFICATE-----\nAAAA\n"])
async def test_what_is_no_certificate_is_not_admitted(edge: Edge, certificate: str) -> None:
    await edge.post("/api/projects", {"name": "team"})
    body = {"certificate_pem": certificate, "address": "host:3851"}
    assert (await edge.post("/api/projects/team/admit", body)).status_code == 400


async def test_an_invitation_of_another_form_is_refused(edge: Edge) -> None:
    answer = await edge.post("/api/projects/join", {"invitation": {"v": 1}})
    assert (answer.status_code, answer.json()["error"]) == (
        400,
        "not an invitation of this version",
    )


async def test_a_node_id_in_another_form_is_refused(edge: Edge) -> None:
    answer = await edge.post("/api/projects/team/revoke", {"node_id": "AB" * 16})
    assert (answer.status_code, answer.json()["error"]) == (400, "node_id is invalid")


async def test_the_node_shows_its_certificate_and_no_key(edge: Edge) -> None:
    told = (await edge.get("/api/node")).json()
    der = ssl.PEM_cert_to_DER_cert(told["certificate_pem"])
    assert der == edge.world.node.identity.certificate_der
    assert "PRIVATE" not in told["certificate_pem"]


async def test_a_reload_applies_hot_keys_and_names_the_cold(edge: Edge) -> None:
    write_config(edge.services.workspace.root, search={"top_k": 7}, content={"max_bytes": "512KiB"})
    told = (await edge.post("/api/reload")).json()
    assert told["status"] == "applied"
    assert told["changed"] == ["search.top_k"]
    assert told["restart"] == ["content.max_bytes"]


async def test_a_bad_file_changes_nothing(edge: Edge) -> None:
    before = edge.services.reloader.current
    write_config(edge.services.workspace.root, search={"top_k": "many"})
    answer = await edge.post("/api/reload")
    assert (answer.status_code, answer.json()["status"]) == (400, "rejected")
    assert answer.json()["problems"] == ["search.top_k: expected a whole number"]
    assert edge.services.reloader.current is before


async def test_a_sweep_runs_once_for_each_call(edge: Edge) -> None:
    await edge.post("/api/repair/retention-sweep")
    assert len(edge.services.swept) == 1


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"role": "root"}, "role is invalid"),
        ({}, "role is required"),
        (
            {"role": "agent", "scope": {"planet": "x"}},
            "scope has an unknown field; known are project, agent and user",
        ),
        ({"role": "agent", "scope": {"agent": ""}}, "scope.agent is invalid"),
        ({"role": "agent", "ttlSeconds": 0}, "ttlSeconds is invalid"),
    ],
)
async def test_a_token_that_could_not_work_is_not_issued(
    edge: Edge, body: dict[str, object], reason: str
) -> None:
    answer = await edge.post("/api/auth/token", body)
    assert (answer.status_code, answer.json()["error"]) == (400, reason)


async def test_the_api_describes_itself(edge: Edge) -> None:
    schema = (await edge.get("/openapi.json")).json()
    page = await edge.get("/docs")
    assert "/api/erasures/{id}/certificate" in schema["paths"]
    assert page.headers["content-type"].startswith("text/html")


async def test_readiness_fails_with_the_database(
    edge: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    from storage.database_errors import DatabaseUnavailable

    async def fail(*args: object) -> None:
        raise DatabaseUnavailable

    assert (await edge.get("/ready")).json() == {"ready": True}
    monkeypatch.setattr(type(edge.services.db), "read", fail)
    answer = await edge.get("/ready")
    assert (answer.status_code, answer.json()["error"]) == (503, "database: unavailable")
    assert (await edge.get("/health")).status_code == 200
