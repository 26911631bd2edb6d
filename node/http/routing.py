"""Routes, and the one way from a request to a use case.

A route is declared once with its method, path, need, and the shape of its input; the wrapper made
from it identifies the caller, judges permission and rate, reads a bounded body, runs the handler
as one trio call and ends that call when the client leaves. Handlers never see HTTP.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from node.http import problems
from node.http.auth import OPEN, Authority, Credential, Need, choose_agent, choose_project
from node.http.problems import BodyTooLarge, BodyTooSlow, NotServing, WrongMediaType
from node.http.shapes import Nothing, Shape, parse, parse_json, parse_query
from node.http.streams import ClientGone, open_stream, until_gone
from storage.errors import MnemeshError
from storage.island import Island
from storage.model import AgentProfile, ProjectId

if TYPE_CHECKING:
    from node.services import Services

JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
MAX_BODY: Final = 2 << 20
BODY_S: Final = 60.0
"""Seconds in which a body must have arrived."""
_PARAMETER: Final = re.compile(r"{(\w+)}")

S = TypeVar("S", bound=Shape)

CLIENT_GONE: Final = 499


@dataclass(frozen=True, slots=True)
class Call:
    """What a handler knows of its request."""

    services: Services
    authority: Authority
    who: Credential
    path: Mapping[str, str]
    headers: Mapping[str, str]
    request_id: str
    raw: bytes = b""

    def agent(self, given: str | None) -> AgentProfile:
        """The agent to act for; see `choose_agent`."""
        own = self.services.reloader.current.agent.name
        return choose_agent(self.who, given, self.services.agents, own)

    def reader(self, given: str | None) -> AgentProfile:
        """The agent to read for, isolated when it is unknown here; see `choose_agent`."""
        own = self.services.reloader.current.agent.name
        return choose_agent(self.who, given, self.services.agents, own, reads=True)

    def project(self, given: str | None) -> ProjectId | None:
        """The project that the request names; see `choose_project`."""
        return choose_project(self.who, given, self.services.access.current)

    def spend(self, operation: str) -> None:
        """Count a call of an operation that the body decides on; see `Authority.spend`."""
        self.authority.spend(self.who, operation)


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer: JSON of `body`, or `raw` bytes, or a `stream` of bytes made in trio."""

    body: Any = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    raw: bytes | None = None
    stream: AsyncIterator[bytes] | None = None
    media_type: str = JSON


Handler = Callable[[Call, S], Awaitable[Reply]]
AtOnce = Callable[[Call], Awaitable[Reply | None]]
"""What may reply to a call on the island's loop; None leaves it to the handler."""


@dataclass(frozen=True, slots=True)
class Route(Generic[S]):
    """One operation of the API.

    `operation` is the rate limit that every call spends, `use_case` the name under which calls
    are counted and timed beside the plain counting of requests.
    """

    method: str
    path: str
    need: Need
    shape: type[S]
    handler: Handler[S]
    summary: str
    operation: str | None
    media: str
    max_body: int
    bridged: bool
    use_case: str | None

    @property
    def has_body(self) -> bool:
        return self.method == "POST" and (self.shape is not Nothing or self.media != JSON)


class Routes:
    """The routes of one part of the API, in order: the first that matches answers."""

    def __init__(self) -> None:
        self.all: list[Route[Any]] = []

    def add(
        self,
        method: str,
        path: str,
        *,
        need: Need,
        shape: type[S],
        operation: str | None = None,
        media: str = JSON,
        max_body: int = MAX_BODY,
        bridged: bool = True,
        use_case: str | None = None,
    ) -> Callable[[Handler[S]], Handler[S]]:
        """Declare the decorated handler a route.

        `need` has no default, so that a route nobody thought about fails at import. A handler
        that is not `bridged` runs on the island's loop and must neither block nor call trio.
        """

        def declare(handler: Handler[S]) -> Handler[S]:
            summary = (handler.__doc__ or "").strip().splitlines()[0].rstrip(".")
            self.all.append(
                Route(
                    method=method,
                    path=path,
                    need=need,
                    shape=shape,
                    handler=handler,
                    summary=summary,
                    operation=operation,
                    media=media,
                    max_body=max_body,
                    bridged=bridged,
                    use_case=use_case,
                )
            )
            return handler

        return declare


def endpoint(
    route: Route[Any], services: Services, authority: Authority, at_once: AtOnce | None = None
) -> Callable[[Request], Awaitable[Response]]:
    """The request handler of a route; what `at_once` gives a reply to goes no further."""

    async def serve(request: Request) -> Response:
        request_id = request.state.request_id
        try:
            return await _answer(route, services, authority, request, at_once)
        except ClientGone:
            return Response(status_code=CLIENT_GONE)
        except Exception as error:  # noqa: BLE001 - becomes the answer, logged when unexpected
            _count_refusal(services, error)
            return problems.answer(error, request_id)

    return serve


async def _answer(
    route: Route[Any],
    services: Services,
    authority: Authority,
    request: Request,
    at_once: AtOnce | None,
) -> Response:
    if route.need != OPEN and services.not_ready is not None:
        raise NotServing(services.not_ready)
    who = _caller(route, authority, request)
    raw = await _body(route, request) if route.has_body else b""
    call = Call(
        services=services,
        authority=authority,
        who=who,
        path=dict(request.path_params),
        headers=request.headers,
        request_id=request.state.request_id,
        raw=raw,
    )
    if at_once is not None:
        swift = await at_once(call)
        if swift is not None:
            return await _respond(swift, services.island)
    given: Shape
    if route.has_body and route.media == JSON:
        given = parse(route.shape, parse_json(raw))
    else:
        query = parse_query(request.query_params.multi_items())
        given = parse(route.shape, query, kind="filter")
    if not route.bridged:
        return await _respond(await route.handler(call, given), services.island)
    with counted(services, route.use_case):
        reply: Reply = await until_gone(
            request.receive, services.island.to_trio(route.handler, call, given)
        )
    return await _respond(reply, services.island)


@contextmanager
def counted(services: Services, use_case: str | None) -> Iterator[None]:
    """Count and time a use case by its result."""
    if use_case is None:
        yield
        return
    metrics = services.metrics.memory
    begun = time.perf_counter()
    result = "failed"
    try:
        yield
        result = "ok"
    except MnemeshError as error:
        result = error.code
        raise
    except ClientGone:
        result = "cancelled"
        raise
    finally:
        metrics.operations_total.labels(operation=use_case, result=result).inc()
        metrics.seconds.labels(operation=use_case).observe(time.perf_counter() - begun)


def _caller(route: Route[Any], authority: Authority, request: Request) -> Credential:
    peer = request.client.host if request.client else None
    authorization = request.headers.get("authorization")
    if route.need == OPEN:
        return _if_known(authority, authorization, peer)
    who = authority.identify(authorization, peer)
    authority.require(who, route.need)
    if route.operation is not None:
        authority.spend(who, route.operation)
    return who


def _if_known(authority: Authority, authorization: str | None, peer: str | None) -> Credential:
    try:
        return authority.identify(authorization, peer)
    except problems.Unauthenticated:
        return Credential("", "nobody", frozenset())


async def _body(route: Route[Any], request: Request) -> bytes:
    """The body, refused by its type and its announced length before a byte of it is read."""
    media, _, parameters = request.headers.get("content-type", "").partition(";")
    charset = parameters.replace(" ", "").lower()
    if media.strip().lower() != route.media or charset not in ("", "charset=utf-8"):
        raise WrongMediaType(f"the body must be {route.media}")
    announced = request.headers.get("content-length", "0")
    if announced.isascii() and announced.isdigit() and int(announced[:15]) > route.max_body:
        raise BodyTooLarge(f"the body exceeds {route.max_body} bytes")
    try:
        async with asyncio.timeout(BODY_S):
            return await _bounded(request, route.max_body)
    except TimeoutError:
        raise BodyTooSlow("the body took too long") from None
    except ClientDisconnect:
        raise ClientGone from None


async def _bounded(request: Request, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise BodyTooLarge(f"the body exceeds {limit} bytes")
        parts.append(part)
    return b"".join(parts)


async def _respond(reply: Reply, island: Island) -> Response:
    if reply.stream is not None:
        return await open_stream(
            reply.stream, island, status=reply.status, media_type=reply.media_type
        )
    if reply.raw is not None:
        return Response(
            reply.raw,
            status_code=reply.status,
            media_type=reply.media_type,
            headers=reply.headers,
        )
    return problems.json_response(reply.body, status=reply.status, headers=reply.headers)


def _count_refusal(services: Services, error: Exception) -> None:
    if isinstance(error, problems.TooManyRequests):
        services.metrics.http.rate_limited_total.labels(operation=error.operation).inc()
    elif isinstance(error, problems.Unauthenticated):
        services.metrics.http.auth_refused_total.labels(reason=str(error)).inc()


def describe(route: Route[Any]) -> dict[str, Any]:
    """The route's input and need, in OpenAPI's terms."""
    schema = route.shape.model_json_schema()
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PARAMETER.findall(route.path)
    ]
    described: dict[str, Any] = {"x-need": _need_text(route.need)}
    if route.has_body:
        described["requestBody"] = {"required": True, "content": {route.media: {"schema": schema}}}
    else:
        parameters += [
            {
                "name": name,
                "in": "query",
                "required": name in schema.get("required", ()),
                "schema": part,
            }
            for name, part in schema.get("properties", {}).items()
        ]
    if parameters:
        described["parameters"] = parameters
    if route.need != OPEN:
        described["security"] = [{"bearer": []}]
    return described


def _need_text(need: Need) -> str:
    return " or ".join(need) if isinstance(need, tuple) else str(need)
