"""The server on a real socket: announced, stopped, busy, left by its clients."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator

import httpx
import pytest
import trio

from node.http import routing, server
from node.memory import reading
from storage.errors import StartRefused
from tests.support.services import Edge, config, edge

__all__ = ["edge"]

pytestmark = pytest.mark.postgres


@pytest.fixture
async def url(edge: Edge, nursery: trio.Nursery) -> AsyncIterator[str]:
    """A running server on a free port."""
    edge.configure(network={"port": 0})
    with trio.fail_after(60):
        yield await nursery.start(server.serve, edge.services)


async def test_the_bound_address_is_announced(edge: Edge, url: str) -> None:
    file = edge.services.workspace.daemon / "http"
    assert file.read_text() == f"{url}\n"
    assert file.stat().st_mode & 0o777 == 0o600
    async with httpx.AsyncClient(timeout=60) as client:
        answer = await client.get(f"{url}/health")
    assert (answer.status_code, answer.json()["status"]) == (200, "ok")


async def test_a_stopped_server_leaves_nothing_behind(edge: Edge) -> None:
    edge.configure(network={"port": 0})
    async with httpx.AsyncClient(timeout=60) as client:
        with trio.fail_after(60):
            async with trio.open_nursery() as running:
                url = await running.start(server.serve, edge.services)
                assert (await client.get(f"{url}/ready")).status_code == 200
                running.cancel_scope.cancel()
        with pytest.raises(httpx.ConnectError):
            await client.get(f"{url}/health")
    assert not (edge.services.workspace.daemon / "http").exists()


async def test_a_request_under_way_is_answered_at_the_stop(
    edge: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    edge.configure(network={"port": 0})
    begun = trio.Event()

    async def hang(*args: object, **options: object) -> None:
        begun.set()
        await trio.sleep_forever()

    monkeypatch.setattr(reading, "page", hang)
    answers: list[httpx.Response] = []

    async def ask(url: str) -> None:
        async with httpx.AsyncClient(timeout=60) as client:
            answers.append(await client.get(f"{url}/api/memories"))

    with trio.fail_after(60):
        async with trio.open_nursery() as asking, trio.open_nursery() as running:
            url = await running.start(server.serve, edge.services)
            asking.start_soon(ask, url)
            await begun.wait()
            running.cancel_scope.cancel()
    assert [answer.status_code for answer in answers] == [503]


async def test_a_client_that_leaves_ends_its_use_case(
    edge: Edge, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ended = trio.Event(), trio.Event()

    async def hang(*args: object, **options: object) -> None:
        begun.set()
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    monkeypatch.setattr(reading, "page", hang)
    host, _, port = url.removeprefix("http://").partition(":")
    with trio.fail_after(60):
        stream = await trio.open_tcp_stream(host, int(port))
        await stream.send_all(b"GET /api/memories HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await begun.wait()
        await stream.aclose()
        await ended.wait()


async def test_a_busy_port_is_one_clear_line(edge: Edge) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        edge.configure(network={"port": port})
        with pytest.raises(StartRefused, match=f"cannot listen on 127.0.0.1:{port}: "):
            await server.serve(edge.services)  # type: ignore[arg-type]
    assert not (edge.services.workspace.daemon / "http").exists()


def test_l_50_an_open_bind_without_authentication_is_refused() -> None:
    with pytest.raises(StartRefused, match=r"refusing to bind 0\.0\.0\.0 with auth\.mode local"):
        config(network={"bind": "0.0.0.0"})


async def test_an_announced_length_is_refused_before_it_is_sent(edge: Edge, url: str) -> None:
    host, _, port = url.removeprefix("http://").partition(":")
    head = (
        "POST /api/memory/remember HTTP/1.1\r\nHost: localhost\r\n"
        "Content-Type: application/json\r\nContent-Length: 9999999999\r\n\r\n"
    )
    with trio.fail_after(60):
        stream = await trio.open_tcp_stream(host, int(port))
        await stream.send_all(head.encode())
        answer = await stream.receive_some(4096)
        await stream.aclose()
    assert answer.startswith(b"HTTP/1.1 413")


async def test_a_chunked_body_is_counted_while_it_is_read(edge: Edge, url: str) -> None:
    def parts() -> AsyncIterator[bytes]:
        async def make() -> AsyncIterator[bytes]:
            for _ in range(64):
                yield b"x" * 65_536

        return make()

    async with httpx.AsyncClient(timeout=60) as client:
        answer = await client.post(
            f"{url}/api/memory/remember",
            content=parts(),
            headers={"Content-Type": "application/json"},
        )
    assert answer.status_code == 413


async def test_a_body_that_does_not_arrive_is_given_up(
    edge: Edge, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routing, "BODY_S", 0.1)
    host, _, port = url.removeprefix("http://").partition(":")
    head = (
        "POST /api/memory/remember HTTP/1.1\r\nHost: localhost\r\n"
        "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    )
    with trio.fail_after(60):
        stream = await trio.open_tcp_stream(host, int(port))
        await stream.send_all(head.encode())
        answer = await stream.receive_some(4096)
        await stream.aclose()
    assert answer.startswith(b"HTTP/1.1 408")


async def test_an_export_streams_over_a_socket(edge: Edge, url: str) -> None:
    agent = edge.world.context.agents.resolve(None)
    for number in range(3):
        await edge.world.store(agent, f"row {number}")
    async with httpx.AsyncClient(timeout=60) as client:
        answer = await client.get(f"{url}/api/memory/export")
    assert answer.headers["transfer-encoding"] == "chunked"
    assert len(answer.text.splitlines()) == 3


async def test_an_export_that_the_client_leaves_ends(
    edge: Edge, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    host, _, port = url.removeprefix("http://").partition(":")
    with trio.fail_after(60):
        stream = await trio.open_tcp_stream(host, int(port))
        await stream.send_all(b"GET /api/memory/export HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await stream.receive_some(1024)
        await stream.aclose()
        await ended.wait()


def test_a_name_that_cannot_be_bound_is_told() -> None:
    with pytest.raises(StartRefused, match=r"cannot listen on no\.such\.name\.invalid:1: "):
        server.bind("no.such.name.invalid", 1)
