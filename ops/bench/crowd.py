"""A crowd of bad clients in a process of its own: `python -m ops.bench.crowd SOCKET TLS HTTP`.

Each client has one habit and keeps to it: it says nothing, garbage, half of something or too much,
does not read, or leaves without a word, and comes back a moment after it was shown the door. All
are paced, because they share the machine with the node and those who use it well.

The process is led by lines on its standard input: `go` lets all in, `stop` drops every connection;
either is answered by one line of JSON. It ends with its input.
"""

from __future__ import annotations

import json
import os
import random
import ssl
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final

import trio

from node.port import messages
from node.port.codec import encode

CLIENTS: Final = 100
BACK_S: Final = (1.0, 3.0)
"""Seconds after which a client that was thrown out comes back."""
DRIP_S: Final = 0.5
ASK_S: Final = 0.25
BLOCK: Final = 64 * 1024
HUGE: Final = 10_000_000_000
_GONE: Final = (trio.BrokenResourceError, trio.ClosedResourceError, OSError, ssl.SSLError)

Door = Callable[[], Awaitable[trio.abc.Stream]]
Habit = Callable[[trio.abc.Stream], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class Doors:
    """Where the node listens: a unix socket, and ports of loopback for TLS and HTTP."""

    path: str
    tls: int
    http: int

    async def unix(self) -> trio.abc.Stream:
        return await trio.open_unix_socket(self.path)

    async def raw_tls(self) -> trio.abc.Stream:
        """Without a handshake."""
        return await trio.open_tcp_stream("127.0.0.1", self.tls)

    async def shaken_tls(self) -> trio.abc.Stream:
        """With one."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        stream = trio.SSLStream(await self.raw_tls(), context, https_compatible=True)
        await stream.do_handshake()
        return stream

    async def web(self) -> trio.abc.Stream:
        return await trio.open_tcp_stream("127.0.0.1", self.http)


# --- habits -----------------------------------------------------------------------------------


async def silent(stream: trio.abc.Stream) -> None:
    """Connect and say nothing."""
    await _until_thrown_out(stream)


async def vanish(stream: trio.abc.Stream) -> None:
    """Connect and leave."""
    await trio.sleep(random.uniform(0.0, 0.2))


async def garbage(stream: trio.abc.Stream) -> None:
    """Bytes of no meaning."""
    await stream.send_all(os.urandom(512))
    await _until_thrown_out(stream)


async def claim(stream: trio.abc.Stream) -> None:
    """Announce a frame of two gigabytes."""
    await stream.send_all(b"\x7f\xff\xff\xff" + bytes(64))
    await _until_thrown_out(stream)


async def half(stream: trio.abc.Stream) -> None:
    """Begin a hello and stall."""
    await stream.send_all(encode(messages.Hello(messages.VERSION))[:-2])
    await _until_thrown_out(stream)


async def half_later(stream: trio.abc.Stream) -> None:
    """Say hello, begin a large frame and stall in it."""
    await stream.send_all(encode(messages.Hello(messages.VERSION)))
    await stream.send_all((1 << 20).to_bytes(4, "big") + bytes(BLOCK))
    await _until_thrown_out(stream)


async def deaf(stream: trio.abc.Stream) -> None:
    """Say hello, then ask again and again and read no answer."""
    await stream.send_all(encode(messages.Hello(messages.VERSION)))
    number = 0
    while True:
        number += 1
        await stream.send_all(encode(messages.Recall(number, "deploys", limit=50, fast=True)))
        await trio.sleep(ASK_S)


async def drip(stream: trio.abc.Stream) -> None:
    """Send a head that never ends, a few bytes at a time."""
    await stream.send_all(b"POST /api/memory/recall HTTP/1.1\r\nHost: localhost\r\n")
    while True:
        await stream.send_all(b"X-A: b\r\n")
        await trio.sleep(DRIP_S)


async def swell(stream: trio.abc.Stream) -> None:
    """Send one header that never ends, in large pieces."""
    await stream.send_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-A: ")
    while True:
        await stream.send_all(b"a" * BLOCK)
        await trio.sleep(DRIP_S)


async def announce(stream: trio.abc.Stream) -> None:
    """Announce a huge body and send it whatever the answer is."""
    await stream.send_all(_head(f"Content-Length: {HUGE}"))
    while True:
        await stream.send_all(b"a" * BLOCK)
        await trio.sleep(DRIP_S)


async def pour(stream: trio.abc.Stream) -> None:
    """Send a body in pieces without saying where it ends."""
    await stream.send_all(_head("Transfer-Encoding: chunked"))
    piece = b"%x\r\n" % BLOCK + b"a" * BLOCK + b"\r\n"
    while True:
        await stream.send_all(piece)
        await trio.sleep(DRIP_S)


async def hold(stream: trio.abc.Stream) -> None:
    """Announce a small body and stall in it."""
    await stream.send_all(_head("Content-Length: 100") + b'{"query"')
    await _until_thrown_out(stream)


async def deaf_web(stream: trio.abc.Stream) -> None:
    """Ask for the list again and again and read no answer."""
    while True:
        await stream.send_all(b"GET /api/memories?limit=50 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await trio.sleep(4 * ASK_S)


async def leave(stream: trio.abc.Stream) -> None:
    """Ask and be gone before the answer."""
    await stream.send_all(_head("Content-Length: 15") + b'{"query":"tea"}')


def _head(header: str) -> bytes:
    text = (
        "POST /api/memory/recall HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\n{header}\r\n\r\n"
    )
    return text.encode("ascii")


async def _until_thrown_out(stream: trio.abc.Stream) -> None:
    while await stream.receive_some(4096):
        continue


# --- the crowd --------------------------------------------------------------------------------


def habits(doors: Doors) -> list[tuple[str, Door, Habit]]:
    """Who comes in where: name, door, habit; the crowd is these again and again."""
    frames = (silent, vanish, garbage, claim, half, half_later, deaf)
    web = (silent, vanish, garbage, drip, swell, announce, pour, hold, deaf_web, leave)
    groups: tuple[tuple[str, Door, Sequence[Habit]], ...] = (
        ("unix", doors.unix, frames),
        ("tls", doors.raw_tls, (silent, vanish, garbage)),
        ("tls shaken", doors.shaken_tls, (silent, half, deaf)),
        ("http", doors.web, web),
    )
    return [(f"{name} {one.__name__}", door, one) for name, door, kept in groups for one in kept]


class Crowd:
    """All bad clients; `visits` counts connections by habit."""

    def __init__(self, doors: Doors, clients: int) -> None:
        kinds = habits(doors)
        self.visits: Counter[str] = Counter()
        self._clients = [kinds[number % len(kinds)] for number in range(clients)]

    async def run(self) -> None:
        """Be there until cancelled."""
        async with trio.open_nursery() as nursery:
            for name, door, habit in self._clients:
                nursery.start_soon(self._be, name, door, habit)

    async def _be(self, name: str, door: Door, habit: Habit) -> None:
        await trio.sleep(random.uniform(0.0, BACK_S[0]))
        while True:
            try:
                stream = await door()
                try:
                    self.visits[name] += 1
                    await habit(stream)
                finally:
                    await trio.aclose_forcefully(stream)
            except _GONE:
                self.visits[f"{name}: cut off"] += 1
            await trio.sleep(random.uniform(*BACK_S))


async def _led(doors: Doors, clients: int) -> None:
    crowd = Crowd(doors, clients)
    lines = trio.lowlevel.FdStream(os.dup(0))
    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope()

        async def attend(mine: trio.CancelScope) -> None:
            with mine:
                await crowd.run()

        async for data in lines:
            for word in data.decode("ascii").split():
                scope.cancel()
                if word == "go":
                    scope = trio.CancelScope()
                    nursery.start_soon(attend, scope)
                told = {"visits": crowd.visits, "cpu_s": round(time.process_time(), 3)}
                print(json.dumps(told), flush=True)
        nursery.cancel_scope.cancel()


def main(arguments: list[str]) -> None:
    """Run until standard input ends."""
    path, tls, http = arguments
    trio.run(_led, Doors(path, int(tls), int(http)), CLIENTS)


if __name__ == "__main__":
    main(sys.argv[1:])
