"""Recall by vector: the agent port and HTTP of one real node next to what people use today.

All sides hold the same vectors and answer the same questions on the same machine in one run:
pgvector's HNSW in a PostgreSQL of the same build through an asyncpg pool, Chroma's own server, and
hnswlib in this process as the floor. A peer whose packages are missing is left out and named.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import hnswlib
import numpy as np
from rich.console import Console

from node.client import Answer, Client, Draft
from ops.bench import shapes
from ops.bench.chroma import PeerMissing, open_chroma
from ops.bench.load import by_tasks, over_http
from ops.bench.node import on_a_node
from ops.bench.plain import PlainTable, open_plain
from ops.bench.ported import drive, in_flight
from ops.bench.result import Result, Timing
from ops.bench.server import peer_server
from ops.bench.shapes import Vectors
from ops.mesh.nodes import Node
from storage.hot.settings import HotSettings

TOTAL: Final = 40_000
DIMENSION: Final = 256
TOP: Final = 10
BATCH: Final = 250
ASKED: Final = {1: 2_000, 16: 20_000}
WARMING: Final = 200
"""Questions that go ahead of those that are timed, on both doors of the node."""
CHROMA_ASKED: Final = {1: 300, 16: 600}
CHECKED: Final = 1_000
RECALL: Final = "/api/memory/recall"


def run(console: Console, size: int = TOTAL) -> int:
    """The benchmark with its node; the exit code."""
    return on_a_node("recall", "pgvector", size, partial(_measure, size), console)


def _measure(size: int, node: Node, result: Result, console: Console) -> None:
    vectors = shapes.corpus(size, DIMENSION)
    asked = shapes.questions(vectors, max(ASKED.values()))
    result.figures |= {"memories": size, "dimension": DIMENSION}
    console.print(f"storing {size:,} vectors of {DIMENSION} on all sides ...")
    loaded = fill(node, vectors)
    result.figures["node_load_per_s"] = round(size / loaded)
    with peer_server(node.workspace.parent) as sockets:
        peers = asyncio.run(_pgvector(sockets, vectors, asked, result))
    chroma = _chroma(node, vectors, asked, result)
    console.print("asking ...")
    port = {
        tasks: drive(node.workspace, _asking(asked[:count], tasks))
        for tasks, count in ASKED.items()
    }
    for tasks, timing in port.items():
        result.compare("agent port, fast", tasks, timing, peers[tasks])
    over = {}
    for clients, count in ASKED.items():
        bodies = [
            {"vector": vector.tolist(), "limit": TOP, "fast": True} for vector in asked[:count]
        ]
        over_http(node.api.url, RECALL, bodies[:WARMING], clients)
        over[clients] = over_http(node.api.url, RECALL, bodies, clients)
        result.compare("HTTP, fast", clients, over[clients], peers[clients])
    _quality(node, vectors, asked[:CHECKED], result)
    _floor(vectors, asked[:2_000], result)
    one, many = peers[1].rate, peers[16].rate
    result.bar("port_16_by_pgvector", "agent port by pgvector, 16", port[16].rate / many, ">=", 3)
    result.bar("port_1_by_pgvector", "agent port by pgvector, 1", port[1].rate / one, ">=", 1.5)
    result.bar("http_16_by_pgvector", "HTTP by pgvector, 16", over[16].rate / many, ">=", 0.6)
    if chroma:
        result.bar("port_16_by_chroma", "port by Chroma, 16", port[16].rate / chroma[16], ">=", 15)
        result.bar("http_16_by_chroma", "HTTP by Chroma, 16", over[16].rate / chroma[16], ">=", 4)
    result.notes.append(
        "agent port: one connection of node.client in this process, `fast`. pgvector: asyncpg "
        "pool of 16, server of the same build (m 16, ef_construction 100, ef_search 64). All share "
        "the machine's cores with their clients."
    )


def fill(node: Node, vectors: Vectors) -> float:
    """Store all vectors with a text each; seconds that it took."""
    drafts = [
        Draft(content(place), vector=vector.astype("<f4").tobytes())
        for place, vector in enumerate(vectors)
    ]
    groups = [drafts[start : start + BATCH] for start in range(0, len(drafts), BATCH)]

    async def store(client: Client) -> float:
        return (await in_flight(client.remember_batch, groups, 2)).seconds

    return drive(node.workspace, store)


def content(place: int) -> str:
    """The text of a memory: unlike any other, about as long as a note."""
    return f"note {place}: what was decided about subject {place % 997} on day {place % 365}"


def _asking(asked: Vectors, tasks: int) -> Callable[[Client], Any]:
    async def ask(client: Client) -> Timing:
        async def recall(vector: Vectors) -> Answer:
            return await client.recall(vector=vector, limit=TOP, fast=True)

        await in_flight(recall, list(asked[:WARMING]), tasks)
        return await in_flight(recall, list(asked), tasks)

    return ask


async def _pgvector(
    sockets: Path, vectors: Vectors, asked: Vectors, result: Result
) -> dict[int, Timing]:
    async with open_plain(sockets, DIMENSION, 16) as plain:
        begun = time.perf_counter()
        for start in range(0, len(vectors), 500):
            part = vectors[start : start + 500]
            rows = [(content(start + at), row) for at, row in enumerate(part)]
            await plain.insert(rows)
        result.figures["pgvector_load_per_s"] = round(len(vectors) / (time.perf_counter() - begun))

        async def search(vector: Vectors) -> None:
            await plain.search(vector)

        await by_tasks(search, list(asked[:500]), 16)
        timings = {
            clients: await by_tasks(search, list(asked[: count // 2]), clients)
            for clients, count in ASKED.items()
        }
        result.figures["pgvector_recall_at_10"] = await _plain_quality(plain, vectors, asked)
    return timings


async def _plain_quality(plain: PlainTable, vectors: Vectors, asked: Vectors) -> float:
    wanted = shapes.nearest(vectors, asked[:CHECKED], TOP)
    found = 0
    for vector, right in zip(asked, wanted, strict=False):
        found += len({*await plain.search(vector)} & {content(place) for place in right})
    return round(found / (CHECKED * TOP), 4)


def _chroma(node: Node, vectors: Vectors, asked: Vectors, result: Result) -> dict[int, float]:
    """Questions a second by number of clients; empty without Chroma."""
    try:
        with open_chroma(node.workspace.parent) as chroma:
            chroma.fill(vectors, content)
            rates = {}
            for clients, count in CHROMA_ASKED.items():
                timing = chroma.ask(asked[:count], clients, TOP)
                rates[clients] = timing.rate
                result.figures[f"chroma_{clients}_per_s"] = round(timing.rate, 1)
                result.figures[f"chroma_{clients}_p99_ms"] = round(timing.percentile(99), 2)
            return rates
    except PeerMissing as missing:
        result.notes.append(f"Chroma was left out: {missing}")
        return {}


def _quality(node: Node, vectors: Vectors, asked: Vectors, result: Result) -> None:
    wanted = shapes.nearest(vectors, asked, TOP)

    async def ask(client: Client) -> int:
        found = 0
        for vector, right in zip(asked, wanted, strict=True):
            answer = await client.recall(vector=vector, limit=TOP, fast=True)
            found += len({hit.content for hit in answer.hits} & {content(one) for one in right})
        return found

    share = drive(node.workspace, ask) / (len(asked) * TOP)
    result.bar("recall_at_10", "of the ten truly nearest, found", round(share, 4), ">=", 0.97)


def _floor(vectors: Vectors, asked: Vectors, result: Result) -> None:
    """hnswlib alone, one question at a time: no protocol, no visibility, no text."""
    index = hnswlib.Index(space="ip", dim=DIMENSION)
    index.init_index(max_elements=len(vectors), M=HotSettings().m, ef_construction=100)
    index.add_items(vectors, np.arange(len(vectors)), num_threads=2)
    index.set_ef(HotSettings().ef)
    begun = time.perf_counter()
    for vector in asked:
        index.knn_query(vector[None, :], k=TOP, num_threads=1)
    result.figures["hnswlib_per_s"] = round(len(asked) / (time.perf_counter() - begun), 1)
