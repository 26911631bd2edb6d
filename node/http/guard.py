"""The wall before routing: which hosts and origins may speak to this node at all.

Browsers on the same machine reach a loopback port, so a page from elsewhere is kept out by its
Origin and a rebound name by its Host. Also gives every request its id and counts it.
"""

from __future__ import annotations

import ipaddress
import secrets
import socket
import time
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from node.http import problems
from node.http.problems import AccessDenied, NotServing
from node.sections import NetworkSection, is_loopback

if TYPE_CHECKING:
    from node.services import Services

METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
DEV_PORT: Final = 5173
_TAILNET_V4: Final = ipaddress.ip_network("100.64.0.0/10")
_TAILNET_V6: Final = ipaddress.ip_network("fd7a:115c:a1e0::/48")


class Guard:
    """ASGI middleware. `port` is the one that was bound; `stopping` refuses whatever comes."""

    def __init__(self, app: ASGIApp, services: Services, port: int) -> None:
        self.stopping = False
        self._app = app
        self._services = services
        self._port = port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError("only HTTP is served here")
        request_id = secrets.token_hex(8)
        scope.setdefault("state", {})["request_id"] = request_id
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        metrics = self._services.metrics.http
        status = 500
        begun = time.perf_counter()

        async def tell(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                answer = MutableHeaders(scope=message)
                answer["X-Request-Id"] = request_id
                answer["X-Content-Type-Options"] = "nosniff"
                answer["Cache-Control"] = "no-store"
                if origin is not None and self._origin_allowed(origin):
                    answer["Access-Control-Allow-Origin"] = origin
                    answer["Access-Control-Allow-Credentials"] = "true"
                    answer.add_vary_header("Origin")
            await send(message)

        metrics.in_flight.inc()
        try:
            early = self._judge(scope, headers, origin)
            if early is None:
                await self._app(scope, receive, tell)
            else:
                await early(scope, receive, tell)
        finally:
            metrics.in_flight.dec()
            route = getattr(scope.get("route"), "path", "unmatched")
            method = scope["method"] if scope["method"] in METHODS else "other"
            metrics.requests_total.labels(method=method, route=route, status=str(status)).inc()
            metrics.seconds.labels(method=method, route=route).observe(time.perf_counter() - begun)

    def _judge(self, scope: Scope, headers: Headers, origin: str | None) -> Response | None:
        request_id: str = scope["state"]["request_id"]
        if self.stopping:
            return problems.answer(NotServing("stopping"), request_id)
        if not self._host_allowed(headers.get("host", "")):
            return problems.answer(AccessDenied("host is not allowed"), request_id)
        if origin is not None and not self._origin_allowed(origin):
            return problems.answer(AccessDenied("origin is not allowed"), request_id)
        if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            return Response(
                status_code=204,
                headers={
                    "Access-Control-Allow-Methods": "GET, POST, DELETE",
                    "Access-Control-Allow-Headers": "Authorization, Content-Type",
                    "Access-Control-Max-Age": "600",
                },
            )
        return None

    @property
    def _network(self) -> NetworkSection:
        return self._services.reloader.current.network

    def _host_allowed(self, given: str) -> bool:
        host = _host_of(f"//{given}")
        if host is None:
            return False
        network = self._network
        if is_loopback(host) or host == network.host.lower():
            return True
        if network.effective_mode == "localhost":
            return False
        return _is_address(host) or host.endswith(".ts.net") or host == socket.gethostname().lower()

    def _origin_allowed(self, origin: str) -> bool:
        if origin == "app://mnemesh":
            return True
        try:
            parts = urlsplit(origin)
            port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
        except ValueError:
            return False
        host = parts.hostname or ""
        if parts.scheme == "http" and host in ("localhost", "127.0.0.1"):
            return port in (self._port, DEV_PORT)
        return (
            self._network.effective_mode == "tailscale"
            and parts.scheme in ("http", "https")
            and port == self._port
            and _is_tailnet(host)
        )


@lru_cache(64)
def _host_of(text: str) -> str | None:
    try:
        parts = urlsplit(text)
        parts.port  # noqa: B018 - raises for a port that is none
    except ValueError:
        return None
    plain = not (parts.path or parts.query or parts.fragment or parts.username is not None)
    return parts.hostname if plain else None


def _address(host: str) -> Any:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _is_address(host: str) -> bool:
    return _address(host) is not None


def _is_tailnet(host: str) -> bool:
    address = _address(host)
    if address is None:
        return host.endswith(".ts.net")
    return address in (_TAILNET_V4 if address.version == 4 else _TAILNET_V6)
