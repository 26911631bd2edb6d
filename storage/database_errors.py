"""What a caller may learn of a database error, and the translation from the driver's.

Server texts quote rows ("Key (text)=(...) already exists"), so only the SQLSTATE and the names
of constraint and table survive; those are schema, not content.
"""

from __future__ import annotations

import asyncpg

from storage.errors import Conflict, MnemeshError, Unavailable


class DatabaseError(MnemeshError):
    """The database refused a statement."""

    code = "database"

    def __init__(
        self,
        message: str | None = None,
        *,
        sqlstate: str | None = None,
        constraint: str | None = None,
        table: str | None = None,
    ) -> None:
        self.sqlstate = sqlstate
        self.constraint = constraint
        self.table = table
        super().__init__(message)
        known = {"sqlstate": sqlstate, "constraint": constraint, "table": table}
        facts = ", ".join(f"{name} {value}" for name, value in known.items() if value)
        if facts:
            self.args = (f"{self.args[0]} ({facts})",)


class ConstraintViolated(DatabaseError, Conflict):
    """A constraint of the database was violated."""

    code = "conflict"


class DatabaseUnavailable(DatabaseError, Unavailable):
    """The database cannot answer now; nothing of the unit of work has happened."""

    code = "unavailable"
    retryable = True


class TransactionConflict(DatabaseUnavailable):
    """The unit of work kept losing to concurrent ones."""


class CommitUnknown(DatabaseError):
    """The connection was lost during COMMIT: read the result back before trying again."""

    code = "commit_unknown"


CONFLICTS = frozenset({"40001", "40P01"})
UNAVAILABLE_CLASSES = frozenset({"08", "53", "57", "58"})
LOCK_TIMEOUT = "55P03"


def translate(error: BaseException) -> DatabaseError:
    """The error that callers see for one of the driver or of the network below it."""
    if isinstance(error, asyncpg.PostgresError):
        state = error.sqlstate or "XX000"
        constraint = getattr(error, "constraint_name", None)
        table = getattr(error, "table_name", None)
        kind = DatabaseError
        if state in CONFLICTS:
            kind = TransactionConflict
        elif state[:2] in UNAVAILABLE_CLASSES or state == LOCK_TIMEOUT or state == "25P03":
            kind = DatabaseUnavailable
        elif state[:2] == "23":
            kind = ConstraintViolated
        return kind(sqlstate=state, constraint=constraint, table=table)
    if isinstance(error, asyncpg.DataError):
        return DatabaseError("A value does not fit its column's type.", sqlstate="22000")
    if isinstance(error, TimeoutError):
        return DatabaseUnavailable("The database did not answer in time.")
    return DatabaseUnavailable(f"The database connection failed: {type(error).__name__}.")
