"""The client when its node is away, silent, busy or gone: what goes on, and how it is told."""

from __future__ import annotations

import math
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from node.client import BlockingClient, Closed, InvalidInput, Refused, Unavailable, open_client
from node.port import link, messages
from node.port.codec import FrameBuffer, encode, read_request
from tests.support.port import Port, port
from tests.support.services import edge
from tests.support.watching import SEA, announce, sailors

__all__ = ["edge", "port"]

pytestmark = pytest.mark.postgres

WELCOME = messages.Welcome(messages.VERSION, bytes(16), "bob", "model", 2, 0)


@asynccontextmanager
async def a_node_that(folder: Path, *says: messages.Reply) -> AsyncIterator[str]:
    """A socket where each connection hears this and nothing more; the place of it."""

    async def answer(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.send_all(b"".join(map(encode, says)))
            if says and not isinstance(says[-1], messages.Failed):
                while await stream.receive_some(4096):
                    continue

    async with a_socket_where(folder, answer) as place:
        yield place


@asynccontextmanager
async def a_socket_where(
    folder: Path, answer: Callable[[trio.SocketStream], Awaitable[None]]
) -> AsyncIterator[str]:
    """A unix socket that serves each connection so; the place of it."""
    path = folder / "s"
    listening = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
    await listening.bind(str(path))
    listening.listen(8)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, answer, [trio.SocketListener(listening)])
        yield f"unix:{path}"
        nursery.cancel_scope.cancel()


# --- away -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "says",
    [
        (),
        (messages.Failed(0, "unavailable", "full", True),),
        (WELCOME, messages.Failed(0, "unavailable", "full", True)),
    ],
)
async def test_a_node_that_turns_everybody_away_is_given_up_after_patience(
    tmp_path: Path, says: tuple[messages.Reply, ...]
) -> None:
    with trio.fail_after(60):
        async with (
            a_node_that(tmp_path, *says) as place,
            open_client(place, patience_s=0.2) as client,
        ):
            with pytest.raises((Unavailable, Refused)) as error:
                await client.ping()
            assert (error.value.code, error.value.retryable) == ("unavailable", True)
            with pytest.raises((Unavailable, Refused)):
                async with client.watch(after=0):
                    pass


async def test_a_silent_node_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "BEAT_S", 0.02)
    monkeypatch.setattr(link, "SILENCE_S", 0.1)
    with trio.fail_after(60):
        async with (
            a_node_that(tmp_path, WELCOME) as place,
            open_client(place, patience_s=0.3) as client,
        ):
            with pytest.raises(Unavailable, match="silent"):
                await client.ping()


async def test_a_connection_that_breaks_under_a_long_request_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "STOOD_S", 0.05)
    patience_s = 0.5
    tries: list[int] = []

    async def answer(stream: trio.SocketStream) -> None:
        tries.append(len(tries))
        async with stream:
            await stream.send_all(encode(WELCOME))
            buffer, heard = FrameBuffer(), list[messages.Request]()
            while len(heard) < 2:
                heard += map(read_request, buffer.feed(await stream.receive_some(4096)))
            if len(tries) == 1:
                await trio.sleep(2 * patience_s)
                return
            asked = heard[1]
            assert isinstance(asked, messages.Ping)
            await stream.send_all(encode(messages.Pong(asked.id)))
            await trio.sleep_forever()

    with trio.fail_after(60):
        async with (
            a_socket_where(tmp_path, answer) as place,
            open_client(place, patience_s=patience_s) as client,
        ):
            await client.ping()
    assert tries == [0, 1]


async def test_a_subscription_says_that_the_node_stays_away_and_the_next_goes_on(
    port: Port,
) -> None:
    world = port.edge.world
    project, (ada, _) = await sailors(world, "ada", "bob")
    await announce(world, ada, project, SEA)
    async with port.client("bob", patience_s=0.2) as client:
        async with client.watch(after=0) as deliveries:
            last = await deliveries.__anext__()
            await port.stop()
            with pytest.raises(Unavailable, match=r"no node answers at unix:"):
                await deliveries.__anext__()
        await port.start()
        two = await announce(world, ada, project, f"{SEA} again")
        async with client.watch(after=last.seq) as deliveries:
            assert (await deliveries.__anext__()).memory.raw_id == two.id


async def test_calls_and_subscriptions_wait_for_a_node_that_is_not_ready(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "AGAIN_S", 0.02)
    world = port.edge.world
    project, (ada, _) = await sailors(world, "ada", "bob")
    port.edge.services.not_ready = "starting"
    found: list[str] = []

    async def follow(client_name: str) -> None:
        async with (
            port.client(client_name, patience_s=math.inf) as client,
            client.watch(after=0) as deliveries,
        ):
            found.append((await deliveries.__anext__()).memory.content)

    async def ask() -> None:
        async with port.client("bob", patience_s=math.inf) as client:
            found.append((await client.remember("soup")).memory.content)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow, "bob")
        nursery.start_soon(ask)
        await trio.sleep(0.2)
        assert found == []
        port.edge.services.not_ready = None
        await announce(world, ada, project, SEA)
    assert sorted(found) == [SEA, "soup"]


async def test_a_node_that_never_gets_ready_refuses_by_name(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "AGAIN_S", 0.02)
    port.edge.services.not_ready = "starting"
    async with port.client(patience_s=0.2) as client:
        for _ in range(2):
            with pytest.raises(Refused, match="starting") as refused:
                await client.recall("x")
            assert (refused.value.code, refused.value.retryable) == ("unavailable", True)
        with pytest.raises(Refused, match="starting"):
            async with client.watch(after=0):
                pass


async def test_a_call_that_meets_the_end_of_an_idle_connection_goes_through(port: Port) -> None:
    await port.stop()
    port.settings = replace(port.settings, idle_s=0.02)
    await port.start()
    async with port.client() as client:
        for _ in range(60):
            await client.ping()
            await trio.sleep(0.019)


# --- places ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("http://127.0.0.1:3850", "not HTTP"),
        ("tls:example.org", "tls:HOST:PORT"),
        ("tls:example.org:0", "between 1 and 65535"),
        ("tls:example.org:4000", "fingerprint is required"),
        ("unix:/" + "x" * 120, "at most 107 bytes"),
        ("/nowhere/at/all", "there is no workspace /nowhere/at/all"),
    ],
)
async def test_a_place_that_cannot_be_one_is_refused_at_once(place: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        async with open_client(place):
            pass
    with pytest.raises(InvalidInput, match=said):
        BlockingClient(place)


async def test_the_socket_itself_names_the_place_too(port: Port) -> None:
    async with open_client(port.path, patience_s=60) as client:
        assert await client.ping() < 5


# --- the end --------------------------------------------------------------------------------------


async def test_calls_under_way_end_with_the_client(port: Port) -> None:
    port.edge.services.not_ready = "starting"
    ended: list[type[BaseException]] = []
    async with trio.open_nursery() as nursery, port.client(patience_s=math.inf) as client:

        async def ask() -> None:
            with pytest.raises(Closed) as error:
                await client.recall("x")
            ended.append(error.type)

        nursery.start_soon(ask)
        await trio.sleep(0.1)
    assert ended == [Closed]
    with pytest.raises(Closed):
        await client.ping()


async def test_closing_a_blocking_client_ends_a_thread_that_follows(port: Port) -> None:
    world = port.edge.world
    project, (ada, _) = await sailors(world, "ada", "bob")
    await announce(world, ada, project, SEA)

    def close_under_a_follower() -> list[str]:
        said: list[str] = []
        first = threading.Event()

        def follow() -> None:
            try:
                for delivery in client.watch(after=0):
                    said.append(delivery.memory.content)
                    first.set()
            except Closed as error:
                said.append(error.code)

        client = BlockingClient(f"unix:{port.path}", agent="bob", patience_s=60.0)
        thread = threading.Thread(target=follow)
        thread.start()
        assert first.wait(60)
        client.close()
        thread.join(60)
        with pytest.raises(Closed):
            client.ping()
        return said

    assert await trio.to_thread.run_sync(close_under_a_follower) == [SEA, "closed"]


async def test_a_blocking_follower_hears_that_the_node_stays_away(port: Port) -> None:
    await sailors(port.edge.world, "ada", "bob")
    with BlockingClient(f"unix:{port.path}", agent="bob", patience_s=0.2) as client:
        deliveries = await trio.to_thread.run_sync(lambda: client.watch(after=0))
        await port.stop()
        with pytest.raises(Unavailable):
            await trio.to_thread.run_sync(lambda: next(deliveries))
    await port.start()


async def test_a_blocking_follower_may_stop_when_nothing_comes_and_begin_again(
    port: Port,
) -> None:
    world = port.edge.world
    project, (ada, _) = await sailors(world, "ada", "bob")
    texts = [f"{SEA} {number}" for number in range(4)]
    for text in texts[:3]:
        await announce(world, ada, project, text)
    with BlockingClient(f"unix:{port.path}", agent="bob", patience_s=60.0) as client:

        def caught_up(count: int) -> list[str]:
            found: list[str] = []
            while len(found) < count:
                found += [one.memory.content for one in deliveries]
            return found

        deliveries = await trio.to_thread.run_sync(lambda: client.watch(after=0, idle_s=0.1))
        assert await trio.to_thread.run_sync(caught_up, 3) == texts[:3]
        await announce(world, ada, project, texts[3])
        assert await trio.to_thread.run_sync(caught_up, 1) == texts[3:]
        deliveries.close()
        with pytest.raises(Closed):
            await trio.to_thread.run_sync(lambda: next(deliveries))


async def test_what_comes_behind_the_call_of_watch_is_followed(port: Port) -> None:
    world = port.edge.world
    project, (ada, _) = await sailors(world, "ada", "bob")
    await announce(world, ada, project, f"{SEA} before")
    with BlockingClient(f"unix:{port.path}", agent="bob", patience_s=60.0) as client:
        deliveries = await trio.to_thread.run_sync(client.watch)
        await announce(world, ada, project, SEA)
        got = await trio.to_thread.run_sync(lambda: next(deliveries))
    assert got.memory.content == SEA


async def test_subscriptions_that_were_dropped_make_room_for_others(port: Port) -> None:
    world = port.edge.world
    project, (ada, _) = await sailors(world, "ada", "bob")
    await announce(world, ada, project, SEA)

    def look_often() -> list[str]:
        with BlockingClient(f"unix:{port.path}", agent="bob", patience_s=60.0) as client:
            return [next(client.watch(after=0)).memory.content for _ in range(12)]

    assert await trio.to_thread.run_sync(look_often) == [SEA] * 12


async def test_more_connections_than_the_node_has_room_for_wait_their_turn(port: Port) -> None:
    await port.stop()
    port.settings = replace(port.settings, connections=1)
    await port.start()
    async with trio.open_nursery() as nursery, port.client() as first:
        await first.ping()

        async def second() -> None:
            async with port.client(patience_s=math.inf) as client:
                await client.ping()

        nursery.start_soon(second)
        await trio.sleep(0.2)
