"""Units of work on a real server: commit, roll back, retry, cancel, and what errors tell."""

from __future__ import annotations

import asyncio
import logging
import random
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from asyncpg.pool import PoolConnectionHolder

from storage.database_errors import (
    CommitUnknown,
    ConstraintViolated,
    DatabaseError,
    DatabaseUnavailable,
    TransactionConflict,
)
from storage.embedded import EmbeddedServer
from storage.errors import StartRefused
from storage.island import Island
from storage.pool import Database, Tx, open_database
from storage.queries import Query, compile_query
from storage.settings import DatabaseSettings
from tests.support.postgres import SETTINGS, run_sql

pytestmark = pytest.mark.postgres

CANARY = "canary-7f3a-the-secret-text-of-a-row"

CREATE = compile_query("create", "CREATE TABLE notes (id int PRIMARY KEY, text text UNIQUE)")
INSERT = compile_query("insert", "INSERT INTO notes (id, text) VALUES (:id, :text)")
COUNT = compile_query("count", "SELECT count(*)::int FROM notes")
BUMP = compile_query("bump", "UPDATE notes SET text = text || :more WHERE id = :id")
READ = compile_query("read", "SELECT text FROM notes WHERE id = :id")
SLEEP = compile_query("sleep", "SELECT pg_sleep(30)")
SERIALIZABLE = compile_query("serializable", "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
PID = compile_query("pid", "SELECT pg_backend_pid()")
BUSY = """SELECT count(*)::int FROM pg_stat_activity
          WHERE datname = $1 AND application_name = 'mnemesh' AND state <> 'idle'"""


async def create(tx: Tx) -> None:
    await tx.execute(CREATE)


async def insert(tx: Tx, *, id: int, text: str) -> int:
    return await tx.execute(INSERT, id=id, text=text)


async def value(tx: Tx, query: Query, **params: Any) -> Any:
    return await tx.fetchval(query, **params)


@pytest.fixture
async def notes(empty_db: Database) -> Database:
    """A database with the table `notes`."""
    with trio.fail_after(60):
        await empty_db.transact(create)
    return empty_db


@asynccontextmanager
async def another_pool(
    island: Island, target: dict[str, Any], **changes: Any
) -> AsyncIterator[Database]:
    async with open_database(island, target, replace(SETTINGS, **changes)) as database:
        yield database


async def busy_backends(island: Island, server: EmbeddedServer, target: dict[str, Any]) -> int:
    rows = await island.call(run_sql, server.connect_kwargs, BUSY, target["database"])
    return int(rows[0][0])


async def until_busy(
    island: Island, server: EmbeddedServer, target: dict[str, Any], busy: int
) -> None:
    while await busy_backends(island, server, target) != busy:  # noqa: ASYNC110 - polls a server
        await trio.sleep(0.01)


async def test_a_unit_of_work_commits(notes: Database) -> None:
    with trio.fail_after(60):
        assert await notes.transact(insert, id=1, text="one") == 1
        assert await notes.read(value, COUNT) == 1


async def test_a_unit_that_raises_leaves_nothing(notes: Database) -> None:
    async def insert_and_fail(tx: Tx) -> None:
        await insert(tx, id=1, text="one")
        raise LookupError("on purpose")

    with trio.fail_after(60):
        with pytest.raises(LookupError, match="on purpose"):
            await notes.transact(insert_and_fail)
        assert await notes.read(value, COUNT) == 0


async def test_one_statement_at_once_is_durable_or_nothing(notes: Database) -> None:
    twice = compile_query(
        "twice", "INSERT INTO notes (id, text) SELECT n, 'same' FROM unnest(:ids::int[]) AS n"
    )
    with trio.fail_after(60):
        await notes.at_once(INSERT, id=1, text="one")
        with pytest.raises(ConstraintViolated):
            await notes.at_once(twice, ids=[2, 3])
        assert await notes.read(value, COUNT) == 1


async def test_a_statement_at_once_goes_to_its_end_when_cancelled(notes: Database) -> None:
    slow = compile_query(
        "slow", "INSERT INTO notes (id, text) SELECT 1, pg_sleep(0.3)::text RETURNING id"
    )
    with trio.fail_after(60):
        with trio.CancelScope() as scope:
            scope.deadline = trio.current_time() + 0.1
            rows = await notes.at_once(slow)
        assert [row["id"] for row in rows] == [1]
        assert await notes.read(value, COUNT) == 1


async def test_a_setting_of_a_unit_ends_with_it(
    island: Island, empty_database: dict[str, Any]
) -> None:
    async def change(tx: Tx) -> None:
        await tx.execute(compile_query("set", "SET LOCAL work_mem = '7MB'"))

    show = compile_query("show", "SHOW work_mem")
    with trio.fail_after(60):
        async with another_pool(island, empty_database, pool_max=1) as database:
            before = await database.read(value, show)
            await database.transact(change)
            assert await database.read(value, show) == before != "7MB"


async def test_every_way_to_fetch(notes: Database) -> None:
    async def work(tx: Tx) -> tuple[list[int], str, Any, Any]:
        await tx.executemany(INSERT, ({"id": n, "text": f"t{n}"} for n in (1, 2)))
        rows = await tx.fetch(compile_query("all", "SELECT id FROM notes ORDER BY id"))
        row = await tx.fetchrow(READ, id=2)
        assert row is not None
        return [r["id"] for r in rows], row["text"], await tx.fetchrow(READ, id=9), None

    with trio.fail_after(60):
        assert await notes.transact(work) == ([1, 2], "t2", None, None)


async def test_a_read_cannot_write(notes: Database) -> None:
    with trio.fail_after(60), pytest.raises(DatabaseError) as refused:
        await notes.read(insert, id=1, text="one")
    assert refused.value.sqlstate == "25006"


@pytest.mark.parametrize(("way", "seen"), [("read", (0, 0)), ("look", (0, 1))])
async def test_a_read_sees_one_snapshot_and_a_look_each_moment(
    notes: Database, way: str, seen: tuple[int, int]
) -> None:
    async def count_twice(tx: Tx) -> tuple[int, int]:
        before = await tx.fetchval(COUNT)
        await notes.island.to_trio(notes_insert)
        return before, await tx.fetchval(COUNT)

    async def notes_insert() -> None:
        await notes.transact(insert, id=1, text="one")

    with trio.fail_after(60):
        assert await getattr(notes, way)(count_twice) == seen


async def test_halfvec_is_a_float32_array(empty_db: Database) -> None:
    query = compile_query("echo", "SELECT :vector::halfvec")
    vector = np.array([0.5, -1.25, 3.0], dtype=np.float32)
    with trio.fail_after(60):
        back = await empty_db.read(value, query, vector=vector)
    assert back.dtype == np.float32
    assert np.array_equal(back, vector)


async def test_cancelling_ends_the_query_on_the_server_and_keeps_the_connection(
    island: Island, postgres_server: EmbeddedServer, empty_database: dict[str, Any]
) -> None:
    with trio.fail_after(60):
        async with another_pool(island, empty_database, pool_min=1, pool_max=1) as database:
            pid = await database.read(value, PID)
            async with trio.open_nursery() as inner:
                inner.start_soon(database.transact, value, SLEEP)
                await until_busy(island, postgres_server, empty_database, 1)
                inner.cancel_scope.cancel()
            await until_busy(island, postgres_server, empty_database, 0)
            assert await database.read(value, PID) == pid


async def test_f25_no_transaction_stays_open_after_many_cancellations(
    island: Island, postgres_server: EmbeddedServer, empty_database: dict[str, Any]
) -> None:
    pause = compile_query("pause", "SELECT pg_sleep(0.002)")

    async def unit(tx: Tx) -> None:
        for _ in range(5):
            await tx.fetchval(pause)

    with trio.fail_after(60):
        async with another_pool(island, empty_database) as database:

            async def one(number: int) -> None:
                with trio.move_on_after(0.001 * (number % 17)):
                    await database.transact(unit)

            async with trio.open_nursery() as inner:
                for number in range(60):
                    inner.start_soon(one, number)
            await until_busy(island, postgres_server, empty_database, 0)
            size, idle = database.connections
            assert size == idle


async def test_f5_a_serialization_failure_runs_the_whole_unit_again(notes: Database) -> None:
    attempts = 0

    async def bump_elsewhere() -> None:
        await notes.transact(value, BUMP, id=1, more="b")

    async def contended(tx: Tx) -> str:
        nonlocal attempts
        attempts += 1
        await tx.execute(SERIALIZABLE)
        await tx.fetchval(READ, id=1)
        if attempts == 1:
            await notes.island.to_trio(bump_elsewhere)
        await tx.execute(BUMP, id=1, more="c")
        text: str = await tx.fetchval(READ, id=1)
        return text

    with trio.fail_after(60):
        await notes.transact(insert, id=1, text="a")
        assert await notes.transact(contended) == "abc"
    assert attempts == 2


async def test_f5_a_unit_that_always_loses_gives_up(notes: Database) -> None:
    attempts = 0

    async def bump_elsewhere() -> None:
        await notes.transact(value, BUMP, id=1, more="b")

    async def contended(tx: Tx) -> None:
        nonlocal attempts
        attempts += 1
        await tx.execute(SERIALIZABLE)
        await tx.fetchval(READ, id=1)
        await notes.island.to_trio(bump_elsewhere)
        await tx.execute(BUMP, id=1, more="c")

    with trio.fail_after(60):
        await notes.transact(insert, id=1, text="a")
        with pytest.raises(TransactionConflict) as conflict:
            await notes.transact(contended)
    assert (attempts, conflict.value.sqlstate, conflict.value.retryable) == (4, "40001", True)


async def test_f5_a_deadlock_is_resolved_by_running_one_unit_again(notes: Database) -> None:
    met = asyncio.Event()
    waiting = 0

    async def both(tx: Tx, first: int, second: int) -> None:
        nonlocal waiting
        await tx.execute(BUMP, id=first, more="x")
        waiting += 1
        if waiting == 2:
            met.set()
        await met.wait()
        await tx.execute(BUMP, id=second, more="x")

    with trio.fail_after(60):
        await notes.transact(insert, id=1, text="a")
        await notes.transact(insert, id=2, text="b")
        async with trio.open_nursery() as inner:
            inner.start_soon(notes.transact, both, 1, 2)
            inner.start_soon(notes.transact, both, 2, 1)
        assert await notes.read(value, READ, id=1) == "axx"
        assert await notes.read(value, READ, id=2) == "bxx"
    assert waiting == 3


async def test_es_19_a_database_error_shows_no_row(
    notes: Database,
    postgres_server: EmbeddedServer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with trio.fail_after(60):
        await notes.transact(insert, id=1, text=CANARY)
        with pytest.raises(ConstraintViolated) as caught:
            await notes.transact(insert, id=2, text=CANARY)
    error = caught.value
    logging.getLogger("test").error("failed", exc_info=error)
    shown = [str(error), repr(error), "".join(traceback.format_exception(error)), caplog.text]
    shown.append((postgres_server.data_dir.parent / "postgres.log").read_text())
    assert [text for text in shown if CANARY in text] == []
    assert (error.constraint, error.table) == ("notes_text_key", "notes")
    assert (error.__cause__, error.__context__) == (None, None)


async def test_es_19_a_value_of_a_wrong_type_is_not_shown(notes: Database) -> None:
    with trio.fail_after(60), pytest.raises(DatabaseError) as caught:
        await notes.transact(value, INSERT, id=CANARY, text="x")
    assert CANARY not in "".join(traceback.format_exception(caught.value))


async def test_es_19_a_value_that_the_server_quotes_is_shown_nowhere(
    notes: Database, postgres_server: EmbeddedServer
) -> None:
    query = compile_query("cast", "SELECT (:text::text)::uuid")
    with trio.fail_after(60), pytest.raises(DatabaseError) as caught:
        await notes.read(value, query, text=CANARY)
    log = (postgres_server.data_dir.parent / "postgres.log").read_text()
    assert CANARY not in "".join(traceback.format_exception(caught.value)) + log


async def test_f5_an_exhausted_pool_is_unavailable(
    island: Island, postgres_server: EmbeddedServer, empty_database: dict[str, Any]
) -> None:
    with trio.fail_after(60):
        async with (
            another_pool(island, empty_database, pool_max=1, acquire_timeout=0.05) as database,
            trio.open_nursery() as inner,
        ):
            inner.start_soon(database.read, value, SLEEP)
            await until_busy(island, postgres_server, empty_database, 1)
            with pytest.raises(DatabaseUnavailable) as caught:
                await database.read(value, PID)
            inner.cancel_scope.cancel()
    assert caught.value.retryable


@pytest.mark.parametrize(
    "limit, sqlstate", [("statement_timeout", "57014"), ("lock_timeout", "55P03")]
)
async def test_f5_limits_of_the_server_are_unavailable(
    island: Island, empty_database: dict[str, Any], limit: str, sqlstate: str
) -> None:
    lock = compile_query("lock", "SELECT pg_advisory_xact_lock(7)")

    async def lock_twice(tx: Tx) -> None:
        await tx.fetchval(lock)
        await database.island.to_trio(database.transact, value, lock)

    with trio.fail_after(60):
        async with another_pool(island, empty_database, **{limit: 0.1}) as database:
            with pytest.raises(DatabaseUnavailable) as caught:
                await database.transact(lock_twice)
    assert caught.value.sqlstate == sqlstate


async def test_f3_a_lost_connection_is_unavailable_and_replaced(
    island: Island, postgres_server: EmbeddedServer, empty_database: dict[str, Any]
) -> None:
    kill = "SELECT pg_terminate_backend($1)"

    async def lose(tx: Tx) -> None:
        pid = await tx.fetchval(PID)
        await run_sql(postgres_server.connect_kwargs, kill, pid)
        await tx.fetchval(PID)

    with trio.fail_after(60):
        async with another_pool(island, empty_database, pool_max=1) as database:
            with pytest.raises(DatabaseUnavailable):
                await database.transact(lose)
            assert await database.read(value, PID) > 0


async def test_f4_a_connection_lost_at_commit_has_an_unknown_outcome(
    island: Island, postgres_server: EmbeddedServer, empty_database: dict[str, Any]
) -> None:
    kill = "SELECT pg_terminate_backend($1)"

    async def lose_at_commit(tx: Tx) -> None:
        await run_sql(postgres_server.connect_kwargs, kill, await tx.fetchval(PID))

    with trio.fail_after(60):
        async with another_pool(island, empty_database, pool_max=1) as database:
            with pytest.raises(CommitUnknown) as caught:
                await database.transact(lose_at_commit)
    assert (caught.value.code, caught.value.retryable) == ("commit_unknown", False)


async def test_f25_cancelling_during_commit_keeps_the_result(
    island: Island, postgres_server: EmbeddedServer, notes: Database
) -> None:
    slow_commit = """
        CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
          'BEGIN PERFORM pg_sleep(0.3); RETURN NULL; END';
        CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON notes
          DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION slow()"""
    finished = False

    async def make_slow(tx: Tx) -> None:
        for number, statement in enumerate(slow_commit.split(";\n        CREATE ")):
            text = statement if number == 0 else f"CREATE {statement}"
            await tx.execute(Query("slow", text.strip(), ()))

    with trio.fail_after(60):
        await notes.transact(make_slow)
        with trio.CancelScope() as scope:

            async def insert_and_tell(tx: Tx) -> int:
                count = await insert(tx, id=1, text="one")
                await notes.island.to_trio(cancel_soon)
                return count

            async def cancel_soon() -> None:
                await trio.lowlevel.checkpoint()
                asker.start_soon(cancel_when_committing)

            async def cancel_when_committing() -> None:
                await trio.sleep(0.1)
                scope.cancel()

            async with trio.open_nursery() as asker:
                assert await notes.transact(insert_and_tell) == 1
                finished = True
        assert finished
        assert await notes.read(value, COUNT) == 1


async def test_f25_cancelling_after_commit_keeps_the_result(
    notes: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = trio.lowlevel.current_trio_token()
    release = PoolConnectionHolder.release

    async def cancel_and_release(holder: PoolConnectionHolder, timeout: float | None) -> None:
        token.run_sync_soon(scope.cancel)
        await asyncio.sleep(0.05)
        await release(holder, timeout)

    monkeypatch.setattr(PoolConnectionHolder, "release", cancel_and_release)
    with trio.fail_after(60), trio.CancelScope() as scope:
        assert await notes.transact(insert, id=1, text="one") == 1
    monkeypatch.undo()
    assert scope.cancel_called
    assert await notes.read(value, COUNT) == 1
    assert not scope.cancelled_caught


async def test_a_server_that_is_not_there_is_one_line(island: Island, tmp_path: Path) -> None:
    async def open_it() -> None:
        target = {"host": str(tmp_path), "user": "mnemesh", "database": "mnemesh"}
        async with open_database(island, target, DatabaseSettings(connect_patience=0)):
            raise AssertionError("it opened")

    with trio.fail_after(60), pytest.raises(StartRefused) as refused:
        await open_it()
    assert str(refused.value) == "the database does not answer: is PostgreSQL running?"


async def test_a_bad_address_shows_no_password(island: Island) -> None:
    async def open_it() -> None:
        dsn = "postgresql://me:hunter2@localhost:notaport/db"
        async with open_database(island, dsn, DatabaseSettings(connect_patience=0)):
            raise AssertionError("it opened")

    with trio.fail_after(60), pytest.raises(StartRefused) as refused:
        await open_it()
    assert "hunter2" not in "".join(traceback.format_exception(refused.value))


async def test_a_database_without_pgvector_is_refused(
    island: Island, empty_database: dict[str, Any], postgres_server: EmbeddedServer
) -> None:
    bare = {**empty_database, "database": "bare"}
    admin = postgres_server.connect_kwargs

    async def open_it() -> None:
        async with open_database(island, bare, SETTINGS):
            raise AssertionError("it opened")

    with trio.fail_after(60):
        await island.call(run_sql, admin, "CREATE DATABASE bare TEMPLATE template0")
        try:
            with pytest.raises(StartRefused, match="no schema of mnemesh yet"):
                await open_it()
        finally:
            await island.call(run_sql, admin, "DROP DATABASE bare WITH (FORCE)")


async def test_a_unit_that_goes_on_after_an_error_does_not_pass_for_stored(
    notes: Database,
) -> None:
    async def careless(tx: Tx) -> None:
        await insert(tx, id=1, text="a")
        with suppress(ConstraintViolated):
            await insert(tx, id=1, text="b")

    with trio.fail_after(60):
        with pytest.raises(DatabaseError, match="went on after"):
            await notes.transact(careless)
        assert await notes.read(value, COUNT) == 0


async def test_a_connection_is_whole_after_a_look_that_was_cancelled_anywhere(
    island: Island, empty_database: dict[str, Any]
) -> None:
    chance = random.Random(5)
    cut = 0

    async def look(database: Database, scope: trio.CancelScope, number: int) -> None:
        unprepared = compile_query("look", f"SELECT {number}, count(*) FROM pg_class")
        with scope:
            await database.look(value, unprepared)

    with trio.fail_after(120):
        async with another_pool(island, empty_database, pool_min=1, pool_max=1) as database:
            for number in range(600):
                scope = trio.CancelScope()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(look, database, scope, number)
                    for _ in range(chance.randrange(120)):
                        await trio.lowlevel.checkpoint()
                    scope.cancel()
                cut += scope.cancelled_caught
                assert await database.read(value, PID) > 0
    assert cut > 100
