"""Half of the hot graph replaced again and again: recall, memory and file must not wear out.

Most of what leaves is evicted, a part is forgotten, which overwrites its slots. After the last
round recall is compared with that of a graph that was freshly built from the same memories.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Final

import numpy as np
from rich.console import Console

from ops.bench import graphs
from ops.bench.graphs import DIM, SIZE, TOP, Vectors, id_of, number_of
from ops.bench.result import Result
from storage.hot.graph import HotGraph
from storage.hot.snapshot import Owner, SnapshotFolder, Stamp

ROUNDS: Final = 20
QUERIES: Final = 1_000
FORGOTTEN: Final = 0.05
RECALL: Final = 0.97
FLAT: Final = 1.05
SETTLED: Final = 3
"""The round that later ones are compared with."""


def run(console: Console, size: int = SIZE) -> int:
    """Measure; the exit code."""
    result = Result("churn")
    folder = Path(tempfile.mkdtemp(prefix="mnb-"))
    try:
        _measure(console, size, folder, result)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    result.show(console, "-")
    return 0 if result.ok else 1


def _measure(console: Console, size: int, folder: Path, result: Result) -> None:
    rng = np.random.default_rng(5)
    snapshots = SnapshotFolder(folder, Owner(b"b" * 16, "bench", DIM, 1))
    graph = graphs.make_graph()
    vectors = graphs.make_vectors(size)
    console.print(f"{size:,} x {DIM}; {ROUNDS} rounds of {size // 2:,} out and in ...")
    result.figures["fill_per_s"] = round(graphs.fill(graph, range(size), vectors), 1)
    numbers = np.arange(size)
    sizes, memory, rates, rebuilds = [], [], [], 0
    for turn in range(1, ROUNDS + 1):
        order = rng.permutation(size)
        leaving = order[: size // 2]
        gone = [id_of(int(numbers[row])) for row in leaving]
        kept = int(FORGOTTEN * len(gone))
        graph.forget(gone[:kept])
        graph.evict(gone[kept:])
        fresh = range(size * 2 * turn, size * 2 * turn + len(leaving))
        vectors[leaving] = graphs.make_vectors(len(leaving), seed=100 + turn)
        numbers[leaving] = fresh
        rates.append(graphs.fill(graph, fresh, vectors[leaving]))
        if graph.needs_rebuild():
            graph.rebuild()
            rebuilds += 1
        sizes.append(snapshots.write(graph, Stamp("bench", turn, 0, 0, 0)).size)
        memory.append(graphs.resident_mib())
        console.print(
            f"round {turn:2}: {rates[-1]:,.0f} in a second, {memory[-1]:,.0f} MiB, "
            f"file {sizes[-1] / 2**20:,.1f} MiB",
            highlight=False,
        )
    residents = [number_of(each.id) for each in graph.residents()]
    result.bar(
        "lost", "memories missing or there twice at the end", _lost(residents, numbers), "==", 0
    )
    queries = graphs.make_vectors(QUERIES, seed=2)
    best = graphs.nearest(vectors, queries)
    worn, hollow = _recall(graph, queries, best, numbers)
    anew = graphs.make_graph()
    graphs.fill(anew, range(size), vectors)
    fresh_recall, _ = _recall(anew, queries, best, np.arange(size))
    result.figures |= {
        "recall": round(worn, 4),
        "recall_fresh": round(fresh_recall, 4),
        "rebuilds": rebuilds,
        "inserts_per_s": round(float(np.median(rates)), 1),
        "memories": size,
    }
    result.bar(
        "kept_recall", "recall@10 to that of a fresh build", worn / fresh_recall, ">=", RECALL
    )
    result.bar("strangers", "hits that should be gone", hollow, "==", 0)
    result.bar(
        "memory", "RSS of the last round to the third", memory[-1] / memory[SETTLED - 1], "<=", FLAT
    )
    result.bar(
        "file",
        "snapshot of the last round to the third",
        sizes[-1] / sizes[SETTLED - 1],
        "<=",
        FLAT,
    )


def _lost(residents: list[int], numbers: np.ndarray) -> int:
    wanted = set(numbers.tolist())
    return len(wanted ^ set(residents)) + len(residents) - len(set(residents))


def _recall(
    graph: HotGraph, queries: Vectors, best: list[set[int]], numbers: np.ndarray
) -> tuple[float, int]:
    """recall@10, and hits of memories that are not among `numbers`."""
    row_of = {int(number): row for row, number in enumerate(numbers)}
    found = strangers = 0
    for query, wanted in zip(queries, best, strict=True):
        rows = [row_of.get(number_of(hit.resident.id)) for hit in graph.search(query, TOP)]
        strangers += rows.count(None)
        found += len(wanted & {row for row in rows if row is not None})
    return found / (TOP * len(queries)), strangers
