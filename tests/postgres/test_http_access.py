"""Who may call: modes, roles, scopes, limits, hosts and origins, over every route."""

from __future__ import annotations

import re
from typing import Any

import pytest

from node.http.app import ROUTES
from node.http.auth import OPEN
from node.http.tokens import ROLES, Permission
from tests.support.services import Edge, edge

__all__ = ["edge"]

pytestmark = pytest.mark.postgres

TEAM = {"mode": "team"}


def filled(path: str) -> str:
    """A route's path with some value in each place."""
    return re.sub(r"{\w+}", "0" * 32, path)


async def ask(edge: Edge, method: str, path: str, media: str, **options: Any) -> Any:
    if method != "POST":
        return await edge.request(method, path, **options)
    return await edge.post(path, {}, headers={"Content-Type": media}, **options)


async def test_l_49_every_route_needs_a_token_in_team_mode(edge: Edge) -> None:
    edge.configure(auth=TEAM)
    for route in ROUTES:
        answer = await ask(edge, route.method, filled(route.path), route.media)
        if route.need == OPEN:
            assert answer.status_code == 200, route.path
        else:
            assert answer.status_code == 401, route.path
            assert answer.json()["error"] == "authentication required"
            assert answer.headers["www-authenticate"] == "Bearer"


async def test_every_route_turns_away_each_role_without_its_permission(edge: Edge) -> None:
    edge.configure(auth=TEAM)
    for role in ROLES:
        token = edge.token(role, {"user": "u"})
        for route in ROUTES:
            if not isinstance(route.need, Permission) or route.need in ROLES[role]:
                continue
            answer = await ask(edge, route.method, filled(route.path), route.media, token=token)
            assert answer.status_code == 403, (role, route.path)
            assert answer.json()["error"] == f"role '{role}' lacks '{route.need}' permission"


async def test_permissions_in_a_token_only_narrow(edge: Edge) -> None:
    edge.configure(auth=TEAM)
    narrow = edge.token("agent", {"agent": "default"}, permissions=frozenset({"recall", "admin"}))
    wrote = await edge.post("/api/memory/remember", {"content": "x"}, token=narrow)
    reloaded = await edge.post("/api/reload", {}, token=narrow)
    assert wrote.json()["error"] == "credential lacks 'remember' permission"
    assert reloaded.json()["error"] == "role 'agent' lacks 'admin' permission"
    assert (await edge.get("/api/memories", token=narrow)).status_code == 200


async def test_v_5_4_hybrid_trusts_this_machine_alone(edge: Edge) -> None:
    edge.configure(auth={"mode": "hybrid"})
    for peer, status in (("127.0.0.1", 200), ("::1", 200), ("10.0.0.5", 401)):
        assert (await edge.get("/api/memories", peer=peer)).status_code == status, peer


async def test_a_forwarded_address_counts_for_nothing(edge: Edge) -> None:
    edge.configure(auth={"mode": "hybrid"})
    headers = {"X-Forwarded-For": "127.0.0.1", "Forwarded": "for=127.0.0.1"}
    answer = await edge.get("/api/memories", peer="10.0.0.5", headers=headers)
    assert answer.status_code == 401


async def test_v_5_5_a_token_of_one_agent_does_not_act_for_another(edge: Edge) -> None:
    edge.configure(auth=TEAM)
    await edge.world.agent("alice")
    await edge.world.agent("bob")
    token = edge.token("agent", {"agent": "alice"})
    for name in ("bob", "nobody"):
        answer = await edge.post(
            "/api/memory/recall", {"query": "x", "agent_id": name}, token=token
        )
        assert answer.status_code == 403
        assert answer.json()["error"] == "scope restricted to agent 'alice'"
    mine = await edge.post("/api/memory/remember", {"content": "x"}, token=token)
    assert mine.json()["agent_id"] == "alice"


async def test_a_token_of_one_project_does_not_write_into_another(edge: Edge) -> None:
    edge.configure(auth=TEAM)
    await edge.world.project("red")
    await edge.world.project("blue")
    token = edge.token("agent", {"project": "red", "agent": "default"})
    body = {"content": "x", "agent_id": "default"}
    other = await edge.post("/api/memory/remember", body | {"project": "blue"}, token=token)
    own = await edge.post("/api/memory/remember", body | {"project": "red"}, token=token)
    assert other.json()["error"] == "scope restricted to project 'red'"
    assert (own.status_code, own.json()["project"]) == (200, "red")


async def test_l_47_nobody_without_a_scope_gets_the_default_agent(edge: Edge) -> None:
    edge.configure(auth=TEAM)
    empty = await edge.get("/api/memories", token=edge.token("agent"))
    assert (empty.status_code, empty.json()["error"]) == (403, "credential has no scope")
    project = await edge.get("/api/memories", token=edge.token("agent", {"project": "p"}))
    assert (project.status_code, project.json()["error"]) == (400, "agent_id is required")
    admin = await edge.get("/api/memories", token=edge.token("admin"))
    assert admin.status_code == 200


async def test_l_47_a_token_of_an_agent_that_is_gone_reads_nothing(edge: Edge) -> None:
    edge.configure(auth=TEAM)
    admin, gone = edge.token("admin"), edge.token("agent", {"agent": "ghost"})
    await edge.post("/api/memory/remember", {"content": "the harbour opens"}, token=admin)
    found = await edge.post("/api/memory/recall", {"query": "harbour"}, token=gone)
    assert (found.status_code, found.json()["results"]) == (200, [])
    wrote = await edge.post("/api/memory/remember", {"content": "x"}, token=gone)
    assert wrote.status_code == 404
    other = await edge.get("/api/memories", params={"agent_id": "default"}, token=gone)
    assert other.status_code == 403


async def test_v_13_6_names_with_signs_work_as_scopes(edge: Edge) -> None:
    edge.configure(auth=TEAM)
    for name in ("team-a", "a:b", 'a"b', "a'b", "名前"):
        await edge.world.agent(name)
        token = edge.token("agent", {"agent": name})
        row = await edge.post("/api/memory/remember", {"content": name}, token=token)
        assert row.json()["agent_id"] == name
        page = await edge.get("/api/memories", token=token)
        assert [one["content"] for one in page.json()["memories"]] == [name]


async def test_the_agents_list_shows_a_bound_credential_itself_alone(edge: Edge) -> None:
    edge.configure(auth=TEAM)
    await edge.world.agent("alice")
    listed = await edge.get("/api/agents", token=edge.token("agent", {"agent": "alice"}))
    assert [agent["name"] for agent in listed.json()["agents"]] == ["alice"]


async def test_a_used_up_allowance_is_told(edge: Edge) -> None:
    limits = {"batchForget": {"max": 2}, "forget": {"max": 1}}
    edge.configure(auth=TEAM | {"rate_limits": limits})
    token = edge.token("agent", {"agent": "default"})
    several = {"ids": ["0" * 32, "1" * 32]}
    for _ in range(2):
        answer = await edge.post("/api/memory/forget", several, token=token)
        assert answer.status_code == 404
    answer = await edge.post("/api/memory/forget", several, token=token)
    assert (answer.status_code, answer.json()["error"]) == (429, "rate limit exceeded")
    assert answer.json()["retryAfter"] == 1785585660000
    assert answer.headers["retry-after"] == "60"
    single = await edge.post("/api/memory/forget", {"id": "0" * 32}, token=token)
    assert single.status_code == 404


async def test_local_mode_has_no_limits(edge: Edge) -> None:
    for _ in range(12):
        assert (await edge.post("/api/repair/retention-sweep")).status_code == 200


async def test_an_issued_token_lets_its_bearer_in(edge: Edge) -> None:
    edge.configure(auth=TEAM)
    body = {"role": "readonly", "scope": {"agent": "default"}, "ttlSeconds": 60}
    made = await edge.post("/api/auth/token", body, token=edge.token("admin"))
    token = made.json()["token"]
    assert made.json()["expiresAt"] == "2026-08-01T12:01:00.000Z"
    assert (await edge.get("/api/memories", token=token)).status_code == 200
    who = (await edge.get("/api/auth/whoami", token=token)).json()
    assert (who["authenticated"], who["claims"]["sub"]) == (True, "token:readonly")
    edge.world.pass_time(seconds=60)
    late = await edge.get("/api/memories", token=token)
    assert (late.status_code, late.json()["error"]) == (401, "token expired")


async def test_whoami_tells_a_trusted_caller(edge: Edge) -> None:
    who = (await edge.get("/api/auth/whoami")).json()
    assert (who["authenticated"], who["trustedLocal"], who["mode"]) == (False, True, "local")
    edge.configure(auth=TEAM)
    stranger = (await edge.get("/api/auth/whoami")).json()
    assert (stranger["trustedLocal"], stranger["effectiveAccess"]["permissions"]) == (False, [])


@pytest.mark.parametrize("host", ["evil.test", "evil.test:3850", "", "a b", "127.0.0.1@evil.test"])
async def test_a_rebound_name_is_turned_away(edge: Edge, host: str) -> None:
    answer = await edge.get("/health", headers={"Host": host})
    assert (answer.status_code, answer.json()["error"]) == (403, "host is not allowed")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:3850", "[::1]:3850"])
async def test_this_machines_names_are_let_in(edge: Edge, host: str) -> None:
    assert (await edge.get("/health", headers={"Host": host})).status_code == 200


async def test_v_5_6_a_foreign_origin_is_turned_away(edge: Edge) -> None:
    for origin in ("http://evil.test", "null", "http://localhost:1", "http://localhost.evil.test"):
        answer = await edge.post(
            "/api/memory/remember", {"content": "x"}, headers={"Origin": origin}
        )
        assert answer.status_code == 403, origin
        assert "access-control-allow-origin" not in answer.headers
    assert await edge.world.value("SELECT count(*) FROM memories") == 0


async def test_a_listed_origin_is_let_in(edge: Edge) -> None:
    for origin in ("http://localhost:3850", "http://127.0.0.1:5173", "app://mnemesh"):
        answer = await edge.get("/api/memories", headers={"Origin": origin})
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == origin
        assert answer.headers["vary"] == "Origin"


async def test_a_preflight_is_answered_for_listed_origins_alone(edge: Edge) -> None:
    asked = {"Access-Control-Request-Method": "POST"}
    good = await edge.request(
        "OPTIONS", "/api/memories", headers=asked | {"Origin": "http://localhost:3850"}
    )
    bad = await edge.request(
        "OPTIONS", "/api/memories", headers=asked | {"Origin": "http://evil.test"}
    )
    assert (good.status_code, bad.status_code) == (204, 403)


@pytest.mark.parametrize("media", ["text/plain", "application/x-www-form-urlencoded", ""])
async def test_a_body_of_another_type_is_refused(edge: Edge, media: str) -> None:
    answer = await edge.request(
        "POST",
        "/api/memory/remember",
        content=b'{"content": "x"}',
        headers={"Content-Type": media},
    )
    assert (answer.status_code, answer.json()["error"]) == (
        415,
        "the body must be application/json",
    )


async def test_a_starting_node_answers_its_health_alone(edge: Edge) -> None:
    edge.services.not_ready = "starting"
    assert (await edge.get("/health")).status_code == 200
    ready = await edge.get("/ready")
    assert (ready.status_code, ready.json()["error"]) == (503, "starting")
    page = await edge.get("/api/memories")
    assert (page.status_code, page.json()["error"]) == (503, "starting")
    assert page.headers["retry-after"] == "1"


async def test_an_unexpected_failure_tells_its_id_alone(
    edge: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> list[Any]:
        raise RuntimeError("a secret detail")

    monkeypatch.setattr(edge.services.mesh, "members", fail)
    answer = await edge.get("/api/members")
    assert answer.status_code == 500
    assert answer.json() == {
        "error": "internal error",
        "code": "internal",
        "requestId": answer.headers["x-request-id"],
    }


async def test_unknown_paths_and_methods_are_told(edge: Edge) -> None:
    assert (await edge.get("/api/nothing")).json() == {"error": "not found", "code": "not_found"}
    assert (await edge.get("/api/memory/recall")).status_code in (400, 405)
    assert (await edge.request("DELETE", "/api/memories")).status_code == 405


async def test_requests_are_counted_by_their_template(edge: Edge) -> None:
    await edge.get(f"/api/memory/{'0' * 32}")
    text = (await edge.get("/metrics")).text
    assert (
        'mnemesh_http_requests_total{method="GET",route="/api/memory/{id}",status="404"} 1.0'
        in text
    )


async def test_use_cases_are_counted_with_their_result(edge: Edge) -> None:
    for body in ({"content": "x"}, {"content": "x"}, {"content": ""}):
        await edge.post("/api/memory/remember", body)
    await edge.post("/api/memory/recall", {"query": "x"})
    text = (await edge.get("/metrics")).text
    wanted = (
        'mnemesh_memory_operations_total{operation="remember",result="ok"} 2.0',
        'mnemesh_memory_operations_total{operation="remember",result="invalid"} 1.0',
        "mnemesh_memory_deduped_total 1.0",
        "mnemesh_memory_recall_hits_count 1.0",
    )
    assert [line for line in wanted if line not in text] == []
