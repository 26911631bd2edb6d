"""The agent port on a real socket: what the client offers, who may do what, and who stays out."""

from __future__ import annotations

import math
import os
import stat
import struct
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import trio

from node.client import BlockingClient, Draft, Refused, filters, open_client
from node.http.tokens import Claims, load_secret, sign
from node.memory.commits import Entry
from node.port import messages
from node.port.codec import encode
from storage.errors import InvalidInput, Unavailable
from storage.keyring import fingerprint_of
from storage.model import id_text
from tests.support.port import Port, Raw, port
from tests.support.services import Edge, edge

__all__ = ["edge", "port"]

pytestmark = pytest.mark.postgres

TEXT = "the harbour opens at six"


async def test_what_was_remembered_is_recalled_and_got(port: Port) -> None:
    async with port.client() as client:
        done = await client.remember(TEXT, tags=["ops"], who="eve", importance=0.25, scope="a:b")
        assert (done.deduped, done.memory.content, done.memory.tags) == (False, TEXT, ("ops",))
        answer = await client.recall("when does the harbour open")
        assert [hit.id for hit in answer.hits] == [done.memory.id]
        assert (answer.hits[0].source, answer.hits[0].tier) == ("hybrid", "hot")
        assert not answer.partial
        got = await client.get(done.memory.id)
        assert (got.scope, got.who, got.importance) == ("a:b", "eve", 0.25)
        assert got.created_at == port.edge.world.now[0]


async def test_a_fast_recall_answers_by_text_and_by_vector(port: Port) -> None:
    async with port.client() as client:
        done = await client.remember(TEXT)
        (vector,) = await port.edge.world.context.embedder.embed([TEXT])
        for answer in (
            await client.recall(TEXT, fast=True),
            await client.recall(vector=vector, fast=True),
            await client.recall(vector=list(map(float, vector))),
        ):
            assert [hit.id for hit in answer.hits] == [done.memory.id]
            assert answer.hits[0].cosine == pytest.approx(1.0, abs=1e-2)


async def test_many_recalls_in_flight_each_get_their_own_answer(port: Port) -> None:
    texts = [f"{word} lives in house {number}" for number, word in enumerate(WORDS)]
    async with port.client() as client:
        await client.remember_batch(texts)
        vectors = await port.edge.world.context.embedder.embed(texts)
        found: dict[int, str] = {}

        async def ask(number: int) -> None:
            answer = await client.recall(vector=vectors[number], fast=True, limit=1)
            found[number] = answer.hits[0].content

        async with trio.open_nursery() as nursery:
            for number in range(len(texts)):
                nursery.start_soon(ask, number)
        assert [found[number] for number in range(len(texts))] == texts


WORDS = [
    "apple", "bridge", "candle", "dragon", "engine", "forest", "guitar", "hammer", "island",
    "jacket", "kettle", "ladder", "market", "needle", "orange", "pencil", "quartz", "rocket",
    "saddle", "tunnel", "violin", "window", "yellow", "zipper",
]  # fmt: skip


async def test_a_batch_reports_each_item(port: Port) -> None:
    async with port.client() as client:
        first = await client.remember(TEXT)
        outcomes = await client.remember_batch(
            [TEXT, "", Draft("a second text"), Draft("x", visibility="archived")]
        )
        told = [(one.deduped, one.fault.code if one.fault else None) for one in outcomes]
        assert told == [(True, None), (False, "invalid"), (False, None), (False, "invalid")]
        assert outcomes[0].id == first.memory.id


async def test_forget_and_history_tell_what_happened(port: Port) -> None:
    async with port.client() as client:
        done = await client.remember(TEXT)
        gone = await client.forget(done.memory.id, reason="asked to")
        assert gone.forgotten == (done.memory.raw_id,)
        with pytest.raises(Refused) as refusal:
            await client.get(done.memory.id)
        assert (refusal.value.code, refusal.value.retryable) == ("not_found", False)
        assert [event.event for event in await client.history(done.memory.id)] == [
            "created",
            "deleted",
        ]
        assert (await client.recall(TEXT)).hits == ()


async def test_filters_work_as_over_http(port: Port) -> None:
    async with port.client() as client:
        wanted = await client.remember(TEXT, tags=["ops", "web"], pinned=True)
        await client.remember("the harbour opens at ten", tags=["ops"])
        now = port.edge.world.now[0]
        for asked in (
            filters(tags=["ops", "web"]),
            filters(tags="web", since=now, until=now + timedelta(hours=1)),
            filters(pinned=True, importance_min=0.5),
        ):
            for fast in (False, True):
                answer = await client.recall("harbour opens", filters=asked, fast=fast)
                assert [hit.id for hit in answer.hits] == [wanted.memory.id]
        with pytest.raises(Refused, match="kind is invalid"):
            await client.recall("harbour", filters=filters(kind="agent"))
        with pytest.raises(InvalidInput, match="unknown filter: colour"):
            filters(colour="red")


async def test_a_ttl_and_given_times_are_kept(port: Port) -> None:
    world = port.edge.world
    async with port.client() as client:
        made = world.now[0] - timedelta(days=3)
        done = await client.remember(TEXT, ttl_s=60, created_at=made)
        assert done.memory.created_at == made
        world.pass_time(seconds=61)
        assert (await client.recall(TEXT, fast=True)).hits == ()


@pytest.mark.parametrize("bad", [b"", b"123", b"\x00" * 8, struct.pack("<f", math.nan) * 256])
async def test_a_bad_vector_is_refused_and_the_connection_goes_on(port: Port, bad: bytes) -> None:
    async with port.client() as client:
        with pytest.raises((Refused, InvalidInput)):
            await client.recall(vector=bad, fast=True)
        assert await client.ping() < 5


async def test_a_request_that_no_frame_can_carry_is_refused_before_it_is_sent(port: Port) -> None:
    async with port.client() as client:
        for content in ("x" * (3 << 20), "x" * (1 << 20) + "y"):
            with pytest.raises(InvalidInput):
                await client.remember(content)
        with pytest.raises(InvalidInput):
            await client.recall("x", limit=51)
        assert await client.ping() < 5


async def test_a_content_of_a_mebibyte_fits(port: Port) -> None:
    async with port.client() as client:
        done = await client.remember(("word " * (1 << 18))[: 1 << 20].strip())
        assert (await client.get(done.memory.id)).raw_id == done.memory.raw_id


async def test_hits_that_fill_more_than_a_frame_are_cut_and_marked(port: Port) -> None:
    async with port.client() as client:
        for number in range(4):
            await client.remember(f"harbour {number} " + "tide " * 150_000)
        answer = await client.recall("harbour tide", limit=10, fast=True)
        assert (len(answer.hits), answer.degraded) == (2, ("size",))


# --- who may ------------------------------------------------------------------------------------


async def test_the_socket_is_the_users_own(port: Port) -> None:
    mode = port.path.stat().st_mode
    assert (stat.S_ISSOCK(mode), stat.S_IMODE(mode)) == (True, 0o600)


async def test_a_client_acts_for_the_agent_it_names(port: Port) -> None:
    await port.edge.world.agent("bob")
    async with port.client("bob") as bob, port.client() as other:
        done = await bob.remember(TEXT, visibility="private")
        assert (done.memory.agent, bob.node and bob.node.agent) == ("bob", "bob")
        assert (await other.recall(TEXT)).hits == ()
        with pytest.raises(Refused, match="memory not found"):
            await other.get(done.memory.id)


async def test_an_unknown_agent_is_refused(port: Port) -> None:
    async with port.client("nobody") as client:
        with pytest.raises(Refused, match="agent not found"):
            await client.ping()


async def test_a_token_binds_to_its_permissions_and_agent(port: Port) -> None:
    edge = port.edge
    await edge.world.agent("bob")
    edge.configure(auth={"mode": "team"})
    secret = load_secret(edge.services.workspace.auth_secret)
    now = int(edge.world.now[0].timestamp())

    def token(role: str, agent: str) -> str:
        return sign(Claims("t", role, {"agent": agent}, now, now + 60), secret)

    async with port.client(token=token("readonly", "bob")) as client:
        assert (await client.recall("x")).hits == ()
        with pytest.raises(Refused) as refusal:
            await client.remember(TEXT)
        assert refusal.value.code == "forbidden"
    async with port.client("default", token=token("agent", "bob")) as client:
        with pytest.raises(Refused, match="scope restricted"):
            await client.ping()
    async with port.client(token="made.up") as client:
        with pytest.raises(Refused, match="invalid signature"):
            await client.ping()
    async with port.client(token=token("agent", "bob")) as client:
        await client.ping()
        edge.world.pass_time(minutes=2)
        with pytest.raises(Refused, match="token expired"):
            await client.ping()


async def test_tls_wants_the_right_certificate_and_a_token(port: Port) -> None:
    await port.stop()
    port.edge.configure(auth={"mode": "team"})
    port.settings = replace(port.settings, listen="127.0.0.1:0")
    await port.start()
    (place,) = [one for one in port.places if one.startswith("tls:")]
    shown = fingerprint_of(port.edge.world.node.identity.certificate_der).hex()
    async with open_client(place, fingerprint="00" * 32, patience_s=60) as client:
        with pytest.raises(Refused, match="another certificate"):
            await client.ping()
    async with open_client(place, fingerprint=shown, patience_s=60) as client:
        with pytest.raises(Refused, match="authentication required"):
            await client.ping()
    port.edge.configure(auth={"mode": "hybrid"})
    async with open_client(place, fingerprint=shown, patience_s=60) as client:
        assert (await client.remember(TEXT)).memory.content == TEXT


async def test_an_agent_that_was_erased_is_cut_off(port: Port) -> None:
    agent = await port.edge.world.agent("bob")
    async with port.client("bob") as client:
        await client.ping()
        port.edge.world.context.agents.drop(agent.id)
        with pytest.raises(Refused, match="gone"):
            await client.recall("x", vector=np.ones(256), fast=True)


# --- who stays out ------------------------------------------------------------------------------

GARBAGE = {
    "no hello": encode(messages.Ping(1)),
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "zeros": bytes(64),
    "large": b"\x7f\xff\xff\xff",
    "nest": (200).to_bytes(4, "big") + b"\x91" * 200,
    "version": encode(messages.Hello(7)),
}


@pytest.mark.parametrize("name", list(GARBAGE))
async def test_garbage_ends_its_own_connection_with_a_reason(port: Port, name: str) -> None:
    raw = await port.raw(hello=False)
    await raw.say(GARBAGE[name])
    reply = await raw.hear()
    assert isinstance(reply, messages.Failed)
    assert (reply.id, await raw.hear()) == (0, None)


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00\x00\x00\x02\x91\x63",
        encode(messages.Hello(1)),
        encode(messages.Ping(1))[:-1] + b"\xc0",
        (messages.MAX_FRAME + 1).to_bytes(4, "big"),
    ],
)
async def test_a_broken_rule_after_the_hello_ends_the_connection(port: Port, sent: bytes) -> None:
    raw = await port.raw()
    await raw.say(sent)
    reply = await raw.hear()
    assert isinstance(reply, messages.Failed)
    assert (reply.id, await raw.hear()) == (0, None)


async def test_a_number_in_use_may_not_be_used_again(port: Port) -> None:
    raw = await port.raw()
    ask = messages.Recall(7, "harbour")
    await raw.say(encode(ask) + encode(ask))
    replies = [await raw.hear(), await raw.hear()]
    assert any(isinstance(one, messages.Failed) and one.id == 0 for one in replies)


@pytest.mark.parametrize("said", [b"", b"\x00\x00", b"\x00\x00\x00\x20abc"])
async def test_who_says_no_hello_in_time_is_let_go(port: Port, said: bytes) -> None:
    raw = await port.raw(hello=False)
    if said:
        await raw.say(said)
    assert await raw.hear() is None


async def test_a_frame_that_does_not_end_in_time_ends_the_connection(port: Port) -> None:
    raw = await port.raw()
    await raw.say(b"\x00\x00\x01\x00abc")
    reply = await raw.hear()
    assert isinstance(reply, messages.Failed)
    assert reply.code == "protocol"


async def test_a_client_that_reads_nothing_is_cut_off_and_the_others_are_served(
    port: Port,
) -> None:
    async with port.client() as client:
        for number in range(3):
            await client.remember(f"harbour {number} " + "tide " * 60_000)
        stalled = await port.raw()
        (vector,) = await port.edge.world.context.embedder.embed(["harbour tide"])
        ask = encode(messages.Recall(1, "", vector.tobytes(), 3, True))
        with trio.move_on_after(5) as writing:
            while True:
                try:
                    await stalled.say(ask)
                except trio.BrokenResourceError:
                    break
                assert await client.ping() < 2
        assert not writing.cancelled_caught


async def test_a_hundred_odd_clients_change_nothing_for_a_good_one(port: Port) -> None:
    async with port.client() as client:
        await client.remember(TEXT)
        odd: list[Raw] = []
        for number in range(100):
            raw = await port.raw(hello=number % 2 == 0)
            odd.append(raw)
            kind = number % 4
            if kind == 0:
                await raw.say(os.urandom(64))
            elif kind == 1:
                await raw.say(b"\x00")
            elif kind == 2:
                await raw.stream.aclose()
            assert len((await client.recall(TEXT, fast=True)).hits) == 1
        for raw in odd:
            await raw.stream.aclose()
        assert await client.ping() < 2


async def test_more_connections_than_allowed_are_turned_away(port: Port) -> None:
    await port.stop()
    port.settings = replace(port.settings, connections=2)
    await port.start()
    async with port.client() as client:
        await client.ping()
        second = await port.raw()
        third = await trio.open_unix_socket(str(port.path))
        assert await Raw(third).hear() is None
        await second.stream.aclose()
        assert await client.ping() < 2


# --- breaks -------------------------------------------------------------------------------------


async def test_a_client_goes_on_after_the_port_came_back(port: Port) -> None:
    async with port.client() as client:
        done = await client.remember(TEXT)
        await port.stop()

        async def come_back() -> None:
            await trio.sleep(0.2)
            await port.start()

        port.nursery.start_soon(come_back)
        assert (await client.get(done.memory.id)).content == TEXT


async def test_a_node_that_stays_away_is_unavailable(port: Port) -> None:
    await port.stop()
    async with port.client(patience_s=0.1) as client:
        with pytest.raises(Unavailable):
            await client.ping()
    await port.start()


def remember(number: int, content: str, **fields: Any) -> messages.Remember:
    return messages.Remember(number, Draft(content, **fields))


async def answers(raw: Raw, count: int) -> dict[int, messages.Reply | None]:
    found: dict[int, messages.Reply | None] = {}
    with trio.fail_after(20):
        while len(found) < count:
            reply = await raw.hear()
            assert reply is not None
            assert not isinstance(reply, messages.Welcome)
            found[reply.id] = reply
    return found


async def test_remembers_of_one_write_each_get_their_own_answer(port: Port) -> None:
    raw = await port.raw()
    asked = [
        remember(1, "one"),
        remember(2, "one"),
        remember(3, "three", vector=bytes(8)),
        remember(4, "four", project="nowhere"),
        remember(5, "five"),
    ]
    await raw.say(b"".join(map(encode, asked)))
    replies = await answers(raw, 5)
    codes = {
        number: reply.code if isinstance(reply, messages.Failed) else "stored"
        for number, reply in sorted(replies.items())
    }
    assert codes == {1: "stored", 2: "stored", 3: "invalid", 4: "not_found", 5: "stored"}
    ones = [replies[1], replies[2]]
    assert sorted(one.deduped for one in ones if isinstance(one, messages.Remembered)) == [0, 1]


async def test_more_remembers_than_may_be_in_flight_are_all_stored(port: Port) -> None:
    raw = await port.raw()
    asked = [encode(remember(number, f"text {number}")) for number in range(1, 101)]
    await raw.say(b"".join([*asked[:50], encode(messages.Ping(200)), *asked[50:]]))
    replies = await answers(raw, 101)
    assert all(
        isinstance(reply, messages.Pong if number == 200 else messages.Remembered)
        for number, reply in replies.items()
    )


async def test_a_number_of_a_remember_in_use_may_not_be_used_again(port: Port) -> None:
    raw = await port.raw()
    await raw.say(encode(remember(7, "one")) + encode(messages.Get(7, bytes(16))))
    with trio.fail_after(20):
        reply = await raw.hear()
    assert isinstance(reply, messages.Failed)
    assert reply.id == 0


async def test_a_remember_that_is_cancelled_before_its_commit_is_left_out(port: Port) -> None:
    world = port.edge.world
    raw = await port.raw()
    await raw.say(remember(1, "makes the epochs known"))
    assert isinstance(await raw.hear(), messages.Remembered)
    commits = world.context.commits
    async with trio.open_nursery() as nursery:
        begun, go_on = trio.Event(), trio.Event()

        async def hold(items: object) -> list[Any]:
            begun.set()
            await go_on.wait()
            return [None]

        nursery.start_soon(commits.share, [Entry(None, lambda: False)], hold, hold)
        await begun.wait()
        await raw.say(
            b"".join(encode(remember(number, f"text {number}")) for number in (2, 3, 4))
            + encode(messages.Cancel(3))
            + encode(messages.Ping(5))
        )
        assert await answers(raw, 1) == {5: messages.Pong(5)}
        go_on.set()
    assert set(await answers(raw, 2)) == {2, 4}
    rows = await world.rows("SELECT content FROM memories WHERE content LIKE 'text%' ORDER BY 1")
    assert rows == [("text 2",), ("text 4",)]


async def test_a_write_of_cancelled_remembers_stores_nothing(port: Port) -> None:
    raw = await port.raw()
    await raw.say(
        b"".join(
            encode(remember(number, f"text {number}")) + encode(messages.Cancel(number))
            for number in (1, 2)
        )
        + encode(remember(3, "text 3"))
    )
    assert set(await answers(raw, 1)) == {3}
    rows = await port.edge.world.rows("SELECT content FROM memories WHERE kind = 'cell'")
    assert rows == [("text 3",)]


async def test_a_cancelled_call_leaves_the_connection_usable(port: Port) -> None:
    async with port.client() as client:
        with trio.move_on_after(0.0):
            await client.recall("harbour")
        with trio.move_on_after(0.003):
            await client.recall("harbour")
        assert await client.ping() < 2


async def test_the_blocking_client_does_the_same_from_threads(port: Port) -> None:
    def work() -> tuple[str, int, str]:
        with BlockingClient(f"unix:{port.path}", patience_s=60.0) as client:
            done = client.remember(TEXT)
            hits = client.recall("harbour", limit=3).hits
            try:
                client.get(id_text(bytes(16)))
            except Refused as error:
                code = error.code
            return done.memory.content, len(hits), code

    assert await trio.to_thread.run_sync(work) == (TEXT, 1, "not_found")


async def test_nothing_is_served_before_the_node_is_ready(port: Port) -> None:
    port.edge.services.not_ready = "starting"
    raw = await port.raw()
    await raw.say(messages.Recall(1, "x"), messages.Recall(2, "", bytes(1024), 3, True))
    codes = {getattr(await raw.hear(), "code", None) for _ in range(2)}
    assert codes == {"unavailable"}


async def test_a_stopped_edge_leaves_no_socket_behind(port: Port, edge: Edge) -> None:
    await port.stop()
    assert not port.path.exists()
    await port.start()
