"""The Python client of a node: remember, recall, get, forget, history, watch.

Speaks the agent port over the node's unix socket, or over TLS from another machine. Calls of many
tasks share one connection and run side by side. A connection that breaks is made again and what
was under way is repeated; a subscription goes on behind the last memory it received.

With trio:

    async with open_client(agent="bob") as client:
        await client.remember("The deploy runs on Fridays at noon", tags=["ops"])
        answer = await client.recall("when do we deploy?")
        print(answer.hits[0].content)

Without:

    with BlockingClient(agent="bob") as client:
        client.remember("The deploy runs on Fridays at noon", tags=["ops"])
        print(client.recall("when do we deploy?").hits[0].content)

Longer examples stand in `ops/examples/`. Whatever goes wrong is a MnemeshError: Refused with the
node's `code`, Unavailable for a node that stays away, InvalidInput for what cannot be asked, and
Closed behind the end of the client.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Sequence,
)
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import trio

from node.port import messages
from node.port.filters import filters
from node.port.link import Followed, Link
from node.port.messages import (
    Answer,
    Delivery,
    Draft,
    Event,
    Filters,
    Forgotten,
    Hit,
    Memory,
    Outcome,
    Remembered,
)
from node.port.place import find_place
from node.port.refusal import Closed, Refused
from node.port.values import moment, raw_id, several, vector_of
from storage.errors import InvalidInput, MnemeshError, Unavailable

__all__ = [
    "Answer",
    "BlockingClient",
    "Client",
    "Closed",
    "Deliveries",
    "Delivery",
    "Draft",
    "Event",
    "Filters",
    "Forgotten",
    "Hit",
    "InvalidInput",
    "Memory",
    "MnemeshError",
    "Outcome",
    "Refused",
    "Remembered",
    "Subscription",
    "Unavailable",
    "filters",
    "open_client",
]

PATIENCE_S: Final = 30.0

T = TypeVar("T")


@asynccontextmanager
async def open_client(
    place: str | Path | None = None,
    *,
    agent: str | None = None,
    token: str | None = None,
    fingerprint: str | None = None,
    patience_s: float = PATIENCE_S,
) -> AsyncIterator[Client]:
    """A client for the body of the block; it connects with the first call.

    `place` is a workspace folder, `unix:PATH` of a socket, or `tls:HOST:PORT` together with the
    `fingerprint` of the node's certificate; without it, the usual workspace. `agent` is whom to
    act for, `token` what `mnemesh token create` gave, MNEMESH_TOKEN without it. A call waits up to
    `patience_s` seconds for a node that is away or not ready, then raises Unavailable; so does a
    subscription, which `math.inf` lets wait for ever. Raises InvalidInput for a place that cannot
    be one.
    """
    hello = messages.Hello(messages.VERSION, agent, token or os.environ.get("MNEMESH_TOKEN"))
    link = Link(find_place(place, fingerprint), hello, patience_s)
    lone: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run)
            yield Client(link)
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        if len(group.exceptions) != 1:
            raise
        lone = group.exceptions[0]
    if lone is not None:
        raise lone


class Client:
    """A node, as one of its agents sees it. Safe to use from many tasks of one trio run."""

    def __init__(self, link: Link) -> None:
        self._link = link

    @property
    def node(self) -> messages.Welcome | None:
        """What the node said of itself: model, dimension, agent; None before the first call."""
        return self._link.welcome

    async def remember(
        self,
        content: str,
        *,
        project: str | None = None,
        type: str = "fact",
        tags: str | Iterable[str] = (),
        who: str | None = None,
        importance: float = 0.5,
        pinned: bool = False,
        visibility: str = "global",
        scope: str | None = None,
        source_type: str | None = None,
        source_id: str | None = None,
        idempotency_key: str | None = None,
        ttl_s: float | None = None,
        created_at: datetime | None = None,
        vector: Any = None,
    ) -> Remembered:
        """Store one memory, or count the equal one that is there; durable when this returns."""
        draft = Draft(
            content=content,
            project=project,
            type=type,
            tags=several(tags),
            who=who,
            importance=importance,
            pinned=pinned,
            visibility=visibility,
            scope=scope,
            source_type=source_type,
            source_id=source_id,
            idempotency_key=idempotency_key,
            ttl_ms=None if ttl_s is None else int(ttl_s * 1000),
            created_ms=moment(created_at),
            vector=vector_of(vector),
        )
        return await self._link.ask(lambda number: messages.Remember(number, draft), Remembered)

    async def remember_batch(self, drafts: Iterable[Draft | str]) -> Sequence[Outcome]:
        """Store up to 500 memories in one commit; a bad one is a fault in its place, no more."""
        if isinstance(drafts, str):
            raise InvalidInput("drafts: a list is expected, not a lone text")
        given = tuple(Draft(each) if isinstance(each, str) else each for each in drafts)
        reply = await self._link.ask(
            lambda number: messages.RememberBatch(number, given), messages.BatchRemembered
        )
        return reply.outcomes

    async def recall(
        self,
        query: str = "",
        *,
        vector: Any = None,
        limit: int = 10,
        fast: bool = False,
        superseded: bool = False,
        filters: Filters | None = None,
        deadline_ms: int | None = None,
    ) -> Answer:
        """The memories that answer best; `fast` asks residents by meaning alone.

        `filters(...)` of this module makes filters. `Answer.degraded` names what did not answer
        in time.
        """
        raw = vector_of(vector)
        return await self._link.ask(
            lambda number: messages.Recall(
                number, query, raw, limit, fast, superseded, filters, deadline_ms
            ),
            Answer,
        )

    async def get(self, memory_id: str | bytes) -> Memory:
        """One memory. Raises Refused with code `not_found`."""
        raw = raw_id(memory_id)
        found = await self._link.ask(lambda number: messages.Get(number, raw), messages.Found)
        return found.memory

    async def forget(self, *memory_ids: str | bytes, reason: str | None = None) -> Forgotten:
        """Remove memories for good, here and at every peer."""
        raw = tuple(map(raw_id, memory_ids))
        return await self._link.ask(lambda number: messages.Forget(number, raw, reason), Forgotten)

    async def history(self, memory_id: str | bytes) -> Sequence[Event]:
        """What happened to a memory, also after it is gone."""
        raw = raw_id(memory_id)
        reply = await self._link.ask(lambda number: messages.History(number, raw), messages.Events)
        return reply.events

    async def ping(self) -> float:
        """Seconds to the node and back."""
        begun = trio.current_time()
        await self._link.ask(messages.Ping, messages.Pong)
        return trio.current_time() - begun

    @asynccontextmanager
    async def watch(
        self, after: int | None = None, *, credit: int = 64
    ) -> AsyncIterator[Subscription]:
        """Memories that the node hands to this agent, as they come.

        `after` is the `seq` of the last one that was dealt with: keep it, and no memory comes
        twice or is missed, whatever restarts. 0 asks for all there are, None for what comes from
        the begin of the block on. At most `credit` memories wait on this side; a slow reader holds
        up nobody, and what it was not sent yet waits for it at the node for
        `gossip.delivery_retention_d` days at least.
        """
        subscription = self._follow(after, credit)
        try:
            await subscription.ready()
            yield subscription
        finally:
            subscription.end()

    def _follow(self, after: int | None, credit: int) -> Subscription:
        if not 0 < credit <= messages.MAX_CREDIT:
            raise InvalidInput(f"credit is a number from 1 to {messages.MAX_CREDIT}")
        return Subscription(self._link, self._link.follow(after, credit))


class Subscription:
    """Deliveries in the order of their numbers, over all breaks of the connection.

    What ends it is raised behind the last delivery that came: Refused by a node that will not go
    on, as for an agent that was erased, or Unavailable when the node stays away longer than the
    client's patience. A new one goes on behind the `seq` of the last.
    """

    def __init__(self, link: Link, followed: Followed) -> None:
        self._link = link
        self._followed = followed

    def end(self) -> None:
        """Take no more; a task that waits for the next one gets Closed."""
        self._link.unfollow(self._followed)

    async def ready(self) -> int:
        """Wait until the node follows; the number behind which the next delivery will have its."""
        while not self._followed.stands:
            if self._followed.error is not None:
                raise self._followed.error
            await self._followed.changed.wait()
        assert self._followed.after is not None
        return self._followed.after

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery:
        while not self._followed.arrived:
            if self._followed.error is not None:
                raise self._followed.error
            await self._followed.changed.wait()
        delivery, more = self._followed.take()
        if more:
            self._link.grant(self._followed, more)
        return delivery


class BlockingClient:
    """The same for programs without trio: each call blocks; may be used from several threads.

    The connection lives in a thread of its own until `close`, or the end of the `with` block.
    Takes the arguments of `open_client`.
    """

    def __init__(self, place: str | Path | None = None, **options: Any) -> None:
        self._place = place
        self._options = options
        self._ready = threading.Event()
        self._client: Client | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._stop: trio.Event | None = None
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="mnemesh-client", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def node(self) -> messages.Welcome | None:
        """See `Client.node`."""
        client = self._client
        return None if client is None else client.node

    def close(self) -> None:
        """End the connection; idempotent."""
        if self._stop is not None:
            self._soon(self._stop.set)
            self._thread.join()

    def remember(self, content: str, **fields: Any) -> Remembered:
        """See `Client.remember`."""
        return self._call(lambda client: client.remember(content, **fields))

    def remember_batch(self, drafts: Iterable[Draft | str]) -> Sequence[Outcome]:
        """See `Client.remember_batch`."""
        given = drafts if isinstance(drafts, str) else list(drafts)
        return self._call(lambda client: client.remember_batch(given))

    def recall(self, query: str = "", **options: Any) -> Answer:
        """See `Client.recall`."""
        return self._call(lambda client: client.recall(query, **options))

    def get(self, memory_id: str | bytes) -> Memory:
        """See `Client.get`."""
        return self._call(lambda client: client.get(memory_id))

    def forget(self, *memory_ids: str | bytes, reason: str | None = None) -> Forgotten:
        """See `Client.forget`."""
        return self._call(lambda client: client.forget(*memory_ids, reason=reason))

    def history(self, memory_id: str | bytes) -> Sequence[Event]:
        """See `Client.history`."""
        return self._call(lambda client: client.history(memory_id))

    def ping(self) -> float:
        """See `Client.ping`."""
        return self._call(lambda client: client.ping())

    def watch(
        self, after: int | None = None, *, credit: int = 64, idle_s: float | None = None
    ) -> Deliveries:
        """See `Client.watch`; iterate over what it gives, and close it to end the subscription.

        The iteration ends after `idle_s` seconds without a delivery, and goes on where it was when
        it is begun again; without it, it never ends.
        """

        async def follow(client: Client) -> Subscription:
            subscription = client._follow(after, credit)
            try:
                await subscription.ready()
            except BaseException:
                subscription.end()
                raise
            return subscription

        return Deliveries(self, self._call(follow), idle_s)

    def _call(self, work: Callable[[Client], Awaitable[T]]) -> T:
        client, token = self._open()

        scope = trio.CancelScope()

        async def run() -> T:
            with scope:
                return await work(client)
            raise Closed

        try:
            return trio.from_thread.run(run, trio_token=token)
        except (trio.RunFinishedError, trio.Cancelled):
            raise Closed from self._failure  # by another thread, while this one waited
        except KeyboardInterrupt:
            self._soon(scope.cancel)
            raise

    def _soon(self, work: Callable[[], object]) -> None:
        """Let the connection's thread do this, if it is still there."""
        if self._token is not None:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(work)

    def _open(self) -> tuple[Client, trio.lowlevel.TrioToken]:
        client, token = self._client, self._token
        if client is None or token is None or not self._thread.is_alive():
            raise Closed from self._failure
        return client, token

    def _run(self) -> None:
        try:
            trio.run(self._serve)
        except BaseException as error:  # noqa: BLE001 - told to whoever opens or calls
            self._failure = error
        finally:
            self._client = None
            self._ready.set()

    async def _serve(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._stop = trio.Event()
        async with open_client(self._place, **self._options) as client:
            self._client = client
            self._ready.set()
            await self._stop.wait()


class Deliveries:
    """A subscription of a BlockingClient: an iterator, and a context that closes it.

    Ends as `Subscription` does, with StopIteration when nothing came for `idle_s` seconds, and
    with Closed when another thread closes it or the client.
    """

    def __init__(
        self, client: BlockingClient, subscription: Subscription, idle_s: float | None
    ) -> None:
        self._client = client
        self._subscription = subscription
        self._idle_s = math.inf if idle_s is None else idle_s

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Delivery:
        async def take(client: Client) -> Delivery | None:
            with trio.move_on_after(self._idle_s):
                return await self._subscription.__anext__()
            return None

        delivery = self._client._call(take)
        if delivery is None:
            raise StopIteration
        return delivery

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """End the subscription; idempotent, also behind the end of the client."""
        self._client._soon(self._subscription.end)
