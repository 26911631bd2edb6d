"""Deliveries to agents of this node, and every way to follow them."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest
import trio
from click.testing import CliRunner

from erasure import apply
from gossip.affinity import quantise
from node.cli.main import cli
from node.client import BlockingClient, Refused
from node.memory import forget as ending
from node.memory.watch import Feed, Handed, follow
from node.port import messages
from storage.errors import NotFound
from storage.model import AgentProfile, Memory, MemoryId, ReadPolicy, Visibility
from storage.pool import Tx
from tests.support.memory import World
from tests.support.memory import world as world
from tests.support.port import Port, port
from tests.support.services import Edge, edge, served
from tests.support.watching import SEA, announce, happened, lines, sailors

__all__ = ["edge", "port", "served", "world"]

pytestmark = pytest.mark.postgres


async def handed(world: World, agent: AgentProfile, after: int = 0) -> list[Handed]:
    feed = Feed(world.context, lambda: agent, after)
    return await feed.read(16, 0.05)


async def ids(world: World, agent: AgentProfile, after: int = 0) -> list[MemoryId]:
    return [one.memory.id for one in await handed(world, agent, after)]


# --- who is handed what -------------------------------------------------------------------------


async def test_an_announced_memory_is_handed_to_who_cares_and_may_read_it(world: World) -> None:
    project, (ada, bob) = await sailors(world, "ada", "bob")
    chef = await world.agent("chef", ReadPolicy.SHARED, description="cooking soup with onions")
    loner = await world.agent("loner", description="the sea, ships and the harbour")
    await world.place_agents()
    memory = await announce(world, ada, project, SEA)
    assert await ids(world, bob) == [memory.id]
    for other in (ada, chef, loner):
        assert await ids(world, other) == [], other.name


async def test_what_was_not_announced_is_handed_to_nobody(world: World) -> None:
    project, (ada, bob) = await sailors(world, "ada", "bob")
    await world.store(ada, SEA)
    await world.store(ada, f"{SEA} again", project_id=project, visibility=Visibility.PRIVATE)
    assert await ids(world, bob) == []


async def test_a_memory_is_handed_to_an_agent_once(world: World) -> None:
    project, (ada, bob) = await sailors(world, "ada", "bob")
    memory = await announce(world, ada, project, SEA)
    desk = world.context.desk
    vector = world.graph.vector(memory.id)
    assert vector is not None
    for _ in range(2):
        await world.db.transact(desk.hand_copy, memory, bytes(32), quantise(vector).raw)
    assert await ids(world, bob) == [memory.id]
    assert await world.value("SELECT count(*) FROM deliveries WHERE recipient_kind = 'agent'") == 1


async def test_a_transaction_that_fails_hands_over_nothing(world: World) -> None:
    project, (ada, bob) = await sailors(world, "ada", "bob")
    memory = await announce(world, ada, project, SEA)
    vector = world.graph.vector(memory.id)
    assert vector is not None
    await world.change("TRUNCATE deliveries")

    async def fail(tx: Tx) -> None:
        await world.context.desk.hand_copy(tx, memory, bytes(32), quantise(vector).raw)
        raise NotFound()

    with pytest.raises(NotFound):
        await world.db.transact(fail)
    assert await ids(world, bob) == []


async def test_numbers_of_an_agent_become_visible_in_their_order(world: World) -> None:
    project, (ada, bob) = await sailors(world, "ada", "bob")
    seen: list[int] = []
    done = trio.Event()

    async def write(writer: int) -> None:
        for number in range(8):
            await announce(world, ada, project, f"{SEA} {writer} {number}")

    async def read() -> None:
        feed = Feed(world.context, lambda: bob, 0)
        while len(seen) < 32:
            seen.extend(one.seq for one in await feed.read(16))
        done.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        for writer in range(4):
            nursery.start_soon(write, writer)
    assert seen == sorted(seen)
    assert len(set(seen)) == 32


async def test_an_erased_agent_is_handed_nothing(world: World) -> None:
    project, (ada, bob) = await sailors(world, "ada", "bob")
    await world.change("UPDATE scopes SET open_epoch = NULL, closed_epoch = 1 WHERE ext_id = "
                       f"'\\x{bob.id.hex()}'::bytea")  # fmt: skip
    await announce(world, ada, project, SEA)
    sql = "SELECT count(*) FROM deliveries WHERE recipient_kind = 'agent'"
    assert await world.value(sql) == 0


# --- what a feed shows --------------------------------------------------------------------------


async def forgotten(world: World, agent: AgentProfile, memory: Memory) -> None:
    await ending.forget(world.context, agent, [memory.id])


async def deleted(world: World, agent: AgentProfile, memory: Memory) -> None:
    await ending.soft_delete(world.context, agent, [memory.id])


async def expired(world: World, agent: AgentProfile, memory: Memory) -> None:
    await world.change("UPDATE memories SET expires_at = created_at WHERE kind = 'cell'")


async def superseded(world: World, agent: AgentProfile, memory: Memory) -> None:
    await world.change("UPDATE memories SET superseded_by = id WHERE kind = 'cell'")


async def archived(world: World, agent: AgentProfile, memory: Memory) -> None:
    await world.change("UPDATE memories SET visibility = 'archived' WHERE kind = 'cell'")


async def evicted(world: World, agent: AgentProfile, memory: Memory) -> None:
    world.context.residency.evict([memory.id])


@pytest.mark.parametrize(
    ("happen", "seen"),
    [
        (evicted, True),
        (forgotten, False),
        (deleted, False),
        (expired, False),
        (superseded, False),
        (archived, False),
    ],
)
async def test_a_feed_shows_what_may_be_seen_now(world: World, happen: Any, seen: bool) -> None:
    project, (ada, bob) = await sailors(world, "ada", "bob")
    memory = await announce(world, ada, project, SEA)
    await happen(world, ada, memory)
    assert (await ids(world, bob) == [memory.id]) is seen


async def test_a_feed_resumes_behind_its_number(world: World) -> None:
    project, (ada, bob) = await sailors(world, "ada", "bob")
    rows = [await announce(world, ada, project, f"{SEA} {number}") for number in range(3)]
    first = (await handed(world, bob))[0]
    assert await ids(world, bob, first.seq) == [row.id for row in rows[1:]]
    assert (await follow(world.context, lambda: bob, None)).after == first.seq + 2


async def test_a_feed_passes_over_a_long_run_of_gone_memories(world: World) -> None:
    project, (ada, bob) = await sailors(world, "ada", "bob")
    rows = [await announce(world, ada, project, f"{SEA} {number}") for number in range(40)]
    await ending.forget(world.context, ada, [row.id for row in rows[:-1]])
    feed = Feed(world.context, lambda: bob, 0)
    assert [one.memory.id for one in await feed.read(4, 5.0)] == [rows[-1].id]


async def test_a_policy_that_shrank_hides_what_was_handed_before(world: World) -> None:
    project, (ada, bob) = await sailors(world, "ada", "bob")
    await announce(world, ada, project, SEA)
    bob = await world.agent("bob", ReadPolicy.ISOLATED)
    assert await ids(world, bob) == []


# --- the agent port -----------------------------------------------------------------------------


async def test_a_client_follows_and_resumes_across_a_break(port: Port) -> None:
    world = port.edge.world
    project, (ada, _) = await sailors(world, "ada", "bob")
    async with port.client("bob") as client, client.watch() as deliveries:
        assert await deliveries.ready() == 0
        first = await announce(world, ada, project, SEA)
        one = await deliveries.__anext__()
        assert (one.memory.raw_id, one.memory.project) == (first.id, "harbour")
        await port.stop()
        second = await announce(world, ada, project, f"{SEA} again")
        await port.start()
        two = await deliveries.__anext__()
        assert two.memory.raw_id == second.id
    third = await announce(world, ada, project, f"{SEA} once more")
    async with port.client("bob") as client, client.watch(after=two.seq) as deliveries:
        assert (await deliveries.__anext__()).memory.raw_id == third.id


async def test_a_slow_subscriber_loses_nothing_and_slows_nobody(port: Port) -> None:
    world = port.edge.world
    project, (ada, _) = await sailors(world, "ada", "bob")
    async with port.client("bob") as client, client.watch(after=0, credit=2) as deliveries:
        await deliveries.ready()
        stored = [(await announce(world, ada, project, f"{SEA} {n}")).id for n in range(12)]
        assert await client.ping() < 2
        got: list[bytes] = []
        async for one in deliveries:
            await trio.sleep(0.005)
            got.append(one.memory.raw_id)
            if len(got) == len(stored):
                break
        assert got == stored


async def test_no_more_is_sent_than_was_granted(port: Port) -> None:
    world = port.edge.world
    project, (ada, _) = await sailors(world, "ada", "bob")
    for number in range(4):
        await announce(world, ada, project, f"{SEA} {number}")
    raw = await port.raw(hello=False)
    await raw.say(messages.Hello(1, "bob"), messages.Watch(1, 0, 2))
    heard = [type(await raw.hear()) for _ in range(4)]
    assert heard == [messages.Welcome, messages.Watching, messages.Delivery, messages.Delivery]
    await raw.say(messages.Ping(2))
    assert await raw.hear() == messages.Pong(2)
    await raw.say(messages.Credit(1, 1))
    assert isinstance(await raw.hear(), messages.Delivery)
    await raw.say(messages.Cancel(1), messages.Ping(3), messages.Credit(1, 5))
    assert await raw.hear() == messages.Pong(3)


async def test_a_connection_has_a_bounded_number_of_watches(port: Port) -> None:
    async with port.client() as client, AsyncExitStack() as stack:
        for _ in range(port.settings.watches):
            await stack.enter_async_context(client.watch(after=0))
        with pytest.raises(Refused, match="at most 4 watches") as refused:
            async with client.watch(after=0):
                pass
        assert refused.value.code == "too_many_watches"
        assert await client.ping() < 5


async def test_a_watch_ends_with_its_agent(port: Port) -> None:
    world = port.edge.world
    _, (_, bob) = await sailors(world, "ada", "bob")
    async with port.client("bob") as client, client.watch() as deliveries:
        await deliveries.ready()
        world.context.agents.drop(bob.id)
        world.context.desk.told([bob.id])
        with pytest.raises(Refused, match="gone"):
            await deliveries.__anext__()


async def test_the_blocking_client_iterates_over_deliveries(port: Port) -> None:
    world = port.edge.world
    project, (ada, _) = await sailors(world, "ada", "bob")
    stored = [(await announce(world, ada, project, f"{SEA} {number}")).id for number in range(3)]

    def follow() -> list[bytes]:
        with BlockingClient(f"unix:{port.path}", agent="bob", patience_s=60.0) as client:
            deliveries = client.watch(after=0)
            return [next(deliveries).memory.raw_id for _ in stored]

    assert await trio.to_thread.run_sync(follow) == stored


# --- HTTP ---------------------------------------------------------------------------------------


async def test_ndjson_follows_from_now_on(served: Edge) -> None:
    world = served.world
    project, (ada, _) = await sailors(world, "ada", "bob")
    await announce(world, ada, project, f"{SEA} before")
    found: list[str] = []
    following = trio.Event()

    async def follow() -> None:
        async with (
            httpx.AsyncClient(base_url=served.url, timeout=60) as client,
            client.stream("GET", "/api/memory/watch", params={"agent_id": "bob"}) as answer,
        ):
            async for line in answer.aiter_lines():
                found.append(line)
                await served.island.to_trio(happened, following)
                if len(found) == 2:
                    return

    async with trio.open_nursery() as nursery:
        nursery.start_soon(served.island.call, follow)
        await following.wait()
        memory = await announce(world, ada, project, f"{SEA} after")
    opening, told = map(json.loads, found)
    assert opening["watching"] is True
    assert (told["memory"]["content"], told["seq"]) == (memory.content, opening["after"] + 1)


async def test_server_sent_events_resume_by_the_last_event_id(served: Edge) -> None:
    world = served.world
    project, (ada, _) = await sailors(world, "ada", "bob")
    for number in range(2):
        await announce(world, ada, project, f"{SEA} {number}")
    accept = {"Accept": "text/event-stream"}
    all_of_them = await lines(served, 8, accept, agent_id="bob", after=0)
    assert all_of_them[:2] == ["event: watching", 'data: {"after":0}']
    assert [line for line in all_of_them if line.startswith("event")][1:] == ["event: memory"] * 2
    first = next(line for line in all_of_them if line.startswith("id: "))
    resumed = await lines(served, 5, accept | {"Last-Event-ID": first[4:]}, agent_id="bob")
    assert json.loads(resumed[-1][6:])["memory"]["content"] == f"{SEA} 1"


@pytest.mark.parametrize(
    ("query", "headers", "text"),
    [
        ({"after": "soon"}, {}, "after is invalid"),
        ({"after": "-1"}, {}, "after is invalid"),
        ({"colour": "red"}, {}, "unknown filter: colour"),
        ({}, {"Accept": "text/event-stream", "Last-Event-ID": "x"}, "Last-Event-ID is invalid"),
    ],
)
async def test_a_bad_watch_is_refused_before_the_stream_begins(
    edge: Edge, query: dict[str, str], headers: dict[str, str], text: str
) -> None:
    answer = await edge.get("/api/memory/watch", params=query, headers=headers)
    assert (answer.status_code, answer.json()["error"]) == (400, text)


async def test_erasing_an_agent_takes_its_deliveries_along(edge: Edge) -> None:
    world = edge.world
    project, (ada, _) = await sailors(world, "ada", "bob")
    await announce(world, ada, project, SEA)
    begun = await edge.post("/api/erasures", {"scope": {"kind": "agent", "id": "bob"}})
    await apply.drive(edge.services.erasure, begun.json()["erasure_id"])
    sql = "SELECT count(*) FROM deliveries WHERE recipient_kind = 'agent'"
    assert await world.value(sql) == 0


# --- the command line -----------------------------------------------------------------------------


async def test_the_verb_shows_what_is_handed_over_and_resumes(served: Edge) -> None:
    world = served.world
    project, (ada, _) = await sailors(world, "ada", "bob")
    for number in range(3):
        await announce(world, ada, project, f"{SEA} {number}")

    def invoke(*args: str) -> str:
        asked = ["watch", "--url", served.url, "--agent", "bob", *args]
        result = CliRunner().invoke(cli, asked)
        assert result.exit_code == 0, result.output
        return result.output

    shown = await trio.to_thread.run_sync(invoke, "--after", "0", "--count", "2")
    told = [line.split("  ", 2) for line in shown.splitlines()]
    assert [one[1:] for one in told] == [["ada", f"{SEA} 0"], ["ada", f"{SEA} 1"]]
    rest = await trio.to_thread.run_sync(invoke, "--after", told[-1][0], "--count", "1", "--json")
    assert json.loads(rest)["memory"]["content"] == f"{SEA} 2"
