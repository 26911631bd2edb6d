"""Runs the HTTP side: uvicorn in the island, started, announced and stopped from trio."""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio
import uvicorn

from node.http.app import build
from node.http.auth import Authority
from node.http.patience import PatientProtocol
from node.http.tokens import load_secret
from storage.errors import StartRefused, Unavailable

if TYPE_CHECKING:
    from node.services import Services

BACKLOG: Final = 512
KEEP_ALIVE_S: Final = 15
GRACE_S: Final = 3
URL_FILE: Final = "http"


class _Server(uvicorn.Server):
    """Tells a trio run when it listens."""

    def __init__(self, config: uvicorn.Config, token: trio.lowlevel.TrioToken) -> None:
        super().__init__(config)
        self.listening = trio.Event()
        self._token = token

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self._token.run_sync_soon(self.listening.set)


async def serve(
    services: Services, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED
) -> None:
    """Service: HTTP until cancelled; ready, with the bound URL, when it listens.

    The URL also stands in the workspace's `.daemon/http` while the server runs. Stopping refuses
    new requests, answers those under way with 503, and takes about 0.2 s. Raises StartRefused
    when the address cannot be bound.
    """
    network = services.reloader.current.network
    listener = bind(network.address, network.port)
    with listener:
        port = listener.getsockname()[1]
        secret = await trio.to_thread.run_sync(load_secret, services.workspace.auth_secret)
        authority = Authority(
            secret,
            lambda: services.reloader.current.auth,
            lambda: services.local.wall().timestamp(),
        )
        guard = build(services, authority, port)
        config = uvicorn.Config(
            guard,
            loop="none",
            http=PatientProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=GRACE_S,
        )
        server = _Server(config, trio.lowlevel.current_trio_token())
        host = network.address if network.effective_mode == "localhost" else network.host
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        announced = services.workspace.daemon / URL_FILE

        async def run() -> None:
            with trio.CancelScope(shield=True):
                await services.island.call(server.serve, [listener])
            if not guard.stopping:
                raise Unavailable("the HTTP server ended unasked")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            try:
                await server.listening.wait()
                _announce(announced, url)
                task_status.started(url)
                await trio.sleep_forever()
            finally:
                announced.unlink(missing_ok=True)
                guard.stopping = True
                services.island.refuse_inbound()
                server.should_exit = True


def bind(address: str, port: int) -> socket.socket:
    """A bound TCP socket. Raises StartRefused with one line that names the address."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise StartRefused(f"cannot listen on {address}:{port}: {error.strerror}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise StartRefused(f"cannot listen on {address}:{port}: {error.strerror}") from error
    return listener


def _announce(path: Path, url: str) -> None:
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(f"{url}\n")
    fresh.replace(path)
