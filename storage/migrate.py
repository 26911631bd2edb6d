"""Schema migrations: what the files say, what the database has, and the step between them.

Files are `NNNN_pre_name.sql` or `NNNN_post_name.sql`, applied in order of their number, each in
a transaction of its own, all under one advisory lock. The checksum of each is recorded; a file
that changed after it was applied, a gap, or a database that only newer code understands stops
the start. Slow changes of data never belong here, they are resumable rows.

`schema.sql` beside the migrations is the readable truth; `python -m storage.migrate
--dump-schema` prints what it must contain.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import asyncpg
import trio

from storage.database_errors import translate
from storage.embedded import EmbeddedServer, open_embedded
from storage.errors import StartRefused
from storage.island import Island, open_island
from storage.pool import DRIVER_ERRORS, Target, connect
from storage.server_check import check_server, read_server
from storage.settings import DatabaseSettings, EmbeddedSettings

MIGRATIONS = Path(__file__).with_name("migrations")
SCHEMA_FILE = MIGRATIONS / "schema.sql"

SCHEMA_COMPAT = 1
"""Oldest schema version whose code can still work on a database that this code migrated."""

LOCK_KEY = 0x6D6E656D_65736800
LOCK_PATIENCE = 60

_FILE = re.compile(r"(?P<version>\d{4})_(?P<phase>pre|post)_(?P<name>[a-z0-9_]+)\.sql\Z")
_TABLE = """
CREATE TABLE IF NOT EXISTS public.schema_migrations (
    version integer PRIMARY KEY,
    name text NOT NULL,
    checksum bytea NOT NULL,
    compat integer NOT NULL,
    applied_at timestamp with time zone NOT NULL DEFAULT now()
)
"""

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Migration:
    """One file."""

    version: int
    name: str
    text: str
    checksum: bytes


@dataclass(frozen=True, slots=True)
class Applied:
    """One recorded row."""

    version: int
    name: str
    checksum: bytes
    compat: int


def discover(directory: Path = MIGRATIONS) -> tuple[Migration, ...]:
    """The migrations of a folder in order; StartRefused when the numbers are not 1, 2, 3, ..."""
    found = []
    for path in sorted(directory.glob("[0-9]*.sql")):
        match = _FILE.match(path.name)
        if match is None:
            raise StartRefused(f"migration {path.name}: the name must be NNNN_pre_name.sql")
        data = path.read_bytes()
        checksum = hashlib.sha256(data).digest()
        found.append(Migration(int(match["version"]), path.stem, data.decode(), checksum))
    for expected, migration in enumerate(found, start=1):
        if migration.version != expected:
            raise StartRefused(f"migration {migration.name}: number {expected:04d} was expected")
    return tuple(found)


def plan(known: Sequence[Migration], applied: Sequence[Applied]) -> tuple[Migration, ...]:
    """What is left to apply; StartRefused when files and database do not fit."""
    latest = known[-1].version if known else 0
    by_version = {migration.version: migration for migration in known}
    for row in applied:
        migration = by_version.get(row.version)
        if migration is None:
            if row.compat > latest:
                raise StartRefused(
                    f"the database has schema {row.version}, this mnemesh knows {latest} "
                    f"and the database needs at least {row.compat}: install a newer mnemesh"
                )
        elif migration.checksum != row.checksum:
            raise StartRefused(f"migration {migration.name} was changed after it was applied")
    done = {row.version for row in applied}
    left = tuple(migration for migration in known if migration.version not in done)
    if left and done and left[0].version < max(done):
        raise StartRefused(f"migration {left[0].name} was skipped when later ones were applied")
    return left


async def pending(
    island: Island,
    target: Target,
    *,
    directory: Path = MIGRATIONS,
    settings: DatabaseSettings | None = None,
) -> tuple[str, ...]:
    """Names of the migrations that `migrate` would apply; changes nothing."""
    known = discover(directory)
    return await island.call(partial(_pending, target, known, settings or DatabaseSettings()))


async def migrate(
    island: Island,
    target: Target,
    *,
    directory: Path = MIGRATIONS,
    settings: DatabaseSettings | None = None,
    progress: Progress | None = None,
    compat: int = SCHEMA_COMPAT,
) -> tuple[str, ...]:
    """Apply what is left and return the names; called from trio, before any port opens.

    `progress` is called on the island's thread with each name before it runs. Raises
    StartRefused with one line; what was applied before a failure stays applied.
    """
    known = discover(directory)
    work = partial(_migrate, target, known, settings or DatabaseSettings(), progress, compat)
    return await island.call(work)


@asynccontextmanager
async def _connection(
    target: Target, settings: DatabaseSettings
) -> AsyncIterator[asyncpg.Connection]:
    connection = await connect(target, settings)
    try:
        yield connection
    finally:
        connection.terminate()


async def _applied(connection: asyncpg.Connection) -> list[Applied]:
    if await connection.fetchval("SELECT to_regclass('public.schema_migrations')") is None:
        return []
    rows = await connection.fetch(
        "SELECT version, name, checksum, compat FROM public.schema_migrations ORDER BY version"
    )
    return [Applied(**dict(row)) for row in rows]


async def _pending(
    target: Target, known: Sequence[Migration], settings: DatabaseSettings
) -> tuple[str, ...]:
    async with _connection(target, settings) as connection:
        check_server(await read_server(connection))
        return tuple(migration.name for migration in plan(known, await _applied(connection)))


async def _migrate(
    target: Target,
    known: Sequence[Migration],
    settings: DatabaseSettings,
    progress: Progress | None,
    compat: int,
) -> tuple[str, ...]:
    async with _connection(target, settings) as connection:
        check_server(await read_server(connection))
        await connection.execute(f"SET lock_timeout = '{LOCK_PATIENCE}s'")
        busy = False
        try:
            await connection.execute("SELECT pg_advisory_lock($1)", LOCK_KEY)
        except asyncpg.LockNotAvailableError:
            busy = True
        if busy:
            raise StartRefused("another process has been migrating this database for a minute")
        left = plan(known, await _applied(connection))
        await connection.execute(_TABLE)
        for migration in left:
            if progress is not None:
                progress(migration.name)
            await _apply(connection, migration, compat)
        return tuple(migration.name for migration in left)


async def _apply(connection: asyncpg.Connection, migration: Migration, compat: int) -> None:
    """One migration and its record, together or not at all."""
    refusal = None
    try:
        async with connection.transaction():
            await connection.execute(migration.text)
            await connection.execute(
                "INSERT INTO public.schema_migrations (version, name, checksum, compat) "
                "VALUES ($1, $2, $3, $4)",
                migration.version,
                migration.name,
                migration.checksum,
                compat,
            )
    except DRIVER_ERRORS as error:
        position = getattr(error, "position", None)
        line = migration.text.count("\n", 0, int(position)) + 1 if position else "?"
        kind = type(error).__name__
        refusal = f"migration {migration.name}, line {line}: {kind}: {translate(error)}"
    if refusal is not None:
        raise StartRefused(refusal)


def dump_schema(server: EmbeddedServer, database: str | None = None) -> str:
    """The schema of a database of the embedded server as `schema.sql` holds it, deterministic.

    pg_dump's text without comments, session settings and random tokens. Blocking.
    """
    connection = server.connect_kwargs
    dump = subprocess.run(
        [
            server.programs / "pg_dump",
            "--schema-only",
            "--no-owner",
            "--no-privileges",
            f"--host={connection['host']}",
            f"--port={connection['port']}",
            f"--username={connection['user']}",
            database or connection["database"],
        ],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
    ).stdout
    noise = ("--", "SET ", "COMMENT ON EXTENSION", "SELECT pg_catalog.set_config", "\\")
    lines = [line.rstrip() for line in dump.splitlines() if not line.startswith(noise)]
    text = re.sub(r"\n{2,}", "\n\n", "\n".join(lines)).strip()
    return f"SET check_function_bodies = false;\n\n{text}\n"


async def print_schema() -> None:
    """Migrate a throwaway database and write its schema to standard output."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        settings = EmbeddedSettings(durable=False)
        async with (
            open_island() as island,
            open_embedded(folder / "pg", folder / "pg.log", settings) as server,
        ):
            await migrate(island, server.connect_kwargs)
            sys.stdout.write(await trio.to_thread.run_sync(dump_schema, server))


if __name__ == "__main__":
    if sys.argv[1:] != ["--dump-schema"]:
        raise SystemExit("usage: python -m storage.migrate --dump-schema > schema.sql")
    trio.run(print_schema)
