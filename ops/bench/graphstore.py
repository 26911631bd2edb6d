"""LangGraph's PostgresStore as a peer: what an agent developer picks who wants PostgreSQL."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import asyncpg
from pgvector.asyncpg import register_vector

from ops.bench.chroma import PeerMissing
from ops.bench.plain import BUILD_MEMORY
from ops.bench.result import Timing
from ops.bench.shapes import Vectors
from storage.cluster import DATABASE, ROLE
from storage.embedded import PORT

SPACE: Final = ("bench",)
INDEX: Final = "store_vectors_embedding_idx"


class GraphStore:
    """A store with a vector index over the field `text`."""

    def __init__(self, sockets: Path, store: Any, put: Callable[..., Any]) -> None:
        self._sockets = sockets
        self._store = store
        self._put = put

    def fill(self, texts: Sequence[str], vectors: Vectors) -> None:
        """Load texts as fast as PostgreSQL can, in the form in which the store itself keeps them:
        copied into its tables, and its index made again over them."""
        asyncio.run(_fill(self._sockets, texts, vectors))

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
        yield GraphStore(sockets, store, base.PutOp)


async def _fill(sockets: Path, texts: Sequence[str], vectors: Vectors) -> None:
    place = {"host": str(sockets), "port": PORT, "user": ROLE, "database": DATABASE}
    connection = await asyncpg.connect(**place)
    try:
        await register_vector(connection)
        async with connection.transaction():
            made = await connection.fetchval(
                "SELECT indexdef FROM pg_indexes WHERE indexname = $1", INDEX
            )
            await connection.execute(f"DROP INDEX {INDEX}")
            space = ".".join(SPACE)
            values = [
                (space, f"base {place}", json.dumps({"text": text}))
                for place, text in enumerate(texts)
            ]
            await connection.copy_records_to_table(
                "store", records=values, columns=["prefix", "key", "value"]
            )
            rows = [
                (space, f"base {place}", "text", vector) for place, vector in enumerate(vectors)
            ]
            await connection.copy_records_to_table(
                "store_vectors", records=rows, columns=["prefix", "key", "field_name", "embedding"]
            )
            await connection.execute(f"SET LOCAL maintenance_work_mem = '{BUILD_MEMORY}'")
            await connection.execute(made)
    finally:
        await connection.close()
