"""Remember: store row, vector, history and announcement of new memories in one commit.

What a caller was told is stored is durable and resident. The hot graph follows after the commit,
while the next commit is under way; a crash in between costs nothing, since it is rebuilt from the
rows.

Memories that come one by one are stored by one statement that is its own transaction, under the
epochs that the last commit found: those that come while it is under way share the next. When one
meets another, when an epoch has moved, or when a memory is handed to somebody, a transaction of
several statements decides.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

import numpy as np
import trio
from numpy.typing import NDArray

from gossip import announcing
from gossip.affinity import quantise_wire, quantised
from gossip.announcing import WIRE_DTYPE
from node.memory.commits import Entry
from node.memory.context import MemoryContext
from node.memory.drafts import Draft, Ready, prepare
from node.memory.handing import Announced
from node.memory.hiding import hide_expired
from storage import births, memories
from storage.births import Birth
from storage.chunks import CHUNK
from storage.database_errors import CommitUnknown
from storage.diffs import Diff
from storage.errors import Conflict, InvalidInput, MnemeshError, SaveFailed, ScopeErased
from storage.gate import Epochs, Expected
from storage.model import AgentId, Memory, MemoryId, MemoryKind, ProjectId, Visibility
from storage.pool import Tx
from storage.records import DiffKind

MAX_BATCH = 500
MAX_MET = 4
"""A draft meets at most three rows: by source, by idempotency key, by text."""


@dataclass(frozen=True, slots=True)
class Remembered:
    """The row that now stands for the draft; `deduped` when it stood already."""

    memory: Memory
    deduped: bool


class Met(Conflict):
    """One of several memories that belong together stands already."""


ScopeKey = tuple[AgentId, ProjectId | None]
Outcome = Remembered | MnemeshError


@dataclass(frozen=True, slots=True)
class _Committed:
    """What a commit stored: an outcome for each draft, and what is to follow in this process."""

    outcomes: list[Outcome]
    fresh: list[tuple[Memory, NDArray[np.float32]]]
    hidden: Sequence[MemoryId]
    handed: set[AgentId]


@dataclass(frozen=True, slots=True)
class _Stored:
    """What a transaction did: outcomes in the order of the batch, the expired memories that made
    room, who was handed something, and the epochs that it found."""

    outcomes: list[Outcome]
    hidden: list[MemoryId]
    handed: set[AgentId]
    epochs: dict[ScopeKey, Epochs | ScopeErased]


async def remember(context: MemoryContext, draft: Draft) -> Remembered:
    """Store one memory, or count the equal one that is there; durable when this returns.

    Those that come while others commit share the next commit. Raises InvalidInput,
    ContentTooLarge, ScopeErased, and what the embedder raises.
    """
    (result,) = await remember_each(context, [draft])
    if isinstance(result, Exception):
        raise result
    assert result is not None  # only what its caller leaves out has no result
    return result


async def remember_each(
    context: MemoryContext,
    drafts: Sequence[Draft],
    left: Callable[[int], bool] = lambda position: False,
) -> list[Remembered | Exception | None]:
    """`remember` for drafts that came together: for each what it would return or raise.

    `left` is asked by position, when the commit begins, whether a draft is to be left out; of such
    a one there is no result.
    """
    try:
        ready, refused = await prepare(context, drafts)
    except MnemeshError as error:
        if len(drafts) == 1:
            return [error]
        return await _each_apart(context, drafts, left)
    entries = {
        position: Entry[Ready, Outcome](item, partial(left, position))
        for position, item in ready.items()
    }
    if entries:
        await context.commits.share(
            list(entries.values()), partial(_commit, context, True), partial(_follow, context)
        )
    done = {position: entry.error or entry.result for position, entry in entries.items()}
    return [refused.get(position) or done.get(position) for position in range(len(drafts))]


async def _each_apart(
    context: MemoryContext, drafts: Sequence[Draft], left: Callable[[int], bool]
) -> list[Remembered | Exception | None]:
    """Drafts that cannot be embedded together."""
    results: list[Remembered | Exception | None] = [None] * len(drafts)

    async def one(position: int) -> None:
        (results[position],) = await remember_each(
            context, [drafts[position]], lambda _: left(position)
        )

    async with trio.open_nursery() as nursery:
        for position in range(len(drafts)):
            nursery.start_soon(one, position)
    return results


async def remember_batch(context: MemoryContext, drafts: Sequence[Draft]) -> list[Outcome]:
    """Store up to 500 memories in one commit; a bad item is an error in its place, no more.

    Raises InvalidInput for a batch of the wrong size, and what the embedder and the database
    raise, in which case nothing was stored.
    """
    if not 1 <= len(drafts) <= MAX_BATCH:
        raise InvalidInput(f"a batch has 1 to {MAX_BATCH} memories")
    ready, refused = await prepare(context, drafts)
    outcomes: dict[int, Outcome] = {**refused}
    if ready:
        done = await _follow(context, await _commit(context, False, list(ready.values())))
        outcomes |= zip(ready, done, strict=True)
    return [outcomes[position] for position in range(len(drafts))]


async def remember_whole(
    context: MemoryContext, drafts: Sequence[Draft], guard: Callable[[Tx], Awaitable[None]]
) -> list[Memory]:
    """Store all drafts or none, in one commit that `guard` may refuse, first and by raising.

    Raises what the guard raises, the first fault of a draft, and Met when a draft meets a memory
    that is there, or another draft.
    """
    prepared, refused = await prepare(context, drafts)
    if refused:
        raise refused[min(refused)]
    ready = list(prepared.values())
    try:
        stored = await context.db.transact(_store_whole, context, ready, guard)
    except CommitUnknown:
        context.residency.has_cold = True
        raise
    rows = [outcome.memory for outcome in stored.outcomes if isinstance(outcome, Remembered)]
    fresh = [(row, item.vector) for row, item in zip(rows, ready, strict=True)]
    await _follow(context, _Committed(stored.outcomes, fresh, stored.hidden, stored.handed))
    return rows


async def _store_whole(
    tx: Tx,
    context: MemoryContext,
    batch: Sequence[Ready],
    guard: Callable[[Tx], Awaitable[None]],
) -> _Stored:
    await guard(tx)
    stored = await _store_all(tx, context, batch)
    for outcome in stored.outcomes:
        if isinstance(outcome, MnemeshError):
            raise outcome
        if outcome.deduped:
            raise Met()
    return stored


async def _commit(context: MemoryContext, at_once: bool, batch: Sequence[Ready]) -> _Committed:
    """Make what is ready durable, `at_once` if it can be."""
    try:
        stored = await (_store if at_once else _transact)(context, batch)
    except CommitUnknown:
        context.residency.has_cold = True
        raise
    fresh = [
        (outcome.memory, item.vector)
        for item, outcome in zip(batch, stored.outcomes, strict=True)
        if isinstance(outcome, Remembered) and not outcome.deduped
    ]
    return _Committed(stored.outcomes, fresh, stored.hidden, stored.handed)


async def _follow(context: MemoryContext, done: _Committed) -> list[Outcome]:
    """Let graph, mesh and subscribers follow a commit."""
    if done.hidden:
        await context.residency.hide(done.hidden)
    await context.residency.add(done.fresh)
    if any(memory.announced_at for memory, _ in done.fresh):
        context.announced()
    context.desk.told(done.handed)
    return done.outcomes


async def _store(context: MemoryContext, batch: Sequence[Ready]) -> _Stored:
    """Store by one statement what it takes, and the rest by a transaction.

    What the statement took stays, whatever becomes of the rest.
    """
    taken = await _store_at_once(context, batch)
    rest = [position for position in range(len(batch)) if position not in taken]
    stored = _Stored([], [], set(), {})
    with trio.CancelScope(shield=bool(taken)):
        try:
            if rest:
                stored = await _transact(context, [batch[position] for position in rest])
        except BaseException as error:
            if taken:
                context.residency.has_cold = True
            if not taken or not isinstance(error, MnemeshError):
                raise
            stored = _Stored([error] * len(rest), [], set(), {})
    outcomes: dict[int, Outcome] = dict(zip(rest, stored.outcomes, strict=True))
    outcomes |= {position: Remembered(memory, False) for position, memory in taken.items()}
    return replace(stored, outcomes=[outcomes[position] for position in range(len(batch))])


async def _transact(context: MemoryContext, batch: Sequence[Ready]) -> _Stored:
    stored = await context.db.transact(_store_all, context, batch)
    for key, found in stored.epochs.items():
        if isinstance(found, Epochs):
            context.epochs[key] = found
        else:
            context.epochs.pop(key, None)
    return stored


async def _store_at_once(context: MemoryContext, batch: Sequence[Ready]) -> dict[int, Memory]:
    """Store those that meet nothing, unless one has to go to somebody or has unknown epochs.

    By position. None is stored when the epochs have moved.
    """
    now = context.now()
    born: dict[int, Birth] = {}
    expected: dict[ScopeKey, list[Expected]] = {}
    for position in _in_order(batch):
        item = batch[position]
        key = (item.draft.agent_id, item.draft.project_id)
        epochs = context.epochs.get(key)
        if epochs is None:
            return {}
        birth = _birth(context, item, epochs, now)
        if birth.diff is not None and context.desk.wanting(birth.memory, quantised(birth.diff.q8)):
            return {}
        born[position] = birth
        if key not in expected:
            expected[key] = context.node.gate.expected(*key, epochs)
    scopes = {scope for several in expected.values() for scope in several}
    model = context.embedder.model_id
    added = await births.insert_at_once(context.db, model, list(born.values()), scopes)
    return {position: birth.memory for position, birth in born.items() if birth.memory.id in added}


def _in_order(batch: Sequence[Ready]) -> list[int]:
    """Positions by hash, so that two batches with the same texts cannot deadlock."""
    return sorted(range(len(batch)), key=lambda at: batch[at].content.content_hash)


async def _store_all(tx: Tx, context: MemoryContext, batch: Sequence[Ready]) -> _Stored:
    epochs: dict[ScopeKey, Epochs | ScopeErased] = {}
    outcomes: dict[int, Outcome] = {}
    hidden: list[MemoryId] = []
    new: dict[int, Birth] = {}
    now = context.now()
    for position in _in_order(batch):
        item = batch[position]
        key = (item.draft.agent_id, item.draft.project_id)
        if key not in epochs:
            try:
                epochs[key] = await context.node.gate.for_write(tx, *key)
            except ScopeErased as error:
                epochs[key] = error
        epoch = epochs[key]
        if isinstance(epoch, ScopeErased):
            outcomes[position] = epoch
        else:
            new[position] = _birth(context, item, epoch, now)
    added = await births.insert(tx, context.embedder.model_id, list(new.values()))
    announced: list[Announced] = []
    for position, birth in new.items():
        if birth.memory.id in added:
            outcome: Outcome = Remembered(birth.memory, deduped=False)
        else:
            outcome = await _meet(tx, context, birth, now, hidden)
        outcomes[position] = outcome
        if birth.diff is not None and isinstance(outcome, Remembered) and not outcome.deduped:
            announced.append(Announced(birth.memory, birth.diff.diff_id, birth.diff.q8))
    handed = await context.desk.hand(tx, announced)
    return _Stored([outcomes[at] for at in range(len(batch))], hidden, handed, epochs)


async def _meet(
    tx: Tx, context: MemoryContext, birth: Birth, now: datetime, hidden: list[MemoryId]
) -> Outcome:
    """Count the row that stands in the way of a birth, or take an expired one out of it."""
    memory = birth.memory
    for _ in range(MAX_MET):
        met = await memories.find_duplicate(tx, memory)
        if met is not None and (met.expires_at is None or met.expires_at > now):
            if met.source_type == CHUNK != memory.source_type and (
                met.idempotency_key is not None and met.idempotency_key == memory.idempotency_key
            ):
                return Conflict("idempotency_key stands for chunked content")
            await memories.count_seen_again(tx, met.id)
            return Remembered(replace(met, seen_count=met.seen_count + 1), deduped=True)
        if met is not None:
            hidden += await hide_expired(
                tx, context.node, context.access.current, [met], actor=memory.updated_by
            )
        if await births.insert(tx, context.embedder.model_id, [birth]):
            return Remembered(memory, deduped=False)
    return SaveFailed()


def _birth(context: MemoryContext, item: Ready, epochs: Epochs, now: datetime) -> Birth:
    memory = _row(context, item, epochs, now)
    return Birth(
        memory,
        item.vector,
        context.cold.cluster_for(memory, item.vector),
        announcement(context, memory, item.vector, "add", now)
        if memory.announced_at is not None
        else None,
    )


def _row(context: MemoryContext, item: Ready, epochs: Epochs, now: datetime) -> Memory:
    draft = item.draft
    announced = draft.project_id is not None and draft.visibility is Visibility.GLOBAL
    return Memory(
        id=context.node.new_id(),
        kind=MemoryKind.CELL,
        agent_id=draft.agent_id,
        project_id=draft.project_id,
        scope_label=draft.scope_label,
        content=item.content.storage,
        normalized_content=item.content.normalized,
        content_hash=item.content.content_hash,
        hash_version=item.content.hash_version,
        type=draft.type,
        tags=draft.tags,
        who=draft.who,
        importance=draft.importance,
        pinned=draft.pinned,
        visibility=draft.visibility,
        source_type=draft.source_type,
        source_id=draft.source_id,
        idempotency_key=draft.idempotency_key,
        expires_at=draft.expires_at,
        announced_at=now if announced else None,
        created_at=draft.created_at or now,
        updated_at=now,
        updated_by=draft.actor,
        origin_node=context.node.node_id,
        agent_epoch=epochs.agent,
        project_epoch=epochs.project,
        hlc=context.node.clock.now(),
    )


def announcement(
    context: MemoryContext,
    memory: Memory,
    vector: NDArray[np.float32],
    kind: DiffKind,
    now: datetime,
) -> Diff:
    """The signed announcement of a memory, by its agent's own key.

    The agent must be at home here and the memory must have a project.
    """
    settings = context.settings
    q8 = quantise_wire(vector.astype(WIRE_DTYPE).tobytes(), "f16").raw
    return announcing.announcement(
        context.node,
        memory,
        vector,
        kind,
        model=context.embedder.model_id,
        energy=context.walk_energy(memory.project_id, q8) if memory.project_id else 0,
        ttl_ms=settings.ttl_ms,
        hop_max=settings.hop_max,
        grace_ms=settings.diff_grace_ms,
        now=now,
    )
