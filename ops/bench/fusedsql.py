"""Hybrid search as one writes it in SQL: pgvector and full text, fused in one statement."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import asyncpg
from pgvector.asyncpg import register_vector

from ops.bench.shapes import Vectors
from storage.cluster import DATABASE, ROLE
from storage.embedded import PORT

TABLE: Final = "bench_documents"
_MADE: Final = """
CREATE TABLE bench_documents (
    id integer PRIMARY KEY,
    content text NOT NULL,
    embedding vector({dimension}) NOT NULL,
    words tsvector GENERATED ALWAYS AS (to_tsvector('simple', content)) STORED
);
CREATE INDEX ON bench_documents USING gin (words);
"""
_INDEXED: Final = """
CREATE INDEX ON bench_documents USING hnsw (embedding vector_ip_ops)
WITH (m = 16, ef_construction = 100);
ANALYZE bench_documents;
"""
_SEARCH: Final = """
WITH near AS (
    SELECT id, -(embedding <#> $1) AS cosine FROM bench_documents
    ORDER BY embedding <#> $1 LIMIT 60
), said AS (
    SELECT id, ts_rank_cd(words, q, 1) AS rank FROM bench_documents, to_tsquery('simple', $2) AS q
    WHERE words @@ q ORDER BY rank DESC LIMIT 60
), best AS (
    SELECT greatest(max(rank), 1e-9) AS rank FROM said
)
SELECT d.id FROM bench_documents d
LEFT JOIN near n ON n.id = d.id
LEFT JOIN said s ON s.id = d.id
CROSS JOIN best b
WHERE d.id IN (SELECT id FROM near UNION SELECT id FROM said)
ORDER BY 0.7 * coalesce(n.cosine, -(d.embedding <#> $1)) + 0.3 * coalesce(s.rank, 0) / b.rank DESC
LIMIT 10
"""
_WORD: Final = re.compile(r"\w+")


@dataclass(slots=True)
class FusedSql:
    """The table behind its pool."""

    pool: Any

    async def search(self, text: str, vector: Vectors) -> list[int]:
        """Ids of the ten best documents; the words of the text are OR-ed."""
        words = " | ".join(dict.fromkeys(_WORD.findall(text.lower())))
        rows = await self.pool.fetch(_SEARCH, vector, words)
        return [row["id"] for row in rows]


@asynccontextmanager
async def open_fused(
    sockets: Path, texts: Sequence[str], vectors: Vectors, clients: int
) -> AsyncIterator[FusedSql]:
    """The documents in a table of a running server, indexed."""
    async with asyncpg.create_pool(
        host=str(sockets),
        port=PORT,
        user=ROLE,
        database=DATABASE,
        min_size=clients,
        max_size=clients,
        init=_prepare,
        server_settings={"hnsw.ef_search": "64"},
    ) as pool:
        await pool.execute(_MADE.format(dimension=vectors.shape[1]))
        await pool.executemany(
            "INSERT INTO bench_documents (id, content, embedding) VALUES ($1, $2, $3)",
            [(place, text, vectors[place]) for place, text in enumerate(texts)],
        )
        await pool.execute(_INDEXED)
        yield FusedSql(pool)


async def _prepare(connection: Any) -> None:
    await connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
    await register_vector(connection)
