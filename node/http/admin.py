"""Routes for whoever runs the node: identity, members, configuration, tokens, upkeep."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from typing import Any

from pydantic import Field

from node.http.routing import Call, Reply, Routes
from node.http.shapes import Nothing, Shape, Ttl
from node.http.tokens import SCOPE_FIELDS, Permission
from node.http.views import when
from storage.errors import InvalidInput

routes = Routes()


class TokenBody(Shape):
    """A token to issue."""

    role: str
    scope: dict[str, str] = Field(default_factory=dict)
    ttlSeconds: Ttl = None


@routes.add("GET", "/api/node", need=Permission.DIAGNOSTICS, shape=Nothing)
async def node(call: Call, given: Nothing) -> Reply:
    """Who this node is: id, certificate, mesh, addresses."""
    services = call.services
    settings = services.reloader.current.gossip
    identity = services.local.identity
    return Reply(
        {
            "node_id": services.local.node_id.hex(),
            "certificate_pem": ssl.DER_cert_to_PEM_cert(identity.certificate_der),
            "fingerprint": identity.fingerprint.hex(),
            "mesh_id": services.local.mesh_id,
            "listen": settings.listen,
            "advertise": settings.advertise or settings.listen,
        }
    )


@routes.add("GET", "/api/members", need=Permission.DIAGNOSTICS, shape=Nothing)
async def members(call: Call, given: Nothing) -> Reply:
    """The nodes of the mesh as this one sees them."""
    found: list[dict[str, Any]] = [
        {
            "node_id": member.node_id.hex(),
            "address": member.address,
            "status": member.status,
            "projects": list(member.projects),
            "linked": member.linked,
            "last_contact": when(member.last_contact),
            "score": member.score,
            "profile_entries": member.profile_entries,
        }
        for member in call.services.mesh.members()
    ]
    return Reply({"members": found})


@routes.add("POST", "/api/reload", need=Permission.ADMIN, shape=Nothing, operation="admin")
async def reload(call: Call, given: Nothing) -> Reply:
    """Take the configuration file over, all or nothing."""
    result = await call.services.reload()
    return Reply(result.as_dict(), status=400 if result.status == "rejected" else 200)


@routes.add("POST", "/api/auth/token", need=Permission.ADMIN, shape=TokenBody, operation="admin")
async def token(call: Call, given: TokenBody) -> Reply:
    """Issue a bearer token."""
    for field, value in given.scope.items():
        if field not in SCOPE_FIELDS:
            raise InvalidInput("scope has an unknown field; known are project, agent and user")
        if not value:
            raise InvalidInput(f"scope.{field} is invalid")
    ttl_ms = None if given.ttlSeconds is None else given.ttlSeconds * 1000
    text, expires = call.authority.issue(given.role, given.scope, ttl_ms)
    return Reply({"token": text, "expiresAt": when(datetime.fromtimestamp(expires, UTC))})


@routes.add(
    "POST",
    "/api/repair/retention-sweep",
    need=Permission.ADMIN,
    shape=Nothing,
    operation="admin",
)
async def sweep(call: Call, given: Nothing) -> Reply:
    """Run the retention steps now."""
    return Reply(await call.services.sweep())
