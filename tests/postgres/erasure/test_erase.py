"""Erasing on one node: what goes, what stays, and what the certificate says."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio

from erasure import requests
from erasure.envelope import Envelope
from erasure.scope import InvalidScope, parse_scope
from erasure.states import HoldInForce, RequestIdConflict
from storage.errors import InvalidInput, NotFound, ScopeErased
from storage.model import MemoryKind, Scope, ScopeKind
from storage.pool import Tx
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


async def snapshot(node: ErasureNode) -> dict[str, int]:
    """Rows by table, to see that nothing changed."""
    names = [
        row["relname"]
        for row in await node.sql(
            "SELECT relname FROM pg_class "
            "WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
        )
    ]
    return {name: await node.one(f'SELECT count(*) FROM "{name}"') for name in names}


async def test_everything_of_an_agent_goes_and_the_certificate_counts_it(
    origin: ErasureNode,
) -> None:
    with trio.fail_after(LIMIT):
        a1 = await add_agent(origin, "a1")
        for number in range(3):
            await remember(origin, a1, f"a1 keeps note {number}", seed=number)

        done = await requests.erase(origin.ctx, request(agent(a1)))

        assert done.state == "closed"
        assert counts(done.certificate) == {
            "file.agent": 1,
            "hnsw.slot": 3,
            "mem.vector": 3,
            "pg.agents": 1,
            "pg.embeddings": 3,
            "pg.memories": 3,
            "pg.memory_history": 3,
        }
        assert done.removed_now == 17
        assert await origin.one("SELECT count(*) FROM memories") == 0
        assert len(origin.graph) == 0
        assert origin.ctx.node.keys.agent(a1) is None
        assert origin.fenced == [agent(a1)]


async def test_every_tier_adds_up_and_every_registered_tier_is_listed(
    origin: ErasureNode,
) -> None:
    with trio.fail_after(LIMIT):
        p1 = await join([origin])
        a1 = await add_agent(origin, "a1", p1)
        await remember(origin, a1, "a fact of a1", p1)
        await remember(origin, a1, "a position", p1, kind=MemoryKind.AGENT)
        await remember(origin, a1, "an aggregate of a1", p1, kind=MemoryKind.L1)

        done = await requests.erase(origin.ctx, request(agent(a1)))

        tiers = predicate(done.certificate)["tiers"]
        assert set(tiers) == set(origin.ctx.tiers.shape("rebuilt"))
        for entry in tiers.values():
            parts = ("removed", "recomputed", "dropped", "retained")
            assert entry["found"] == sum(entry[part] for part in parts)
            assert entry["after"] == 0
        assert tiers["agg.l1"]["removed"] == 1
        assert tiers["pg.diff_marks"]["found"] == 3
        assert tiers["pg.agent_cards"]["found"] == 1


async def test_i1_a_second_erase_gives_the_same_bytes_and_no_ledger_entry(
    origin: ErasureNode,
) -> None:
    with trio.fail_after(LIMIT):
        a1 = await add_agent(origin, "a1")
        await remember(origin, a1, "once and never again")
        first = await requests.erase(origin.ctx, request(agent(a1)))
        size = await origin.one("SELECT size FROM ledger_head")

        again = await requests.erase(origin.ctx, request(agent(a1)))
        other = await requests.erase(origin.ctx, request(agent(a1), "req-2"))

        assert again.certificate == other.certificate == first.certificate
        assert (again.removed_now, other.removed_now) == (0, 0)
        assert await origin.one("SELECT size FROM ledger_head") == size


async def test_residue_that_turns_up_later_is_removed_and_told_in_an_addendum(
    origin: ErasureNode,
) -> None:
    with trio.fail_after(LIMIT):
        a1 = await add_agent(origin, "a1")
        await remember(origin, a1, "came back from a backup")
        rows = await origin.sql("SELECT * FROM memory_history")
        first = await requests.erase(origin.ctx, request(agent(a1)))
        await origin.sql(
            "INSERT INTO memory_history (memory_id, agent_id, event, changed_by, created_at) "
            "VALUES ($1, $2, 'created', 'backup', now())",
            rows[0]["memory_id"],
            a1,
        )

        again = await requests.erase(origin.ctx, request(agent(a1)))
        third = await requests.erase(origin.ctx, request(agent(a1)))

        assert again.removed_now == 1
        assert third.removed_now == 0
        assert again.certificate == first.certificate
        told = predicate(again.addenda[0])
        assert (told["kind"], told["removed"]["pg.memory_history"]["n"]) == ("supplement", 1)


async def test_es_36_neighbours_stay_when_an_agent_and_a_project_are_erased(
    origin: ErasureNode,
) -> None:
    with trio.fail_after(LIMIT):
        p1, p2 = await join([origin], "p1"), await join([origin], "p2")
        a1 = await add_agent(origin, "a1", p1)
        a2 = await add_agent(origin, "a2", p1)
        kept = await remember(origin, a2, "a2 in p2", p2, seed=1)
        in_p1 = await remember(origin, a2, "a2 in p1", p1, seed=2)
        alone = await remember(origin, a2, "a2 without a project", seed=3)
        for number, where in enumerate((p1, p2, None)):
            await remember(origin, a1, f"a1 in {number}", where, seed=10 + number)

        await requests.erase(origin.ctx, request(agent(a1)))
        left = {row["id"] for row in await origin.sql("SELECT id FROM memories")}
        assert left == {kept.id, in_p1.id, alone.id}

        await requests.erase(origin.ctx, request(project(p1), "req-2"))
        left = {row["id"] for row in await origin.sql("SELECT id FROM memories")}
        assert left == {kept.id, alone.id}
        assert set(left) == {one.id for one in origin.graph.residents()}
        assert await origin.one("SELECT count(*) FROM agents") == 1
        for memory in (kept, alone):
            assert await origin.one("SELECT content FROM live_rows WHERE id = $1", memory.id)


@pytest.mark.parametrize("odd", ["", None, "*", "%", "all", 7, "00000000" * 4])
async def test_es_36_odd_scopes_are_refused_and_change_nothing(
    origin: ErasureNode, odd: object
) -> None:
    with trio.fail_after(LIMIT):
        a1 = await add_agent(origin, "a1")
        await remember(origin, a1, "stays")
        before = await snapshot(origin)

        with pytest.raises(InvalidScope):
            parse_scope("agent", odd)
        with pytest.raises(InvalidScope):
            parse_scope(odd, "c9c1a5b2-7d1e-4f0a-9b6e-0a4d4c1f2e3d")
        raw = b"" if not isinstance(odd, str) else odd.encode()
        with pytest.raises(InvalidScope):
            await requests.erase(origin.ctx, request(Scope(ScopeKind.AGENT, raw)))

        assert await snapshot(origin) == before


async def test_a_bad_basis_or_request_id_is_named(origin: ErasureNode) -> None:
    a1 = await add_agent(origin, "a1")
    with pytest.raises(InvalidInput, match="basis"):
        await requests.erase(origin.ctx, replace(request(agent(a1)), basis="because"))
    with pytest.raises(InvalidInput, match="request_id"):
        await requests.erase(origin.ctx, request(agent(a1), ""))


async def test_one_request_id_stands_for_one_scope(origin: ErasureNode) -> None:
    with trio.fail_after(LIMIT):
        a1, a2 = await add_agent(origin, "a1"), await add_agent(origin, "a2")
        await remember(origin, a2, "a2 stays")
        await requests.erase(origin.ctx, request(agent(a1), "same"))
        before = await snapshot(origin)

        with pytest.raises(RequestIdConflict):
            await requests.erase(origin.ctx, request(agent(a2), "same"))

        assert await snapshot(origin) == before


async def test_es_28_an_unknown_scope_never_gets_a_certificate(origin: ErasureNode) -> None:
    with trio.fail_after(LIMIT):
        nobody = agent(bytes(range(16)))

        with pytest.raises(NotFound):
            await requests.erase(origin.ctx, request(nobody))
        said = await requests.erase(origin.ctx, request(nobody, "req-2", assert_absent=True))

        assert (said.certificate, said.state) == (None, "absent")
        assert predicate(said.absence)["verification"]["hits"] == 0
        assert await origin.one("SELECT count(*) FROM erasures") == 0
        kinds = [row["kind"] for row in await origin.sql("SELECT kind FROM ledger ORDER BY seq")]
        assert kinds == ["log_opened", "absence"]


async def test_a_dry_run_counts_and_changes_nothing(origin: ErasureNode) -> None:
    with trio.fail_after(LIMIT):
        a1 = await add_agent(origin, "a1")
        await remember(origin, a1, "counted only")
        before = await snapshot(origin)

        told = await requests.erase(origin.ctx, request(agent(a1), dry_run=True))

        assert told.plan["tiers"]["pg.memories"] == 1
        assert await snapshot(origin) == before
        assert origin.ctx.node.keys.kcert_ids() == []


async def test_an_erased_scope_writes_again_only_after_reopen(origin: ErasureNode) -> None:
    with trio.fail_after(LIMIT):
        a1 = await add_agent(origin, "a1")
        await remember(origin, a1, "first life")
        first = await requests.erase(origin.ctx, request(agent(a1)))
        with pytest.raises(ScopeErased):
            await remember(origin, a1, "too early")

        assert await requests.reopen(origin.ctx, agent(a1)) == 2
        with pytest.raises(InvalidInput):
            await requests.reopen(origin.ctx, agent(a1))
        origin.ctx.node.keys.create_agent(a1)
        second_life = await remember(origin, a1, "second life")
        repeated = await requests.erase(origin.ctx, request(agent(a1)))
        assert repeated.certificate == first.certificate
        assert await origin.one("SELECT count(*) FROM memories") == 1

        second = await requests.erase(origin.ctx, request(agent(a1), "req-2"))
        assert second.erasure_id != first.erasure_id
        assert second_life.agent_epoch == 2
        assert predicate(second.certificate)["scope"]["epoch"] == 2
        documents = await requests.documents(origin.ctx, first.erasure_id or "")
        assert predicate(second.certificate)["previous"] == _sha256(documents["certificate"])
        assert await origin.one("SELECT count(*) FROM memories") == 0


async def test_reopening_a_scope_that_was_never_erased_is_not_found(origin: ErasureNode) -> None:
    a1 = await add_agent(origin, "a1")
    with pytest.raises(NotFound):
        await requests.reopen(origin.ctx, agent(a1))


async def test_a_hold_stops_an_erasure_before_anything_is_destroyed(origin: ErasureNode) -> None:
    with trio.fail_after(LIMIT):
        a1 = await add_agent(origin, "a1")
        memory = await remember(origin, a1, "evidence")
        await origin.sql(
            "INSERT INTO erasure_holds (memory_id, ground, placed_by, placed_at, review_at, seq) "
            "VALUES ($1, 'legal', 'officer', now(), now(), 1)",
            memory.id,
        )
        with pytest.raises(HoldInForce):
            await requests.erase(origin.ctx, request(agent(a1)))
        assert await origin.one("SELECT count(*) FROM live_rows") == 1
        assert await origin.one("SELECT open_epoch FROM scopes") == 1


async def test_i28_the_order_of_two_erasures_does_not_matter(
    origin: ErasureNode, peer: ErasureNode
) -> None:
    with trio.fail_after(LIMIT):
        for node, order in ((origin, (0, 1)), (peer, (1, 0))):
            p1 = await join([node])
            a1 = await add_agent(node, "a1", p1)
            a2 = await add_agent(node, "a2", p1)
            await remember(node, a1, "of a1 in p1", p1)
            await remember(node, a2, "of a2 in p1", p1)
            await remember(node, a2, "of a2 alone")
            scopes = [agent(a1), project(p1)]
            for number in order:
                await requests.erase(node.ctx, request(scopes[number], f"req-{number}"))
        state = "SELECT content FROM memories ORDER BY content"
        assert await origin.sql(state) == await peer.sql(state)
        assert await origin.one("SELECT count(*) FROM agents") == await peer.one(
            "SELECT count(*) FROM agents"
        )


async def test_an_aggregate_of_unknown_inputs_is_dropped_with_the_project_of_the_agent(
    origin: ErasureNode,
) -> None:
    with trio.fail_after(LIMIT):
        p1, p2 = await join([origin], "p1"), await join([origin], "p2")
        a1 = await add_agent(origin, "a1", p1)
        a2 = await add_agent(origin, "a2", p1)
        await remember(origin, a1, "an input", p1, seed=1)
        await remember(origin, a2, "beacon over p1", p1, kind=MemoryKind.BEACON, seed=2)
        kept = await remember(origin, a2, "beacon over p2", p2, kind=MemoryKind.BEACON, seed=3)

        done = await requests.erase(origin.ctx, request(agent(a1)))

        assert predicate(done.certificate)["tiers"]["agg.beacon"]["dropped"] == 1
        assert [row["id"] for row in await origin.sql("SELECT id FROM memories")] == [kept.id]
        assert await origin.one("SELECT count(*) FROM embeddings") == 1


async def test_i23_batches_are_bounded(origin: ErasureNode) -> None:
    with trio.fail_after(LIMIT):
        origin.ctx.settings = replace(origin.ctx.settings, batch_rows=3)
        a1 = await add_agent(origin, "a1")
        for number in range(10):
            await remember(origin, a1, f"note number {number}", seed=number)
        seen: list[str] = []
        origin.ctx.between = seen.append

        done = await requests.erase(origin.ctx, request(agent(a1)))

        assert counts(done.certificate)["pg.memories"] == 10
        assert seen.count("batch:pg.memories") == 4


async def test_es_02_a_writer_that_began_before_the_fence_is_erased_too(
    origin: ErasureNode,
) -> None:
    """G2: the fence waits for the writer, and what the writer committed goes."""
    with trio.fail_after(LIMIT):
        a1 = await add_agent(origin, "a1")
        await remember(origin, a1, "there before", seed=1)
        passed, release = trio.Event(), trio.Event()
        wait = origin.db.island.to_trio

        async def write(tx: Tx) -> None:
            node = origin.ctx.node
            await node.gate.for_write(tx, a1, None)
            await wait(_signal, passed)
            await wait(release.wait)
            await tx._connection.execute(
                "INSERT INTO memory_jobs (agent_id, kind, created_at) VALUES ($1, 'embed', now())",
                a1,
            )

        async with trio.open_nursery() as nursery:
            nursery.start_soon(origin.db.transact, write)
            await passed.wait()
            erased = trio.Event()

            async def run() -> None:
                done = await requests.erase(origin.ctx, request(agent(a1)))
                assert counts(done.certificate)["pg.memory_jobs"] == 1
                erased.set()

            nursery.start_soon(run)
            while not await origin.one("SELECT count(*) FROM pg_locks WHERE NOT granted"):  # noqa: ASYNC110
                await trio.sleep(0.01)
            assert not erased.is_set()
            release.set()
        with pytest.raises(ScopeErased):
            await remember(origin, a1, "behind the fence")


async def _signal(event: trio.Event) -> None:
    event.set()


def _sha256(envelope: bytes) -> str:
    return Envelope.from_bytes(envelope).sha256.hex()
