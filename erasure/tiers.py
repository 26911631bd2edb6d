"""Every place of this node that can hold a copy of a memory, by name.

Tables come from the catalog: one that names a scope or a memory and is neither a tier nor exempt
with a reason stops the node, so that no place is forgotten. Places of the layers above (caches,
queues, files) are handed in by the composition root. A place that this node does not have is
still listed, with nothing found.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from storage import tiers as places
from storage.errors import StartRefused
from storage.hot.graph import HotGraph
from storage.model import MemoryId, Scope
from storage.pool import Tx
from storage.queries import Query
from storage.tiers import SQL, ScopedTable

MEMORY_TIERS: Final = ("agg.beacon", "agg.l1", "agg.l2", "pg.memories")
"""Tiers whose records are memories: their ids get tombstones."""

SLOTS, VECTORS = "hnsw.slot", "mem.vector"


class UnknownTier(StartRefused):
    """A table can hold copies and is neither a tier nor exempt."""

    code = "unknown_tier"


@dataclass(frozen=True, slots=True)
class TableTier:
    """Rows of one table. `epoched` rows carry their epoch or hang on a memory that does; the
    others are touched only while nothing newer of the scope can exist."""

    name: str
    table: str
    plan: Query
    remove: Query
    how: str = "row-delete"
    level: str = "L1"
    epoched: bool = True
    constants: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


def _aggregates(kind: str) -> TableTier:
    return TableTier(
        f"agg.{kind}",
        "memories",
        SQL.plan_aggregates,
        SQL.remove_memories,
        how="drop",
        constants=MappingProxyType({"kind": kind}),
    )


TABLE_TIERS: Final = (
    TableTier("pg.memories", "memories", SQL.plan_memories, SQL.remove_memories),
    _aggregates("l1"),
    _aggregates("l2"),
    _aggregates("beacon"),
    TableTier("pg.embeddings", "embeddings", SQL.plan_embeddings, SQL.remove_embeddings),
    TableTier("pg.diff_marks", "diff_marks", SQL.plan_marks, SQL.remove_marks),
    TableTier("pg.diffs", "diffs", SQL.plan_diffs, SQL.remove_diffs),
    TableTier("pg.memory_history", "memory_history", SQL.plan_history, SQL.remove_history),
    TableTier("pg.memory_jobs", "memory_jobs", SQL.plan_jobs, SQL.remove_jobs),
    TableTier("pg.a2a_tasks", "a2a_tasks", SQL.plan_tasks, SQL.remove_tasks, epoched=False),
    TableTier(
        "pg.deliveries", "deliveries", SQL.plan_deliveries, SQL.remove_deliveries, epoched=False
    ),
    TableTier("pg.agent_cards", "agent_cards", SQL.plan_cards, SQL.remove_cards, epoched=False),
    TableTier("pg.agents", "agents", SQL.plan_agents, SQL.remove_agents, epoched=False),
)
"""In the order of planning: what others are found by comes first."""

REMOVAL_ORDER: Final = (
    "pg.embeddings",
    "pg.diff_marks",
    "pg.diffs",
    "pg.memory_history",
    "pg.memory_jobs",
    "pg.a2a_tasks",
    "pg.deliveries",
    "agg.l1",
    "agg.l2",
    "agg.beacon",
    "pg.memories",
    "pg.agent_cards",
    "pg.agents",
)
"""Dependent bytes go first, the row that names them last."""

EXEMPT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "scopes": "epochs by handle; the raw id is emptied at the end",
        "erasures": "journal of runs: handles, digests and times",
        "erasure_holds": "hold register: ids, grounds and dates",
        "clusters": "means of several memories: computed again or dropped when an input is gone",
        "tombstones": "ids, handles and epochs that refuse late copies",
        "fences": "handles and epochs that refuse late copies",
        "projects": "name, key and access list of a project: the anchor of every signature",
        "members": "addresses and certificates of nodes",
        "sync_marks": "numbers of tombstones between two nodes",
        "gossip_floors": "stamps",
        "holders": "who must hear of the end of a copy: ids until the tombstones are stable",
        "outbox": "signed ids, digests and documents under way; dropped when they have arrived",
    }
)
"""Tables without content that stay, each with the reason."""

_OTHER_MEANING: Final = frozenset({("agents", "project_id"), ("deliveries", "project_id")})
"""Columns that name a scope which the row does not belong to as a whole."""
_EVIDENCE_COLUMNS: Final = frozenset({("deliveries", "memory_id")})
"""Delivery rows of peers stay until the tombstones are stable."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a place outside PostgreSQL has to give up: a scope and its memories.

    `scope` is None on a node that knows the scope by its handle alone. `all_of_scope` is False
    when newer, live records of the scope may exist, and then only `ids` count.
    """

    scope: Scope | None
    ids: tuple[MemoryId, ...]
    all_of_scope: bool = True


@dataclass(frozen=True, slots=True)
class MemoryTier:
    """A place outside PostgreSQL, as its owner describes it.

    `enumerate` names its records of the target (text, never content), `remove` takes those away
    and says how many, `count` says how many are left. All run in a worker thread, may be called
    again after a failure, and raise when they cannot do it: then nothing is certified.
    """

    name: str
    enumerate: Callable[[Target], Collection[str]]
    remove: Callable[[Target, Collection[str]], int]
    count: Callable[[Target], int]
    level: str
    how: str


@dataclass(frozen=True, slots=True)
class Probe:
    """A read path that must not lead to erased memories: ids in, number of hits out."""

    name: str
    hits: Callable[[Sequence[MemoryId]], Awaitable[int]]


_REQUIRED: Final = (
    ("agg.summary", "L1", "row-delete"),
    ("mem.cache", "L1", "drop"),
    ("mem.queue", "L1", "drain"),
    ("mem.gossip", "L1", "drain"),
    ("file.snapshot", "L2", "rewrite"),
    ("file.export", "L2", "unlink"),
    ("file.agent", "L2", "unlink"),
)


@dataclass(frozen=True, slots=True)
class TierRegistry:
    """The places of one node. `memory` may hold several entries of one name."""

    graph: HotGraph | None = None
    memory: tuple[MemoryTier, ...] = ()
    probes: tuple[Probe, ...] = ()

    def shape(self, graph: str) -> dict[str, tuple[str, str]]:
        """(level, how) of every registered tier; `graph` is how the hot graph is cleaned."""
        names = {tier.name: (tier.level, tier.how) for tier in TABLE_TIERS}
        names |= {name: (level, how) for name, level, how in _REQUIRED}
        names |= {tier.name: (tier.level, tier.how) for tier in self.memory}
        names[SLOTS] = ("L2", "overwrite" if graph == "overwritten" else "rebuild")
        names[VECTORS] = ("L2", "overwrite")
        return names

    def named(self, name: str) -> TableTier:
        """A table tier by its name."""
        return next(tier for tier in TABLE_TIERS if tier.name == name)


def check_tables(tables: Sequence[ScopedTable]) -> None:
    """Raises UnknownTier naming the tables that are neither tier nor exempt."""
    known = {tier.table for tier in TABLE_TIERS} | set(EXEMPT)
    unknown = sorted(table.name for table in tables if table.name not in known)
    if unknown:
        raise UnknownTier(f"tables that are no tier and not exempt: {', '.join(unknown)}")


async def check_catalog(tx: Tx) -> list[ScopedTable]:
    """Compare the tiers with the present schema. Raises UnknownTier."""
    tables = await places.scoped_tables(tx)
    check_tables(tables)
    return tables


def scope_counts(tables: Sequence[ScopedTable], column: str) -> list[tuple[str, str]]:
    """(table, column) in which no row may name the scope afterwards."""
    return [
        (table.name, column)
        for table in tables
        if table.name not in EXEMPT
        and column in table.scope_columns
        and (table.name, column) not in _OTHER_MEANING
    ]


def memory_counts(tables: Sequence[ScopedTable]) -> list[tuple[str, str]]:
    """(table, column) in which no row may name an erased memory afterwards."""
    return [
        (table.name, column)
        for table in tables
        if table.name not in EXEMPT
        for column in _named(table)
        if (table.name, column) not in _EVIDENCE_COLUMNS
    ]


def _named(table: ScopedTable) -> tuple[str, ...]:
    # A reference of another memory to an erased one is no copy of it.
    return tuple(name for name in table.memory_columns if name in ("id", "memory_id"))
