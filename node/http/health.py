"""Routes that watch the node: alive, ready, measured, described."""

from __future__ import annotations

import html
from typing import Any

import trio
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from node.http.auth import OPEN
from node.http.routing import Call, Reply, Routes
from node.http.shapes import Nothing
from node.http.tokens import Permission
from node.http.views import when
from storage import principals
from storage.errors import MnemeshError

PROBE_S = 2.0

routes = Routes()


@routes.add("GET", "/health", need=OPEN, shape=Nothing, bridged=False)
async def health(call: Call, given: Nothing) -> Reply:
    """Alive: answered without the database."""
    services = call.services
    uptime = (services.local.wall() - services.started_at).total_seconds()
    return Reply({"status": "ok", "uptimeSeconds": round(uptime, 3)})


@routes.add("GET", "/ready", need=OPEN, shape=Nothing)
async def ready(call: Call, given: Nothing) -> Reply:
    """Serving: 200, or 503 with the reason."""
    reason = call.services.not_ready or await _database_fault(call)
    if reason is None:
        return Reply({"ready": True})
    return Reply(
        {"ready": False, "error": reason, "code": "unavailable"},
        status=503,
        headers={"Retry-After": "1"},
    )


async def _database_fault(call: Call) -> str | None:
    with trio.move_on_after(PROBE_S):
        try:
            await call.services.db.read(principals.state, "ready")
        except MnemeshError as error:
            return f"database: {error.code}"
        return None
    return "database: no answer"


@routes.add("GET", "/metrics", need=Permission.DIAGNOSTICS, shape=Nothing)
async def metrics(call: Call, given: Nothing) -> Reply:
    """All metrics as Prometheus text."""
    text = generate_latest(call.services.metrics.registry)
    return Reply(raw=text, media_type=CONTENT_TYPE_LATEST)


@routes.add("GET", "/api/auth/whoami", need=OPEN, shape=Nothing, bridged=False)
async def whoami(call: Call, given: Nothing) -> Reply:
    """Who the node takes the caller for."""
    who = call.who
    claims = who.claims
    return Reply(
        {
            "authenticated": claims is not None,
            "trustedLocal": claims is None and who.is_admin,
            "effectiveAccess": {"role": who.role, "permissions": sorted(who.permissions)},
            "claims": claims.as_dict() if claims else None,
            "mode": call.authority.mode,
            "providers": [],
        }
    )


@routes.add("GET", "/api/status", need=Permission.DIAGNOSTICS, shape=Nothing)
async def status(call: Call, given: Nothing) -> Reply:
    """The node in one page: identity, memories, mesh, projects."""
    services = call.services
    graph = services.memory.residency.graph.stats()
    return Reply(
        {
            "node_id": services.local.node_id.hex(),
            "mesh_id": services.local.mesh_id,
            "startedAt": when(services.started_at),
            "ready": services.not_ready is None,
            "model": services.memory.embedder.model_id,
            "resident": graph.resident,
            "ceiling": graph.ceiling,
            "cold": services.memory.residency.has_cold,
            "hot": services.snapshots.status(),
            "agents": [agent.name for agent in services.agents.all()],
            "projects": sorted(
                project.name for project in services.access.current.projects.values()
            ),
            "mesh": services.mesh.status(),
        }
    )


def page(schema: dict[str, Any]) -> str:
    """The list of all operations as one HTML page without scripts or outside assets."""
    rows = [
        f"<tr><td><code>{html.escape(method.upper())}</code></td>"
        f"<td><code>{html.escape(path)}</code></td>"
        f"<td>{html.escape(operation.get('summary', ''))}</td>"
        f"<td>{html.escape(operation.get('x-need', ''))}</td></tr>"
        for path, operations in schema["paths"].items()
        for method, operation in operations.items()
    ]
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>mnemesh API</title>"
        "<style>body{font:15px system-ui;margin:2rem}td,th{padding:.3rem .8rem;text-align:left}"
        "tr:nth-child(even){background:#f4f4f4}</style>"
        "<h1>mnemesh API</h1><p>The machine-readable form is "
        '<a href="/openapi.json">/openapi.json</a>.</p>'
        "<table><tr><th>Method<th>Path<th>What it does<th>Needs</tr>"
        f"{''.join(rows)}</table></html>"
    )
