"""A PostgreSQL for the test session and a fresh, migrated database for each test.

The server is the embedded one with fsync off. A database is copied from a migrated template in
about 0.1 s and dropped after its test.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import asyncpg
import pytest
import trio

from storage.embedded import EmbeddedServer, run_embedded
from storage.island import Island
from storage.migrate import migrate
from storage.pool import Database, open_database
from storage.settings import DatabaseSettings, EmbeddedSettings

TEMPLATE = "migrated_template"
SETTINGS = DatabaseSettings(pool_min=1, pool_max=4, connect_patience=1.0)

VACUUM_PATIENCE = 20

_numbers = itertools.count(1)


async def run_sql(target: Mapping[str, Any], sql: str, *args: Any) -> list[Any]:
    """Run one statement on a connection of its own; to be called through an island."""
    connection = await asyncpg.connect(**target)
    try:
        return list(await connection.fetch(sql, *args))
    finally:
        await connection.close()


async def create_database(island: Island, server: EmbeddedServer, template: str) -> dict[str, Any]:
    """Make a database from a template; returns what a connection to it needs."""
    name = f"test_{next(_numbers)}"
    sql = f"CREATE DATABASE {name} TEMPLATE {template}"
    await island.call(run_sql, server.connect_kwargs, sql)
    return {**server.connect_kwargs, "database": name}


async def drop_database(island: Island, server: EmbeddedServer, target: Mapping[str, Any]) -> None:
    """Drop a database although somebody may still be connected.

    The server's own vacuum may be at work in it, and only a superuser may end that.
    """
    sql = f"DROP DATABASE {target['database']} WITH (FORCE)"
    for _ in range(VACUUM_PATIENCE):
        try:
            await island.call(run_sql, server.connect_kwargs, sql)
        except asyncpg.InsufficientPrivilegeError:
            await trio.sleep(0.25)
        else:
            return
    await island.call(run_sql, server.connect_kwargs, sql)


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """The running server of the session."""
    folder = tmp_path_factory.mktemp("postgres")
    settings = EmbeddedSettings(durable=False, max_connections=80)
    with run_embedded(folder / "pg", folder / "postgres.log", settings) as server:
        yield server


@pytest.fixture(scope="session")
def migrated_template(session_island: Island, postgres_server: EmbeddedServer) -> str:
    """Name of a database with all migrations, to be copied and never connected to."""
    admin = postgres_server.connect_kwargs

    async def make() -> None:
        with trio.fail_after(120):
            await session_island.call(run_sql, admin, f"CREATE DATABASE {TEMPLATE}")
            await migrate(session_island, {**admin, "database": TEMPLATE}, settings=SETTINGS)

    trio.run(make)
    return TEMPLATE


@pytest.fixture
async def database_target(
    island: Island, postgres_server: EmbeddedServer, migrated_template: str
) -> AsyncIterator[dict[str, Any]]:
    """Connection arguments of a fresh migrated database."""
    with trio.fail_after(120):
        target = await create_database(island, postgres_server, migrated_template)
    yield target
    with trio.fail_after(120):
        await drop_database(island, postgres_server, target)


@pytest.fixture
async def empty_database(
    island: Island, postgres_server: EmbeddedServer
) -> AsyncIterator[dict[str, Any]]:
    """Connection arguments of a fresh database with pgvector and no tables."""
    with trio.fail_after(120):
        target = await create_database(island, postgres_server, "template1")
    yield target
    with trio.fail_after(120):
        await drop_database(island, postgres_server, target)


@pytest.fixture
async def db(island: Island, database_target: dict[str, Any]) -> AsyncIterator[Database]:
    """A pool on a fresh migrated database."""
    async with open_database(island, database_target, SETTINGS) as database:
        yield database


@pytest.fixture
async def empty_db(island: Island, empty_database: dict[str, Any]) -> AsyncIterator[Database]:
    """A pool on a fresh database with pgvector and no tables."""
    async with open_database(island, empty_database, SETTINGS) as database:
        yield database
