"""Recall by text: does fusing words and meaning find more than either, and at what price.

Documents are Python's own docstrings without their first sentence; the first sentence asks for
the rest. Words alone, meaning alone and both are asked of one real node, and the same fusion of
one SQL statement over pgvector and full text beside it.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from node.client import Client
from node.embed.bundled import BundledEmbedder, load_bundled
from ops.bench.fusedsql import open_fused
from ops.bench.load import by_tasks, over_http
from ops.bench.node import on_a_node
from ops.bench.ported import drive, in_flight
from ops.bench.result import Result, Timing
from ops.bench.server import peer_server
from ops.bench.shapes import Vectors
from ops.bench.smoke import embed
from ops.corpus import load_default
from ops.mesh.nodes import Node

QUESTIONS: Final = 500
LONGEST: Final = 600
TIMED: Final = 1_500
TOP: Final = 10
BATCH: Final = 200
PATIENCE_S: Final = 10.0
_SENTENCE: Final = re.compile(r"(?<=[.!?])\s+")

Ranks = list[int | None]


def run(console: Console, size: int = 1_784) -> int:
    """The benchmark with its node; the exit code."""
    return on_a_node("text", "SQL", size, partial(_measure, size), console)


def _measure(size: int, node: Node, result: Result, console: Console) -> None:
    pairs = task(size)
    texts = [rest for _, rest in pairs]
    step = max(1, len(pairs) // QUESTIONS)
    asked = [(place, pairs[place][0]) for place in range(0, len(pairs), step)][:QUESTIONS]
    result.figures |= {"documents": len(texts), "questions": len(asked)}
    console.print(f"storing {len(texts):,} docstrings, asking {len(asked)} first sentences ...")
    drive(node.workspace, partial(_store, texts))
    quality: dict[str, Ranks] = {
        "meaning": drive(node.workspace, partial(_ranks, texts, asked, True)),
        "both": drive(node.workspace, partial(_ranks, texts, asked, False)),
    }
    port = drive(node.workspace, partial(_timed, asked))
    bodies = [{"query": text, "limit": TOP} for _, text in _many(asked)]
    over = over_http(node.api.url, "/api/memory/recall", bodies, 16)
    _words_alone(node)
    quality["words"] = drive(node.workspace, partial(_ranks, texts, asked, False))
    embedder = load_bundled()
    with peer_server(node.workspace.parent) as sockets:
        quality["SQL"], peer = asyncio.run(
            _sql(sockets, texts, embed(embedder, texts), asked, embedder)
        )
    for name, ranks in quality.items():
        result.figures[f"{name}_ndcg_at_10"] = round(ndcg(ranks), 4)
        result.figures[f"{name}_recall_at_5"] = round(within(ranks, 5), 4)
        result.notes.append(f"{name:8} nDCG@10 {ndcg(ranks):.3f}  R@5 {within(ranks, 5):.3f}")
    result.compare("hybrid, agent port", 16, port, peer)
    result.compare("hybrid, HTTP", 16, over, peer)
    best = max(ndcg(quality["meaning"]), ndcg(quality["words"])) - 0.01
    both = ndcg(quality["both"])
    result.bar("hybrid_ndcg", "both, against the better one less 0.01", both, ">=", round(best, 4))
    result.bar(
        "hybrid_by_sql", "nDCG@10 of the statement", both, ">=", round(ndcg(quality["SQL"]), 4)
    )
    result.bar("port_by_sql", "agent port by the statement, 16", port.rate / peer.rate, ">=", 1.5)
    result.bar("http_by_sql", "HTTP by the statement, 16", over.rate / peer.rate, ">=", 1.5)


def task(size: int) -> list[tuple[str, str]]:
    """Question and answer: a docstring's first sentence and the rest of it."""
    found: dict[str, str] = {}
    for document in load_default():
        first, *rest = _SENTENCE.split(" ".join(document.text.split()), maxsplit=1)
        if rest and len(rest[0]) >= 40 and len(first) >= 15:
            found.setdefault(rest[0][:LONGEST].strip(), first)
    return [(first, rest) for rest, first in found.items()][:size]


async def _store(texts: Sequence[str], client: Client) -> None:
    groups = [texts[start : start + BATCH] for start in range(0, len(texts), BATCH)]
    await in_flight(client.remember_batch, groups, 2)


async def _ranks(
    texts: Sequence[str], asked: Sequence[tuple[int, str]], fast: bool, client: Client
) -> Ranks:
    ranks: Ranks = []
    for place, text in asked:
        answer = await client.recall(text, limit=TOP, fast=fast)
        hits = [hit.content for hit in answer.hits]
        ranks.append(hits.index(texts[place]) + 1 if texts[place] in hits else None)
    return ranks


def _many(asked: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
    return (list(asked) * (TIMED // len(asked) + 1))[:TIMED]


async def _timed(asked: Sequence[tuple[int, str]], client: Client) -> Timing:
    async def ask(question: tuple[int, str]) -> None:
        await client.recall(question[1], limit=TOP)

    await in_flight(ask, list(asked)[:100], 16)
    return await in_flight(ask, _many(asked), 16)


def _words_alone(node: Node) -> None:
    """Let the node weigh words alone, and wait until it does."""
    node.write_config({"search": {"alpha": 0.0, "min_score": 0.0}})
    node.hang_up()
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        answer: Any = node.api.post(
            "/api/memory/recall", {"query": "file", "limit": 1, "explain": True}
        )
        hits = answer["results"]
        if hits and hits[0]["explain"]["meaning"]["weight"] == 0:
            return
        time.sleep(0.1)


async def _sql(
    sockets: Path,
    texts: Sequence[str],
    vectors: Vectors,
    asked: Sequence[tuple[int, str]],
    embedder: BundledEmbedder,
) -> tuple[Ranks, Timing]:
    encoded: Callable[[list[str]], Any] = embedder._encode
    async with open_fused(sockets, texts, vectors, 16) as table:

        async def search(question: tuple[int, str]) -> list[int]:
            row = encoded([question[1]])[0]
            return await table.search(question[1], row / max(float((row @ row) ** 0.5), 1e-9))

        async def timed(question: tuple[int, str]) -> None:
            await search(question)

        ranks: Ranks = []
        for place, text in asked:
            found = await search((place, text))
            ranks.append(found.index(place) + 1 if place in found else None)
        return ranks, await by_tasks(timed, _many(asked), 16)


def ndcg(ranks: Ranks) -> float:
    """nDCG at 10 with one right answer each."""
    return sum(1 / math.log2(rank + 1) for rank in ranks if rank) / len(ranks)


def within(ranks: Ranks, top: int) -> float:
    """Share of the questions whose answer is among the first."""
    return sum(rank is not None and rank <= top for rank in ranks) / len(ranks)
