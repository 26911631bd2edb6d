"""Good clients next to a hundred bad ones: what the others feel of them, and what they leave.

One client asks over the agent port and one over HTTP, both at a steady moderate rate. Rounds with
and without the crowd of `ops/bench/crowd.py` alternate, each pair gives a ratio of 99th
percentiles, and the median of the ratios is judged. The node's memory and its open descriptors are
read from /proc.
"""

from __future__ import annotations

import gc
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import trio
from rich.console import Console

from node.client import Client
from ops.bench import shapes
from ops.bench.load import HttpFailed
from ops.bench.node import on_a_node
from ops.bench.ported import connect
from ops.bench.recall import DIMENSION, RECALL, TOP, fill
from ops.bench.result import Result, Timing
from ops.bench.shapes import Vectors
from ops.mesh.nodes import ROOT, Node, free_port
from storage.errors import MnemeshError

TOTAL: Final = 5_000
ROUNDS: Final = 24
SECONDS: Final = 2.5
SETTLE_S: Final = 1.0
PORT_EVERY_S: Final = 1 / 100
HTTP_EVERY_S: Final = 1 / 50
STAY_S: Final = 30.0
"""Seconds of the crowd's first and last visit, in which the stalled ones are shown the door."""
LEAVING_S: Final = 60.0
SLOWER: Final = 1.5
GROWTH: Final = 1.05


def run(console: Console, size: int = TOTAL) -> int:
    """The benchmark with its node; the exit code."""
    door = free_port()
    return on_a_node(
        "hostile",
        "quiet",
        size,
        partial(_measure, size, door),
        console,
        auth={"mode": "hybrid"},
        agent_port={"listen": f"127.0.0.1:{door}"},
    )


def _measure(size: int, door: int, node: Node, result: Result, console: Console) -> None:
    vectors = shapes.corpus(size, DIMENSION)
    asked = shapes.questions(vectors, 1_000)
    fill(node, vectors)
    result.figures |= {"memories": size, "rounds": ROUNDS}
    rounds: dict[bool, list[Round]] = {True: [], False: []}
    memory: list[float] = []
    gc.collect()
    gc.freeze()
    with _crowd(node, door) as tell:
        trio.run(_round, node, asked)
        idle = descriptors(node)
        memory.append(_stay(node, tell))
        for number in range(ROUNDS):
            console.print(f"round {number + 1} of {ROUNDS} ...")
            for bad in (number % 2 == 0, number % 2 != 0):
                before = tell("go" if bad else "stop")
                time.sleep(SETTLE_S)
                spent = cpu_s(node)
                rounds[bad].append(trio.run(_round, node, asked))
                rounds[bad][-1].node_cpu_s = cpu_s(node) - spent
                if bad:
                    rounds[bad][-1].crowd_cpu_s = tell("stop")["cpu_s"] - before["cpu_s"]
        memory.append(_stay(node, tell))
        visits = tell("stop")["visits"]
        left = _descriptors_after(node, idle)
    _judge(rounds, memory, result)
    result.bar("descriptors_left", "open when the crowd had gone", left, "<=", 0)
    result.figures["visits"] = visits
    result.notes.append(
        "quiet: the same clients in the same run without the crowd. The bad clients run in one "
        "process beside the node and the good ones, on the same cores."
    )


class Round:
    """What the good clients met in one round."""

    def __init__(self) -> None:
        self.latencies: dict[str, list[float]] = {"port": [], "http": []}
        self.failed = 0
        self.crowd_cpu_s = 0.0
        self.node_cpu_s = 0.0


def _judge(rounds: dict[bool, list[Round]], memory: list[float], result: Result) -> None:
    for name in ("port", "http"):
        pairs = [
            (_p99(bad.latencies[name]), _p99(quiet.latencies[name]))
            for bad, quiet in zip(rounds[True], rounds[False], strict=True)
        ]
        kept = {
            bad: Timing(
                tuple(x for one in rounds[bad] for x in one.latencies[name]), ROUNDS * SECONDS
            )
            for bad in (True, False)
        }
        result.compare("agent port, fast" if name == "port" else "HTTP, fast", 1, kept[True],
                       kept[False])  # fmt: skip
        result.figures[f"{name}_ratios"] = [round(a / b, 2) for a, b in pairs]
        ratio = statistics.median(a / b for a, b in pairs)
        result.bar(f"p99_{name}", "99th percentile with the crowd by without", ratio, "<=", SLOWER)
    failed = sum(one.failed for kind in rounds.values() for one in kind)
    result.bar("good_failed", "good requests that failed", failed, "==", 0)
    result.bar(
        "memory", "after the last visit by after the first", memory[-1] / memory[0], "<=", GROWTH
    )
    result.figures["memory_mb"] = [round(one) for one in memory]
    spent = statistics.mean(one.crowd_cpu_s for one in rounds[True])
    result.figures["crowd_cpu_share"] = round(spent / (SECONDS + SETTLE_S), 3)
    for bad, name in ((False, "quiet"), (True, "crowd")):
        spent = statistics.mean(one.node_cpu_s for one in rounds[bad])
        result.figures[f"node_cpu_share_{name}"] = round(spent / SECONDS, 3)


def _p99(latencies: list[float]) -> float:
    return Timing(tuple(latencies), 1.0).percentile(99)


# --- the good clients -------------------------------------------------------------------------


async def _round(node: Node, asked: Vectors) -> Round:
    """Both good clients side by side for a while."""
    found = Round()
    async with connect(node.workspace) as client, trio.open_nursery() as nursery:

        async def over_port(vector: Vectors) -> None:
            await _ask_port(client, vector)

        nursery.start_soon(_paced, over_port, asked, PORT_EVERY_S, found.latencies["port"], found)
        web = await Web.open(node.api.url)
        nursery.start_soon(_paced, web.recall, asked, HTTP_EVERY_S, found.latencies["http"], found)
    await web.close()
    return found


async def _ask_port(client: Client, vector: Vectors) -> None:
    answer = await client.recall(vector=vector, limit=TOP, fast=True)
    if len(answer.hits) != TOP:
        raise HttpFailed("an answer without its hits")


async def _paced(
    ask: Callable[[Vectors], Awaitable[None]],
    asked: Vectors,
    every_s: float,
    latencies: list[float],
    found: Round,
) -> None:
    """Ask at fixed moments, whatever the answers take; a late answer counts from its moment."""
    begun = time.perf_counter()
    for number in range(math.ceil(SECONDS / every_s)):
        due = begun + number * every_s
        await trio.sleep(max(0.0, due - time.perf_counter()))
        try:
            await ask(asked[number % len(asked)])
        except (HttpFailed, MnemeshError, trio.BrokenResourceError):
            found.failed += 1
        latencies.append(time.perf_counter() - due)


class Web:
    """One kept connection that posts recalls: no client library's cost beside the node's."""

    def __init__(self, stream: trio.SocketStream, host: str) -> None:
        self._stream = stream
        self._host = host

    @classmethod
    async def open(cls, url: str) -> Web:
        """Connect."""
        place = urlsplit(url)
        return cls(await trio.open_tcp_stream(place.hostname or "", place.port or 80), place.netloc)

    async def close(self) -> None:
        """Disconnect."""
        await self._stream.aclose()

    async def recall(self, vector: Vectors) -> None:
        """Ask once. Raises HttpFailed."""
        asked = {"vector": vector.tolist(), "limit": TOP, "fast": True}
        body = json.dumps(asked).encode("ascii")
        await self._stream.send_all(
            f"POST {RECALL} HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n".encode("ascii")
            + body
        )
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += await self._more()
        head, _, rest = answer.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise HttpFailed(head.decode("latin-1"))
        (length,) = [
            int(line.partition(b":")[2])
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"content-length:")
        ]
        while len(rest) < length:
            rest += await self._more()

    async def _more(self) -> bytes:
        data = await self._stream.receive_some(65536)
        if not data:
            raise HttpFailed("the node closed the connection")
        return bytes(data)


# --- the crowd and the node from outside ------------------------------------------------------


@contextmanager
def _crowd(node: Node, door: int) -> Iterator[Callable[[str], dict[str, Any]]]:
    """The bad clients' process; call what comes with `go` or `stop`."""
    http = urlsplit(node.api.url).port
    socket = node.workspace / ".daemon" / "agent.sock"
    command = [sys.executable, "-m", "ops.bench.crowd", str(socket), str(door), str(http)]
    process = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    inward, outward = process.stdin, process.stdout

    def tell(word: str) -> dict[str, Any]:
        inward.write(f"{word}\n")
        inward.flush()
        told: dict[str, Any] = json.loads(outward.readline())
        return told

    try:
        tell("stop")
        yield tell
    finally:
        inward.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        outward.close()


def resident_mb(node: Node) -> float:
    """Memory that the node's process holds, in MB."""
    for line in _proc(node, "status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise HttpFailed("the node's memory cannot be read")


def cpu_s(node: Node) -> float:
    """Processor seconds that the node's process has used."""
    fields = _proc(node, "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def descriptors(node: Node) -> int:
    """Files and sockets that the node's process has open."""
    return len(list(_proc(node, "fd").iterdir()))


def _descriptors_after(node: Node, idle: int) -> int:
    """How many more than `idle` are open once those who leave had time to be noticed."""
    deadline = time.monotonic() + LEAVING_S
    while (left := descriptors(node) - idle) > 0 and time.monotonic() < deadline:
        time.sleep(0.5)
    return left


def _stay(node: Node, tell: Callable[[str], dict[str, Any]]) -> float:
    """Memory of the node in MB when the crowd has been there for a while."""
    tell("go")
    time.sleep(STAY_S)
    held = resident_mb(node)
    tell("stop")
    return held


def _proc(node: Node, name: str) -> Path:
    assert node.process is not None
    return Path("/proc") / str(node.process.pid) / name
