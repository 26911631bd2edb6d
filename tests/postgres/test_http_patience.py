"""HTTP connections that stall, swell, or do not read: each ends by itself, the others go on."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio

from node.http import patience, server
from node.memory import reading
from tests.support.services import Edge, edge

__all__ = ["edge"]

pytestmark = pytest.mark.postgres

POST = b"POST /api/memory/recall HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
async def door(edge: Edge, nursery: trio.Nursery) -> AsyncIterator[tuple[str, int]]:
    """Host and port of a running server."""
    edge.configure(network={"port": 0})
    with trio.fail_after(60):
        url: str = await nursery.start(server.serve, edge.services)
        host, _, port = url.removeprefix("http://").partition(":")
        yield host, int(port)


async def until_closed(stream: trio.SocketStream) -> bytes:
    """All that comes before the server ends the connection."""
    told = b""
    try:
        while data := await stream.receive_some(65536):
            told += data
    except trio.BrokenResourceError:
        return told
    return told


async def until_broken(stream: trio.SocketStream, piece: bytes) -> None:
    """Send the piece again and again until the server ends the connection."""
    try:
        while True:
            await stream.send_all(piece)
            await trio.sleep(0.01)
    except trio.BrokenResourceError:
        return


async def answer(stream: trio.SocketStream) -> bytes:
    """What came with the first bytes."""
    return bytes(await stream.receive_some(65536))


async def test_a_head_that_does_not_come_ends_the_connection(
    door: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "HEAD_S", 0.1)
    async with trio.open_nursery() as nursery:
        for said in (b"", b"\r\n", b"GE", HEALTH[:-2]):
            stream = await trio.open_tcp_stream(*door)
            if said.startswith(b"\r"):
                await stream.send_all(HEALTH)
                await answer(stream)
            if said:
                await stream.send_all(said)
            nursery.start_soon(until_closed, stream)


async def test_a_head_that_drips_is_not_waited_for_longer(
    door: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "HEAD_S", 0.2)
    stream = await trio.open_tcp_stream(*door)
    await stream.send_all(HEALTH[:-2])
    await until_broken(stream, b"X-A: b\r\n")


async def test_what_never_ends_is_cut_off_by_its_length(
    door: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for begun in (b"GET /", HEALTH[:-2] + b"X-A: "):
        stream = await trio.open_tcp_stream(*door)
        await stream.send_all(begun)
        await until_broken(stream, b"a" * 65_536)
    monkeypatch.setattr(patience, "MAX_REQUEST", 1 << 20)
    stream = await trio.open_tcp_stream(*door)
    await stream.send_all(POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n")
    await until_broken(stream, b"X-A: b\r\n" * 8_192)


async def test_a_body_behind_its_answer_is_not_read_for_long(
    door: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "REST_S", 0.2)
    stream = await trio.open_tcp_stream(*door)
    await stream.send_all(POST + b"Content-Length: 9999999999\r\n\r\n")
    assert (await answer(stream)).startswith(b"HTTP/1.1 413")
    await until_broken(stream, b"a" * 1_024)


async def test_an_answer_that_is_not_fetched_ends_its_use_case(
    edge: Edge, door: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "FETCH_S", 0.2)
    ended = trio.Event()
    agent = edge.world.context.agents.resolve(None)
    row = await edge.world.store(agent, "x" * 100_000)

    async def endless(*args: object) -> AsyncIterator[list[object]]:
        try:
            while True:
                await trio.lowlevel.checkpoint()
                yield [row]
        finally:
            ended.set()

    monkeypatch.setattr(reading, "export", endless)
    stream = await trio.open_tcp_stream(*door)
    await stream.send_all(b"GET /api/memory/export HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await ended.wait()
    await stream.aclose()


async def test_a_quiet_connection_between_requests_stays_open(
    door: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "HEAD_S", 0.1)
    stream = await trio.open_tcp_stream(*door)
    for _ in range(3):
        await stream.send_all(HEALTH)
        assert (await answer(stream)).startswith(b"HTTP/1.1 200")
        await trio.sleep(0.2)


async def test_requests_sent_together_are_all_answered(door: tuple[str, int]) -> None:
    stream = await trio.open_tcp_stream(*door)
    await stream.send_all(HEALTH * 20)
    told = b""
    while told.count(b"HTTP/1.1 200") < 20:
        told += await answer(stream)


async def test_more_connections_than_there_is_room_for_are_turned_away(
    door: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "MAX_CONNECTIONS", 2)
    first, second = [await trio.open_tcp_stream(*door) for _ in range(2)]
    for stream in (first, second):
        await stream.send_all(HEALTH)
        assert (await answer(stream)).startswith(b"HTTP/1.1 200")
    third = await trio.open_tcp_stream(*door)
    assert await until_closed(third) == b""
    await second.aclose()
    await first.send_all(HEALTH)
    assert (await answer(first)).startswith(b"HTTP/1.1 200")
