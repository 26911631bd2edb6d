"""The one way in which an erasure happens, whoever asked for it.

A run moves its row through the states; the state is durable before the work of the next begins.
Requests, notices and the start of the node all end in `drive`. A failure leaves the run where it
is, uncertified, and the service loop tries again.
"""

from __future__ import annotations

import logging

import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from erasure import certify, closing, inspection, journal, plan, removal, witness
from erasure.context import ErasureContext
from erasure.forms import Graph
from erasure.scope import agent_of, bounds, concerned, nothing, project_of
from erasure.states import ResidueFound, Role, Run, State, reached
from erasure.tiers import check_catalog
from storage import aggregates, erasures
from storage.erasures import ErasureRow
from storage.errors import MnemeshError, NotFound
from storage.model import NodeId, Scope, ScopeKind
from storage.pool import Tx

LOG = logging.getLogger("mnemesh.erasure")
POLL_SECONDS = 1.0
RETRY_FIRST, RETRY_LAST = 1.0, 60.0


async def drive(ctx: ErasureContext, erasure_id: str) -> ErasureRow:
    """Bring an erasure to `certified`, or `closed` where nobody has to answer; joins a drive.

    Raises ResidueFound or what a tier raised; the state reached stays, and nothing is certified.
    """
    async with ctx.run_lock(erasure_id):
        run = await begin(ctx, erasure_id)
        while not reached(run.row.state, State.CERTIFIED):
            ctx.between(run.row.state)
            await _step(ctx, run)
            run.row, run.newest = await ctx.db.read(standing, erasure_id)
        ctx.between(run.row.state)
    await journal.copy(ctx)
    await witness.publish(ctx, await ctx.db.read(_waiting, run.row))
    ctx.hidden.pop(erasure_id, None)
    if run.row.role == Role.ORIGIN:
        await closing.try_close(ctx, erasure_id)
    ctx.wake()
    return await _row(ctx, erasure_id)


async def begin(ctx: ErasureContext, erasure_id: str) -> Run:
    """The run of an erasure that has an intent. Raises NotFound."""
    row, newest = await ctx.db.read(standing, erasure_id)
    kcert = await trio.to_thread.run_sync(ctx.node.keys.create_kcert, erasure_id)
    scope = Scope(ScopeKind(row.kind), row.ext_id) if row.ext_id is not None else None
    reach = bounds(scope, erasure_id, row.epoch) if scope else nothing(erasure_id, row.epoch)
    return Run(row, newest, kcert, scope, reach)


async def resume(ctx: ErasureContext) -> None:
    """At start, before any listener opens: finish what a crash or a stop has cut.

    Raises UnknownTier and RestoredDatabase. A run that fails for another reason stays
    uncertified, its scope stays fenced, and the service loop tries again.
    """
    await ctx.db.read(check_catalog)
    await journal.compare(ctx)
    await _drop_orphan_keys(ctx)
    for erasure_id, _, _ in await ctx.db.read(erasures.open_ids):
        await _attempt(ctx, erasure_id)


async def run(
    ctx: ErasureContext, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Service loop: drives pending runs and closes what is due, each second and when woken."""
    waits: dict[str, tuple[float, float]] = {}
    task_status.started()
    while True:
        ctx.work = trio.Event()
        for erasure_id, _, _ in await ctx.db.read(erasures.open_ids):
            due, pause = waits.get(erasure_id, (0.0, RETRY_FIRST))
            if trio.current_time() < due:
                continue
            if await _attempt(ctx, erasure_id):
                waits.pop(erasure_id, None)
            else:
                waits[erasure_id] = (trio.current_time() + pause, min(2 * pause, RETRY_LAST))
        with trio.move_on_after(POLL_SECONDS):
            await ctx.work.wait()


async def _attempt(ctx: ErasureContext, erasure_id: str) -> bool:
    row = await _row(ctx, erasure_id)
    try:
        if reached(row.state, State.CERTIFIED):
            await closing.try_close(ctx, erasure_id)
        else:
            await drive(ctx, erasure_id)
    except (MnemeshError, OSError) as error:
        code = error.code if isinstance(error, MnemeshError) else type(error).__name__
        LOG.warning(
            "erasure not finished",
            extra={"erasure_id": erasure_id, "state": row.state, "code": code},
        )
        return False
    return True


async def _step(ctx: ErasureContext, run: Run) -> None:
    state = State(run.row.state)
    if state is State.INTENDED:
        if run.scope is not None and run.newest:
            # Who was resident is noted before the owners of caches take them out as well.
            await trio.to_thread.run_sync(removal.hide_scope, ctx, run.id, run.scope)
            ctx.fenced(run.scope)
        await ctx.db.transact(erasures.set_state, run.id, State.QUIESCED.value)
    elif state is State.QUIESCED:
        await ctx.db.read(removal.check_holds, run)
        await plan.make(ctx, run)
        await ctx.db.transact(_seal, ctx, run)
    elif state is State.SEALED:
        await plan.bury(ctx, run)
        key = await trio.to_thread.run_sync(ctx.node.keys.erasure_key)
        await ctx.db.transact(_tombstoned, ctx, run, key)
    elif state is State.TOMBSTONED:
        await removal.rows(ctx, run)
        await ctx.db.transact(erasures.set_state, run.id, State.REMOVED.value)
    elif state is State.REMOVED:
        graph = await removal.memory(ctx, run)
        await ctx.db.transact(_purged, run, graph)
    elif state is State.PURGED:
        # Aggregates with an erased input were removed as rows; their centroids follow here.
        while await ctx.db.transact(aggregates.settle, ctx.node.wall()):
            ctx.between("batch:clusters")
        await ctx.regrouped()
        await ctx.db.transact(erasures.set_state, run.id, State.AGGREGATED.value)
    elif state is State.AGGREGATED:
        await removal.files(ctx, run)
        await ctx.db.transact(erasures.set_state, run.id, State.SNAPSHOTTED.value)
    elif state is State.SNAPSHOTTED:
        await _verify(ctx, run)
    else:
        key = await trio.to_thread.run_sync(ctx.node.keys.erasure_key)
        mint = certify.certificate if run.row.role == Role.ORIGIN else certify.receipt
        await ctx.db.transact(mint, ctx, run, key)


async def _seal(tx: Tx, ctx: ErasureContext, run: Run) -> None:
    if run.scope is not None:
        await _recipients(tx, ctx, run, run.scope)
    shape = ctx.tiers.shape(Graph.UNTOUCHED)
    await erasures.set_plan(tx, run.id, await plan.sealed_root(tx, run, shape))


async def _recipients(tx: Tx, ctx: ErasureContext, run: Run, scope: Scope) -> None:
    """Whom an origin tells; at a peer, whom its receipt names as having got copies from it."""
    now = ctx.node.wall()
    if run.row.role == Role.PEER:
        told = await erasures.nodes_to_tell(tx, [], agent_of(scope), project_of(scope))
        told.pop(ctx.node.node_id, None)
        await erasures.add_recipients(tx, run.id, told, now)
        return
    told = await concerned(tx, ctx.node, scope)
    new = await erasures.add_recipients(tx, run.id, told, now)
    await certify.tell(tx, ctx, run.row, new)


async def _tombstoned(tx: Tx, ctx: ErasureContext, run: Run, key: Ed25519PrivateKey) -> None:
    row = await erasures.lock(tx, run.id)
    if row is None or reached(row.state, State.TOMBSTONED):
        return
    if run.row.role == Role.ORIGIN:
        nodes = [one.node_id for one in await erasures.recipients(tx, run.id)]
        await certify.notify(tx, ctx, row, key, nodes, certificate_sha256=None)
    await erasures.set_state(tx, run.id, State.TOMBSTONED.value)


async def _waiting(tx: Tx, row: ErasureRow) -> list[NodeId]:
    """Who gets documents of this erasure: an origin's recipients, or the origins that asked."""
    if row.role == Role.ORIGIN:
        return [one.node_id for one in await erasures.recipients(tx, row.erasure_id)]
    kept = await erasures.documents(tx, row.erasure_id)
    return sorted({one.node_id for one in kept if one.doc == "notice"})


async def _purged(tx: Tx, run: Run, graph: Graph) -> None:
    await erasures.set_graph(tx, run.id, graph.value)
    await erasures.set_state(tx, run.id, State.PURGED.value)


async def _verify(ctx: ErasureContext, run: Run) -> None:
    graph = Graph((run.row.tiers or {})["graph"])
    try:
        done = await inspection.inspect(ctx, run)
    except ResidueFound as error:
        LOG.warning("residue, removed once more: %s", error, extra={"erasure_id": run.id})
        again = await sweep(ctx, run)
        graph = graph if again is Graph.UNTOUCHED else again
        done = await inspection.inspect(ctx, run)
    shape = ctx.tiers.shape(graph)
    await ctx.db.transact(certify.settle, run, shape, graph, done, ctx.node.wall())


async def sweep(ctx: ErasureContext, run: Run) -> Graph:
    """Plan, bury and remove whatever of the scope stands now; what the hot graph got."""
    await plan.extend(ctx, run)
    await plan.bury(ctx, run)
    await removal.rows(ctx, run)
    graph = await removal.memory(ctx, run)
    await removal.files(ctx, run)
    return graph


async def _drop_orphan_keys(ctx: ErasureContext) -> None:
    """A leaf key without an intent is of a request that was cut before it did anything."""
    ids = await trio.to_thread.run_sync(ctx.node.keys.kcert_ids)
    known = await ctx.db.read(erasures.known_ids, ids)
    for erasure_id in sorted(set(ids) - known):
        await trio.to_thread.run_sync(ctx.node.keys.remove_kcert, erasure_id)


async def standing(tx: Tx, erasure_id: str) -> tuple[ErasureRow, bool]:
    """An erasure, and whether nothing newer of its scope stands here. Raises NotFound."""
    row = await erasures.get(tx, erasure_id)
    if row is None:
        raise NotFound()
    return row, await erasures.is_newest(tx, row)


async def _row(ctx: ErasureContext, erasure_id: str) -> ErasureRow:
    row = await ctx.db.read(erasures.get, erasure_id)
    if row is None:
        raise NotFound()
    return row
