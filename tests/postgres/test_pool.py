from __future__ import annotations

import pytest
import trio

from storage.pool import Database, Tx
from storage.queries import compile_query

pytestmark = pytest.mark.postgres

CANARY = "canary-7f3a the secret text of a row"

CREATE = compile_query("create", "CREATE TABLE notes (id int PRIMARY KEY, text text UNIQUE)")
INSERT = compile_query("insert", "INSERT INTO notes (id, text) VALUES (:id, :text)")
COUNT = compile_query("count", "SELECT count(*) FROM notes")
SLEEP = compile_query("sleep", "SELECT pg_sleep(30)")
SERIALIZABLE = compile_query("serial", "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")


async def test_a_unit_of_work_commits(empty_db: Database) -> None:
    async def make(tx: Tx) -> int:
        await tx.execute(CREATE)
        return await tx.execute(INSERT, id=1, text="one")

    async def count(tx: Tx) -> int:
        value: int = await tx.fetchval(COUNT)
        return value

    with trio.fail_after(10):
        assert await empty_db.transact(make) == 1
        assert await empty_db.read(count) == 1
