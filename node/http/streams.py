"""Work for a client that may leave: ended when it does, streamed while it stays.

A plain handler would run on after its client has gone. Parts of a stream are made in trio, one
bridged call for each, and fetched only when the one before is out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import suppress
from typing import TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from storage.island import Island

T = TypeVar("T")


class ClientGone(Exception):
    """The client closed the connection; nobody reads the answer."""


async def until_gone(receive: Receive, work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled and waited for when the client leaves.

    Raises ClientGone then.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue


async def open_stream(
    parts: AsyncIterator[bytes], island: Island, *, status: int, media_type: str
) -> Response:
    """A response of these parts.

    The first is fetched before the status is out, so that a refusal can still be told; a later
    failure cuts the stream, which the client sees as a broken transfer.
    """
    first = await island.to_trio(_next, parts)
    return _Streaming(parts, first, island, status, media_type)


async def _next(parts: AsyncIterator[bytes]) -> bytes | None:
    return await anext(parts, None)


async def _close(parts: AsyncIterator[bytes]) -> None:
    close = getattr(parts, "aclose", None)
    if close is not None:
        await close()


class _Streaming(Response):
    def __init__(
        self,
        parts: AsyncIterator[bytes],
        first: bytes | None,
        island: Island,
        status: int,
        media_type: str,
    ) -> None:
        super().__init__(status_code=status, media_type=media_type)
        del self.headers["content-length"]
        self._parts = parts
        self._first = first
        self._island = island

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send(
            {
                "type": "http.response.start",
                "status": self.status_code,
                "headers": self.raw_headers,
            }
        )
        with suppress(ClientGone):
            await until_gone(receive, self._send(send))

    async def _send(self, send: Send) -> None:
        part = self._first
        try:
            while part is not None:
                await send({"type": "http.response.body", "body": part, "more_body": True})
                part = await self._island.to_trio(_next, self._parts)
        finally:
            await self._island.to_trio(_close, self._parts)
        await send({"type": "http.response.body", "body": b"", "more_body": False})
