"""Start and stop of a node, top to bottom.

Ready means: everything is loaded, unfinished erasures were resumed, every listener is bound. A
first SIGTERM or SIGINT stops gracefully, a second one at once; SIGHUP reloads the configuration.
"""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Callable
from functools import partial

import trio

from erasure import apply
from erasure.forget import finish_unpurged
from gossip import service
from node import agent_port
from node.app import open_node, sync_roster, wall, wall_ms
from node.config import load_config
from node.http.server import serve
from node.import_guard import check_imports
from node.reload import Reloader
from node.services import Services
from node.signals import Signals, receive_signals
from node.telemetry.logs import open_logs
from node.workers.gauges import measure
from node.workers.periodic import every
from node.workspace import Workspace
from storage.errors import MnemeshError
from storage.reserve import keep_reserve

log = logging.getLogger(__name__)

UNPURGED_BATCH = 500
PLACING_S = 30.0
"""Seconds after which the positions of agents follow what they remembered."""

Announce = Callable[[str], None]


def run_node(workspace: Workspace, announce: Announce) -> None:
    """Run a node in the foreground until a signal stops it.

    `announce` gets one readable line for each thing that is ready. Raises StartRefused, or what
    ended a running node, like a database that stopped.
    """
    check_imports()
    workspace.prepare()
    with workspace.lock():
        loaded = load_config(workspace.root, os.environ)
        for warning in loaded.warnings:
            announce(f"warning: {warning}")
        reloader = Reloader(loaded.config, partial(load_config, workspace.root, os.environ))
        with open_logs(workspace.logs):
            try:
                trio.run(_main, workspace, reloader, announce)
            except BaseExceptionGroup as group:
                known, unknown = group.split(MnemeshError)
                if known is None or unknown is not None:
                    raise
                log.error("the node ended: %s", _first(known).code, exc_info=known)
                raise _first(known) from None


async def _main(workspace: Workspace, reloader: Reloader, announce: Announce) -> None:
    signals = Signals()
    async with trio.open_nursery() as outer:
        await outer.start(receive_signals, signals)
        async with trio.open_nursery() as watching:
            async with open_node(workspace, reloader, watching) as services:
                await _serve(services, signals, announce)
            watching.cancel_scope.cancel()
        outer.cancel_scope.cancel()


async def _serve(services: Services, signals: Signals, announce: Announce) -> None:
    await keep_reserve(services.db, services.local.clock, services.workspace.ledger, wall)
    await apply.resume(services.erasure)
    await _finish_forgets(services)
    last_seen = services.last_life.last_seen_ms
    down_ms = wall_ms() - last_seen if last_seen is not None else 0
    async with trio.open_nursery() as upkeep:
        _start_upkeep(upkeep, services, signals)
        async with trio.open_nursery() as edges:
            bound = await edges.start(partial(service.run, services.mesh, down_ms=down_ms))
            for address in bound:
                announce(f"peers: {address}")
            await upkeep.start(apply.run, services.erasure)
            url = await edges.start(serve, services)
            port = services.reloader.current.agent_port.settings()
            places = await edges.start(agent_port.serve, services, port)
            gc.collect()
            gc.freeze()  # a collection that visits every resident stops the loop for too long
            services.not_ready = None
            services.workspace.write_pid()
            announce(f"http: {url}")
            for place in places:
                announce(f"agents: {place}")
            announce(f"ready: node {services.local.node_id.hex()}")
            log.info("ready", extra={"data": {"residents": len(services.memory.residency.graph)}})
            await signals.stop.wait()
            services.not_ready = "stopping"
            announce("stopping")
            edges.cancel_scope.cancel()
        upkeep.cancel_scope.cancel()
    await services.snapshots.last_write()
    await _last_reserve(services)


def _start_upkeep(nursery: trio.Nursery, services: Services, signals: Signals) -> None:
    reserve = partial(
        keep_reserve, services.db, services.local.clock, services.workspace.ledger, wall
    )
    nursery.start_soon(partial(every, lambda: 1.0, reserve, name="clock reserve"))
    nursery.start_soon(services.retention.run)
    nursery.start_soon(services.eviction.run)
    nursery.start_soon(services.snapshots.run)
    nursery.start_soon(services.consolidation.run)
    nursery.start_soon(partial(every, lambda: 5.0, partial(measure, services), name="gauges"))
    nursery.start_soon(
        partial(every, lambda: PLACING_S, services.place_agents, name="positions of agents")
    )
    nursery.start_soon(_reload_on_signal, services, signals)
    nursery.start_soon(_follow_roster, services)


async def _reload_on_signal(services: Services, signals: Signals) -> None:
    while True:
        await signals.wait_reload()
        await services.reload()


async def _follow_roster(services: Services) -> None:
    while True:
        await services.roster_due.wait()
        services.roster_due = trio.Event()
        await sync_roster(services, services.reloader.current)


async def _finish_forgets(services: Services) -> None:
    """Purge what a crash left under tombstones, before anybody can ask for it."""
    while True:
        done = await services.db.transact(finish_unpurged, services.local, UNPURGED_BATCH)
        await services.memory.residency.forget(done)
        if len(done) < UNPURGED_BATCH:
            return


async def _last_reserve(services: Services) -> None:
    with trio.move_on_after(1.0, shield=True):
        await keep_reserve(services.db, services.local.clock, services.workspace.ledger, wall)


def _first(group: BaseExceptionGroup[MnemeshError]) -> MnemeshError:
    """The first cause inside a group, however deep."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, MnemeshError)  # what `split` put into the group
    return error
