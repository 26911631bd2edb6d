"""Rows by the words of a question: BM25 in one statement, row bodies only where they are needed.

The ranking takes no more of a memory than its id, so the caller answers for those that it has in
memory; the others are read and judged here. Works inside its caller's unit of work.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from storage.filters import NO_FILTERS, Filters, arguments
from storage.memories import Found, from_row, seen_by
from storage.model import MemoryId, Reader
from storage.pool import Tx
from storage.queries import load

SQL = load("words")

SPARE = 4
"""So many times `limit` are ranked, as some of them turn out to be hidden from the reader."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What to look for: words and character pairs of unspaced scripts, as plain text.

    Each of them counts by at most `cap` rows. One that more than `most` rows hold says little and
    counts only where no rarer one finds anything; `common` are those that are known to be so.
    Rarity is measured against `total` rows.
    """

    words: Sequence[str]
    pairs: Sequence[str] = ()
    common: Collection[str] = ()
    cap: int = 1_000
    most: int = 1_000
    total: int = 1_000


@dataclass(frozen=True, slots=True)
class Matches:
    """What words led to, best first; scores compare only within one search.

    `ranked` are memories that the caller has and judges, `rows` are visible rows. `common` are
    terms that turned out to be in too many rows to count.
    """

    ranked: Sequence[tuple[MemoryId, float]] = ()
    rows: Sequence[Found] = ()
    common: Sequence[str] = ()


async def search(
    tx: Tx,
    terms: Terms,
    vector: NDArray[np.float32],
    model: str,
    reader: Reader,
    now: datetime,
    *,
    limit: int,
    filters: Filters = NO_FILTERS,
    superseded: bool,
    resident: Container[MemoryId] = (),
) -> Matches:
    """The best rows by words, at most `limit` bodies; memories in `resident` as ids alone.

    BM25 (Robertson and Zaragoza, 2009; k1 1.2, b 0.75) with each term counted once a row.
    """
    seen = seen_by(reader, now, superseded)
    narrowed = {name: seen[name] for name in ("reader", "policy", "group", "projects")}
    about = arguments(filters) | narrowed
    rare = [word for word in terms.words if word not in terms.common]
    pairs = [pair for pair in terms.pairs if pair not in terms.common]
    ids, ranks, common = await _ranked(tx, rare, pairs, terms, limit, about)
    if not ids and len(rare) + len(pairs) < len(terms.words) + len(terms.pairs):
        ids, ranks, common = await _ranked(tx, terms.words, terms.pairs, terms, limit, about)
    best = list(zip(ids, ranks, strict=True))
    ranked = [each for each in best if each[0] in resident]
    if len(ranked) == len(best):
        return Matches(ranked, (), common)
    unknown = [each for each in best if each[0] not in resident]
    rows = await tx.fetch(
        SQL.judged,
        ids=[memory_id for memory_id, _ in unknown],
        ranks=[rank for _, rank in unknown],
        vector=vector,
        model=model,
        limit=limit,
        **seen,
    )
    found = [Found(from_row(row), row["score"], row["rank"]) for row in rows]
    return Matches(ranked, found, common)


async def _ranked(
    tx: Tx,
    words: Sequence[str],
    pairs: Sequence[str],
    terms: Terms,
    limit: int,
    about: dict[str, object],
) -> tuple[list[MemoryId], list[float], list[str]]:
    if not words and not pairs:
        return [], [], []
    row = await tx.fetchrow(
        SQL.ranked,
        words=list(words),
        pairs=list(pairs),
        cap=terms.cap,
        most=terms.most,
        total=terms.total,
        limit=limit * SPARE,
        **about,
    )
    if row is None:
        return [], [], []
    return row["ids"] or [], row["ranks"] or [], row["common"] or []
