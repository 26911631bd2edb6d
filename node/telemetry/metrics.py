"""Prometheus collectors of every part, built from one injected registry.

Each part gets its own dataclass and touches nothing else, so a test builds a fresh set and two
nodes can live in one process. Label values come from small fixed sets; peers, agents and memories
are never among them. A collector is its annotation: kind, help, label names, buckets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeVar, get_args, get_type_hints

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
LONG_SECONDS: Final = (0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 14400, 86400)
SMALL_COUNTS: Final = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MemoryMetrics:
    """Use cases: remember, recall, delete, forget, recover, modify."""

    operations_total: Annotated[Counter, "Finished operations", "operation", "result"]
    seconds: Annotated[Histogram, "Duration of an operation", "operation", SECONDS]
    deduped_total: Annotated[Counter, "Writes that met an existing memory"]
    recall_hits: Annotated[Histogram, "Hits of a recall", SMALL_COUNTS]
    embed_seconds: Annotated[Histogram, "Duration of an embedding call", SECONDS]
    embed_texts_total: Annotated[Counter, "Texts embedded"]


@dataclass(frozen=True, slots=True)
class HotMetrics:
    """The graph in memory."""

    residents: Annotated[Gauge, "Memories in the hot graph"]
    exempt: Annotated[Gauge, "Residents that are never evicted"]
    dead_slots: Annotated[Gauge, "Slots of memories that left"]
    ceiling: Annotated[Gauge, "Residents allowed"]
    searches_total: Annotated[Counter, "Searches by the way they took", "way"]
    search_seconds: Annotated[Histogram, "Duration of a search", SECONDS]
    rebuilds_total: Annotated[Counter, "Rebuilds", "result"]
    rebuild_seconds: Annotated[Histogram, "Duration of a rebuild", LONG_SECONDS]
    snapshots_total: Annotated[Counter, "Snapshots", "result"]
    starts_total: Annotated[Counter, "Where the graph started from", "source"]
    degraded: Annotated[Gauge, "1 while the graph is not filled and rows answer for it"]
    measured_recall: Annotated[Gauge, "Recall at 10 of the sampled self-test, NaN without one"]
    row_budget: Annotated[Gauge, "Cold rows that a search compares, which follows that recall"]


@dataclass(frozen=True, slots=True)
class DatabaseMetrics:
    """Transactions and connections."""

    transactions_total: Annotated[Counter, "Transactions", "result"]
    retries_total: Annotated[Counter, "Units of work run again after a serialisation failure"]
    seconds: Annotated[Histogram, "Duration of a unit of work", SECONDS]
    connections: Annotated[Gauge, "Open connections", "state"]
    size_bytes: Annotated[Gauge, "Size of the database"]


@dataclass(frozen=True, slots=True)
class GossipMetrics:
    """The mesh."""

    copies_total: Annotated[Counter, "Copies of diffs", "dir", "status"]
    refused_total: Annotated[Counter, "Copies refused", "reason"]
    walk_stop_total: Annotated[Counter, "Walks ended", "reason"]
    energy_spent_total: Annotated[Counter, "Energy spent, in thousandths of a unit"]
    energy_residual_total: Annotated[Counter, "Energy that bought nothing, in thousandths"]
    energy_violation_total: Annotated[Counter, "Copies with more energy than they can have"]
    e0_clamped_total: Annotated[Counter, "Copies whose signed budget no mesh of this size needs"]
    fanout: Annotated[Histogram, "Copies of a diff sent at once", SMALL_COUNTS]
    hops: Annotated[Histogram, "Hops that a new diff has behind it", SMALL_COUNTS]
    deliveries_total: Annotated[Counter, "Deliveries", "status"]
    holders_rows: Annotated[Gauge, "Known copies at peers"]
    tomb_pending: Annotated[Gauge, "Tombstones not yet acknowledged", "state"]
    tomb_oldest_pending_seconds: Annotated[Gauge, "Age of the oldest pending tombstone"]
    resurrection_blocked_total: Annotated[Counter, "Forgotten memories kept out", "guard"]
    quarantined: Annotated[Gauge, "1 while the node catches up before it speaks"]
    repair_sessions_total: Annotated[Counter, "Repair sessions", "result"]
    repair_items_total: Annotated[Counter, "Records exchanged by repair", "set"]
    members: Annotated[Gauge, "Members by status", "status"]
    links_ended_total: Annotated[Counter, "Links that ended"]
    session_failed_total: Annotated[Counter, "Links that ended by a fault of this node", "code"]
    send_failed_total: Annotated[Counter, "Messages that could not be sent", "reason"]
    content_fetch_failed_total: Annotated[Counter, "Long contents that could not be fetched"]
    tombstones_refused_total: Annotated[Counter, "Tombstones that a peer did not take"]
    documents_refused_total: Annotated[Counter, "Documents that a peer did not take", "topic"]
    old_peer_refused_total: Annotated[Counter, "Links to peers that get no content", "peer"]
    hlc_parked: Annotated[Gauge, "Records parked until their time comes"]
    outbox_rows: Annotated[Gauge, "Frames waiting for peers", "topic", "state"]
    outbox_oldest_seconds: Annotated[Gauge, "Age of the oldest waiting frame"]
    relay_cache_bytes: Annotated[Gauge, "Bodies kept for the next hop"]


@dataclass(frozen=True, slots=True)
class ErasureMetrics:
    """Provable forgetting."""

    erasures: Annotated[Gauge, "Erasures by state", "state"]
    oldest_open_seconds: Annotated[Gauge, "Age of the oldest erasure that is not closed"]
    phase_seconds: Annotated[Histogram, "Duration of a phase", "phase", LONG_SECONDS]
    rows_removed_total: Annotated[Counter, "Rows removed", "tier"]
    residues_total: Annotated[Counter, "Rows that verification still found", "tier"]
    receipts_total: Annotated[Counter, "Receipts of peers", "result"]
    holds: Annotated[Gauge, "Holds in force"]
    ledger_size: Annotated[Gauge, "Leaves in the ledger"]


@dataclass(frozen=True, slots=True)
class RetentionMetrics:
    """The periodic sweep."""

    runs_total: Annotated[Counter, "Runs", "result"]
    removed_total: Annotated[Counter, "Rows removed", "step"]
    failed_steps_total: Annotated[Counter, "Steps that failed", "step"]
    seconds: Annotated[Histogram, "Duration of a run", LONG_SECONDS]
    last_success_timestamp_seconds: Annotated[Gauge, "When a step last succeeded", "step"]


@dataclass(frozen=True, slots=True)
class EvictionMetrics:
    """Leaving the hot graph."""

    evicted_total: Annotated[Counter, "Memories evicted", "reason"]
    reloaded_total: Annotated[Counter, "Cold memories taken back after a hit"]
    seconds: Annotated[Histogram, "Duration of an eviction run", SECONDS]


@dataclass(frozen=True, slots=True)
class ReloadMetrics:
    """Configuration."""

    reloads_total: Annotated[Counter, "Reloads", "status"]
    last_applied_timestamp_seconds: Annotated[Gauge, "When a reload was last applied"]
    restart_pending: Annotated[Gauge, "Changed keys that wait for a restart"]


@dataclass(frozen=True, slots=True)
class HttpMetrics:
    """The HTTP edge; `route` is the template, never a filled-in path."""

    requests_total: Annotated[Counter, "Requests", "method", "route", "status"]
    seconds: Annotated[Histogram, "Duration of a request", "method", "route", SECONDS]
    in_flight: Annotated[Gauge, "Requests being answered"]
    rate_limited_total: Annotated[Counter, "Requests refused by a rate limit", "operation"]
    auth_refused_total: Annotated[Counter, "Requests refused by authentication", "reason"]


@dataclass(frozen=True, slots=True)
class Metrics:
    """All parts, and the registry that `/metrics` renders."""

    registry: CollectorRegistry
    memory: MemoryMetrics
    hot: HotMetrics
    database: DatabaseMetrics
    gossip: GossipMetrics
    erasure: ErasureMetrics
    retention: RetentionMetrics
    eviction: EvictionMetrics
    reload: ReloadMetrics
    http: HttpMetrics


def build_metrics(registry: CollectorRegistry | None = None) -> Metrics:
    """Registers every collector; a registry takes one set only, a second raises ValueError."""
    registry = registry or CollectorRegistry()
    return Metrics(
        registry=registry,
        memory=_build(MemoryMetrics, "memory", registry),
        hot=_build(HotMetrics, "hot", registry),
        database=_build(DatabaseMetrics, "database", registry),
        gossip=_build(GossipMetrics, "gossip", registry),
        erasure=_build(ErasureMetrics, "erasure", registry),
        retention=_build(RetentionMetrics, "retention", registry),
        eviction=_build(EvictionMetrics, "eviction", registry),
        reload=_build(ReloadMetrics, "reload", registry),
        http=_build(HttpMetrics, "http", registry),
    )


def _build(part: type[T], name: str, registry: CollectorRegistry) -> T:
    """Reads kind, help text, label names and buckets from the annotations."""
    collectors: dict[str, Any] = {}
    for field, hint in get_type_hints(part, include_extras=True).items():
        kind, (text, *rest) = get_args(hint)[0], get_args(hint)[1:]
        labels = [word for word in rest if isinstance(word, str)]
        options = [("buckets", bounds) for bounds in rest if isinstance(bounds, tuple)]
        collectors[field] = kind(
            f"mnemesh_{name}_{field}", text, labels, registry=registry, **dict(options)
        )
    return part(**collectors)
