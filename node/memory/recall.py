"""Recall: residents by meaning at once, cold rows and words beside them, one fused answer."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np
import trio
from numpy.typing import NDArray

from node.memory.context import MemoryContext
from node.memory.nearest import Search, answerable, hits_of, lacking, nearest_filtered
from node.memory.ranking import Source, fuse, terms
from node.memory.words import by_words, contenders
from storage import memories
from storage.content import check_text
from storage.errors import InvalidInput, MnemeshError
from storage.filters import NO_FILTERS, Filters
from storage.hot.reports import Hit
from storage.hot.vectors import UNIT_SLACK
from storage.memories import Found
from storage.model import AgentId, AgentProfile, Reader, Resident
from storage.words import Matches

MAX_LIMIT = 50
MAX_QUERY = 16 * 1024
OVERFETCH = 3


class Question(msgspec.Struct, frozen=True, eq=False):
    """What an agent asks. `fast` answers from residents alone and touches no database.

    `deadline_s` shortens the time that the searches of rows may take.
    """

    query: str
    agent: AgentProfile
    limit: int = 10
    filters: Filters = NO_FILTERS
    superseded: bool = False
    fast: bool = False
    vector: NDArray[np.float32] | None = None
    deadline_s: float | None = None


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
class Stage:
    """A part of the work on an answer: how long it took, and how many candidates it gave."""

    name: str
    seconds: float
    count: int


@dataclass(frozen=True, slots=True)
class Answer:
    """Hits, best first, and the names of the searches that failed or ran out of time.

    Two answers are equal when they say the same, however long it took.
    """

    hits: tuple[RecallHit, ...]
    degraded: tuple[str, ...] = ()
    stages: tuple[Stage, ...] = field(default=(), compare=False)


@dataclass(slots=True)
class _Found:
    hot: Sequence[Hit] = ()
    cold: Sequence[Found] = ()
    words: Matches = field(default_factory=Matches)
    degraded: list[str] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)

    def count(self, part: str) -> int:
        """How many candidates a search gave."""
        words = len(self.words.ranked) + len(self.words.rows)
        return {"hot": len(self.hot), "cold": len(self.cold), "text": words}[part]


async def recall(context: MemoryContext, question: Question) -> Answer:
    """The memories that answer a question best, as far as the agent may see them.

    A failing or late search is named in `degraded`; the others still answer. What is deleted
    while they search is left out. Hits that were cold become resident. Raises InvalidInput, and
    what the embedder raises.
    """
    begun = trio.current_time()
    if question.fast:
        answer = (await recall_fast(context, [question]))[0]
        if isinstance(answer, MnemeshError):
            raise answer
        hot = Stage("hot", trio.current_time() - begun, len(answer.hits))
        return replace(answer, stages=(hot,))
    query = checked(question)
    vector = await _vector(context, query, question.vector)
    search = Search(
        vector,
        _wanted(context, question),
        context.agents.reader(question.agent),
        question.filters,
        question.superseded,
    )
    patience = context.settings.recall_deadline_s
    if question.deadline_s is not None:
        patience = min(patience, question.deadline_s)
    embedded = Stage("embed", trio.current_time() - begun, 1)
    found = await _side_by_side(context, search, query, question.limit, patience)
    fusing = trio.current_time()
    hits = _staying(context, _fused(context, search, question.limit, found))
    fused = Stage("fuse", trio.current_time() - fusing, len(hits))
    cold = [hit.memory.id for hit in hits if hit.tier == "cold"]
    if cold:
        await context.residency.warm(context.db, cold, patience)
    context.residency.touch([hit.memory.id for hit in hits], int(context.now().timestamp() * 1000))
    stages = (*([embedded] if question.vector is None else []), *found.stages, fused)
    return Answer(hits, tuple(found.degraded), stages)


async def recall_fast(
    context: MemoryContext, questions: Sequence[Question]
) -> list[Answer | MnemeshError]:
    """Answers from residents alone, by meaning, for all questions that came together.

    A bad question is an error in its place. Raises what the embedder raises.
    """
    degraded = lacking(context)
    alpha = context.settings.alpha
    return [
        found
        if isinstance(found, MnemeshError)
        else Answer(tuple(_by_meaning(alpha, hit) for hit in found), degraded)
        for found in await hits_fast(context, questions)
    ]


async def hits_fast(
    context: MemoryContext, questions: Sequence[Question]
) -> list[list[Hit] | MnemeshError]:
    """The residents that answer each question, best first; see `recall_fast`.

    Embeds all their texts in one call and searches them in one.
    """
    searches = await searches_of(context, questions)
    found = {at: each for at, each in enumerate(searches) if isinstance(each, MnemeshError)}
    plain = {
        at: each
        for at, each in enumerate(searches)
        if isinstance(each, Search) and not each.filters.beyond_agents
    }
    hits: dict[int, list[Hit]] = dict(
        zip(plain, hits_of(context, list(plain.values())), strict=True)
    )
    for at, search in enumerate(searches):
        if isinstance(search, Search) and search.filters.beyond_agents:
            hits[at] = answerable(context, [await nearest_filtered(context, search)])[0]
    return [found[at] if at in found else hits[at] for at in range(len(questions))]


async def searches_of(
    context: MemoryContext, questions: Sequence[Question]
) -> list[Search | MnemeshError]:
    """The search among residents for each question; texts without vector are embedded in one call.

    A bad question is an error in its place. Raises what the embedder raises.
    """
    vectors = {at: each.vector for at, each in enumerate(questions) if each.vector is not None}
    searches: dict[int, Search | MnemeshError] = {}
    texts: dict[int, str] = {}
    for at, question in enumerate(questions):
        try:
            query = checked(question)
        except InvalidInput as error:
            searches[at] = error
            vectors.pop(at, None)
        else:
            if question.vector is None:
                texts[at] = query
    if texts:
        made = await context.embedder.embed(list(texts.values()))
        vectors.update(zip(texts, made, strict=True))
    readers: dict[AgentId, Reader] = {}
    for at, vector in vectors.items():
        agent = questions[at].agent
        if agent.id not in readers:
            readers[agent.id] = context.agents.reader(agent)
        try:
            searches[at] = search_of(context, questions[at], vector, readers[agent.id])
        except InvalidInput as error:
            searches[at] = error
    return [searches[at] for at in range(len(questions))]


def search_of(
    context: MemoryContext, question: Question, vector: NDArray[np.float32], reader: Reader
) -> Search:
    """The search among residents for the answer to a reader's question. Raises InvalidInput."""
    return Search(
        _given(context, vector),
        question.limit,
        reader,
        question.filters,
        question.superseded,
    )


def checked(question: Question) -> str:
    """The text of a question without blanks around it. Raises InvalidInput."""
    query = check_text(question.query, "query").strip()
    if not query and question.vector is None:
        raise InvalidInput("query is required")
    if len(query) > MAX_QUERY:
        raise InvalidInput(f"query is longer than {MAX_QUERY} characters")
    if not 1 <= question.limit <= MAX_LIMIT:
        raise InvalidInput(f"limit must be between 1 and {MAX_LIMIT}")
    return query


def _wanted(context: MemoryContext, question: Question) -> int:
    return max(question.limit, context.settings.top_k) * OVERFETCH


def _staying(context: MemoryContext, hits: Iterable[RecallHit]) -> tuple[RecallHit, ...]:
    """Without what was deleted since the searches read it."""
    return tuple(hit for hit in hits if not context.residency.has_left(hit.memory.id))


def _by_meaning(alpha: float, hit: Hit) -> RecallHit:
    """What `fuse` makes of a cosine alone."""
    cosine = max(hit.score, 0.0)
    return RecallHit(hit.resident, alpha * cosine, Source.VECTOR, "hot", cosine, 0.0)


async def _vector(
    context: MemoryContext, query: str, given: NDArray[np.float32] | None
) -> NDArray[np.float32]:
    if given is not None:
        return _given(context, given)
    made: NDArray[np.float32] = (await context.embedder.embed([query]))[0]
    return made


def _given(context: MemoryContext, given: NDArray[np.float32]) -> NDArray[np.float32]:
    """A vector of the caller's own, made a unit one."""
    vector = np.asarray(given, dtype=np.float32)
    if vector.shape != (context.embedder.dimension,):
        raise InvalidInput(
            f"vector has {vector.size} numbers, model {context.embedder.model_id} "
            f"has {context.embedder.dimension}"
        )
    square = float(vector @ vector)
    if abs(square - 1) < UNIT_SLACK:
        return vector
    if not math.isfinite(square) or square < 1e-12:
        raise InvalidInput("vector must be finite and not zero")
    return vector / np.float32(math.sqrt(square))


async def _side_by_side(
    context: MemoryContext, search: Search, query: str, limit: int, patience: float
) -> _Found:
    """Residents, cold rows and words at the same time; what is late or fails is named."""
    found = _Found()
    words, pairs = terms(query)

    async def residents() -> None:
        found.hot = await nearest_filtered(context, search)

    async def cold() -> None:
        found.cold = await context.db.read(
            context.cold.search,
            search.vector,
            context.embedder.model_id,
            search.reader,
            context.now(),
            # What is in no words' list can enter the answer only among its nearest.
            limit=limit,
            filters=search.filters,
            superseded=search.superseded,
            known=frozenset(hit.resident.id for hit in found.hot),
        )

    async def text() -> None:
        found.words = await by_words(context, search, words, pairs)

    parts: dict[str, Callable[[], Awaitable[None]]] = {"hot": residents}
    if words or pairs:
        parts["text"] = text
    if context.residency.has_cold:
        parts["cold"] = cold
    reasons = dict.fromkeys(parts, "deadline")

    async def run(name: str) -> None:
        begun = trio.current_time()
        try:
            await parts[name]()
        except MnemeshError as error:
            if not error.retryable:
                raise
            reasons[name] = error.code
        else:
            del reasons[name]
        finally:
            found.stages.append(Stage(name, trio.current_time() - begun, found.count(name)))

    with trio.move_on_after(patience):
        if not search.filters.beyond_agents:
            await run("hot")
            parts.pop("hot")
        await _together(run, parts)
    found.degraded = [f"{name}: {reason}" for name, reason in reasons.items()]
    return found


async def _together(run: Callable[[str], Awaitable[None]], names: Iterable[str]) -> None:
    """Run all; a refusal leaves as itself, not wrapped in a group."""
    refusal: MnemeshError | None = None
    try:
        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(run, name)
    except BaseExceptionGroup as group:
        known, unknown = group.split(MnemeshError)
        if known is None or unknown is not None:
            raise
        refusal = _first(known)
    if refusal is not None:
        raise refusal


def _first(group: BaseExceptionGroup[MnemeshError]) -> MnemeshError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, MnemeshError)
    return error


def _fused(
    context: MemoryContext, search: Search, limit: int, found: _Found
) -> Iterator[RecallHit]:
    residents = {hit.resident.id: hit.resident for hit in found.hot}
    rows = {each.memory.id: each.memory for each in (*found.cold, *found.words.rows)}
    near = {each.memory.id: each.cosine or 0.0 for each in found.cold}
    near |= {hit.resident.id: hit.score for hit in found.hot}
    ceiling = found.hot[-1].score if len(found.hot) == search.wanted else 1.0
    worded, added = contenders(context, search, found.words, near, ceiling, limit)
    residents |= added
    settings = context.settings
    for scored in fuse(
        near.items(), worded, alpha=settings.alpha, min_score=settings.min_score, limit=limit
    ):
        memory = residents.get(scored.id)
        if memory is None:
            memory = memories.resident(rows[scored.id], context.node.node_id)
        hot = scored.id in residents or scored.id in context.residency.graph
        yield RecallHit(
            memory,
            scored.score,
            scored.source,
            "hot" if hot else "cold",
            scored.cosine,
            scored.words,
        )
