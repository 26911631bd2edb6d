"""The agent port: where agents in a hurry reach their node, without HTTP between.

Listens on the workspace's `.daemon/agent.sock`, which only the node's own user can open, and over
TLS where `agent_port.listen` names an address. What is said is in `node/port/messages.py`, how a
connection is served in `node/port/session.py`; this module only accepts and lets go.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from gossip.greeting import address_text
from gossip.tls import open_context
from gossip.transport import parse_address
from node.http.auth import Authority
from node.http.tokens import load_secret
from node.port.answers import Answers
from node.port.place import MAX_PATH, SOCKET
from node.port.session import Session
from node.port.settings import PortSettings
from storage.errors import InvalidInput, StartRefused

if TYPE_CHECKING:
    from node.services import Services

log = logging.getLogger(__name__)

BACKLOG: Final = 256
HANDSHAKE_S: Final = 10.0
KEEPALIVE: Final = {
    getattr(socket, name): value
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))
    if hasattr(socket, name)
}
"""When the system asks whether a silent agent is still there: one that follows may say nothing for
long, and one whose machine vanished would keep its place for ever."""
_CREDENTIALS: Final = struct.Struct("3i")


async def serve(
    services: Services,
    settings: PortSettings,
    *,
    task_status: trio.TaskStatus[tuple[str, ...]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Service: the agent port until cancelled; started with the bound places.

    A workspace with a path too long for a socket's name has no unix socket, with a warning.
    Raises StartRefused when an address cannot be bound.
    """
    secret = await trio.to_thread.run_sync(load_secret, services.workspace.auth_secret)
    authority = Authority(
        secret,
        lambda: services.reloader.current.auth,
        lambda: services.local.wall().timestamp(),
    )
    door = _Door(services, authority, settings)
    places: list[str] = []
    path = services.workspace.daemon / SOCKET
    async with trio.open_nursery() as nursery:
        try:
            if len(os.fsencode(path)) > MAX_PATH:
                log.warning("the workspace's path is too long for the agent port's unix socket")
            else:
                local = _bind_unix(path)
                await nursery.start(partial(trio.serve_listeners, door.local, [local]))
                places.append(f"unix:{path}")
            if settings.listen is not None:
                remote = await _bind_tcp(settings.listen)
                await nursery.start(partial(trio.serve_listeners, door.remote, remote))
                places += [f"tls:{address_text(one.socket.getsockname())}" for one in remote]
            task_status.started(tuple(places))
            await trio.sleep_forever()
        finally:
            path.unlink(missing_ok=True)


class _Door:
    """Lets connections in, as many as there is room for."""

    def __init__(self, services: Services, authority: Authority, settings: PortSettings) -> None:
        self._services = services
        self._authority = authority
        self._settings = settings
        self._answers = Answers(services)
        self._room = settings.connections
        self._tls = open_context(services.local.identity)

    async def local(self, stream: trio.SocketStream) -> None:
        """One connection over the unix socket."""
        await self._admit(stream, stream, local=_same_user(stream.socket), peer=None)

    async def remote(self, stream: trio.SocketStream) -> None:
        """One connection over TLS."""
        try:
            peer = str(stream.socket.getpeername()[0])
            for option, value in KEEPALIVE.items():
                stream.setsockopt(socket.IPPROTO_TCP, option, value)
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        except OSError:
            stream.socket.close()
            return
        secure = trio.SSLStream(stream, self._tls, server_side=True, https_compatible=True)
        await self._admit(secure, stream, local=False, peer=peer)

    async def _admit(
        self,
        stream: trio.abc.Stream,
        raw: trio.SocketStream,
        *,
        local: bool,
        peer: str | None,
    ) -> None:
        try:
            if self._room == 0:
                return
            self._room -= 1
            try:
                if isinstance(stream, trio.SSLStream):
                    with trio.fail_after(HANDSHAKE_S):
                        await stream.do_handshake()
                session = Session(
                    self._services,
                    self._authority,
                    self._settings,
                    self._answers,
                    stream,
                    local=local,
                    peer=peer,
                )
                await session.run()
            finally:
                self._room += 1
        except (trio.BrokenResourceError, trio.TooSlowError):
            log.debug("an agent's handshake failed")
        except Exception:
            log.exception("the task of an agent's connection failed; the port goes on")
        finally:
            raw.socket.close()


def _bind_unix(path: Path) -> trio.SocketListener:
    """A listener that only this user may connect to; what a killed node left is replaced."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise StartRefused(f"cannot listen on {path}: {error.strerror}") from error
    return trio.SocketListener(trio.socket.from_stdlib_socket(listener))


async def _bind_tcp(listen: str) -> list[trio.SocketListener]:
    try:
        host, port = parse_address(listen)
        return list(await trio.open_tcp_listeners(port, host=host or None, backlog=BACKLOG))
    except InvalidInput as error:
        raise StartRefused(f"agent_port.listen: {error}") from error
    except OSError as error:
        raise StartRefused(
            f"agent_port.listen: cannot listen on {listen}: {error.strerror}"
        ) from error


def _same_user(connection: trio.socket.SocketType) -> bool:
    """Whether the peer runs as this process does; where the system cannot tell, the socket's
    mode alone kept others out."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return True
    raw = connection.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size)
    user: int = _CREDENTIALS.unpack(raw)[1]
    return user == os.geteuid()
