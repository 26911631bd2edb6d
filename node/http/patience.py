"""What one HTTP connection may cost: how long it may say nothing, and how much it may say.

uvicorn waits for ever for a request's head, keeps a header of any length, reads on behind an
answer that was final, and keeps what a client does not fetch. Here each of these ends: the slow
and the deaf are cut off after some seconds, the endless after some bytes, and who comes when the
house is full is turned away.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_S: Final = 10.0
"""Seconds in which a request's head must have arrived."""
REST_S: Final = 5.0
"""Seconds for which the rest of a body is read that was answered before its end."""
FETCH_S: Final = 20.0
"""Seconds in which the client must have fetched what waits for it."""
MAX_HEAD: Final = 64 * 1024
MAX_REQUEST: Final = 32 << 20
"""Bytes of a request: above the largest body of any route."""
MAX_CONNECTIONS: Final = 512

log = logging.getLogger(__name__)
log.setLevel(logging.ERROR)  # a line for each broken request would push all else out of the log


class PatientProtocol(HttpToolsProtocol):
    """uvicorn's connection with limits of its own. Runs on the island's loop."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.logger = log
        self._in_head = True
        self._heard = 0
        self._due: asyncio.TimerHandle | None = None
        self._fetching: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()
            return
        self._expect(HEAD_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect(None)
        if self._fetching is not None:
            self._fetching.cancel()
            self._fetching = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._heard += len(data)
        super().data_received(data)
        if self._heard > (MAX_HEAD if self._in_head else MAX_REQUEST):
            self.transport.abort()
        elif self._in_head and self._answered and self._due is None:
            self._expect(HEAD_S)

    def on_message_begin(self) -> None:
        self._heard = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # behind a body they are trailers, which nobody reads
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._expect(None)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_head = True
        self._heard = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._fetch()
        elif not self._in_head:
            self._expect(REST_S)

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._fetch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._fetch()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._fetching is not None and not self.transport.is_closing():
            self._fetching.cancel()
            self._fetching = None

    @property
    def _answered(self) -> bool:
        return self.cycle is None or bool(self.cycle.response_complete)

    def _expect(self, seconds: float | None) -> None:
        """Cut the connection off in so many seconds, unless this is called again."""
        if self._due is not None:
            self._due.cancel()
        self._due = None if seconds is None else self.loop.call_later(seconds, self._late)

    def _late(self) -> None:
        self._due = None
        self.transport.abort()

    def _fetch(self) -> None:
        if self._fetching is None:
            self._fetching = self.loop.call_later(FETCH_S, self.transport.abort)
