"""An erasure that is cut anywhere ends as an undisturbed one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
import trio

from erasure import apply, requests
from erasure.states import ResidueFound, State
from erasure.tiers import MemoryTier, Probe, Target, TierRegistry
from storage.errors import ScopeErased
from storage.hot.index import IndexFault
from storage.hot.reports import PurgeReport
from tests.support.erasure_nodes import (
    ErasureNode,
    add_agent,
    agent,
    counts,
    join,
    predicate,
    project,
    remember,
    request,
)

LIMIT = 60
BOUNDARIES = [state.value for state in State if state not in (State.REQUESTED, State.CLOSED)]


class Killed(Exception):
    """The process ends here."""


def kill_at(node: ErasureNode, point: str, times: int = 1) -> None:
    """Raise at a boundary, the given number of times."""
    left = [times]

    def between(reached: str) -> None:
        if reached == point and left[0]:
            left[0] -= 1
            raise Killed(point)

    node.ctx.between = between


async def populated(node: ErasureNode) -> bytes:
    """An agent with five memories, among others' ones."""
    p1 = await join([node])
    a1, a2 = await add_agent(node, "a1", p1), await add_agent(node, "a2", p1)
    for number in range(5):
        await remember(node, a1, f"a1 note {number}", p1, seed=number)
    await remember(node, a2, "of a2", p1, seed=77)
    return a1


EXPECTED = {
    "file.agent": 1,
    "hnsw.slot": 5,
    "mem.vector": 5,
    "pg.agent_cards": 1,
    "pg.agents": 1,
    "pg.diff_marks": 5,
    "pg.diffs": 5,
    "pg.embeddings": 5,
    "pg.memories": 5,
    "pg.memory_history": 5,
}


@pytest.mark.parametrize("point", BOUNDARIES)
async def test_i20_cut_at_a_boundary_and_resumed_the_counts_are_the_same(
    origin: ErasureNode, point: str
) -> None:
    with trio.fail_after(LIMIT):
        a1 = await populated(origin)
        kill_at(origin, point)
        with pytest.raises(Killed):
            await requests.erase(origin.ctx, request(agent(a1)))
        with pytest.raises(ScopeErased):
            await remember(origin, a1, "while it is cut")

        await apply.resume(origin.ctx)

        done = await requests.erase(origin.ctx, request(agent(a1)))
        assert counts(done.certificate) == EXPECTED
        assert (done.state, done.removed_now) == ("closed", 0)
        assert await origin.one("SELECT count(*) FROM memories") == 1
        assert await origin.one("SELECT count(*) FROM ledger WHERE kind = 'certificate'") == 1
        assert await origin.one("SELECT count(*) FROM tombstones") == 5


@pytest.mark.parametrize("tier", ["pg.embeddings", "pg.memories"])
async def test_es_23_cut_behind_every_batch_the_counts_are_exact(
    origin: ErasureNode, tier: str
) -> None:
    with trio.fail_after(LIMIT):
        origin.ctx.settings = replace(origin.ctx.settings, batch_rows=1)
        a1 = await populated(origin)
        kill_at(origin, f"batch:{tier}", times=5)
        erasure_id = await requests.intend(origin.ctx, request(agent(a1)))
        assert isinstance(erasure_id, str)
        cuts = 0
        while (await requests.status(origin.ctx, erasure_id)).certificate is None:
            try:
                await apply.drive(origin.ctx, erasure_id)
            except Killed:
                cuts += 1
        done = await requests.status(origin.ctx, erasure_id)
        assert cuts == 5
        assert counts(done.certificate) == EXPECTED


async def test_after_a_restart_the_hidden_memories_are_not_served(origin: ErasureNode) -> None:
    """Tombstone and row are both there; no reader's view shows the row."""
    with trio.fail_after(LIMIT):
        a1 = await populated(origin)
        kill_at(origin, State.TOMBSTONED.value)
        with pytest.raises(Killed):
            await requests.erase(origin.ctx, request(agent(a1)))
        assert await origin.one("SELECT count(*) FROM memories WHERE agent_id = $1", a1) == 5
        assert await origin.one("SELECT count(*) FROM live_rows WHERE agent_id = $1", a1) == 0
        assert [one.agent_id for one in origin.graph.residents()] != [a1]
        assert len(origin.graph) == 1


async def test_a_second_request_joins_the_running_one(origin: ErasureNode) -> None:
    with trio.fail_after(LIMIT):
        a1 = await populated(origin)
        done: list[requests.Wrapper] = []

        async def ask(request_id: str) -> None:
            done.append(await requests.erase(origin.ctx, request(agent(a1), request_id)))

        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(ask, f"req-{number}")

        assert len({one.certificate for one in done}) == 1
        assert await origin.one("SELECT count(*) FROM erasures") == 1
        assert await origin.one("SELECT count(*) FROM ledger WHERE kind = 'intent'") == 1


async def test_a_leaf_key_without_an_intent_is_removed_at_start(origin: ErasureNode) -> None:
    with trio.fail_after(LIMIT):
        origin.ctx.node.keys.create_kcert("er_" + "a" * 52)
        await apply.resume(origin.ctx)
        assert origin.ctx.node.keys.kcert_ids() == []


async def test_es_22_while_a_tier_fails_there_is_no_certificate(origin: ErasureNode) -> None:
    with trio.fail_after(LIMIT):
        kept = {"export-1"}
        failures = [OSError("disk"), OSError("disk")]

        def remove(target: Target, rids: object) -> int:
            if failures:
                raise failures.pop()
            kept.clear()
            return 1

        origin.ctx.tiers = TierRegistry(
            graph=origin.graph,
            memory=(
                MemoryTier(
                    "file.export", lambda _: set(kept), remove, lambda _: len(kept), "L2", "unlink"
                ),
            ),
        )
        a1 = await populated(origin)

        with pytest.raises(OSError, match="disk"):
            await requests.erase(origin.ctx, request(agent(a1)))
        waiting = await requests.listing(origin.ctx)
        assert waiting[0]["state"] == "aggregated"
        assert (await requests.status(origin.ctx, waiting[0]["erasure_id"])).certificate is None
        with pytest.raises(OSError, match="disk"):
            await apply.drive(origin.ctx, waiting[0]["erasure_id"])

        done = await apply.drive(origin.ctx, waiting[0]["erasure_id"])
        assert done.state == "closed"
        certificate = (await requests.status(origin.ctx, done.erasure_id)).certificate
        assert counts(certificate)["file.export"] == 1


async def test_a_probe_with_a_hit_prevents_the_certificate(origin: ErasureNode) -> None:
    with trio.fail_after(LIMIT):

        async def leaky(ids: object) -> int:
            return 1

        origin.ctx.tiers = replace(origin.ctx.tiers, probes=(Probe("export", leaky),))
        a1 = await populated(origin)
        with pytest.raises(ResidueFound, match="export"):
            await requests.erase(origin.ctx, request(agent(a1)))
        assert await origin.one("SELECT count(*) FROM erasure_documents WHERE doc <> 'notice'") == 0


async def test_the_service_loop_finishes_what_was_cut(origin: ErasureNode) -> None:
    with trio.fail_after(LIMIT):
        a1 = await populated(origin)
        erasure_id = await requests.intend(origin.ctx, request(agent(a1)))
        assert isinstance(erasure_id, str)
        closed = trio.Event()
        origin.ctx.wake = closed.set
        async with trio.open_nursery() as nursery:
            await nursery.start(apply.run, origin.ctx)
            await closed.wait()
            while (await requests.status(origin.ctx, erasure_id)).state != "closed":
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        told = await requests.status(origin.ctx, erasure_id)
        assert predicate(told.certificate)["erasure_id"] == erasure_id


async def test_es_39_a_graph_that_fails_once_is_hidden_at_once_and_cleaned_by_the_retry(
    origin: ErasureNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    with trio.fail_after(LIMIT):
        a1 = await populated(origin)
        purge, failures = origin.graph.purge, [IndexFault()]

        def flaky(ids: Iterable[bytes], *, rebuild: bool) -> PurgeReport:
            if failures:
                raise failures.pop()
            return purge(ids, rebuild=rebuild)

        monkeypatch.setattr(origin.graph, "purge", flaky)
        with pytest.raises(IndexFault):
            await requests.erase(origin.ctx, request(agent(a1)))
        buried = [row["memory_id"] for row in await origin.sql("SELECT memory_id FROM tombstones")]
        assert len(origin.graph) == 1
        assert origin.graph.occupants(buried) == set(buried)

        done = await requests.erase(origin.ctx, request(agent(a1)))

        assert counts(done.certificate) == EXPECTED
        assert predicate(done.certificate)["graph"] == "rebuilt"
        assert origin.graph.occupants(buried) == set()


async def test_es_35_a_run_keeps_the_settings_that_it_began_with(origin: ErasureNode) -> None:
    with trio.fail_after(LIMIT):
        origin.ctx.settings = replace(origin.ctx.settings, batch_rows=2, graph="overwrite")
        a1 = await populated(origin)
        seen: list[str] = []

        def reload(point: str) -> None:
            seen.append(point)
            origin.ctx.settings = replace(origin.ctx.settings, batch_rows=500, graph="rebuild")

        origin.ctx.between = reload
        done = await requests.erase(origin.ctx, request(agent(a1)))

        assert seen.count("batch:pg.memories") == 3
        assert predicate(done.certificate)["graph"] == "overwritten"
        assert predicate(done.certificate)["tiers"]["hnsw.slot"]["how"] == "overwrite"


async def test_es_48_writers_against_the_erasure_of_their_project(origin: ErasureNode) -> None:
    with trio.fail_after(LIMIT):
        p1 = await join([origin])
        agents = [await add_agent(origin, f"a{number}", p1) for number in range(4)]
        refused: list[bytes] = []

        async def write(agent_id: bytes) -> None:
            for number in range(1000):
                try:
                    await remember(origin, agent_id, f"note {number}", p1, seed=number)
                except ScopeErased:
                    refused.append(agent_id)
                    return

        async with trio.open_nursery() as nursery:
            for agent_id in agents:
                nursery.start_soon(write, agent_id)
            while await origin.one("SELECT count(*) FROM memories") < 8:
                await trio.lowlevel.checkpoint()
            done = await requests.erase(origin.ctx, request(project(p1)))

        assert sorted(refused) == sorted(agents)
        assert await origin.one("SELECT count(*) FROM memories") == 0
        assert await origin.one("SELECT count(*) FROM diffs") == 0
        assert counts(done.certificate)["pg.memories"] >= 8


async def test_places_that_share_a_name_are_all_cleared(origin: ErasureNode) -> None:
    with trio.fail_after(LIMIT):
        stores = [{"one"}, {"two"}]

        def place(store: set[str]) -> MemoryTier:
            def remove(target: Target, rids: Iterable[str]) -> int:
                gone = store & set(rids)
                store.difference_update(gone)
                return len(gone)

            return MemoryTier(
                "mem.cache", lambda _: set(store), remove, lambda _: len(store), "L1", "drop"
            )

        origin.ctx.tiers = replace(origin.ctx.tiers, memory=tuple(map(place, stores)))
        a1 = await populated(origin)

        done = await requests.erase(origin.ctx, request(agent(a1)))

        assert stores == [set(), set()]
        assert counts(done.certificate) == EXPECTED | {"mem.cache": 2}
