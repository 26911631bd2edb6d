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

Longer examples stand in `ops/examples/`. Every refusal is a MnemeshError with the node's `code`.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import trio

from node.port import messages
from node.port.link import Followed, Link, Place, Refused
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
from node.workspace import resolve_workspace
from storage.errors import InvalidInput

__all__ = [
    "Answer",
    "BlockingClient",
    "Client",
    "Delivery",
    "Draft",
    "Event",
    "Filters",
    "Forgotten",
    "Hit",
    "Memory",
    "Outcome",
    "Refused",
    "Remembered",
    "filters",
    "open_client",
]

PATIENCE_S: Final = 30.0
SOCKET: Final = "agent.sock"

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
    act for, `token` what `mnemesh token create` gave. A call waits up to `patience_s` seconds for
    a node that is away, then raises Unavailable.
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
        tags: Iterable[str] = (),
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
            tags=tuple(tags),
            who=who,
            importance=importance,
            pinned=pinned,
            visibility=visibility,
            scope=scope,
            source_type=source_type,
            source_id=source_id,
            idempotency_key=idempotency_key,
            ttl_ms=None if ttl_s is None else int(ttl_s * 1000),
            created_ms=messages.moment_ms(created_at),
            vector=messages.vector_bytes(vector),
        )
        return await self._link.ask(lambda number: messages.Remember(number, draft), Remembered)

    async def remember_batch(self, drafts: Iterable[Draft | str]) -> Sequence[Outcome]:
        """Store up to 500 memories in one commit; a bad one is a fault in its place, no more."""
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
        raw = messages.vector_bytes(vector)
        return await self._link.ask(
            lambda number: messages.Recall(
                number, query, raw, limit, fast, superseded, filters, deadline_ms
            ),
            Answer,
        )

    async def get(self, memory_id: str | bytes) -> Memory:
        """One memory. Raises Refused with code `not_found`."""
        raw = _raw(memory_id)
        found = await self._link.ask(lambda number: messages.Get(number, raw), messages.Found)
        return found.memory

    async def forget(self, *memory_ids: str | bytes, reason: str | None = None) -> Forgotten:
        """Remove memories for good, here and at every peer."""
        raw = tuple(map(_raw, memory_ids))
        return await self._link.ask(lambda number: messages.Forget(number, raw, reason), Forgotten)

    async def history(self, memory_id: str | bytes) -> Sequence[Event]:
        """What happened to a memory, also after it is gone."""
        raw = _raw(memory_id)
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
        now on. At most `credit` memories wait on this side; a slow reader holds up nobody.
        """
        followed = self._link.follow(after, credit)
        try:
            yield Subscription(self._link, followed)
        finally:
            self._link.unfollow(followed)


class Subscription:
    """Deliveries in the order of their numbers; ends only by a refusal, which it raises."""

    def __init__(self, link: Link, followed: Followed) -> None:
        self._link = link
        self._followed = followed

    async def ready(self) -> int:
        """Wait until the node follows; the number behind which it starts."""
        while self._followed.after is None:
            if self._followed.error is not None:
                raise self._followed.error
            await self._followed.changed.wait()
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

    def close(self) -> None:
        """End the connection; idempotent."""
        if self._thread.is_alive() and self._token is not None and self._stop is not None:
            try:
                self._token.run_sync_soon(self._stop.set)
            except trio.RunFinishedError:
                return
            self._thread.join()

    def remember(self, content: str, **fields: Any) -> Remembered:
        """See `Client.remember`."""
        return self._call(lambda client: client.remember(content, **fields))

    def remember_batch(self, drafts: Iterable[Draft | str]) -> Sequence[Outcome]:
        """See `Client.remember_batch`."""
        given = list(drafts)
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

    def watch(self, after: int | None = None, *, credit: int = 64) -> Iterator[Delivery]:
        """See `Client.watch`; close the iterator to end the subscription."""

        async def follow(client: Client) -> Subscription:
            return Subscription(client._link, client._link.follow(after, credit))

        subscription = self._call(follow)
        try:
            while True:
                yield self._call(lambda client: subscription.__anext__())
        finally:
            if self._client is not None:
                self._call_sync(lambda client: client._link.unfollow(subscription._followed))

    def _call(self, work: Callable[[Client], Awaitable[T]]) -> T:
        client, token = self._open()

        async def run() -> T:
            return await work(client)

        return trio.from_thread.run(run, trio_token=token)

    def _call_sync(self, work: Callable[[Client], None]) -> None:
        client, token = self._open()
        trio.from_thread.run_sync(work, client, trio_token=token)

    def _open(self) -> tuple[Client, trio.lowlevel.TrioToken]:
        if self._client is None or self._token is None or not self._thread.is_alive():
            raise InvalidInput("the client is closed")
        return self._client, self._token

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


def filters(
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    importance_min: float | None = None,
    pinned: bool | None = None,
    visibility: str | None = None,
    scope: str | None = None,
    **several: str | Iterable[str],
) -> Filters:
    """Filters of a recall: `agent`, `project`, `kind`, `type`, `tags` and `who` take one or many.

    Raises InvalidInput for an unknown filter and a time without a zone.
    """
    known = ("agent", "project", "kind", "type", "tags", "who")
    for name in several:
        if name not in known:
            raise InvalidInput(f"unknown filter: {name}")
    lists: Mapping[str, tuple[str, ...]] = {
        name: (value,) if isinstance(value, str) else tuple(value)
        for name, value in several.items()
    }
    try:
        since_ms, until_ms = messages.moment_ms(since), messages.moment_ms(until)
    except ValueError as error:
        raise InvalidInput(str(error)) from error
    return Filters(
        **lists,
        since_ms=since_ms,
        until_ms=until_ms,
        importance_min=importance_min,
        pinned=pinned,
        visibility=visibility,
        scope=scope,
    )


def find_place(place: str | Path | None, fingerprint: str | None) -> Place:
    """What `place` of `open_client` names. Raises InvalidInput."""
    text = str(place) if place is not None else ""
    if text.startswith("unix:"):
        return Place(path=text.removeprefix("unix:"))
    if text.startswith("tls:"):
        host, colon, port = text.removeprefix("tls:").rpartition(":")
        if not colon or not host or not port.isascii() or not port.isdigit():
            raise InvalidInput("place: expected tls:HOST:PORT")
        if not fingerprint:
            raise InvalidInput("fingerprint is required with tls")
        return Place(host=host.strip("[]"), port=int(port), fingerprint=fingerprint)
    folder = resolve_workspace(Path(text) if text else None, os.environ, Path.home())
    return Place(path=str(folder / ".daemon" / SOCKET))


def _raw(memory_id: str | bytes) -> bytes:
    if isinstance(memory_id, bytes):
        return memory_id
    try:
        return uuid.UUID(memory_id).bytes
    except ValueError as error:
        raise InvalidInput("a memory's id is no UUID") from error
