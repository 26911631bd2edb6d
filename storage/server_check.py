"""Is this PostgreSQL one that mnemesh can live on? Asked once, before any port opens."""

from __future__ import annotations

import re
from dataclasses import dataclass

import asyncpg

from storage.errors import StartRefused

MIN_SERVER = 150_000
MIN_VECTOR = (0, 7)

_FACTS = """
SELECT current_setting('server_version_num')::int AS version,
       (SELECT default_version FROM pg_catalog.pg_available_extensions WHERE name = 'vector')
         AS vector_available,
       e.extversion AS vector_installed,
       n.nspname AS vector_schema
FROM (SELECT 1) AS one
LEFT JOIN pg_catalog.pg_extension AS e ON e.extname = 'vector'
LEFT JOIN pg_catalog.pg_namespace AS n ON n.oid = e.extnamespace
"""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Version as PostgreSQL numbers it (180004), pgvector's versions and its schema."""

    version: int
    vector_available: str | None
    vector_installed: str | None = None
    vector_schema: str | None = None


async def read_server(connection: asyncpg.Connection) -> ServerFacts:
    """Ask a server for the facts, on the island."""
    row = await connection.fetchrow(_FACTS)
    return ServerFacts(**dict(row))


def check_server(facts: ServerFacts) -> None:
    """Raise StartRefused with one line when the server is not good enough."""
    if facts.version < MIN_SERVER:
        major = facts.version // 10_000
        raise StartRefused(f"PostgreSQL 15 or newer is needed, this server is version {major}")
    vector = facts.vector_installed or facts.vector_available
    if vector is None:
        raise StartRefused(
            "the extension pgvector is not available: install pgvector 0.7 or newer on the server"
        )
    numbers = tuple(int(number) for number in re.findall(r"\d+", vector)[:2])
    if numbers < MIN_VECTOR:
        raise StartRefused(f"pgvector 0.7 or newer is needed, this server has {vector}")
