"""An agent port on a real unix socket over real use cases, and clients of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio

from node import agent_port
from node.client import Client, open_client
from node.port import messages
from node.port.codec import FrameBuffer, encode, read_reply
from node.port.place import SOCKET
from node.port.settings import PortSettings
from tests.support.services import Edge


@dataclass
class Port:
    """A served agent port; `stop` and `start` make a restart of the listener."""

    edge: Edge
    nursery: trio.Nursery
    settings: PortSettings
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    ended: trio.Event = field(default_factory=trio.Event)
    places: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        return self.edge.services.workspace.daemon / SOCKET

    async def start(self) -> None:
        self.scope, self.ended = trio.CancelScope(), trio.Event()

        async def serve(*, task_status: trio.TaskStatus[tuple[str, ...]]) -> None:
            with self.scope:
                await agent_port.serve(
                    self.edge.services,  # type: ignore[arg-type]
                    self.settings,
                    task_status=task_status,
                )
            self.ended.set()

        self.places = await self.nursery.start(serve)

    async def stop(self) -> None:
        self.scope.cancel()
        await self.ended.wait()

    @asynccontextmanager
    async def client(self, agent: str | None = None, **options: object) -> AsyncIterator[Client]:
        options.setdefault("patience_s", 60.0)
        place = f"unix:{self.path}"
        async with open_client(place, agent=agent, **options) as client:  # type: ignore[arg-type]
            yield client

    async def raw(self, hello: bool = True) -> Raw:
        """A bare connection, for saying what no client would say."""
        raw = Raw(await trio.open_unix_socket(str(self.path)))
        if hello:
            await raw.say(messages.Hello(messages.VERSION))
            assert isinstance(await raw.hear(), messages.Welcome)
        return raw


class Raw:
    """One connection without any manners."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._buffer = FrameBuffer()
        self._frames: list[bytes] = []

    async def say(self, *given: messages.Request | bytes) -> None:
        for each in given:
            await self.stream.send_all(each if isinstance(each, bytes) else encode(each))

    async def hear(self) -> messages.Reply | None:
        """The next answer, None at the end of the connection."""
        while not self._frames:
            try:
                data = await self.stream.receive_some(65536)
            except trio.BrokenResourceError:
                return None
            if not data:
                return None
            self._frames = self._buffer.feed(data)
        return read_reply(self._frames.pop(0))


@pytest.fixture
async def port(edge: Edge, nursery: trio.Nursery) -> AsyncIterator[Port]:
    """A node's agent port that serves; ends with the test."""
    port = Port(edge, nursery, PortSettings(hello_s=0.5, frame_s=0.5, send_s=1.0))
    await port.start()
    yield port
    await port.stop()
