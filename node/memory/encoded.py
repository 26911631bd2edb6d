"""Fast answers in the bytes of their records, encoded once and kept for the answers to come.

A record that many questions find is turned into bytes once for each form in which answers leave.
The bytes stay no longer than the record stays as it is in the hot graph, and the names in them
no longer than agents and projects have them. An answer as a whole is never kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from node.memory.context import MemoryContext
from node.memory.nearest import Search, asking, hits_of, verdicts
from storage.access import Access
from storage.hot.classes import Verdicts
from storage.hot.serving import Served
from storage.model import AgentId, Reader, Resident

LIMIT: Final = 32 << 20
"""Bytes of one form that are kept, bookkeeping included."""
LARGEST: Final = 64 << 10
"""A longer record is encoded anew each time."""
READERS: Final = 256
"""Of which it is known what they may see."""

_Rights: TypeAlias = tuple[Reader, bool, frozenset[AgentId]]


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """The hits of one answer: their cosines, best first, of shape (n,), and their records."""

    cosines: NDArray[np.float32]
    records: list[bytes]


class EncodedRecords:
    """The records of a node in one form, which `encode` makes; for the tasks of one loop."""

    def __init__(
        self, context: MemoryContext, encode: Callable[[Resident], bytes], limit: int = LIMIT
    ) -> None:
        self._context = context
        self._encode = encode
        self._graph = context.residency.graph
        self._attached = self._graph.attach(limit)
        self._names: tuple[int, Access] | None = None
        self._verdicts: dict[_Rights, Verdicts] = {}
        self._uncounted: list[NDArray[np.int64]] = []

    def __len__(self) -> int:
        return len(self._attached)

    @property
    def size(self) -> int:
        """Bytes that are kept."""
        return self._attached.size

    def answers(self, searches: Sequence[Search]) -> list[Encoded]:
        """The answers from residents alone; call `count` when they are on their way.

        The searches have no filters beyond agents. One call for all that are alike.
        """
        self._follow_names()
        alike: dict[tuple[_Rights, int], list[int]] = {}
        for at, search in enumerate(searches):
            rights = (search.reader, search.superseded, search.filters.agents)
            alike.setdefault((rights, search.wanted), []).append(at)
        answers: dict[int, Encoded] = {}
        for (rights, _), places in alike.items():
            group = [searches[at] for at in places]
            answers.update(zip(places, self._served(rights, group), strict=True))
        return [answers[at] for at in range(len(searches))]

    def count(self) -> None:
        """Count the hits of the last answers as recalled: work that nobody waits for."""
        now_ms = int(self._context.now().timestamp() * 1000)
        served, self._uncounted = self._uncounted, []
        for labels in served:
            self._graph.count(labels, now_ms)

    def _served(self, rights: _Rights, group: Sequence[Search]) -> list[Encoded]:
        who = asking(self._context, group[0], self._rights(rights, group[0]))
        units = np.concatenate([search.vector for search in group]).reshape(len(group), -1)
        served = self._graph.serve(units, who, self._attached)
        self._uncounted.append(served.labels)
        records = self._filled(served)
        answers = [
            Encoded(served.cosines[start:stop], records[start:stop])
            for start, stop in zip(served.bounds, served.bounds[1:], strict=False)
        ]
        if served.short:
            others = hits_of(self._context, [group[at] for at in served.short])
            for at, hits in zip(served.short, others, strict=True):
                cosines = np.array([hit.score for hit in hits], np.float32)
                answers[at] = Encoded(cosines, self._of([hit.resident for hit in hits]))
        return answers

    def _rights(self, rights: _Rights, search: Search) -> Verdicts:
        found = self._verdicts.get(rights)
        if found is None:
            if len(self._verdicts) >= READERS:
                self._verdicts.clear()
            found = self._verdicts[rights] = verdicts(search)
        return found

    def _filled(self, served: Served) -> list[bytes]:
        if not served.missing:
            return served.values  # type: ignore[return-value]  # each of them is there
        made = dict(zip(served.missing, self._made(served.missing.values()), strict=True))
        return [made[at] if value is None else value for at, value in enumerate(served.values)]

    def _of(self, residents: Sequence[Resident]) -> list[bytes]:
        kept = self._graph.kept(self._attached, residents)
        pairs = zip(residents, kept, strict=True)
        made = iter(self._made([resident for resident, value in pairs if value is None]))
        return [next(made) if value is None else value for value in kept]

    def _made(self, residents: Iterable[Resident]) -> list[bytes]:
        made = [(resident, self._encode(resident)) for resident in residents]
        short = [each for each in made if len(each[1]) <= LARGEST]
        if short:
            self._graph.keep(self._attached, short)
        return [value for _, value in made]

    def _follow_names(self) -> None:
        """Drop all when an agent or a project may have another name than before."""
        names = (self._context.agents.names, self._context.access.current)
        if self._names is None or names[0] != self._names[0] or names[1] is not self._names[1]:
            self._graph.detach_all(self._attached)
            self._names = names
