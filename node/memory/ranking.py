"""How the answers of the searches become one list: pure, no IO."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from storage.content import bigrams
from storage.model import MemoryId

MAX_WORDS = 32
ROUNDING = 1e-6
_WORD = re.compile(r"[^\s]+")
_APART = re.compile(r"[^\w]+")


class Source(StrEnum):
    """What led to a hit."""

    VECTOR = "vector"
    TEXT = "text"
    HYBRID = "hybrid"


@dataclass(frozen=True, slots=True)
class Scored:
    """One memory in the fused list; `cosine` and `words` are its parts, words scaled to 0..1."""

    id: MemoryId
    score: float
    source: Source
    cosine: float
    words: float


@dataclass(frozen=True, slots=True)
class Worded:
    """A memory that words led to. Ranks compare only within one search; `cosine` is None for one
    without a vector."""

    id: MemoryId
    rank: float
    cosine: float | None = None


def terms(query: str) -> tuple[list[str], list[str]]:
    """Words and character pairs to look for: plain text, never query syntax.

    Words of unspaced scripts come as pairs (a lone character as itself); at most 32 of each.
    """
    pairs = bigrams(query)
    wanted = [pair for pair in pairs if len(pair) == 2] or pairs
    single = set(pairs)
    words: dict[str, None] = {}
    for match in _WORD.findall(query.lower()):
        for word in (match, *_APART.split(match)):
            if word and not (single & set(word)):
                words[word] = None
    return list(words)[:MAX_WORDS], wanted[:MAX_WORDS]


def fuse(
    nearest: Iterable[tuple[MemoryId, float]],
    by_words: Sequence[Worded],
    *,
    alpha: float,
    min_score: float,
    limit: int,
) -> list[Scored]:
    """One list from cosines and word scores, best first.

    A hit scores `alpha * cosine + (1 - alpha) * words`, with word scores divided by the best of
    this search; cosines below 0 count as 0. Ties break by id, so equal inputs give equal lists.
    """
    cosines: dict[MemoryId, float] = {}
    for memory_id, cosine in nearest:
        cosines[memory_id] = max(cosines.get(memory_id, 0.0), cosine)
    best = max((found.rank for found in by_words), default=0.0)
    words: dict[MemoryId, float] = {}
    for found in by_words:
        words[found.id] = found.rank / best if best > 0 else 0.0
        if found.cosine is not None:
            cosines.setdefault(found.id, max(found.cosine, 0.0))
    scores = {
        memory_id: alpha * cosines.get(memory_id, 0.0) + (1 - alpha) * words.get(memory_id, 0.0)
        for memory_id in cosines.keys() | words.keys()
    }
    kept = [(-score, memory_id) for memory_id, score in scores.items() if score >= min_score]
    return [
        _scored(memory_id, -score, cosines.get(memory_id, 0.0), words.get(memory_id, 0.0))
        for score, memory_id in heapq.nsmallest(limit, kept)
    ]


def least_words(
    cosines: Mapping[MemoryId, float],
    ranks: Mapping[MemoryId, float],
    best: float,
    ceiling: float,
    *,
    alpha: float,
    limit: int,
) -> float:
    """The share of the best rank without which nothing beyond `cosines` enters a list of `limit`.

    Nothing beyond has a cosine above `ceiling`. This is the bound at which the threshold algorithm
    (Fagin, Lotem and Naor, 2001) stops. Never above 1: the best one sets the scale of all words.
    """
    if len(cosines) < limit or alpha == 1 or best <= 0:
        return 0.0
    scores = (
        alpha * max(cosine, 0.0) + (1 - alpha) * ranks.get(memory_id, 0.0) / best
        for memory_id, cosine in cosines.items()
    )
    last = heapq.nlargest(limit, scores)[-1]
    return min((last - alpha * max(ceiling, 0.0)) / (1 - alpha) - ROUNDING, 1.0)


def _scored(memory_id: MemoryId, score: float, cosine: float, words: float) -> Scored:
    if words == 0.0:
        source = Source.VECTOR
    elif cosine == 0.0:
        source = Source.TEXT
    else:
        source = Source.HYBRID
    return Scored(memory_id, score, source, cosine, words)
