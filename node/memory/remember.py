"""Remember: normalise, embed, and store row, vector, history and announcement in one commit.

What a caller was told is stored is durable and resident. The hot graph follows after the commit,
while the next commit is under way; a crash in between costs nothing, since it is rebuilt from the
rows.

A memory that comes alone is stored by one statement that is its own transaction, under the epochs
that the last commit found. When it meets another, when an epoch has moved, or when the memory is
handed to somebody, a transaction of several statements decides.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

import numpy as np
from numpy.typing import NDArray

from gossip import announcing
from gossip.affinity import quantise_wire, quantised
from gossip.announcing import WIRE_DTYPE
from node.memory.context import MemoryContext
from node.memory.handing import Announced
from node.memory.hiding import hide_expired
from storage import births, memories
from storage.births import Birth
from storage.chunks import CHUNK
from storage.content import NormalContent, check_text, normalize
from storage.database_errors import CommitUnknown
from storage.diffs import Diff
from storage.errors import Conflict, InvalidInput, MnemeshError, SaveFailed, ScopeErased
from storage.gate import Epochs
from storage.model import AgentId, Memory, MemoryId, MemoryKind, ProjectId, Visibility
from storage.pool import Tx
from storage.records import DiffKind

MAX_BATCH = 500
MAX_MET = 4
"""A draft meets at most three rows: by source, by idempotency key, by text."""
MAX_TAGS = 32
MAX_TAG = 128
MAX_LABEL = 256


@dataclass(frozen=True, slots=True)
class Draft:
    """What an agent wants remembered. `vector` is given by clients that embed themselves."""

    content: str
    agent_id: AgentId
    project_id: ProjectId | None = None
    type: str = "fact"
    tags: tuple[str, ...] = ()
    who: str | None = None
    importance: float = 0.5
    pinned: bool = False
    visibility: Visibility = Visibility.GLOBAL
    scope_label: str | None = None
    source_type: str | None = None
    source_id: str | None = None
    idempotency_key: str | None = None
    expires_at: datetime | None = None
    created_at: datetime | None = None
    vector: NDArray[np.float32] | None = None
    actor: str = "api"


@dataclass(frozen=True, slots=True)
class Remembered:
    """The row that now stands for the draft; `deduped` when it stood already."""

    memory: Memory
    deduped: bool


@dataclass(frozen=True, slots=True)
class _Ready:
    draft: Draft
    content: NormalContent
    vector: NDArray[np.float32]


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
    result: Outcome = await context.commits.share(
        draft, partial(_commit, context), partial(_follow, context)
    )
    if isinstance(result, MnemeshError):
        raise result
    return result


async def remember_batch(context: MemoryContext, drafts: Sequence[Draft]) -> list[Outcome]:
    """Store up to 500 memories in one commit; a bad item is an error in its place, no more.

    Raises InvalidInput for a batch of the wrong size, and what the embedder and the database
    raise, in which case nothing was stored.
    """
    if not 1 <= len(drafts) <= MAX_BATCH:
        raise InvalidInput(f"a batch has 1 to {MAX_BATCH} memories")
    return await _follow(context, await _commit(context, drafts))


async def remember_whole(
    context: MemoryContext, drafts: Sequence[Draft], guard: Callable[[Tx], Awaitable[None]]
) -> list[Memory]:
    """Store all drafts or none, in one commit that `guard` may refuse, first and by raising.

    Raises what the guard raises, the first fault of a draft, and Met when a draft meets a memory
    that is there, or another draft.
    """
    results: list[Outcome | None] = [None] * len(drafts)
    ready = list((await _prepare(context, drafts, results)).values())
    for result in results:
        if isinstance(result, MnemeshError):
            raise result
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
    batch: Sequence[_Ready],
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


async def _commit(context: MemoryContext, drafts: Sequence[Draft]) -> _Committed:
    """Make the drafts durable."""
    results: list[Outcome | None] = [None] * len(drafts)
    ready = await _prepare(context, drafts, results)
    try:
        stored = await _store(context, list(ready.values()))
    except CommitUnknown:
        context.residency.has_cold = True
        raise
    fresh: list[tuple[Memory, NDArray[np.float32]]] = []
    for position, outcome in zip(ready, stored.outcomes, strict=True):
        results[position] = outcome
        if isinstance(outcome, Remembered) and not outcome.deduped:
            fresh.append((outcome.memory, ready[position].vector))
    outcomes = [result for result in results if result is not None]
    return _Committed(outcomes, fresh, stored.hidden, stored.handed)


async def _follow(context: MemoryContext, done: _Committed) -> list[Outcome]:
    """Let graph, mesh and subscribers follow a commit."""
    if done.hidden:
        await context.residency.hide(done.hidden)
    await context.residency.add(done.fresh)
    if any(memory.announced_at for memory, _ in done.fresh):
        context.announced()
    context.desk.told(done.handed)
    return done.outcomes


async def _prepare(
    context: MemoryContext,
    drafts: Sequence[Draft],
    results: list[Outcome | None],
) -> dict[int, _Ready]:
    contents: dict[int, NormalContent] = {}
    for position, draft in enumerate(drafts):
        try:
            contents[position] = _check(context, draft)
        except InvalidInput as error:
            results[position] = error
    texts = [position for position in contents if drafts[position].vector is None]
    made = await context.embedder.embed([contents[position].storage for position in texts])
    vectors = dict(zip(texts, made, strict=True))
    ready: dict[int, _Ready] = {}
    for position, content in contents.items():
        draft = drafts[position]
        try:
            given = vectors[position] if position in vectors else _unit(context, draft)
        except InvalidInput as error:
            results[position] = error
            continue
        # Half precision everywhere: rows, graph and wire hold the same numbers.
        ready[position] = _Ready(draft, content, given.astype(WIRE_DTYPE).astype(np.float32))
    return ready


def _check(context: MemoryContext, draft: Draft) -> NormalContent:
    content = normalize(
        draft.content,
        collapse=context.settings.collapse_storage_whitespace,
        max_bytes=context.settings.max_bytes,
    )
    for field in ("type", "who", "scope_label", "source_type", "source_id", "idempotency_key"):
        value = getattr(draft, field)
        if value is not None and len(check_text(value, field)) > MAX_LABEL:
            raise InvalidInput(f"{field} is longer than {MAX_LABEL} characters")
    check_marks(draft.type, draft.tags, draft.importance)
    for field in ("expires_at", "created_at"):
        moment = getattr(draft, field)
        if moment is not None and moment.tzinfo is None:
            raise InvalidInput(f"{field} must carry a time zone")
    if draft.visibility is Visibility.ARCHIVED:
        raise InvalidInput("visibility is invalid")
    if draft.project_id is not None and draft.project_id not in context.access.current.projects:
        raise InvalidInput("project is not one of this node's projects")
    return content


def check_marks(type: str, tags: Sequence[str], importance: float) -> None:
    """What a memory says of itself beside its text. Raises InvalidInput."""
    if not type or len(check_text(type, "type")) > 64:
        raise InvalidInput("type must have 1 to 64 characters")
    if len(tags) > MAX_TAGS or any(
        not tag or len(check_text(tag, "tags")) > MAX_TAG for tag in tags
    ):
        raise InvalidInput(f"tags: at most {MAX_TAGS}, each of 1 to {MAX_TAG} characters")
    if not math.isfinite(importance) or not 0 <= importance <= 1:
        raise InvalidInput("importance must be between 0 and 1")


def _unit(context: MemoryContext, draft: Draft) -> NDArray[np.float32]:
    vector = np.asarray(draft.vector, dtype=np.float32)
    if vector.shape != (context.embedder.dimension,):
        raise InvalidInput(
            f"vector has {vector.size} numbers, model {context.embedder.model_id} "
            f"has {context.embedder.dimension}"
        )
    norm = float(np.linalg.norm(vector)) if np.isfinite(vector).all() else 0.0
    if not math.isfinite(norm) or norm < 1e-6:
        raise InvalidInput("vector must be finite and not zero")
    return vector / np.float32(norm)


async def _store(context: MemoryContext, batch: Sequence[_Ready]) -> _Stored:
    if len(batch) == 1:
        memory = await _store_at_once(context, batch[0])
        if memory is not None:
            return _Stored([Remembered(memory, deduped=False)], [], set(), {})
    stored = await context.db.transact(_store_all, context, batch)
    for key, found in stored.epochs.items():
        if isinstance(found, Epochs):
            context.epochs[key] = found
        else:
            context.epochs.pop(key, None)
    return stored


async def _store_at_once(context: MemoryContext, item: _Ready) -> Memory | None:
    """Store one that meets nothing and goes to nobody; None when a transaction has to decide."""
    key = (item.draft.agent_id, item.draft.project_id)
    epochs = context.epochs.get(key)
    if epochs is None:
        return None
    birth = _birth(context, item, epochs, context.now())
    if birth.diff is not None and context.desk.wanting(birth.memory, quantised(birth.diff.q8)):
        return None
    expected = context.node.gate.expected(*key, epochs)
    model = context.embedder.model_id
    if await births.insert_at_once(context.db, model, birth, expected):
        return birth.memory
    return None


async def _store_all(tx: Tx, context: MemoryContext, batch: Sequence[_Ready]) -> _Stored:
    epochs: dict[ScopeKey, Epochs | ScopeErased] = {}
    outcomes: dict[int, Outcome] = {}
    hidden: list[MemoryId] = []
    new: dict[int, Birth] = {}
    now = context.now()
    # In the order of their hashes, so that two batches with the same texts cannot deadlock.
    for position in sorted(range(len(batch)), key=lambda at: batch[at].content.content_hash):
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


def _birth(context: MemoryContext, item: _Ready, epochs: Epochs, now: datetime) -> Birth:
    memory = _row(context, item, epochs, now)
    return Birth(
        memory,
        item.vector,
        context.cold.cluster_for(memory, item.vector),
        announcement(context, memory, item.vector, "add", now)
        if memory.announced_at is not None
        else None,
    )


def _row(context: MemoryContext, item: _Ready, epochs: Epochs, now: datetime) -> Memory:
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
