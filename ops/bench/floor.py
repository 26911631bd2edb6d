"""What the hot graph adds to hnswlib: time of a search, searches on two threads, memory.

Both on the same vectors and with the same parameters, in turns, in one run. Memory is measured in
two processes of their own, each of which builds one of the two.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Final

import hnswlib
import numpy as np
from rich.console import Console

from ops.bench import graphs
from ops.bench.graphs import DIM, SIZE, TOP, Vectors
from ops.bench.result import Result, Timing
from storage.hot.graph import HotGraph
from storage.hot.searching import Asked
from storage.hot.settings import HotSettings

QUERIES: Final = 2_000
ROUNDS: Final = 5
BATCH: Final = 64
SLOWER: Final = 1.3
RATE: Final = 0.8
LARGER: Final = 1.5


def run(console: Console, size: int = SIZE) -> int:
    """Measure; the exit code."""
    result = Result("floor")
    console.print(f"{size:,} x {DIM} vectors; building both ...")
    vectors = graphs.make_vectors(size)
    queries = graphs.make_vectors(QUERIES, seed=2)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    graph = graphs.make_graph()
    result.figures["insert_per_s"] = round(graphs.fill(graph, range(size), vectors), 1)
    plain, rate = build_plain(vectors)
    result.figures["hnswlib_build_2_threads_per_s"] = round(rate, 1)
    result.figures["memories"] = size
    _one_at_a_time(graph, plain, queries, result)
    _together(graph, plain, queries, result)
    del graph, plain, vectors
    console.print("memory, each in a process of its own ...")
    own, text = (float(part) for part in _child("graph", size).split())
    other = float(_child("hnswlib", size))
    result.figures |= {
        "bytes_per_resident": round(own),
        "hnswlib_bytes": round(other),
        "text_bytes": round(text),
    }
    result.bar(
        "memory",
        "bytes of a resident without its text, to hnswlib's own",
        (own - text) / other,
        "<=",
        LARGER,
    )
    result.show(console, "hnswlib")
    return 0 if result.ok else 1


def build_plain(vectors: Vectors) -> tuple[hnswlib.Index, float]:
    """hnswlib alone with the parameters of the graph; rows a second on two threads."""
    settings = HotSettings()
    index = hnswlib.Index(space="ip", dim=DIM)
    index.init_index(
        max_elements=len(vectors), M=settings.m, ef_construction=settings.ef_construction
    )
    begun = time.perf_counter()
    index.add_items(vectors, num_threads=2)
    rate = len(vectors) / (time.perf_counter() - begun)
    index.set_ef(settings.ef)
    return index, rate


def _one_at_a_time(graph: HotGraph, plain: hnswlib.Index, queries: Vectors, result: Result) -> None:
    own: list[float] = []
    other: list[float] = []
    for _ in range(ROUNDS):
        other += _timed(lambda q: plain.knn_query(q[np.newaxis, :], k=TOP, num_threads=1), queries)
        own += _timed(lambda q: graph.search(q, TOP), queries)
    one = Timing(tuple(own), sum(own)), Timing(tuple(other), sum(other))
    result.compare("search", 1, *one)
    ratio = one[0].percentile(50) / one[1].percentile(50)
    result.bar("one_at_a_time", "median time of a search, to hnswlib's", ratio, "<=", SLOWER)
    result.figures["search_extra_us"] = round(
        1000 * (one[0].percentile(50) - one[1].percentile(50)), 1
    )


def _timed(search: Callable[[Vectors], object], queries: Vectors) -> list[float]:
    taken = []
    for query in queries:
        begun = time.perf_counter()
        search(query)
        taken.append(time.perf_counter() - begun)
    return taken


def _together(graph: HotGraph, plain: hnswlib.Index, queries: Vectors, result: Result) -> None:
    own: list[float] = []
    other: list[float] = []
    parts = [queries[start : start + BATCH] for start in range(0, QUERIES - BATCH, BATCH)]
    for _ in range(ROUNDS):
        for part in parts:
            begun = time.perf_counter()
            plain.knn_query(part, k=TOP, num_threads=2)
            other.append(time.perf_counter() - begun)
        for part in parts:
            begun = time.perf_counter()
            graph.search_many([Asked(query, TOP) for query in part])
            own.append(time.perf_counter() - begun)
    both = Timing(tuple(own), sum(own), BATCH), Timing(tuple(other), sum(other), BATCH)
    result.compare("search, 64 together", 2, *both)
    ratio = both[1].percentile(50) / both[0].percentile(50)
    result.bar("two_threads", "searches a second on two threads, to hnswlib's", ratio, ">=", RATE)


def _child(what: str, size: int) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "ops.bench.floor", what, str(size)],
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


def _weigh(what: str, size: int) -> None:
    """In a process of its own: print bytes per memory, and those of its text."""
    graphs.make_vectors(1_000)
    before = graphs.resident_mib()
    if what == "hnswlib":
        vectors = graphs.make_vectors(size)
        kept, _ = build_plain(vectors)
        del vectors
        assert kept.get_current_count() == size
        print((graphs.resident_mib() - before) * 2**20 / size)
        return
    graph = graphs.make_graph()
    vectors = graphs.make_vectors(size)
    graphs.fill(graph, range(size), vectors)
    del vectors
    text = sum(sys.getsizeof(each.content) for each in graph.residents()) / size
    print((graphs.resident_mib() - before) * 2**20 / size, text)


if __name__ == "__main__":
    _weigh(sys.argv[1], int(sys.argv[2]))
