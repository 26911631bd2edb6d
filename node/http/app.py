"""The application: every route behind the guard, and its description."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from node.http import (
    admin,
    agents,
    audits,
    endings,
    erasures,
    health,
    memory,
    problems,
    transfer,
    watch,
)
from node.http.auth import AUTHENTICATED, Authority
from node.http.fast import FastRecalls
from node.http.guard import Guard
from node.http.routing import AtOnce, Call, Reply, Route, Routes, describe, endpoint
from node.http.shapes import Nothing
from node.version import VERSION

if TYPE_CHECKING:
    from node.services import Services

Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]

description = Routes()


@description.add("GET", "/openapi.json", need=AUTHENTICATED, shape=Nothing, bridged=False)
async def openapi(call: Call, given: Nothing) -> Reply:
    """This API in OpenAPI's form."""
    return Reply(schema())


@description.add("GET", "/docs", need=AUTHENTICATED, shape=Nothing, bridged=False)
async def docs(call: Call, given: Nothing) -> Reply:
    """This API for people."""
    return Reply(raw=health.page(schema()).encode("utf-8"), media_type="text/html; charset=utf-8")


PARTS: Final = (health, transfer, watch, memory, endings, agents, admin, audits, erasures)
ROUTES: Final[tuple[Route[Any], ...]] = (
    *(route for part in PARTS for route in part.routes.all),
    *description.all,
)
"""Every route; the first that matches answers."""


def build(services: Services, authority: Authority, port: int) -> Guard:
    """The ASGI application. `port` is the bound one, which origins are compared with."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    at_once: dict[Any, AtOnce] = {memory.recall_for: FastRecalls(services).answer}
    plain: dict[tuple[str, str], tuple[Route[Any], Endpoint]] = {}
    for number, route in enumerate(ROUTES):
        answer = endpoint(route, services, authority, at_once.get(route.handler))
        app.add_api_route(route.path, answer, methods=[route.method], response_model=None)
        if "{" not in route.path and not any(_shadows(one, route) for one in ROUTES[:number]):
            plain[route.method, route.path] = route, answer
    app.add_exception_handler(HTTPException, _unrouted)
    return Guard(_Plain(plain, app), services, port)


class _Plain:
    """Finds a path without parameters by itself; the rest is the router's."""

    def __init__(
        self, routes: Mapping[tuple[str, str], tuple[Route[Any], Endpoint]], rest: ASGIApp
    ) -> None:
        self._routes = routes
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self._routes.get((scope["method"], scope["path"]))
        if found is None:
            await self._rest(scope, receive, send)
            return
        scope["route"], answer = found
        response = await answer(Request(scope, receive))
        await response(scope, receive, send)


def _shadows(earlier: Route[Any], route: Route[Any]) -> bool:
    """Whether the router would take an earlier route for this one's path."""
    pattern = re.sub(r"{\w+}", "[^/]+", earlier.path)
    return earlier.method == route.method and re.fullmatch(pattern, route.path) is not None


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
