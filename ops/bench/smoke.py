"""One real node: how fast it stores and answers over HTTP, starts and stops.

Next to a plain pgvector table in the same PostgreSQL server, on the same texts and vectors, in the
same run. What the node does beyond that table (HTTP, dedup, history, full text, read policies, one
durable commit with all of it) is part of what is measured.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import trio
from numpy.typing import NDArray
from rich.console import Console

from node.embed.bundled import BundledEmbedder, load_bundled
from ops.bench.load import HttpFailed, by_tasks, over_http
from ops.bench.plain import PlainTable, open_plain
from ops.bench.result import Result
from ops.corpus import load_default, question
from ops.mesh.api import Api
from ops.mesh.nodes import Node, NodeFailed, await_gone

TOTAL: Final = 10_000
SINGLES: Final = {1: 200, 8: 800}
BATCHES: Final = {1: 1_000, 8: 2_000}
QUESTIONS: Final = {1: 300, 8: 1_200}
BATCH: Final = 50
TOP: Final = 10
CHECKED: Final = 100
READY_S: Final = 3.0
STOP_S: Final = 3.0
REMEMBER: Final = "/api/memory/remember"
RECALL: Final = "/api/memory/recall"

Vectors = NDArray[np.float32]


def run(console: Console) -> int:
    """The benchmark with its node; the exit code."""
    root = Path(tempfile.mkdtemp(prefix="mnb-"))
    root.chmod(0o755)
    config = {"network": {"port": 0}, "eviction": {"ceiling": 2 * TOTAL}}
    node = Node("S", root / "S", root / "S.log", 0, config)
    node.write_config()
    result = Result("smoke")
    try:
        _measure(node, result, console)
    except (NodeFailed, HttpFailed) as error:
        console.print(f"the benchmark failed: {error}; log in {root}", style="bold red")
        node.kill()
        return 1
    finally:
        node.kill()
        left = await_gone(root)
    shutil.rmtree(root, ignore_errors=True)
    result.bar("processes_left", "processes of the node after its end", len(left), "==", 0)
    result.show(console, "pgvector")
    return 0 if result.ok else 1


def _measure(node: Node, result: Result, console: Console) -> None:
    texts = make_texts(TOTAL)
    embedder = load_bundled()
    vectors = embed(embedder, texts)
    console.print(f"{TOTAL:,} texts, {embedder.dimension} dimensions; starting a node ...")
    result.figures["first_start_s"] = round(node.start(), 2)
    asyncio.run(_compare(node, texts, vectors, embedder, result, console))
    result.figures["memories"] = TOTAL
    _answers(node.api, texts, vectors, result)
    stop = node.stop()
    console.print(f"stopped in {stop:.2f} s; starting on {TOTAL:,} memories ...")
    start = node.start()
    result.bar("start_s", f"from start to ready with {TOTAL:,} memories", start, "<=", READY_S)
    result.bar(
        "stop_s", "from SIGTERM to the end of the process", max(stop, node.stop()), "<=", STOP_S
    )
    result.notes += [
        "mnemesh: HTTP, loopback; row, vector, history and full text in one durable commit. "
        "pgvector: asyncpg pool in the same server, one table with an HNSW index (m 16, "
        "ef_construction 100, ef_search 64), durable commits.",
        "Where a text is stored or asked, both sides embed it with the same model, the node in its "
        "own process. Clients share the machine's cores with the node.",
    ]


async def _compare(
    node: Node,
    texts: Sequence[str],
    vectors: Vectors,
    embedder: BundledEmbedder,
    result: Result,
    console: Console,
) -> None:
    url = node.api.url
    async with open_plain(node.socket_dir, embedder.dimension, max(SINGLES)) as plain:
        place = 0
        for clients, count in SINGLES.items():
            part = range(place, place + count)
            own = over_http(url, REMEMBER, [{"content": texts[i]} for i in part], clients)
            peer = await by_tasks(_storing(plain, embedder), [[texts[i]] for i in part], clients)
            result.compare("remember", clients, own, peer)
            place += count
        for clients, count in BATCHES.items():
            groups = [texts[i : i + BATCH] for i in range(place, place + count, BATCH)]
            own = over_http(url, f"{REMEMBER}/batch", batches(groups), clients, BATCH)
            peer = await by_tasks(_storing(plain, embedder), groups, clients, BATCH)
            result.compare("remember in batches", clients, own, peer)
            place += count
        console.print(f"{place:,} stored by both; {TOTAL - place:,} more ...")
        groups = [texts[i : i + BATCH] for i in range(place, TOTAL, BATCH)]
        over_http(url, f"{REMEMBER}/batch", batches(groups), 2, BATCH)
        for start in range(place, TOTAL, 500):
            rows = list(zip(texts[start : start + 500], vectors[start : start + 500], strict=True))
            await plain.insert(rows)
        await _ask(url, plain, texts, vectors, embedder, result)
        result.figures["plain_recall_at_10"] = await _quality(plain, texts, vectors)


async def _ask(
    url: str,
    plain: PlainTable,
    texts: Sequence[str],
    vectors: Vectors,
    embedder: BundledEmbedder,
    result: Result,
) -> None:
    asked = questions(max(QUESTIONS.values()))

    async def by_text(text: str) -> None:
        await plain.search(await _embedded(embedder, text))

    async def by_vector(vector: Vectors) -> None:
        await plain.search(vector)

    for clients, count in QUESTIONS.items():
        some = asked[:count]
        own = over_http(url, RECALL, [{"query": text, "limit": TOP} for text in some], clients)
        result.compare("recall by text", clients, own, await by_tasks(by_text, some, clients))
    numbers = embed(embedder, asked)
    for fast, name in ((False, "recall by vector"), (True, "recall by vector, residents")):
        for clients, count in QUESTIONS.items():
            bodies = [
                {"vector": vector.tolist(), "limit": TOP, "fast": fast}
                for vector in numbers[:count]
            ]
            own = over_http(url, RECALL, bodies, clients)
            peer = await by_tasks(by_vector, list(numbers[:count]), clients)
            result.compare(name, clients, own, peer)


def _storing(plain: PlainTable, embedder: BundledEmbedder) -> Callable[[Sequence[str]], Any]:
    async def store(texts: Sequence[str]) -> None:
        made = [await _embedded(embedder, text) for text in texts]
        await plain.insert(list(zip(texts, made, strict=True)))

    return store


async def _embedded(embedder: BundledEmbedder, text: str) -> Vectors:
    """One text, in this thread: the model is a table and takes a tenth of a millisecond."""
    row = embedder._encode([text])[0]
    return np.asarray(row / np.linalg.norm(row), dtype=np.float32)


def _answers(api: Api, texts: Sequence[str], vectors: Vectors, result: Result) -> None:
    """Do the node's ten nearest equal those of an exhaustive comparison?"""
    numbers = probes(vectors)
    found = 0
    for vector in numbers:
        hits = api.recall("default", "", TOP, vector.tolist())
        found += len({hit["content"] for hit in hits} & nearest(texts, vectors, vector))
    share = found / (len(numbers) * TOP)
    what = "of the ten truly nearest memories, found by vector"
    result.bar("recall_at_10", what, round(share, 4), ">=", 0.95)


async def _quality(plain: PlainTable, texts: Sequence[str], vectors: Vectors) -> float:
    numbers = probes(vectors)
    found = 0
    for vector in numbers:
        found += len(set(await plain.search(vector)) & nearest(texts, vectors, vector))
    return round(found / (len(numbers) * TOP), 4)


def probes(vectors: Vectors) -> list[Vectors]:
    """Directions between memories, always the same."""
    rng = np.random.default_rng(7)
    picked = rng.choice(len(vectors), size=(CHECKED, 2))
    mixed = vectors[picked[:, 0]] + vectors[picked[:, 1]]
    return list((mixed / np.linalg.norm(mixed, axis=1, keepdims=True)).astype(np.float32))


def nearest(texts: Sequence[str], vectors: Vectors, vector: Vectors) -> set[str]:
    """The texts of the ten nearest, by comparing with all."""
    return {texts[place] for place in np.argsort(-(vectors @ vector))[:TOP]}


def make_texts(count: int) -> list[str]:
    """Distinct texts: the corpus, then neighbours of it joined."""
    documents = [document.text for document in load_default()]
    joined = [f"{a} {b}" for a, b in zip(documents, documents[7:], strict=False)]
    return [" ".join(text.split()) for text in [*documents, *joined]][:count]


def questions(count: int) -> list[str]:
    """What half-remembering readers ask, always the same."""
    documents = load_default()
    return [question(documents[(place * 37) % len(documents)]) for place in range(count)]


def batches(groups: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """Bodies of the batch route."""
    return [{"memories": [{"content": text} for text in group]} for group in groups]


def embed(embedder: BundledEmbedder, texts: Sequence[str]) -> Vectors:
    """Unit vectors, shape (n, dim)."""

    async def made() -> Vectors:
        parts = [await embedder.embed(texts[i : i + 1000]) for i in range(0, len(texts), 1000)]
        return np.concatenate(parts).astype(np.float32)

    return trio.run(made)
