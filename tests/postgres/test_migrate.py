"""Migrations on a real server: each once, whole, in order, and equal to the readable schema."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import trio

from storage.embedded import EmbeddedServer
from storage.errors import StartRefused
from storage.island import Island
from storage.migrate import LOCK_KEY, SCHEMA_FILE, dump_schema, migrate, pending
from tests.support.postgres import SETTINGS, run_sql

pytestmark = pytest.mark.postgres

FIRST = "CREATE TABLE one (id int PRIMARY KEY, text text); INSERT INTO one VALUES (1, 'x');"
SECOND = "ALTER TABLE one ADD COLUMN more text;"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with two good migrations."""
    (tmp_path / "0001_pre_one.sql").write_text(FIRST)
    (tmp_path / "0002_post_two.sql").write_text(SECOND)
    return tmp_path


async def tables(island: Island, target: dict[str, Any]) -> list[str]:
    sql = "SELECT tablename::text FROM pg_tables WHERE schemaname = 'public' ORDER BY 1"
    return [row[0] for row in await island.call(run_sql, target, sql)]


async def test_all_are_applied_once_and_reported(
    island: Island, empty_database: dict[str, Any], files: Path
) -> None:
    said: list[str] = []
    names = ("0001_pre_one", "0002_post_two")
    with trio.fail_after(60):
        assert await pending(island, empty_database, directory=files) == names
        assert await tables(island, empty_database) == []
        first = await migrate(island, empty_database, directory=files, progress=said.append)
        again = await migrate(island, empty_database, directory=files, progress=said.append)
        assert await pending(island, empty_database, directory=files) == ()
        assert await tables(island, empty_database) == ["one", "schema_migrations"]
    assert (first, again, tuple(said)) == (names, (), names)


async def test_a_failing_migration_leaves_nothing_of_itself(
    island: Island, empty_database: dict[str, Any], files: Path
) -> None:
    (files / "0002_post_two.sql").write_text("CREATE TABLE two (id int);\nCREATE TABEL x;")
    with trio.fail_after(60):
        with pytest.raises(StartRefused, match=r"0002_post_two, line 2: PostgresSyntaxError"):
            await migrate(island, empty_database, directory=files)
        assert await tables(island, empty_database) == ["one", "schema_migrations"]
        assert await pending(island, empty_database, directory=files) == ("0002_post_two",)


async def test_es_19_a_failing_migration_shows_no_row(
    island: Island, empty_database: dict[str, Any], files: Path
) -> None:
    (files / "0002_post_two.sql").write_text(
        "INSERT INTO one VALUES (2, 'canary-text'); ALTER TABLE one ALTER text TYPE int "
        "USING text::int;"
    )
    with trio.fail_after(60), pytest.raises(StartRefused) as refused:
        await migrate(island, empty_database, directory=files)
    assert "canary-text" not in "".join(traceback.format_exception(refused.value))


async def test_a_changed_migration_is_refused(
    island: Island, empty_database: dict[str, Any], files: Path
) -> None:
    with trio.fail_after(60):
        await migrate(island, empty_database, directory=files)
        (files / "0001_pre_one.sql").write_text(f"{FIRST} -- changed")
        with pytest.raises(StartRefused, match="0001_pre_one was changed"):
            await migrate(island, empty_database, directory=files)


async def test_f22_a_database_of_newer_code_is_refused(
    island: Island, empty_database: dict[str, Any], files: Path
) -> None:
    with trio.fail_after(60):
        await migrate(island, empty_database, directory=files, compat=2)
        (files / "0002_post_two.sql").unlink()
        with pytest.raises(StartRefused, match="install a newer mnemesh"):
            await migrate(island, empty_database, directory=files)


async def test_f23_two_at_once_apply_each_migration_once(
    island: Island, empty_database: dict[str, Any], files: Path
) -> None:
    applied: list[str] = []

    async def run() -> None:
        applied.extend(await migrate(island, empty_database, directory=files))

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            nursery.start_soon(run)
    assert sorted(applied) == ["0001_pre_one", "0002_post_two"]


async def test_a_migration_under_way_is_waited_for_with_a_bound(
    island: Island,
    empty_database: dict[str, Any],
    files: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("storage.migrate.LOCK_PATIENCE", 1)
    hold = f"SELECT pg_advisory_lock({LOCK_KEY}), pg_sleep(20)"
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(island.call, run_sql, empty_database, hold)
            held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
            while not (await island.call(run_sql, empty_database, held))[0][0]:  # noqa: ASYNC110
                await trio.sleep(0.01)
            with pytest.raises(StartRefused, match="another process has been migrating"):
                await migrate(island, empty_database, directory=files)
            nursery.cancel_scope.cancel()


async def test_the_migrated_schema_equals_schema_sql(
    island: Island,
    postgres_server: EmbeddedServer,
    database_target: dict[str, Any],
    empty_database: dict[str, Any],
) -> None:
    with trio.fail_after(60):
        await island.call(run_sql_script, empty_database, SCHEMA_FILE.read_text())
        migrated, written = [
            await trio.to_thread.run_sync(dump_schema, postgres_server, target["database"])
            for target in (database_target, empty_database)
        ]
    assert written == migrated
    assert SCHEMA_FILE.read_text() == migrated


async def run_sql_script(target: dict[str, Any], script: str) -> None:
    connection = await asyncpg.connect(**target)
    try:
        await connection.execute(script)
    finally:
        await connection.close()


async def test_the_shipped_migrations_apply_to_an_empty_database(
    island: Island, empty_database: dict[str, Any]
) -> None:
    with trio.fail_after(60):
        names = await migrate(island, empty_database, settings=SETTINGS)
    assert names[0] == "0001_pre_initial"
