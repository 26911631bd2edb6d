"""Recall: residents by meaning at once, cold rows and words beside them, one fused answer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import trio
from numpy.typing import NDArray

from node.memory.context import MemoryContext
from node.memory.ranking import Source, fuse, terms
from storage import memories
from storage.content import check_text
from storage.errors import InvalidInput, MnemeshError
from storage.hot.reports import Hit
from storage.memories import Found
from storage.model import AgentId, AgentProfile, MemoryId, MemoryKind, Reader, Resident
from storage.pool import Tx
from storage.visibility import visible

MAX_LIMIT = 50
MAX_QUERY = 16 * 1024
OVERFETCH = 3


@dataclass(frozen=True, slots=True)
class Question:
    """What an agent asks. `fast` answers from residents alone and touches no database."""

    query: str
    agent: AgentProfile
    limit: int = 10
    about: AgentId | None = None
    superseded: bool = False
    fast: bool = False
    vector: NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True)
class RecallHit:
    """A memory and why it is here; `tier` tells whether it was resident."""

    memory: Resident
    score: float
    source: Source
    tier: str
    cosine: float
    words: float


@dataclass(frozen=True, slots=True)
class Answer:
    """Hits, best first, and the names of the searches that failed or ran out of time."""

    hits: tuple[RecallHit, ...]
    degraded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Rows:
    cold: Sequence[Found] = ()
    words: Sequence[Found] = ()


async def recall(context: MemoryContext, question: Question) -> Answer:
    """The memories that answer a question best, as far as the agent may see them.

    A failing or late search is named in `degraded`; the others still answer. What is deleted
    while they search is left out. Hits that were cold become resident. Raises InvalidInput, and
    what the embedder raises.
    """
    query = check_text(question.query, "query").strip()
    if not query and question.vector is None:
        raise InvalidInput("query is required")
    if len(query) > MAX_QUERY:
        raise InvalidInput(f"query is longer than {MAX_QUERY} characters")
    if not 1 <= question.limit <= MAX_LIMIT:
        raise InvalidInput(f"limit must be between 1 and {MAX_LIMIT}")
    vector = await _vector(context, query, question.vector)
    reader = context.agents.reader(question.agent)
    hot = _residents(context, question, reader, vector)
    rows = _Rows()
    degraded: list[str] = []
    if not question.fast:
        rows, degraded = await _rows(context, question, reader, query, vector)
    answer = tuple(
        hit
        for hit in _fused(context, question, hot, rows)
        if not context.residency.has_left(hit.memory.id)
    )
    cold = [hit.memory.id for hit in answer if hit.tier == "cold"]
    if cold:
        await context.residency.warm(context.db, cold, context.settings.recall_deadline_s)
    context.residency.touch(
        [hit.memory.id for hit in answer], int(context.now().timestamp() * 1000)
    )
    return Answer(answer, tuple(degraded))


async def _vector(
    context: MemoryContext, query: str, given: NDArray[np.float32] | None
) -> NDArray[np.float32]:
    if given is None:
        made: NDArray[np.float32] = (await context.embedder.embed([query]))[0]
        return made
    vector = np.asarray(given, dtype=np.float32)
    if vector.shape != (context.embedder.dimension,):
        raise InvalidInput(
            f"vector has {vector.size} numbers, model {context.embedder.model_id} "
            f"has {context.embedder.dimension}"
        )
    norm = float(np.linalg.norm(vector)) if np.isfinite(vector).all() else 0.0
    if not math.isfinite(norm) or norm < 1e-6:
        raise InvalidInput("vector must be finite and not zero")
    return vector / np.float32(norm)


def _residents(
    context: MemoryContext, question: Question, reader: Reader, vector: NDArray[np.float32]
) -> list[Hit]:
    now_ms = int(context.now().timestamp() * 1000)

    def accept(memory: Resident) -> bool:
        return memory.kind is not MemoryKind.AGENT and visible(
            memory, reader, now_ms, superseded=question.superseded
        )

    agents = frozenset([question.about]) if question.about else None
    wanted = max(question.limit, context.settings.top_k) * OVERFETCH
    return context.residency.graph.search(vector, wanted, agents=agents, accept=accept)


async def _rows(
    context: MemoryContext,
    question: Question,
    reader: Reader,
    query: str,
    vector: NDArray[np.float32],
) -> tuple[_Rows, list[str]]:
    names = ["text", "cold"] if context.residency.has_cold else ["text"]
    rows: _Rows | None = None
    failure: MnemeshError | None = None
    with trio.move_on_after(context.settings.recall_deadline_s):
        try:
            rows = await context.db.read(_search, context, question, reader, query, vector)
        except MnemeshError as error:
            if not error.retryable:
                raise
            failure = error
    if rows is None:
        return _Rows(), [f"{name}: {failure.code if failure else 'deadline'}" for name in names]
    return rows, []


async def _search(
    tx: Tx,
    context: MemoryContext,
    question: Question,
    reader: Reader,
    query: str,
    vector: NDArray[np.float32],
) -> _Rows:
    now = context.now()
    limit = max(question.limit, context.settings.top_k) * OVERFETCH
    cold: Sequence[Found] = ()
    if context.residency.has_cold:
        cold = await memories.search_vectors(
            tx,
            vector,
            context.embedder.model_id,
            reader,
            now,
            limit=limit,
            agent_id=question.about,
            superseded=question.superseded,
        )
    words, pairs = terms(query)
    by_words: Sequence[Found] = ()
    if words or pairs:
        by_words = await memories.search_words(
            tx,
            words,
            pairs,
            vector,
            context.embedder.model_id,
            reader,
            now,
            limit=limit,
            cap=context.settings.word_candidates,
            total=max(len(context.residency.graph), context.settings.word_candidates),
            agent_id=question.about,
            superseded=question.superseded,
        )
    return _Rows(cold, by_words)


def _fused(
    context: MemoryContext,
    question: Question,
    hot: Sequence[Hit],
    rows: _Rows,
) -> tuple[RecallHit, ...]:
    nearest = [(hit.resident.id, hit.score) for hit in hot]
    nearest += [(found.memory.id, found.cosine or 0.0) for found in rows.cold]
    known: dict[MemoryId, tuple[Resident, str]] = {}
    for found in (*rows.cold, *rows.words):
        tier = "hot" if found.memory.id in context.residency.graph else "cold"
        known[found.memory.id] = (
            memories.resident(found.memory, context.node.node_id),
            tier,
        )
    for hit in hot:
        known[hit.resident.id] = (hit.resident, "hot")
    fused = fuse(
        nearest,
        rows.words,
        alpha=context.settings.alpha,
        min_score=context.settings.min_score,
        limit=question.limit,
    )
    return tuple(
        RecallHit(
            memory=known[scored.id][0],
            score=scored.score,
            source=scored.source,
            tier=known[scored.id][1],
            cosine=scored.cosine,
            words=scored.words,
        )
        for scored in fused
    )
