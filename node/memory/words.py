"""Recall by words: what is asked of the rows, and which of the memories that they name may answer.

The rows rank, residents are judged here, and only as far as they can still enter the answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from node.memory.context import MemoryContext
from node.memory.nearest import Search, accepts
from node.memory.ranking import Worded, least_words
from storage import words
from storage.filters import NO_FILTERS
from storage.model import MemoryId, Resident
from storage.words import Matches, Terms

COMMON_ROWS: Final = 100
"""A word in no more rows than this always counts: reading them costs nothing."""
COMMON_SHARE: Final = 10
"""One in more than a tenth of all rows says too little: leaving it out raised nDCG@10 on
docstrings from 0.339 to 0.347."""


async def by_words(
    context: MemoryContext, search: Search, asked: Sequence[str], pairs: Sequence[str]
) -> Matches:
    """What the words of a question lead to: residents by id, to be judged, and visible rows."""
    now, cap = context.now(), context.settings.word_candidates
    total = max(len(context.residency.graph), cap)
    everything = search.filters == NO_FILTERS
    matches = await context.db.look(
        words.search,
        Terms(
            asked,
            pairs,
            context.common_words.of(search.reader, now) if everything else (),
            cap=cap,
            most=min(cap - 1, max(COMMON_ROWS, total // COMMON_SHARE)),
            total=total,
        ),
        search.vector,
        context.embedder.model_id,
        search.reader,
        now,
        limit=search.wanted,
        filters=search.filters,
        superseded=search.superseded,
        resident=context.residency.graph,
    )
    if everything and matches.common:
        context.common_words.note(search.reader, matches.common, now)
    return matches


def contenders(
    context: MemoryContext,
    search: Search,
    matches: Matches,
    near: Mapping[MemoryId, float],
    ceiling: float,
    limit: int,
) -> tuple[list[Worded], dict[MemoryId, Resident]]:
    """The word scores of what may enter an answer of `limit`, and the residents that words added.

    `near` are the cosines of memories that the reader may see; nothing resident beyond them is
    nearer than `ceiling`. Residents are judged as their records are now.
    """
    graph, accept = context.residency.graph, accepts(search, context.now())
    rows = {found.memory.id: found for found in matches.rows}
    ranks = dict(matches.ranked) | {memory_id: row.words for memory_id, row in rows.items()}
    order = sorted(ranks.items(), key=lambda each: -each[1]) if rows else matches.ranked
    worded: list[Worded] = []
    added: dict[MemoryId, Resident] = {}
    enough = 0.0
    for memory_id, rank in order:
        cosine = near.get(memory_id)
        if cosine is None and memory_id in rows:
            cosine = rows[memory_id].cosine
        elif cosine is None:
            if rank < enough:
                continue
            resident, vector = graph.get(memory_id), graph.vector(memory_id)
            if resident is None or vector is None or not accept(resident):
                continue
            cosine = float(vector @ search.vector)
            added[memory_id] = resident
        worded.append(Worded(memory_id, rank, cosine))
        if len(worded) == 1:
            alpha = context.settings.alpha
            enough = rank * least_words(near, ranks, rank, ceiling, alpha=alpha, limit=limit)
    return worded, added
