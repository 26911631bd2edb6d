"""Routes of provable forgetting: ask for an erasure, follow it, fetch its documents.

Documents leave as the bytes that were signed. A caller who is bound to one agent or project
learns nothing about any other: a foreign erasure answers like a missing one.
"""

from __future__ import annotations

import base64
import binascii
import json
import secrets
from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from erasure import requests
from erasure.envelope import Envelope
from erasure.requests import EraseRequest, Wrapper
from erasure.scope import parse_scope
from erasure.states import State, reached
from node.http.problems import AccessDenied
from node.http.routing import Call, Reply, Routes
from node.http.shapes import IdText, Nothing, Shape, limited
from node.http.tokens import Permission
from node.http.views import when
from storage import erasures, ledger
from storage.errors import InvalidInput, NotFound
from storage.model import Scope, ScopeKind, id_text
from storage.pool import Tx

DSSE: Final = "application/vnd.dsse+json"
READERS: Final = (Permission.ERASE, Permission.AUDIT)

routes = Routes()


class ScopeBody(Shape):
    """One agent or one project, by its name here or its id; there is no default."""

    kind: str
    id: Annotated[str, Field(max_length=256)]


class EraseBody(Shape):
    """What must go, and why."""

    scope: ScopeBody
    basis: Annotated[str, Field(max_length=64)] = "other"
    request_id: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    dry_run: bool = False
    assert_absent: bool = False


class ReopenBody(Shape):
    """A scope that may write again."""

    scope: ScopeBody


class ListQuery(Shape):
    """A page of erasures."""

    state: IdText | None = None
    cursor: Annotated[str, Field(max_length=512)] | None = None
    limit: limited(50, 1, 200) = 50  # type: ignore[valid-type]


@routes.add(
    "POST", "/api/erasures", need=Permission.ERASE, shape=EraseBody, operation="forceDelete"
)
async def erase(call: Call, given: EraseBody) -> Reply:
    """Start the erasure of a scope, or join the one that is there."""
    scope = _scope(call, given.scope)
    request = EraseRequest(
        scope=scope,
        basis=given.basis,
        request_id=given.request_id or secrets.token_hex(16),
        dry_run=given.dry_run,
        assert_absent=given.assert_absent,
    )
    context = call.services.erasure
    begun = await requests.intend(context, request)
    if isinstance(begun, Wrapper):
        return Reply(_view(begun))
    place = {"Location": f"/api/erasures/{begun}"}
    standing = await requests.status(context, begun)
    if reached(standing.state, State.CERTIFIED):
        return Reply(_view(await requests.erase(context, request)), headers=place)
    return Reply(_view(standing), status=202, headers=place)


@routes.add("GET", "/api/erasures", need=READERS, shape=ListQuery)
async def list_erasures(call: Call, given: ListQuery) -> Reply:
    """Erasures of this node, newest first."""
    if _bound(call):
        raise AccessDenied("the credential is bound to one scope and may not list erasures")
    rows = await requests.listing(
        call.services.erasure,
        state=given.state,
        before=_read_cursor(given.cursor),
        limit=given.limit,
    )
    body: dict[str, Any] = {
        "erasures": [
            {
                name: when(value) if isinstance(value, datetime) else value
                for name, value in row.items()
            }
            for row in rows
        ],
        "limit": given.limit,
    }
    if len(rows) == given.limit:
        body["nextCursor"] = _write_cursor(rows[-1]["requested_at"], rows[-1]["erasure_id"])
    return Reply(body)


@routes.add("GET", "/api/erasures/{id}", need=READERS, shape=Nothing)
async def get_erasure(call: Call, given: Nothing) -> Reply:
    """How an erasure stands."""
    erasure_id = await _reachable(call)
    return Reply(_view(await requests.status(call.services.erasure, erasure_id)))


@routes.add("GET", "/api/erasures/{id}/certificate", need=READERS, shape=Nothing)
async def certificate(call: Call, given: Nothing) -> Reply:
    """The certificate, byte for byte."""
    data = await _document(call, "certificate")
    tag = f'"{Envelope.from_bytes(data).sha256.hex()}"'
    if tag in [one.strip() for one in call.headers.get("if-none-match", "").split(",")]:
        return Reply(raw=b"", status=304, headers={"ETag": tag}, media_type=DSSE)
    return Reply(raw=data, headers={"ETag": tag}, media_type=DSSE)


@routes.add("GET", "/api/erasures/{id}/closure", need=READERS, shape=Nothing)
async def closure(call: Call, given: Nothing) -> Reply:
    """The closure, byte for byte; 404 while peers are pending."""
    return Reply(raw=await _document(call, "closure"), media_type=DSSE)


@routes.add("GET", "/api/erasures/{id}/proof", need=READERS, shape=Nothing)
async def proof(call: Call, given: Nothing) -> Reply:
    """That the certificate is in the ledger."""
    return Reply(raw=await _document(call, "proof"))


@routes.add("GET", "/api/erasures/{id}/head", need=READERS, shape=Nothing)
async def proof_head(call: Call, given: Nothing) -> Reply:
    """The signed head of the ledger that the proof leads to."""
    return Reply(raw=await _document(call, "head"), media_type=DSSE)


@routes.add("GET", "/api/erasures/{id}/trust", need=READERS, shape=Nothing)
async def trust(call: Call, given: Nothing) -> Reply:
    """The keys of the nodes as this one knows them, to be compared with your own list."""
    return Reply(raw=await _document(call, "trust"))


@routes.add("GET", "/api/erasures/{id}/receipts", need=READERS, shape=Nothing)
async def receipts(call: Call, given: Nothing) -> Reply:
    """Receipts of the peers, and the notices that they answer; 404 while there is none."""
    found = await requests.documents(call.services.erasure, await _reachable(call))
    if not found["receipts"] and not found["notices"]:
        raise NotFound("no receipts yet")
    return Reply(
        {
            "receipts": [_parsed(found["receipts"][node]) for node in sorted(found["receipts"])],
            "notices": [_parsed(one) for one in found["notices"]],
        }
    )


@routes.add("GET", "/api/erasures/{id}/addenda", need=READERS, shape=Nothing)
async def addenda(call: Call, given: Nothing) -> Reply:
    """What was added after the certificate; 404 while there is nothing."""
    found = await requests.documents(call.services.erasure, await _reachable(call))
    if not found["addenda"]:
        raise NotFound("no addenda")
    return Reply({"addenda": [_parsed(one) for one in found["addenda"]]})


@routes.add(
    "POST", "/api/scopes/reopen", need=Permission.ERASE, shape=ReopenBody, operation="admin"
)
async def reopen(call: Call, given: ReopenBody) -> Reply:
    """Let an erased scope write again, in its next epoch."""
    scope = _scope(call, given.scope)
    epoch = await requests.reopen(call.services.erasure, scope)
    return Reply({"scope": {"kind": scope.kind.value, "id": id_text(scope.id)}, "epoch": epoch})


@routes.add("GET", "/api/ledger/head", need=Permission.AUDIT, shape=Nothing)
async def ledger_head(call: Call, given: Nothing) -> Reply:
    """The signed head of this node's ledger."""
    data = await call.services.db.read(_head)
    if data is None:
        raise NotFound("the ledger is empty")
    return Reply(raw=data, media_type=DSSE)


async def _head(tx: Tx) -> bytes | None:
    end = await ledger.head(tx)
    last = await ledger.entry(tx, end.size) if end else None
    return last.head if last else None


async def _document(
    call: Call, name: Literal["certificate", "closure", "proof", "head", "trust"]
) -> bytes:
    found = await requests.documents(call.services.erasure, await _reachable(call))
    data: bytes | None = found[name]
    if data is None:
        raise NotFound(f"no {name} yet")
    return data


async def _reachable(call: Call) -> str:
    """The erasure in the path, if the credential reaches its scope. Raises NotFound."""
    erasure_id = call.path["id"]
    row = await call.services.db.read(erasures.get, erasure_id)
    if row is None:
        raise NotFound("erasure not found")
    for scope in _bound_scopes(call):
        if scope is None or (
            scope.kind.value == row.kind and call.services.local.handle(scope) != row.handle
        ):
            raise NotFound("erasure not found")
    return erasure_id


def _scope(call: Call, given: ScopeBody) -> Scope:
    """The scope of a request. A foreign one answers like a missing one."""
    scope = _named(call, given.kind, given.id) or parse_scope(given.kind, given.id)
    for bound in _bound_scopes(call):
        if bound is None or (bound.kind is scope.kind and bound.id != scope.id):
            raise NotFound("scope not found")
    return scope


def _bound(call: Call) -> bool:
    return call.who.bound_agent is not None or call.who.bound_project is not None


def _bound_scopes(call: Call) -> list[Scope | None]:
    """The scopes that the credential is bound to; None for one that is unknown here."""
    bound = (("agent", call.who.bound_agent), ("project", call.who.bound_project))
    return [_named(call, kind, name) for kind, name in bound if name is not None]


def _named(call: Call, kind: str, name: str) -> Scope | None:
    services = call.services
    if kind == ScopeKind.AGENT:
        for agent in services.agents.all():
            if name in (agent.name, id_text(agent.id)):
                return Scope(ScopeKind.AGENT, agent.id)
    elif kind == ScopeKind.PROJECT:
        for project in services.access.current.projects.values():
            if name in (project.name, id_text(project.project_id)):
                return Scope(ScopeKind.PROJECT, project.project_id)
    return None


def _view(wrapper: Wrapper) -> dict[str, Any]:
    return wrapper.as_json() | {"due_by": when(wrapper.due_by)}


def _parsed(data: bytes) -> Any:
    return json.loads(Envelope.from_bytes(data).to_bytes())


def _write_cursor(requested_at: datetime, erasure_id: str) -> str:
    text = f"{requested_at.isoformat()} {erasure_id}"
    return base64.urlsafe_b64encode(text.encode("ascii")).rstrip(b"=").decode("ascii")


def _read_cursor(text: str | None) -> tuple[datetime, str] | None:
    if text is None:
        return None
    try:
        raw = base64.urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
        stamp, _, erasure_id = raw.decode("ascii").partition(" ")
        moment = datetime.fromisoformat(stamp)
    except (binascii.Error, ValueError):
        raise InvalidInput("cursor is invalid") from None
    if moment.tzinfo is None or not erasure_id:
        raise InvalidInput("cursor is invalid")
    return moment, erasure_id
