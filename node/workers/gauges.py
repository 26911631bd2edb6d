"""Numbers that are measured rather than counted: graph, outbox, members, pool."""

from __future__ import annotations

from collections import Counter

from node.services import Services
from storage import deliveries, outbox, tombstones


async def measure(services: Services) -> None:
    """Set all gauges once; called every few seconds."""
    metrics, mesh = services.metrics, services.mesh
    stats = services.memory.residency.graph.stats()
    metrics.hot.residents.set(stats.resident)
    metrics.hot.exempt.set(stats.exempt)
    metrics.hot.dead_slots.set(stats.dead)
    metrics.hot.ceiling.set(stats.ceiling)
    size, idle = services.db.connections
    metrics.database.connections.labels("open").set(size)
    metrics.database.connections.labels("idle").set(idle)
    metrics.gossip.quarantined.set(mesh.quarantined())
    metrics.gossip.relay_cache_bytes.set(mesh.relay.size)
    for status, n in Counter(member.status for member in mesh.members()).items():
        metrics.gossip.members.labels(status).set(n)
    for (topic, state), n in (await services.db.read(outbox.counts)).items():
        metrics.gossip.outbox_rows.labels(topic, state).set(n)
    metrics.gossip.holders_rows.set(await services.db.read(deliveries.count_holders))
    pending = await services.db.read(tombstones.count_pending)
    metrics.gossip.tomb_pending.labels("unacknowledged").set(pending)
