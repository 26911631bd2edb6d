"""The application: every route behind the guard, and its description."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from node.http import admin, agents, audits, erasures, health, memory, problems, transfer, watch
from node.http.auth import AUTHENTICATED, Authority
from node.http.guard import Guard
from node.http.routing import Call, Reply, Route, Routes, describe, endpoint
from node.http.shapes import Nothing
from node.version import VERSION

if TYPE_CHECKING:
    from node.services import Services

description = Routes()


@description.add("GET", "/openapi.json", need=AUTHENTICATED, shape=Nothing, bridged=False)
async def openapi(call: Call, given: Nothing) -> Reply:
    """This API in OpenAPI's form."""
    return Reply(schema())


@description.add("GET", "/docs", need=AUTHENTICATED, shape=Nothing, bridged=False)
async def docs(call: Call, given: Nothing) -> Reply:
    """This API for people."""
    return Reply(raw=health.page(schema()).encode("utf-8"), media_type="text/html; charset=utf-8")


PARTS: Final = (health, transfer, watch, memory, agents, admin, audits, erasures)
ROUTES: Final[tuple[Route[Any], ...]] = (
    *(route for part in PARTS for route in part.routes.all),
    *description.all,
)
"""Every route; the first that matches answers."""


def build(services: Services, authority: Authority, port: int) -> Guard:
    """The ASGI application. `port` is the bound one, which origins are compared with."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    for route in ROUTES:
        app.add_api_route(
            route.path,
            endpoint(route, services, authority),
            methods=[route.method],
            response_model=None,
        )
    app.add_exception_handler(HTTPException, _unrouted)
    return Guard(app, services, port)


@cache
def schema() -> dict[str, Any]:
    """The API in OpenAPI 3.1, made once; not to be changed."""
    app = FastAPI(title="mnemesh", version=VERSION, openapi_url=None, docs_url=None, redoc_url=None)
    for route in ROUTES:
        app.add_api_route(
            route.path,
            _described,
            methods=[route.method],
            summary=route.summary,
            openapi_extra=describe(route),
            operation_id=f"{route.method.lower()}_{route.handler.__name__}",
            response_model=None,
        )
    made = app.openapi()
    made.setdefault("components", {})["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer"}
    }
    return made


async def _described() -> None:
    """Stands for a handler in the description."""


async def _unrouted(request: Request, error: Exception) -> Response:
    """What the router itself refuses: unknown paths and methods."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    texts = {404: ("not found", "not_found"), 405: ("method not allowed", "method")}
    text, code = texts.get(status, ("the request is not valid", "invalid"))
    headers = error.headers if isinstance(error, HTTPException) else None
    return problems.json_response({"error": text, "code": code}, status=status, headers=headers)
