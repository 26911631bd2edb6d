"""Queues of a link: bounded, dropped or pressed back, never in one another's way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

import pytest
import trio
import trio.testing

from gossip.answers import Answers, Fetching
from gossip.carrying import MAX_INCOMING, PARTS, Incoming, Sent
from gossip.channel import LinkClosed, LinkGated
from gossip.copies import Send
from gossip.outgoing import MAX_WAITING, Outgoing
from gossip.relay import Body
from gossip.wire.messages import MAX_CHUNK, MAX_OBJECT, Copy, Deliver, Hop, Message, Ping, Topic

PEER = b"p" * 16
HOP = Hop(1_000, 1, 50, 0, 0, ())
BODY = Body(b"d" * 32, b"m" * 16, b"a" * 16, b"j" * 16, b"body", bytes(64))


class FakeChannel:
    """Takes messages until it is closed; refuses copies when gated."""

    def __init__(self) -> None:
        self.closed = False
        self.gated = False
        self.sent: list[Message] = []

    async def send(self, message: Message) -> None:
        await trio.lowlevel.checkpoint()
        if self.closed:
            raise LinkClosed("test")
        if self.gated and isinstance(message, Copy):
            raise LinkGated("Copy")
        self.sent.append(message)


class Queue:
    """An outgoing queue over a fake channel; `alive` are the memories that may leave."""

    def __init__(self) -> None:
        self.channel = FakeChannel()
        self.alive = {BODY.memory_id}
        self.mono = 0
        self.counted: Counter[str] = Counter()
        channel: Any = self.channel
        self.out = Outgoing(channel, self.body, self.serveable, lambda: self.mono, self.count)

    def body(self, diff_id: bytes) -> Body | None:
        return BODY if diff_id == BODY.diff_id else None

    async def serveable(self, ids: Collection[bytes]) -> set[bytes]:
        return set(ids) & self.alive

    def count(self, name: str, label: str = "", n: int = 1) -> None:
        self.counted[label] += n

    async def drain(self, nursery: trio.Nursery) -> None:
        nursery.start_soon(self.out.run)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()


async def test_a_copy_is_as_old_as_it_waited() -> None:
    queue = Queue()
    queue.out.post(Send(PEER, BODY.diff_id, HOP))
    queue.mono = 700
    async with trio.open_nursery() as nursery:
        await queue.drain(nursery)
    (sent,) = queue.channel.sent
    assert isinstance(sent, Copy)
    assert sent.hop == Hop(1_000, 1, 750, 0, 0, ())


async def test_a_memory_that_was_forgotten_meanwhile_does_not_leave() -> None:
    queue = Queue()
    queue.out.post(Send(PEER, BODY.diff_id, HOP))
    queue.out.post(Send(PEER, bytes(32), HOP))
    queue.alive.clear()
    async with trio.open_nursery() as nursery:
        await queue.drain(nursery)
    assert queue.channel.sent == []
    assert queue.counted == {"gone": 2}


async def test_what_does_not_fit_is_dropped_and_counted() -> None:
    queue = Queue()
    posted = [queue.out.post(Ping(n)) for n in range(MAX_WAITING + 3)]
    assert posted == [True] * MAX_WAITING + [False] * 3
    queue.channel.closed = True
    assert not queue.out.post(Ping(0))
    assert queue.counted == {"full": 3, "closed": 1}


async def test_a_peer_that_may_have_no_copies_still_gets_the_rest() -> None:
    queue = Queue()
    queue.channel.gated = True
    queue.out.post(Send(PEER, BODY.diff_id, HOP))
    queue.out.post(Ping(1))
    async with trio.open_nursery() as nursery:
        await queue.drain(nursery)
    assert queue.channel.sent == [Ping(1)]


async def test_answers_press_back_while_asked_and_vanish_otherwise() -> None:
    answers: Answers[int] = Answers()
    assert not await answers.put(0)
    got: list[int] = []
    async with trio.open_nursery() as nursery:
        with answers.asking():

            async def tell() -> None:
                for n in range(50):
                    await answers.put(n)

            nursery.start_soon(tell)
            while len(got) < 50:
                got.append(await answers.get())
    assert got == list(range(50))
    assert not answers.asked


async def test_a_reader_that_waits_for_room_goes_on_when_the_asker_gives_up() -> None:
    answers: Answers[int] = Answers()
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            taken: list[bool] = []

            async def tell() -> None:
                taken.extend([await answers.put(n) for n in range(50)])

            with answers.asking():
                nursery.start_soon(tell)
                await trio.testing.wait_all_tasks_blocked()
    assert not all(taken)
    assert len(taken) == 50


async def test_only_what_was_asked_for_is_taken_and_once() -> None:
    fetching = Fetching()
    assert not fetching.take(b"a")
    fetching.ask([b"a", b"b", b"c"])
    assert [fetching.take(each) for each in (b"a", b"a", b"x", b"b")] == [True, False, False, True]
    fetching.settle(b"a", kept=True)
    fetching.settle(b"b", kept=False)
    assert await fetching.kept(1.0) == 1
    assert not fetching.take(b"c")


def chunk(subject: bytes, total: int, offset: int, size: int) -> Deliver:
    return Deliver(Topic.DOCUMENT, subject, total, offset, bytes(size))


def test_a_document_comes_in_order_and_starts_over_by_its_first_chunk() -> None:
    incoming = Incoming()
    assert incoming.add(chunk(b"x", 10, 0, 5)) is None
    assert incoming.add(chunk(b"x", 10, 0, 5)) is None
    assert incoming.add(chunk(b"x", 10, 5, 5)) == bytes(10)
    assert incoming.add(chunk(b"x", 10, 5, 5)) is None
    assert incoming.add(chunk(b"y", 10, 0, 5)) is None
    assert incoming.add(chunk(b"y", 11, 5, 5)) is None
    assert incoming.size == 0


def test_unfinished_documents_of_a_link_are_bounded() -> None:
    incoming = Incoming()
    for n in range(200):
        subject = n.to_bytes(2, "big")
        for part in range(5):
            incoming.add(chunk(subject, MAX_OBJECT, part * MAX_CHUNK, MAX_CHUNK))
            assert incoming.size <= MAX_INCOMING
    assert len(incoming._parts) <= PARTS


def test_records_on_their_way_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gossip.carrying.MAX_SENT", 3)
    sent = Sent()
    for n in range(5):
        sent.note(bytes([n]), b"s")
    assert list(sent.subjects) == [b"\x02", b"\x03", b"\x04"]
