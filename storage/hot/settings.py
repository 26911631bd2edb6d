"""What an operator may tune about the hot graph, checked once.

Built by the node's configuration; nothing here reads a file. `RELOADABLE` names the fields that
a running graph takes over, all others need a new graph.
"""

from __future__ import annotations

from dataclasses import dataclass

from storage.errors import InvalidInput

DAY_MS = 86_400_000
MAX_CEILING = 1 << 27
"""Labels have so many numbers for rows; the others count up to 2^36 writes."""
RELOADABLE = frozenset(
    {"ceiling", "idle_ms", "half_life_ms", "ef", "batch", "exact_limit", "dead_share", "threads"}
)


@dataclass(frozen=True, slots=True)
class HotSettings:
    """Limits and HNSW parameters; times in milliseconds, sizes in memories.

    `ceiling` bounds the residents. `batch` caps one eviction plan. A search over at most
    `exact_limit` vectors compares them all. Above `dead_share` of dead slots the graph asks for
    a rebuild. `half_life_ms` is how fast old accesses stop counting. `threads` builds a graph
    aside; inserts into the serving graph use one. Raises InvalidInput naming the field.
    """

    ceiling: int = 1_000_000
    idle_ms: int = 7 * DAY_MS
    half_life_ms: int = DAY_MS
    m: int = 20
    ef_construction: int = 100
    ef: int = 60
    batch: int = 500
    exact_limit: int = 4_000
    dead_share: float = 0.5
    threads: int = 2
    seed: int = 100

    def __post_init__(self) -> None:
        for name in ("ceiling", "idle_ms", "half_life_ms", "ef_construction", "ef", "batch"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"{name} must be at least 1")
        if self.ceiling > MAX_CEILING:
            raise InvalidInput(f"ceiling must be at most {MAX_CEILING}")
        if not 2 <= self.m <= 128:
            raise InvalidInput("m must be between 2 and 128")
        if self.exact_limit < 0:
            raise InvalidInput("exact_limit must not be negative")
        if not 0 < self.dead_share <= 1:
            raise InvalidInput("dead_share must be above 0 and at most 1")
        if self.seed < 0:
            raise InvalidInput("seed must not be negative")
        if not 1 <= self.threads <= 64:
            raise InvalidInput("threads must be between 1 and 64")
