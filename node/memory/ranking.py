"""How the answers of the searches become one list: pure, no IO."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from storage.content import bigrams
from storage.memories import Found
from storage.model import MemoryId

MAX_WORDS = 32
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
    by_words: Sequence[Found],
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
    best = max((found.words for found in by_words), default=0.0)
    words: dict[MemoryId, float] = {}
    for found in by_words:
        words[found.memory.id] = found.words / best if best > 0 else 0.0
        if found.cosine is not None:
            cosines.setdefault(found.memory.id, max(found.cosine, 0.0))
    scored = [
        _scored(memory_id, cosines.get(memory_id, 0.0), words.get(memory_id, 0.0), alpha)
        for memory_id in cosines.keys() | words.keys()
    ]
    kept = [hit for hit in scored if hit.score >= min_score]
    return sorted(kept, key=lambda hit: (-hit.score, hit.id))[:limit]


def _scored(memory_id: MemoryId, cosine: float, words: float, alpha: float) -> Scored:
    if words == 0.0:
        source = Source.VECTOR
    elif cosine == 0.0:
        source = Source.TEXT
    else:
        source = Source.HYBRID
    return Scored(memory_id, alpha * cosine + (1 - alpha) * words, source, cosine, words)
