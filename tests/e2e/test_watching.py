"""Following a real node: each memory once, whoever restarts, and a sleeper holds up nobody."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
import trio

from node.client import BlockingClient, Closed, Delivery
from node.port import messages
from node.port.codec import FrameBuffer, encode, read_reply
from ops.mesh.api import ApiError, Unreachable
from ops.mesh.nodes import COMMAND, ROOT, Node
from ops.mesh.stage import soon
from tests.e2e.programs import programs, say

pytestmark = pytest.mark.e2e

SEA = "ships sail the sea past the harbour"
PATIENCE_S = 90.0


@contextmanager
def a_harbour(*watchers: str) -> Iterator[Node]:
    """A running node where ann speaks of the sea and the others care for it."""
    with programs("1") as (node,):
        node.start()
        say(node, "project", "create", "harbour")
        options = ("--project", "harbour", "--memory", "shared", "--description", SEA)
        for name in ("ann", *watchers):
            say(node, "agent", "add", name, *options)
        yield node


def tell(node: Node, *texts: str, enough: threading.Event | None = None) -> None:
    """Remember each until the node said that it did, over all its restarts."""
    left = list(texts)
    while left and not (enough and enough.is_set()):
        try:
            node.api.remember("ann", "harbour", left[0])
            del left[0]
        except (ApiError, Unreachable, RuntimeError):  # down, starting, or its client just closed
            time.sleep(0.1)


@contextmanager
def telling(node: Node, *texts: str) -> Iterator[threading.Thread]:
    """The same in a thread that ends with the block."""
    enough = threading.Event()
    writing = threading.Thread(target=tell, args=(node, *texts), kwargs={"enough": enough})
    writing.start()
    try:
        yield writing
    finally:
        enough.set()
        writing.join(PATIENCE_S)


@contextmanager
def showing(node: Node, agent: str, count: int) -> Iterator[subprocess.Popen[str]]:
    """The program that prints what an agent is handed; it ends with the block."""
    options = ("--agent", agent, "--after", "0", "--count", str(count))
    shown = subprocess.Popen(
        [*COMMAND, "watch", *options],
        cwd=ROOT,
        env=dict(node.environment()),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield shown
    finally:
        shown.kill()
        shown.communicate()


class Follower:
    """Bob, who keeps the number of the last memory that he dealt with, and all that he got."""

    def __init__(self, node: Node) -> None:
        self.got: list[Delivery] = []
        self._node = node

    @contextmanager
    def here(self) -> Iterator[None]:
        """Follow behind the last one until the block ends, wherever that is."""
        with BlockingClient(self._node.workspace, agent="bob", patience_s=PATIENCE_S) as client:
            thread = threading.Thread(target=self._follow, args=(client,))
            thread.start()
            try:
                yield
            finally:
                client.close()
                thread.join(PATIENCE_S)

    def _follow(self, client: BlockingClient) -> None:
        after = self.got[-1].seq if self.got else 0
        with suppress(Closed):
            for delivery in client.watch(after=after, credit=8):
                self.got.append(delivery)


def test_each_memory_comes_once_across_restarts_of_node_and_client() -> None:
    texts = [f"{SEA}, time {number}" for number in range(60)]
    with a_harbour("bob") as node, showing(node, "bob", len(texts)) as shown:
        bob = Follower(node)

        def has(count: int) -> Callable[[], bool]:
            return lambda: len(bob.got) >= count

        assert shown.stdout is not None
        tell(node, texts[0])
        lines = [shown.stdout.readline()]
        with telling(node, *texts[1:]) as writing:
            with bob.here():
                soon(has(10), PATIENCE_S, "the first deliveries")
                node.kill()
                node.start()
                soon(has(25), PATIENCE_S, "deliveries after kill -9")
            with bob.here():
                soon(has(40), PATIENCE_S, "deliveries to a client that came back")
                node.stop()
                node.start()
                writing.join(PATIENCE_S)
                soon(has(len(texts)), PATIENCE_S, "all deliveries")
        out, _ = shown.communicate(timeout=PATIENCE_S)
        lines += out.splitlines()
        assert [line.split("  ")[-1].strip() for line in lines] == texts
        assert [one.memory.content for one in bob.got] == texts
        seqs = [one.seq for one in bob.got]
        assert seqs == sorted(set(seqs))
        with BlockingClient(node.workspace, agent="bob") as again:
            first = [next(again.watch(after=seq)).seq for seq in seqs[:6]]
        assert first == seqs[1:7]


def test_a_sleeping_subscriber_holds_up_nobody_and_resumes_without_a_gap() -> None:
    texts = [f"Time {number}: " + f"{SEA}, " * 2_700 for number in range(20)]
    with a_harbour("bob", "carl") as node:
        path = node.workspace / ".daemon" / "agent.sock"

        async def run() -> list[str]:
            asleep = await trio.open_unix_socket(str(path))
            await asleep.send_all(encode(messages.Hello(messages.VERSION, "carl")))
            await asleep.send_all(encode(messages.Watch(1, 0, messages.MAX_CREDIT)))
            with trio.fail_after(PATIENCE_S):
                await trio.to_thread.run_sync(_read_all_as_bob, node, texts, abandon_on_cancel=True)
            return await _carl(asleep, path, len(texts))

        got = trio.run(run)
        assert [text.split(":")[0] for text in got] == [text.split(":")[0] for text in texts]


def _read_all_as_bob(node: Node, texts: list[str]) -> None:
    """Write everything and read it as another subscriber, while carl sleeps."""
    with BlockingClient(node.workspace, agent="bob", patience_s=PATIENCE_S) as client:
        deliveries = client.watch(after=0, credit=4)
        for text in texts:
            tell(node, text)
            assert next(deliveries).memory.content.split() == text.split()


async def _carl(asleep: trio.SocketStream, path: object, count: int) -> list[str]:
    """What the sleeper finds when it wakes up, and behind that on connections that it makes."""
    found: list[str] = []
    after, stream = 0, asleep
    with trio.fail_after(PATIENCE_S):
        while True:
            buffer = FrameBuffer()
            try:
                while len(found) < count and (data := await stream.receive_some(1 << 16)):
                    for body in buffer.feed(data):
                        reply = read_reply(body)
                        if isinstance(reply, messages.Delivery):
                            found.append(reply.memory.content)
                            after = reply.seq
            except trio.BrokenResourceError:
                await stream.aclose()
            if len(found) >= count:
                return found
            stream = await trio.open_unix_socket(str(path))
            await stream.send_all(encode(messages.Hello(messages.VERSION, "carl")))
            await stream.send_all(encode(messages.Watch(1, after, messages.MAX_CREDIT)))
