"""Driver errors become ours, with names of the schema and nothing of the rows."""

from __future__ import annotations

import asyncpg
import pytest

from storage.database_errors import (
    ConstraintViolated,
    DatabaseError,
    DatabaseUnavailable,
    TransactionConflict,
    translate,
)
from storage.errors import Conflict, Unavailable


@pytest.mark.parametrize(
    "error, kind, retryable",
    [
        (asyncpg.SerializationError("x"), TransactionConflict, True),
        (asyncpg.DeadlockDetectedError("x"), TransactionConflict, True),
        (asyncpg.UniqueViolationError("x"), ConstraintViolated, False),
        (asyncpg.QueryCanceledError("x"), DatabaseUnavailable, True),
        (asyncpg.LockNotAvailableError("x"), DatabaseUnavailable, True),
        (asyncpg.TooManyConnectionsError("x"), DatabaseUnavailable, True),
        (asyncpg.DiskFullError("x"), DatabaseUnavailable, True),
        (asyncpg.AdminShutdownError("x"), DatabaseUnavailable, True),
        (asyncpg.ConnectionDoesNotExistError("x"), DatabaseUnavailable, True),
        (asyncpg.IdleInTransactionSessionTimeoutError("x"), DatabaseUnavailable, True),
        (asyncpg.InterfaceError("x"), DatabaseUnavailable, True),
        (ConnectionResetError("x"), DatabaseUnavailable, True),
        (TimeoutError(), DatabaseUnavailable, True),
        (asyncpg.DataError("x"), DatabaseError, False),
        (asyncpg.UndefinedTableError("x"), DatabaseError, False),
    ],
)
def test_each_error_has_its_kind(
    error: BaseException, kind: type[DatabaseError], retryable: bool
) -> None:
    translated = translate(error)
    assert (type(translated), translated.retryable) == (kind, retryable)


def test_constraint_and_table_are_kept_and_text_is_not() -> None:
    error = asyncpg.UniqueViolationError("Key (text)=(secret) exists")
    error.constraint_name, error.table_name, error.detail = "notes_text_key", "notes", "secret"
    translated = translate(error)
    assert str(translated) == (
        "A constraint of the database was violated. "
        "(sqlstate 23505, constraint notes_text_key, table notes)"
    )


def test_kinds_keep_their_place_among_all_errors() -> None:
    assert issubclass(ConstraintViolated, Conflict)
    assert issubclass(DatabaseUnavailable, Unavailable)
