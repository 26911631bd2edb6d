"""The peer: what somebody would have who puts texts into a pgvector table and nothing else.

A database of its own in the node's PostgreSQL server, one table, one HNSW index, an asyncpg pool.
It embeds with the same embedder, in this process, where the node embeds in its own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import asyncpg
import numpy as np
from numpy.typing import NDArray
from pgvector.asyncpg import register_vector

from storage.cluster import DATABASE, ROLE
from storage.embedded import PORT

NAME: Final = "bench_plain"
EF_SEARCH: Final = 64
_TABLE = """
CREATE TABLE texts (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    content text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    embedding vector({dimension}) NOT NULL
);
"""
_INDEX = """
CREATE INDEX texts_nearest ON texts USING hnsw (embedding vector_ip_ops)
    WITH (m = 16, ef_construction = 100)
"""
BUILD_MEMORY: Final = "256MB"
"""Above what the graph of a benchmark takes: below that the build falls back to single inserts."""
_INSERT = "INSERT INTO texts (content, embedding) VALUES ($1, $2)"
_SEARCH = "SELECT id, content, embedding <#> $1 AS score FROM texts ORDER BY 3 LIMIT 10"


@dataclass(slots=True)
class PlainTable:
    """The table behind its pool."""

    pool: Any

    async def add(self, text: str, vector: NDArray[np.float32]) -> None:
        """Store one row by one statement that is a transaction of its own."""
        await self.pool.execute(_INSERT, text, vector)

    async def insert(self, rows: Sequence[tuple[str, NDArray[np.float32]]]) -> None:
        """Store rows in one transaction."""
        async with self.pool.acquire() as connection, connection.transaction():
            await connection.executemany(_INSERT, rows)

    async def fill(self, rows: Sequence[tuple[str, NDArray[np.float32]]]) -> None:
        """Load rows as fast as PostgreSQL can: copied first, indexed afterwards."""
        async with self.pool.acquire() as connection, connection.transaction():
            await connection.execute("DROP INDEX texts_nearest")
            columns = ["content", "embedding"]
            await connection.copy_records_to_table("texts", records=rows, columns=columns)
            await connection.execute(f"SET LOCAL maintenance_work_mem = '{BUILD_MEMORY}'")
            await connection.execute(_INDEX)

    async def search(self, vector: NDArray[np.float32]) -> list[str]:
        """The ten nearest texts."""
        rows = await self.pool.fetch(_SEARCH, vector)
        return [row["content"] for row in rows]


@asynccontextmanager
async def open_plain(socket_dir: Path, dimension: int, clients: int) -> AsyncIterator[PlainTable]:
    """A fresh database in a running server; dropped at the end."""
    place = {"host": str(socket_dir), "port": PORT, "user": ROLE}
    owner = await asyncpg.connect(database=DATABASE, **place)
    try:
        await owner.execute(f"DROP DATABASE IF EXISTS {NAME}")
        await owner.execute(f"CREATE DATABASE {NAME}")
        try:
            async with asyncpg.create_pool(
                database=NAME,
                min_size=clients,
                max_size=clients,
                init=register_vector,
                server_settings={"hnsw.ef_search": str(EF_SEARCH)},
                **place,
            ) as pool:
                await pool.execute(_TABLE.format(dimension=dimension))
                await pool.execute(_INDEX)
                yield PlainTable(pool)
        finally:
            await owner.execute(f"DROP DATABASE IF EXISTS {NAME} (FORCE)")
    finally:
        await owner.close()
