"""Subscriptions in odd moments: each memory once, whoever reads it, breaks off or comes back."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import httpx
import pytest
import trio

from erasure import apply
from node.client import Refused, Subscription, open_client
from node.http.tokens import Claims, load_secret, sign
from node.memory import watch
from node.memory.watch import PAGE, Feed, follow
from node.port import messages
from storage.keyring import fingerprint_of
from tests.support.memory import world as world
from tests.support.port import Port, Raw, port
from tests.support.services import Edge, edge, served
from tests.support.watching import SEA, announce, happened, lines, sailors

__all__ = ["edge", "port", "served", "world"]

pytestmark = pytest.mark.postgres

EVENTS = {"Accept": "text/event-stream"}


async def take(deliveries: Subscription, count: int) -> list[tuple[int, str]]:
    """Numbers and contents of the next deliveries."""
    found = [await deliveries.__anext__() for _ in range(count)]
    return [(one.seq, one.memory.content) for one in found]


async def pending(edge: Edge, count: int, *, behind: int = 0) -> list[str]:
    """Many deliveries to bob at once, all of the same memory; what each of them says."""
    await edge.world.change(
        "INSERT INTO deliveries (diff_id, memory_id, project_id, recipient_kind, recipient, role, "
        "status, hlc, at) SELECT diff_id, memory_id, project_id, recipient_kind, recipient, role, "
        f"status, hlc, at FROM deliveries CROSS JOIN generate_series(1, {count}) "
        f"WHERE recipient_kind = 'agent' AND seq > {behind}"
    )
    return [SEA] * (count + 1)


# --- several readers, and one that comes back -----------------------------------------------------


async def test_two_subscribers_of_one_agent_each_get_all_once(port: Port) -> None:
    world = port.edge.world
    project, (ada, _) = await sailors(world, "ada", "bob")
    texts = [f"{SEA} {number}" for number in range(12)]
    async with (
        port.client("bob") as one,
        port.client("bob") as other,
        one.watch(after=0, credit=3) as first,
        other.watch(after=0) as second,
        other.watch(after=0, credit=1) as third,
    ):
        for text in texts:
            await announce(world, ada, project, text)
        got = [await take(each, len(texts)) for each in (first, second, third)]
    assert [text for _, text in got[0]] == texts
    assert got == [got[0]] * 3


async def test_what_comes_while_a_resume_catches_up_comes_once_and_in_its_place(
    port: Port,
) -> None:
    world = port.edge.world
    project, (ada, _) = await sailors(world, "ada", "bob")
    await announce(world, ada, project, SEA)
    await pending(port.edge, 150)
    async with port.client("bob") as client, client.watch(after=0, credit=5) as deliveries:
        told: list[str] = []

        async def write() -> None:
            for number in range(30):
                told.append(f"{SEA} {number}")
                await announce(world, ada, project, told[-1])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            got = await take(deliveries, 181)
    assert [text for _, text in got] == [SEA] * 151 + told
    seqs = [seq for seq, _ in got]
    assert seqs == list(range(seqs[0], seqs[0] + 181))


async def test_what_was_not_dealt_with_before_a_break_comes_again_and_nothing_else(
    port: Port,
) -> None:
    world = port.edge.world
    project, (ada, _) = await sailors(world, "ada", "bob")
    texts = [f"{SEA} {number}" for number in range(6)]
    for text in texts:
        await announce(world, ada, project, text)

    async def heard(raw: Raw, after: int, count: int) -> list[messages.Delivery]:
        await raw.say(messages.Hello(1, "bob"), messages.Watch(1, after, 4))
        replies = [await raw.hear() for _ in range(count + 2)]
        return [one for one in replies if isinstance(one, messages.Delivery)]

    first = await port.raw(hello=False)
    four = await heard(first, 0, 4)
    await port.stop()
    assert await first.hear() is None
    await port.start()
    again = await heard(await port.raw(hello=False), four[1].seq, 4)
    assert [one.memory.content for one in again] == texts[2:]
    assert again[:2] == four[2:]


async def test_a_resume_over_thousands_reads_page_by_page(port: Port) -> None:
    world = port.edge.world
    project, (ada, _) = await sailors(world, "ada", "bob")
    await announce(world, ada, project, SEA)
    texts = await pending(port.edge, 3_000)
    async with port.client("bob") as client, client.watch(after=0, credit=500) as deliveries:
        got = await take(deliveries, len(texts))
    assert [text for _, text in got] == texts
    assert len({seq for seq, _ in got}) == len(texts)


async def test_a_page_is_bounded_in_number_and_in_bytes(port: Port) -> None:
    world = port.edge.world
    project, (ada, bob) = await sailors(world, "ada", "bob")
    await announce(world, ada, project, SEA)
    await pending(port.edge, 39)
    feed = Feed(world.context, lambda: bob, 0)
    assert [len(await feed.read(1_000, 5.0)) for _ in range(3)] == [PAGE, PAGE, 40 - 2 * PAGE]
    last = feed.after
    await announce(world, ada, project, f"{SEA}, " * 11_000)
    await pending(port.edge, 7, behind=last)
    sizes = []
    while sum(sizes) < 8:
        sizes.append(len(await feed.read(1_000, 5.0)))
    assert sizes == [3, 3, 2]


async def test_a_page_never_skips_what_there_was_no_credit_for(port: Port) -> None:
    world = port.edge.world
    project, (ada, bob) = await sailors(world, "ada", "bob")
    texts = [f"{SEA} {number}" for number in range(20)]
    rows = [await announce(world, ada, project, text) for text in texts]
    world.context.residency.evict([row.id for row in rows[::2]])
    await world.change(
        "UPDATE memories SET visibility = 'archived' WHERE content IN "
        f"({', '.join(repr(text) for text in texts[:17])})"
    )
    feed = Feed(world.context, lambda: bob, 0)
    got = [await feed.read(1, 5.0) for _ in range(3)]
    assert [[one.memory.content for one in page] for page in got] == [[text] for text in texts[17:]]


# --- numbers --------------------------------------------------------------------------------------


async def test_a_number_that_was_never_given_is_refused_everywhere(port: Port) -> None:
    world = port.edge.world
    project, (ada, bob) = await sailors(world, "ada", "bob")
    await announce(world, ada, project, SEA)
    last = (await follow(world.context, lambda: bob, None)).after
    async with port.client("bob") as client:
        for after in (last + 1, (1 << 63) - 1):
            with pytest.raises(Refused, match="beyond all deliveries") as refused:
                async with client.watch(after=after):
                    pass
            assert refused.value.code == "unnumbered"
            for headers in ({}, EVENTS | {"Last-Event-ID": str(after)}):
                answer = await port.edge.get(
                    "/api/memory/watch",
                    params={"agent_id": "bob", "after": str(after)},
                    headers=headers,
                )
                assert (answer.status_code, answer.json()["code"]) == (400, "unnumbered")
        async with client.watch(after=last) as deliveries:
            await announce(world, ada, project, f"{SEA} again")
            assert await take(deliveries, 1) == [(last + 1, f"{SEA} again")]


async def test_a_number_stays_good_when_its_row_was_compacted(port: Port) -> None:
    world = port.edge.world
    project, (ada, _) = await sailors(world, "ada", "bob")
    for number in range(3):
        await announce(world, ada, project, f"{SEA} {number}")
    async with port.client("bob") as client:
        async with client.watch(after=0) as deliveries:
            seqs = [seq for seq, _ in await take(deliveries, 3)]
        await world.change("TRUNCATE deliveries")
        async with client.watch(after=seqs[-1]) as deliveries, client.watch() as fresh:
            await announce(world, ada, project, f"{SEA} again")
            for each in (deliveries, fresh):
                assert await take(each, 1) == [(seqs[-1] + 1, f"{SEA} again")]


# --- who may go on --------------------------------------------------------------------------------


@pytest.fixture
def prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Feeds that look again at once."""
    monkeypatch.setattr(watch, "POLL_S", 0.05)


async def test_erasing_an_agent_ends_its_subscriptions_and_no_others(
    port: Port, served: Edge, prompt: None
) -> None:
    world = port.edge.world
    project, (ada, _, _) = await sailors(world, "ada", "bob", "carl")
    async with (
        port.client("bob") as bob,
        port.client("carl") as carl,
        bob.watch() as erased,
        carl.watch() as other,
    ):
        begun = await served.post("/api/erasures", {"scope": {"kind": "agent", "id": "bob"}})
        await apply.drive(served.services.erasure, begun.json()["erasure_id"])
        with pytest.raises(Refused, match="gone") as refused:
            await erased.__anext__()
        assert refused.value.code == "not_found"
        await announce(world, ada, project, SEA)
        assert [text for _, text in await take(other, 1)] == [SEA]
    answer = await served.get("/api/memory/watch", params={"agent_id": "bob"})
    assert answer.status_code == 410


async def test_a_token_that_expires_ends_its_subscription(port: Port, prompt: None) -> None:
    edge = port.edge
    project, (ada, _) = await sailors(edge.world, "ada", "bob")
    edge.configure(auth={"mode": "team"})
    secret = load_secret(edge.services.workspace.auth_secret)
    now = int(edge.world.now[0].timestamp())
    token = sign(Claims("t", "agent", {"agent": "bob"}, now, now + 60), secret)
    async with port.client(token=token) as client, client.watch() as deliveries:
        await announce(edge.world, ada, project, SEA)
        assert [text for _, text in await take(deliveries, 1)] == [SEA]
        edge.world.pass_time(seconds=61)
        with pytest.raises(Refused, match="token expired") as refused:
            await deliveries.__anext__()
        assert refused.value.code == "unauthenticated"


async def test_replacing_the_secret_ends_the_subscriptions_of_all_tokens(
    port: Port, prompt: None
) -> None:
    edge = port.edge
    project, (ada, _) = await sailors(edge.world, "ada", "bob")
    edge.configure(auth={"mode": "team"})
    secret = load_secret(edge.services.workspace.auth_secret)
    now = int(edge.world.now[0].timestamp())
    token = sign(Claims("t", "agent", {"agent": "bob"}, now, now + 3_600), secret)
    async with (
        port.client(token=token) as client,
        client.watch() as deliveries,
        port.client("bob") as own,
        own.watch() as trusted,
    ):
        await port.stop()
        edge.services.workspace.auth_secret.unlink()
        await port.start()
        with pytest.raises(Refused, match="invalid signature"):
            await deliveries.__anext__()
        await announce(edge.world, ada, project, SEA)
        assert [text for _, text in await take(trusted, 1)] == [SEA]


async def test_erasing_an_agent_cuts_what_http_streams_to_it(served: Edge, prompt: None) -> None:
    world = served.world
    project, (ada, _) = await sailors(world, "ada", "bob")
    await announce(world, ada, project, SEA)
    said: list[str] = []
    heard = trio.Event()

    async def follow() -> None:
        async with (
            httpx.AsyncClient(base_url=served.url, timeout=60) as client,
            client.stream(
                "GET", "/api/memory/watch", params={"agent_id": "bob", "after": 0}
            ) as answer,
        ):
            async for line in answer.aiter_lines():
                said.append(line)
                if len(said) == 2:
                    await served.island.to_trio(happened, heard)

    async def follow_to_its_end() -> None:
        with pytest.raises(httpx.RemoteProtocolError):
            await served.island.call(follow)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow_to_its_end)
        await heard.wait()
        begun = await served.post("/api/erasures", {"scope": {"kind": "agent", "id": "bob"}})
        await apply.drive(served.services.erasure, begun.json()["erasure_id"])
    assert json.loads(said[1])["memory"]["content"] == SEA


async def test_what_a_subscriber_may_not_read_any_more_is_left_out(port: Port) -> None:
    world = port.edge.world
    project, (ada, _) = await sailors(world, "ada", "bob")
    one = await announce(world, ada, project, f"{SEA} one")
    await announce(world, ada, project, f"{SEA} two")
    await world.change(
        f"UPDATE memories SET visibility = 'private' WHERE content = '{one.content}'"
    )
    async with port.client("bob") as client, client.watch(after=0) as deliveries:
        assert [text for _, text in await take(deliveries, 1)] == [f"{SEA} two"]


# --- over TLS -------------------------------------------------------------------------------------


async def test_a_subscription_over_tls_goes_on_when_the_node_is_back(port: Port) -> None:
    world = port.edge.world
    project, (ada, _) = await sailors(world, "ada", "bob")
    port.edge.configure(auth={"mode": "hybrid"})
    shown = fingerprint_of(world.node.identity.certificate_der).hex()

    async def listen(address: str) -> str:
        await port.stop()
        port.settings = replace(port.settings, listen=address)
        await port.start()
        (place,) = [one for one in port.places if one.startswith("tls:")]
        return place

    place = await listen("127.0.0.1:0")
    async with (
        open_client(place, agent="bob", fingerprint=shown, patience_s=30) as client,
        client.watch(after=0) as deliveries,
    ):
        await announce(world, ada, project, SEA)
        first = await take(deliveries, 1)
        assert await listen(place.removeprefix("tls:")) == place
        await announce(world, ada, project, f"{SEA} again")
        assert first + await take(deliveries, 1) == [
            (first[0][0], SEA),
            (first[0][0] + 1, f"{SEA} again"),
        ]


# --- all three doors say the same -----------------------------------------------------------------


async def test_lines_and_events_say_what_the_port_says_from_any_number_on(
    port: Port, served: Edge
) -> None:
    world = port.edge.world
    project, (ada, _) = await sailors(world, "ada", "bob")
    texts = [f"{SEA} {number}" for number in range(5)]
    for text in texts:
        await announce(world, ada, project, text)
    async with port.client("bob") as client, client.watch(after=0) as deliveries:
        told = await take(deliveries, len(texts))
    for done in range(len(texts)):
        after = told[done - 1][0] if done else 0
        left = told[done:]
        said = await lines(served, 1 + len(left), {}, agent_id="bob", after=after)
        assert json.loads(said[0]) == {"watching": True, "after": after}
        assert [_told(json.loads(line)) for line in said[1:]] == left
        resumed = EVENTS | {"Last-Event-ID": str(after)}
        said = await lines(served, 2 + 3 * len(left), resumed, agent_id="bob", after=0)
        assert said[:2] == ["event: watching", f'data: {{"after":{after}}}']
        assert said[2::3] == [f"id: {seq}" for seq, _ in left]
        assert [_told(json.loads(line[6:])) for line in said[4::3]] == left


def _told(line: dict[str, Any]) -> tuple[int, str]:
    return line["seq"], line["memory"]["content"]
