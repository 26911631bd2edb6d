"""Where a node's agent port is, and a stream to it."""

from __future__ import annotations

import hashlib
import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from node.port.refusal import Refused
from node.workspace import resolve_workspace
from storage.errors import InvalidInput

SOCKET: Final = "agent.sock"
MAX_PATH: Final = 107
"""Bytes of a unix socket's name."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the node listens: `path` of its unix socket, or `host` and `port` over TLS.

    `fingerprint` is the SHA-256 of the node's certificate in hex; over TLS it is required.
    """

    path: str | None = None
    host: str = ""
    port: int = 0
    fingerprint: str | None = None

    def __str__(self) -> str:
        return f"unix:{self.path}" if self.path is not None else f"tls:{self.host}:{self.port}"

    async def connect(self) -> trio.abc.Stream:
        """A stream to the node. Raises OSError and Refused for another node's certificate."""
        if self.path is not None:
            return await trio.open_unix_socket(self.path)
        tcp = await trio.open_tcp_stream(self.host, self.port)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        stream = trio.SSLStream(tcp, context, https_compatible=True)
        try:
            await stream.do_handshake()
            shown = hashlib.sha256(stream.getpeercert(binary_form=True) or b"").hexdigest()
            if shown != (self.fingerprint or "").lower().replace(":", ""):
                raise Refused("certificate", "the node shows another certificate")
        except BaseException:
            tcp.socket.close()
            raise
        return stream


def find_place(place: str | Path | None, fingerprint: str | None) -> Place:
    """What `place` of `open_client` names; the socket itself will do, too. Raises InvalidInput."""
    text = str(place) if place is not None else ""
    if text.startswith("tls:"):
        return _remote(text.removeprefix("tls:"), fingerprint)
    if text.startswith(("http:", "https:")):
        raise InvalidInput(
            "place: this client speaks the agent port, not HTTP; give a workspace, unix:PATH or "
            "tls:HOST:PORT"
        )
    if text.startswith("unix:"):
        path = Path(text.removeprefix("unix:")).expanduser()
    elif Path(text).name == SOCKET:
        path = Path(text).expanduser()
    else:
        folder = resolve_workspace(Path(text) if text else None, os.environ, Path.home())
        if not folder.is_dir():
            raise InvalidInput(f"there is no workspace {folder}; `mnemesh init` makes one")
        path = folder / ".daemon" / SOCKET
    if len(os.fsencode(path)) > MAX_PATH:
        raise InvalidInput(
            f"place: a socket's path has at most {MAX_PATH} bytes, {path} is longer; move the "
            "workspace or use tls"
        )
    return Place(path=str(path))


def _remote(text: str, fingerprint: str | None) -> Place:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit():
        raise InvalidInput("place: expected tls:HOST:PORT")
    if not 0 < int(port) < 1 << 16:
        raise InvalidInput("place: a port is between 1 and 65535")
    if not fingerprint:
        raise InvalidInput("fingerprint is required with tls; `mnemesh node show` tells it")
    return Place(host=host.strip("[]"), port=int(port), fingerprint=fingerprint)
