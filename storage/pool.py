"""The database: whole units of work in one transaction, and the one place for driver errors.

Use cases call `Database.transact` or `Database.read` from trio with a function that takes a
`Tx`. The function runs on the island inside one transaction, so one bridge crossing pays for
all its statements; inside it only `tx` may be awaited. It may run several times: a unit that
lost to a concurrent one (serialization failure, deadlock) starts over, so it must not change
anything but the database.

What leaves this module about a driver error is its SQLSTATE, its constraint and its table.
The server's texts carry row content and never do: the new error has no cause and no context.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import asyncpg
import trio

from storage.database_errors import (
    CommitUnknown,
    DatabaseError,
    DatabaseUnavailable,
    TransactionConflict,
    translate,
)
from storage.errors import StartRefused
from storage.island import Island, IslandClosed
from storage.queries import Query
from storage.server_check import check_server, read_server
from storage.settings import DatabaseSettings
from storage.vectors import register_vectors

P = ParamSpec("P")
T = TypeVar("T")

Target = str | Mapping[str, Any]
"""A DSN, or the keyword arguments of a connection (the embedded server hands those out)."""

DRIVER_ERRORS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)
BEGIN = "BEGIN"
BEGIN_READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
COMMIT = "COMMIT"
ROLLBACK = "ROLLBACK"
RELEASE_TIMEOUT = 5.0
RETRY_BASE = 0.01
RETRY_CAP = 0.5


class Record(Protocol):
    """A row: by column name or position; iterating yields the values."""

    def __getitem__(self, key: str | int) -> Any: ...
    def get(self, key: str, default: Any = None) -> Any: ...
    def keys(self) -> Iterable[str]: ...
    def values(self) -> Iterable[Any]: ...
    def items(self) -> Iterable[tuple[str, Any]]: ...
    def __len__(self) -> int: ...


async def _translated(call: Callable[..., Awaitable[T]], *args: Any, **kwargs: Any) -> T:
    """Make a driver call; its error comes out as ours, without cause or context.

    A lost connection raises when the method is called, not when it is awaited.
    """
    try:
        return await call(*args, **kwargs)
    except DRIVER_ERRORS as error:
        failure = translate(error)
    raise failure


class Tx:
    """Statements inside one open transaction, on the island.

    `bytea` is bytes, times are aware datetimes, `halfvec` is a float32 array of shape (dim,),
    `jsonb` is text. After an error the transaction only rolls back.
    """

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection

    async def fetch(self, query: Query, **params: Any) -> list[Record]:
        """All rows."""
        arguments = query.arguments(params)
        rows: list[Record] = await _translated(self._connection.fetch, query.text, *arguments)
        return rows

    async def fetchrow(self, query: Query, **params: Any) -> Record | None:
        """The first row, or None."""
        arguments = query.arguments(params)
        row: Record | None = await _translated(self._connection.fetchrow, query.text, *arguments)
        return row

    async def fetchval(self, query: Query, **params: Any) -> Any:
        """The first column of the first row, or None without a row."""
        arguments = query.arguments(params)
        return await _translated(self._connection.fetchval, query.text, *arguments)

    async def execute(self, query: Query, **params: Any) -> int:
        """Run for its effect; returns how many rows it touched, 0 for other statements."""
        arguments = query.arguments(params)
        status: str = await _translated(self._connection.execute, query.text, *arguments)
        count = status.rpartition(" ")[2]
        return int(count) if count.isdigit() else 0

    async def executemany(self, query: Query, rows: Iterable[Mapping[str, Any]]) -> None:
        """Run once for each row of parameters, pipelined."""
        arguments = [query.arguments(row) for row in rows]
        if arguments:
            await _translated(self._connection.executemany, query.text, arguments)


class Database:
    """A pool of connections to one PostgreSQL; made by `open_database`."""

    def __init__(self, island: Island, pool: asyncpg.Pool, settings: DatabaseSettings) -> None:
        self.island = island
        self._pool = pool
        self._settings = settings

    async def transact(
        self,
        work: Callable[Concatenate[Tx, P], Awaitable[T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run `work(tx, ...)` in one read-committed transaction and commit; called from trio.

        A unit that needs more isolation sets it with its first statement. Serialization
        failures and deadlocks start the unit over, `conflict_retries` times, then
        TransactionConflict. DatabaseUnavailable when no connection can be had in time or it is
        lost before COMMIT (nothing happened); CommitUnknown when it is lost during COMMIT.
        Cancelled before COMMIT the unit rolls back; a COMMIT under way is waited for and its
        result returned.
        """
        return await self.island.call(
            self._unit, partial(self._attempt, False, lambda tx: work(tx, *args, **kwargs))
        )

    async def read(
        self,
        work: Callable[Concatenate[Tx, P], Awaitable[T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """As `transact`, read only, over one snapshot: all its queries see the same state."""
        return await self.island.call(
            self._unit, partial(self._attempt, True, lambda tx: work(tx, *args, **kwargs))
        )

    async def at_once(self, query: Query, **params: Any) -> list[Record]:
        """The rows of one statement that is a transaction of its own: one round trip in all.

        Raises and starts over as `transact`. Once sent it is waited for, also when cancelled;
        CommitUnknown when the connection is lost meanwhile. Called from trio.
        """
        arguments = query.arguments(params)
        return await self.island.call(self._unit, partial(self._send, query.text, arguments))

    async def look(
        self,
        work: Callable[Concatenate[Tx, P], Awaitable[T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """As `read` without a transaction: each query of `work` sees the state of its own moment.

        For work of one query, which needs no snapshot and is spared two round trips.
        """
        return await self.island.call(self._glance, lambda tx: work(tx, *args, **kwargs))

    @property
    def connections(self) -> tuple[int, int]:
        """Open connections and how many of them are idle, for metrics."""
        return self._pool.get_size(), self._pool.get_idle_size()

    async def _unit(self, work: Callable[[], Awaitable[T]]) -> T:
        for attempt in range(self._settings.conflict_retries):
            try:
                return await work()
            except TransactionConflict:
                ceiling = min(RETRY_CAP, RETRY_BASE * 2**attempt)
                delay = random.uniform(ceiling / 2, ceiling)
            _raise_if_cancelled()
            await asyncio.sleep(delay)
        return await work()

    async def _glance(self, work: Callable[[Tx], Awaitable[T]]) -> T:
        async with self._connection() as connection:
            return await work(Tx(connection))

    async def _attempt(self, readonly: bool, work: Callable[[Tx], Awaitable[T]]) -> T:
        async with self._connection() as connection:
            await _translated(connection.execute, BEGIN_READ if readonly else BEGIN)
            result = await work(Tx(connection))
            if await _final(connection.execute, COMMIT) != COMMIT:
                # The server answers so when a statement failed before: nothing was stored.
                raise DatabaseError("a unit of work went on after a statement had failed")
            return result

    async def _send(self, text: str, arguments: Sequence[Any]) -> list[Record]:
        async with self._connection() as connection:
            rows: list[Record] = await _final(connection.fetch, text, *arguments)
            return rows

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[asyncpg.Connection]:
        connection = await _translated(self._pool.acquire, timeout=self._settings.acquire_timeout)
        try:
            yield connection
        except BaseException:
            await _to_the_end(_roll_back(connection))
            raise
        finally:
            with suppress(*DRIVER_ERRORS):  # the pool has dropped the connection by then
                await _to_the_end(self._pool.release(connection, timeout=RELEASE_TIMEOUT))


async def _roll_back(connection: asyncpg.Connection) -> None:
    """End whatever is open; a connection that cannot is dropped, which has the same effect.

    Outside a transaction too: the driver asks the server to prepare a statement and says only
    with the next message that this was all, so one that is cancelled in between would leave the
    server in the middle of a transaction that nobody began.
    """
    try:
        await connection.execute(ROLLBACK)
    except DRIVER_ERRORS:
        with suppress(asyncpg.InterfaceError):  # the pool has taken a lost one back already
            connection.terminate()


async def _final(call: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Make a call that commits and wait for its verdict even when cancelled, so that no finished
    work is lost. Raises CommitUnknown when the connection is lost meanwhile."""
    try:
        return await _to_the_end(_translated(call, *args))
    except (DatabaseUnavailable, asyncio.CancelledError):
        unknown = CommitUnknown()
    raise unknown


async def _to_the_end(work: Awaitable[T]) -> T:
    """The result of `work`, waited for even when this task is cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    while not task.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([task])
    return task.result()


def _raise_if_cancelled() -> None:
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def _keep_session(_connection: asyncpg.Connection) -> None:
    """Nothing here outlives a transaction: settings are local to one, locks end with it, and
    listening has connections of its own. So a connection goes back as it is, which saves each
    unit a round trip."""


def connect_arguments(target: Target, settings: DatabaseSettings) -> dict[str, Any]:
    """The keyword arguments of every connection that this process opens."""
    arguments: dict[str, Any] = {"dsn": target} if isinstance(target, str) else dict(target)
    arguments["timeout"] = settings.connect_timeout
    return arguments


def session_settings(settings: DatabaseSettings) -> dict[str, str]:
    """Limits that the server enforces on each session, in its units (milliseconds)."""
    return {
        "application_name": "mnemesh",
        "statement_timeout": str(int(settings.statement_timeout * 1000)),
        "lock_timeout": str(int(settings.lock_timeout * 1000)),
        "idle_in_transaction_session_timeout": str(
            int(settings.idle_in_transaction_timeout * 1000)
        ),
        "client_connection_check_interval": "1000",
    }


async def connect(target: Target, settings: DatabaseSettings) -> asyncpg.Connection:
    """One connection of its own, on the island; waits for a server that is still starting.

    Raises StartRefused with one line that holds no password.
    """
    clock = asyncio.get_running_loop()
    deadline = clock.time() + settings.connect_patience
    while True:
        starting = False
        try:
            return await asyncpg.connect(**connect_arguments(target, settings))
        except (ConnectionRefusedError, FileNotFoundError, asyncpg.CannotConnectNowError):
            starting = True
            refusal = "the database does not answer: is PostgreSQL running?"
        except asyncpg.PostgresError as error:
            kind = type(error).__name__
            refusal = f"the database refuses the connection ({kind}, SQLSTATE {error.sqlstate})"
        except (asyncpg.InterfaceError, asyncpg.InternalClientError, ValueError) as error:
            refusal = f"the database address is not usable ({type(error).__name__})"
        except (OSError, TimeoutError) as error:
            refusal = f"the database cannot be reached ({type(error).__name__})"
        if not starting or clock.time() >= deadline:
            raise StartRefused(refusal)
        await asyncio.sleep(0.1)


async def _open_pool(target: Target, settings: DatabaseSettings) -> asyncpg.Pool:
    probe = await connect(target, settings)
    try:
        server = await _translated(read_server, probe)
    finally:
        probe.terminate()
    check_server(server)
    if server.vector_schema is None:
        raise StartRefused("the database has no schema of mnemesh yet: run `mnemesh migrate`")
    return await _translated(
        _make_pool,
        **connect_arguments(target, settings),
        min_size=settings.pool_min,
        max_size=settings.pool_max,
        command_timeout=settings.statement_timeout + settings.connect_timeout,
        server_settings=session_settings(settings),
        init=partial(register_vectors, schema=server.vector_schema),
        reset=_keep_session,
    )


async def _make_pool(**arguments: Any) -> asyncpg.Pool:
    return await asyncpg.create_pool(**arguments)


async def _close_pool(pool: asyncpg.Pool, grace: float) -> None:
    try:
        await asyncio.wait_for(pool.close(), grace)
    except TimeoutError:
        pool.terminate()


@asynccontextmanager
async def open_database(
    island: Island, target: Target, settings: DatabaseSettings | None = None
) -> AsyncIterator[Database]:
    """Check the server, open the pool for the body, close it after at most `close_grace`.

    Raises StartRefused: server unreachable, older than 15, without pgvector 0.7, or never
    migrated. Called from trio.
    """
    settings = settings or DatabaseSettings()
    pool = await island.call(_open_pool, target, settings)
    try:
        yield Database(island, pool, settings)
    finally:
        with trio.CancelScope(shield=True), suppress(IslandClosed):  # took its sockets along
            await island.call(_close_pool, pool, settings.close_grace)
