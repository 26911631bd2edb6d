"""Events of the mesh to Prometheus collectors, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from node.telemetry.metrics import GossipMetrics


def mesh_counter(metrics: GossipMetrics) -> Callable[..., None]:
    """Counts what gossip reports; a label with a comma fills several label names.

    A name without a collector is an event that is only logged elsewhere.
    """

    def count(name: str, label: str = "", n: int = 1) -> None:
        collector: Any = getattr(metrics, name, None)
        if collector is None:
            return
        child = collector.labels(*label.split(",")) if label else collector
        if hasattr(child, "inc"):
            child.inc(n)
        else:
            child.observe(n)

    return count
