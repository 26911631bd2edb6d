"""Limits of the agent port."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PortSettings:
    """`listen` is `host:port` for TLS, None for the unix socket alone; times are seconds.

    `in_flight` bounds the requests that one connection has under way beside its fast recalls;
    while so many are, nothing more is read from it. `backlog_bytes` bounds what waits to be read
    by the client before the node stops reading from it.
    """

    listen: str | None = None
    connections: int = 256
    hello_s: float = 5.0
    idle_s: float = 600.0
    frame_s: float = 30.0
    send_s: float = 20.0
    request_s: float = 60.0
    in_flight: int = 32
    backlog_bytes: int = 1 << 20
    slice: int = 16
    watches: int = 4
