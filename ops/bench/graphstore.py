"""LangGraph's PostgresStore as a peer: what an agent developer picks who wants PostgreSQL."""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from ops.bench.chroma import PeerMissing
from ops.bench.result import Timing
from ops.bench.shapes import Vectors
from storage.cluster import DATABASE, ROLE
from storage.embedded import PORT

SPACE: Final = ("bench",)


class GraphStore:
    """A store with a vector index over the field `text`."""

    def __init__(self, store: Any, put: Callable[..., Any]) -> None:
        self._store = store
        self._put = put

    def put(self, texts: Sequence[tuple[int, str]]) -> Timing:
        """Store one by one, each durable when the call returns."""
        latencies = []
        begun = time.perf_counter()
        for place, text in texts:
            one = time.perf_counter()
            self._store.put(SPACE, str(place), {"text": text})
            latencies.append(time.perf_counter() - one)
        return Timing(tuple(latencies), time.perf_counter() - begun)

    def batch(self, texts: Sequence[tuple[int, str]], size: int) -> Timing:
        """Store in batches of a size."""
        latencies = []
        begun = time.perf_counter()
        for start in range(0, len(texts), size):
            one = time.perf_counter()
            self._store.batch(
                [
                    self._put(SPACE, str(place), {"text": text})
                    for place, text in texts[start : start + size]
                ]
            )
            latencies.append(time.perf_counter() - one)
        return Timing(tuple(latencies), time.perf_counter() - begun, size)


@contextmanager
def open_graph_store(
    sockets: Path, vectors: Vectors, content: Callable[[int], str]
) -> Iterator[GraphStore]:
    """A store on a running server that embeds by looking up. Raises PeerMissing."""
    if importlib.util.find_spec("langgraph.store.postgres") is None:
        raise PeerMissing("the package langgraph-checkpoint-postgres is not installed")
    postgres = importlib.import_module("langgraph.store.postgres")
    base = importlib.import_module("langgraph.store.base")
    known = {content(place): row.tolist() for place, row in enumerate(vectors)}

    def embed(texts: Sequence[str]) -> list[list[float]]:
        return [known[text] for text in texts]

    address = f"host={sockets} port={PORT} user={ROLE} dbname={DATABASE}"
    index = {"dims": vectors.shape[1], "embed": embed, "fields": ["text"]}
    with postgres.PostgresStore.from_conn_string(address, index=index) as store:
        store.setup()
        yield GraphStore(store, base.PutOp)
