"""One asyncio loop in one thread, for the libraries that know only asyncio.

trio runs the program; asyncpg and uvicorn live here. The bridge carries a call, its result or
its exception with type and traceback, and cancellation, in both directions. A round trip costs
about 0.3 ms, so callers bridge whole units of work, never single queries.

What it never does: it keeps no work of its own, retries nothing, and hides no death. When the
loop ends unasked, every waiting caller gets `IslandClosed` and `open_island` fails its body, so
that the program stops instead of hanging. Context variables travel from trio to the loop but
not back: whatever a trio function needs must be an argument of `to_trio`.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar, TypeVarTuple, Unpack

import outcome
import trio
import uvloop

from storage.errors import Unavailable

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

START_TIMEOUT = 10.0
"""Seconds for the loop to come up."""
STOP_TIMEOUT = 5.0
"""Seconds for the loop to end before its callers are released without it."""
CALL_GRACE = 2.0
"""Seconds for cancelled calls to unwind before the loop is torn down under them."""


class IslandClosed(Unavailable):
    """The asyncio loop is not running."""


class _Waiter:
    """A trio task that waits for something of the loop; touched only in the trio thread."""

    def __init__(self) -> None:
        self.token = trio.lowlevel.current_trio_token()
        self.task = trio.lowlevel.current_task()
        self.raise_cancel: Callable[[], Any] | None = None
        self.aio_task: asyncio.Task[Any] | None = None
        self.settled = False

    def wake(self, result: outcome.Maybe[Any] | None) -> None:
        """Reschedule once; None means cancelled on the loop."""
        if self.settled:
            return
        self.settled = True
        if result is None:
            if self.raise_cancel is None:
                result = outcome.Error(IslandClosed())
            else:
                result = outcome.capture(self.raise_cancel)
        trio.lowlevel.reschedule(self.task, result)

    def wake_soon(self, result: outcome.Maybe[Any] | None) -> None:
        """As `wake`, from any thread; nobody waits any more when the trio run is over."""
        with contextlib.suppress(trio.RunFinishedError):
            self.token.run_sync_soon(self.wake, result)

    def cancel_on_loop(self) -> None:
        if self.aio_task is not None:
            self.aio_task.cancel()


class _Inbound:
    """A trio call that somebody on the loop waits for."""

    def __init__(self, future: asyncio.Future[Any]) -> None:
        self.future = future
        self.scope = trio.CancelScope()

    def settle(self, result: outcome.Maybe[Any]) -> None:
        if self.future.done():
            return
        if isinstance(result, outcome.Error):
            self.future.set_exception(result.error)
        else:
            self.future.set_result(result.value)


class Island:
    """The loop, its thread, and everything that is under way across the bridge."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._started = threading.Event()
        self._lock = threading.Lock()
        self._closing = False
        self._ended = False
        self._dead = False
        self._error: BaseException | None = None
        self._calls: set[_Waiter] = set()
        self._watchers: set[_Waiter] = set()
        self._inbound: set[_Inbound] = set()
        self._home: tuple[trio.lowlevel.TrioToken, trio.Nursery] | None = None
        self._thread = threading.Thread(target=self._run, name="island", daemon=True)

    # -- life ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread and wait, a few milliseconds, until the loop runs."""
        self._thread.start()
        if not self._started.wait(START_TIMEOUT) or self._dead:
            raise IslandClosed("the asyncio loop did not start") from self._error

    def close(self) -> None:
        """Stop the loop and wait for its thread; idempotent, blocking, for any thread.

        Order: refuse new calls from the loop and fail the present ones, cancel the calls from
        trio, end. A loop that is stuck past STOP_TIMEOUT is abandoned and its callers released.
        """
        self._closing = True
        if self._thread.ident is None:
            return
        self._threadsafe(self._begin_close)
        self._thread.join(STOP_TIMEOUT)
        if self._thread.is_alive():
            self._release_all()

    def refuse_inbound(self) -> None:
        """Fail present and later `to_trio` calls with IslandClosed, so that HTTP answers 503."""
        self._threadsafe(self._fail_inbound)

    def bind(self, token: trio.lowlevel.TrioToken, nursery: trio.Nursery) -> None:
        """Say where `to_trio` runs its functions: a trio run and a nursery of that run.

        A test session shares one island and binds it anew in each test's own trio run.
        """
        self._home = (token, nursery)

    def unbind(self) -> None:
        """Forget the trio run; later `to_trio` calls fail with IslandClosed until `bind`."""
        self._home = None

    @property
    def open_calls(self) -> int:
        """Calls under way in both directions; zero between tests."""
        with self._lock:
            return len(self._calls) + len(self._inbound)

    async def watch(self) -> None:
        """Wait for the end of the loop; raises IslandClosed when nobody asked for it."""
        waiter = _Waiter()
        with self._lock:
            if not self._dead:
                self._watchers.add(waiter)
        if waiter not in self._watchers:
            waiter.wake_soon(self._verdict())

        def abort(raise_cancel: Callable[[], Any]) -> trio.lowlevel.Abort:
            waiter.settled = True
            self._watchers.discard(waiter)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    # -- trio to loop -------------------------------------------------------------------------

    async def call(self, fn: Callable[[Unpack[Ts]], Awaitable[T]], *args: *Ts) -> T:
        """Run `await fn(*args)` on the loop, called from trio.

        Cancelling the trio task cancels the asyncio task and waits for it to end; a function
        that completes all the same returns its value, so no finished work is lost.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        waiter = _Waiter()
        with self._lock:
            if self._ended or self._closing:
                raise IslandClosed from self._error
            self._calls.add(waiter)

        async def run() -> T:
            return await fn(*args)

        def launch() -> None:
            if self._ended or self._closing or waiter.raise_cancel is not None:
                self._finish(waiter, None)
                return
            waiter.aio_task = asyncio.get_running_loop().create_task(run())
            waiter.aio_task.add_done_callback(done)

        def done(task: asyncio.Task[T]) -> None:
            result: outcome.Maybe[T] | None = None
            if not task.cancelled():
                error = task.exception()
                result = outcome.Value(task.result()) if error is None else outcome.Error(error)
            self._finish(waiter, result)

        def abort(raise_cancel: Callable[[], Any]) -> trio.lowlevel.Abort:
            waiter.raise_cancel = raise_cancel
            self._threadsafe(waiter.cancel_on_loop)
            return trio.lowlevel.Abort.FAILED

        self._threadsafe(launch)
        result: T = await trio.lowlevel.wait_task_rescheduled(abort)
        return result

    def _finish(self, waiter: _Waiter, result: outcome.Maybe[Any] | None) -> None:
        with self._lock:
            self._calls.discard(waiter)
        waiter.wake_soon(result)

    # -- loop to trio -------------------------------------------------------------------------

    async def to_trio(self, fn: Callable[[Unpack[Ts]], Awaitable[T]], *args: *Ts) -> T:
        """Run `await fn(*args)` as a task of the bound nursery, called on the loop.

        Cancelling the asyncio task cancels the trio task and waits for it to end before the
        CancelledError goes on. Raises IslandClosed when there is no nursery to run in, when the
        nursery is cancelled, or when the island closes.
        """
        loop = asyncio.get_running_loop()
        home = self._home
        if home is None or self._closing:
            raise IslandClosed
        token, nursery = home
        future: asyncio.Future[T] = loop.create_future()
        inbound = _Inbound(future)

        def settle(result: outcome.Maybe[T]) -> None:
            self._threadsafe(inbound.settle, result)

        async def run() -> None:
            result: outcome.Maybe[T] = outcome.Error(IslandClosed())
            try:
                with inbound.scope:
                    result = outcome.Value(await fn(*args))
            except Exception as error:  # noqa: BLE001 - carried to the caller on the loop
                result = outcome.Error(error)
            finally:
                settle(result)

        def launch() -> None:
            try:
                nursery.start_soon(run, name=fn)
            except RuntimeError:
                settle(outcome.Error(IslandClosed()))

        with self._lock:
            self._inbound.add(inbound)
        try:
            token.run_sync_soon(launch)
            cancelled: asyncio.CancelledError | None = None
            while not future.done():
                try:
                    await asyncio.wait([future])
                except asyncio.CancelledError as error:
                    cancelled = error
                    token.run_sync_soon(inbound.scope.cancel)
            if cancelled is not None:
                future.exception()
                raise cancelled
            return future.result()
        except trio.RunFinishedError:
            raise IslandClosed from None
        finally:
            with self._lock:
                self._inbound.discard(inbound)

    # -- in the island's thread ---------------------------------------------------------------

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._main())
        except BaseException as error:  # noqa: BLE001 - handed to every waiter and the watchers
            self._error = error
        finally:
            self._release_all()

    async def _main(self) -> None:
        self._stop = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._started.set()
        try:
            await self._stop.wait()
        finally:
            self._ended = True
        with self._lock:
            tasks = [w.aio_task for w in self._calls if w.aio_task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CALL_GRACE)

    def _begin_close(self) -> None:
        self._fail_inbound()
        if self._stop is not None:
            self._stop.set()

    def _fail_inbound(self) -> None:
        home, self._home = self._home, None
        with self._lock:
            present = list(self._inbound)
        for inbound in present:
            inbound.settle(outcome.Error(IslandClosed()))
            if home is not None:
                with contextlib.suppress(trio.RunFinishedError):
                    home[0].run_sync_soon(inbound.scope.cancel)

    def _release_all(self) -> None:
        with self._lock:
            self._ended = self._dead = True
            calls, watchers = list(self._calls), list(self._watchers)
            self._calls.clear()
            self._watchers.clear()
        self._started.set()
        for waiter in calls:
            waiter.wake_soon(None)
        for waiter in watchers:
            waiter.wake_soon(self._verdict())

    def _verdict(self) -> outcome.Maybe[None]:
        if self._closing:
            return outcome.Value(None)
        closed = IslandClosed("the asyncio loop ended unasked")
        closed.__cause__ = self._error
        return outcome.Error(closed)

    def _threadsafe(self, fn: Callable[..., object], *args: object) -> None:
        """Run on the loop soon; a closed loop has released everybody already."""
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(fn, *args)


@asynccontextmanager
async def open_island() -> AsyncIterator[Island]:
    """Run an island for the body, bound to a nursery of this trio run.

    If the loop ends while the body runs, the body is cancelled and IslandClosed is raised.
    A single error leaves as itself, not wrapped in a group.
    """
    island = Island()
    island.start()
    lone: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            island.bind(trio.lowlevel.current_trio_token(), nursery)
            nursery.start_soon(island.watch)
            try:
                yield island
            finally:
                with trio.CancelScope(shield=True):
                    await trio.to_thread.run_sync(island.close)
                nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        if len(group.exceptions) != 1:
            raise
        lone = group.exceptions[0]
    if lone is not None:
        raise lone
