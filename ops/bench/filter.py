"""Filtered searches of the hot graph next to a comparison with all vectors that pass.

Scopes of 100, 10, 1 and 0.1 per cent of the residents, by agent as a recall asks; and, for
information, the same shares by a condition that only a look at each candidate can tell.
"""

from __future__ import annotations

import time
from typing import Final

import numpy as np
from rich.console import Console

from ops.bench import graphs
from ops.bench.graphs import DIM, SIZE, TOP, Vectors, id_of, number_of
from ops.bench.result import Result, Timing
from storage.hot.graph import HotGraph
from storage.model import Resident

QUERIES: Final = 300
SHARES: Final = {"100 %": 1.0, "10 %": 0.1, "1 %": 0.01, "0.1 %": 0.001}
RECALL: Final = 0.95
SLOWER: Final = 5.0


def run(console: Console, size: int = SIZE) -> int:
    """Measure; the exit code."""
    result = Result("filter")
    console.print(f"{size:,} x {DIM} residents of agents with 0.1, 1 and 10 % of them ...")
    vectors = graphs.make_vectors(size)
    queries = graphs.make_vectors(QUERIES, seed=2)
    owner = np.zeros(size, np.int64)
    order = np.random.default_rng(3).permutation(size)
    start = 0
    for number, share in enumerate((0.001, 0.01, 0.1), start=1):
        owner[order[start : start + int(share * size)]] = number
        start += int(share * size)
    graph = graphs.make_graph()
    for first in range(0, size, 1_000):
        part = range(first, min(first + 1_000, size))
        graph.insert(
            [graphs.make_resident(n, int(owner[n])) for n in part],
            vectors[part.start : part.stop],
        )
    agents: dict[str, int | None] = {"100 %": None, "10 %": 3, "1 %": 2, "0.1 %": 1}
    unfiltered = 0.0
    for name, agent in agents.items():
        passing = np.arange(size) if agent is None else np.flatnonzero(owner == agent)
        timing, recall = _ask(graph, vectors, queries, passing, agent, None)
        result.compare(f"scope of {name}", 1, timing, None)
        key = name.replace(" %", "").replace(".", "_")
        result.bar(f"recall_{key}", f"recall@10 within {name}", recall, ">=", RECALL)
        p95 = timing.percentile(95)
        unfiltered = unfiltered or p95
        result.bar(f"p95_{key}", "p95 to that without a filter", p95 / unfiltered, "<=", SLOWER)
    for name, agent in agents.items():
        if agent is not None:
            wanted = id_of(agent)
            passing = np.flatnonzero(owner == agent)
            timing, recall = _ask(graph, vectors, queries, passing, None, wanted)
            result.compare(f"condition, {name}", 1, timing, None)
            result.figures[f"condition_{name.replace(' %', '').replace('.', '_')}_recall"] = recall
    result.figures["memories"] = size
    result.show(console, "-")
    return 0 if result.ok else 1


def _ask(
    graph: HotGraph,
    vectors: Vectors,
    queries: Vectors,
    passing: np.ndarray,
    agent: int | None,
    wanted: bytes | None,
) -> tuple[Timing, float]:
    """Latencies and recall@10 against brute force over the rows that pass."""
    agents = None if agent is None else frozenset([id_of(agent)])

    def accept(resident: Resident) -> bool:
        return resident.agent_id == wanted

    taken: list[float] = []
    answers = []
    for query in queries:
        begun = time.perf_counter()
        hits = graph.search(query, TOP, agents=agents, accept=accept if wanted else None)
        taken.append(time.perf_counter() - begun)
        answers.append({number_of(hit.resident.id) for hit in hits})
    best = [set(passing[list(rows)].tolist()) for rows in graphs.nearest(vectors[passing], queries)]
    found = sum(len(one & other) for one, other in zip(answers, best, strict=True))
    return Timing(tuple(taken), sum(taken)), found / (TOP * len(queries))
