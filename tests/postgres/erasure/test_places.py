"""Every place is known, and no text of an erased agent is in any of them."""

from __future__ import annotations

import pytest
import trio

from erasure import apply, requests
from erasure.tiers import EXEMPT, REMOVAL_ORDER, TABLE_TIERS, UnknownTier, check_catalog
from storage import tiers as places
from storage.errors import MnemeshError
from storage.ledger import page
from tests.support.erasure_nodes import (
    ErasureNode,
    add_agent,
    agent,
    copy_to,
    join,
    predicate,
    remember,
    request,
)
from tests.support.erasure_nodes import carry as carry_frames

LIMIT = 60
CANARY = "my code word is heron and it stands on one leg beside the quiet water"


async def tables_with(node: ErasureNode, needle: str) -> set[str]:
    """Tables that hold a text anywhere, in text or in bytes."""
    found = set()
    for row in await node.sql(
        "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
    ):
        name = row["relname"]
        hits = await node.one(
            f"SELECT count(*) FROM \"{name}\" t WHERE t::text LIKE '%' || $1 || '%' "
            f"OR t::text LIKE '%' || encode(convert_to($1, 'UTF8'), 'hex') || '%'",
            needle,
        )
        if hits:
            found.add(name)
    return found


async def test_es_18_a_table_that_is_no_tier_stops_the_node(origin: ErasureNode) -> None:
    with trio.fail_after(LIMIT):
        await apply.resume(origin.ctx)
        await origin.sql("CREATE TABLE reminders (id bigint, agent_id bytea, note text)")
        with pytest.raises(UnknownTier, match="reminders"):
            await apply.resume(origin.ctx)


@pytest.mark.parametrize(
    "definition",
    [
        "CREATE TABLE notes (about memory_id, note text)",
        "CREATE TABLE notes (id bigint, scope bigint REFERENCES scopes (scope_id), note text)",
    ],
)
async def test_es_18_a_table_is_found_by_domain_and_by_foreign_key(
    origin: ErasureNode, definition: str
) -> None:
    await origin.sql(definition)
    with pytest.raises(UnknownTier, match="notes"):
        await origin.db.read(check_catalog)


async def test_every_scoped_table_is_a_tier_or_exempt_and_not_both(origin: ErasureNode) -> None:
    tables = {one.name for one in await origin.db.read(places.scoped_tables)}
    tiers = {tier.table for tier in TABLE_TIERS}
    assert tables <= tiers | set(EXEMPT)
    assert tiers.isdisjoint(EXEMPT)
    assert sorted(REMOVAL_ORDER) == sorted(tier.name for tier in TABLE_TIERS)


async def test_es_17_es_24_a_canary_is_in_registered_places_only_and_then_nowhere(
    origin: ErasureNode, peer: ErasureNode
) -> None:
    with trio.fail_after(LIMIT):
        p1 = await join([origin, peer])
        a1 = await add_agent(origin, "a1", p1, [peer])
        memory = await remember(origin, a1, CANARY, p1, holders=[peer])
        await copy_to(peer, memory)
        for node in (origin, peer):
            await node.sql(
                "INSERT INTO memory_jobs (memory_id, agent_id, kind, payload, created_at) "
                "VALUES ($1, $2, 'embed', jsonb_build_object('text', $3::text), now())",
                memory.id,
                a1,
                CANARY,
            )
            await node.sql(
                "INSERT INTO a2a_tasks (task_id, agent_id, state, payload, created_at, updated_at)"
                " VALUES ('t1', $1, 'done', jsonb_build_object('text', $2::text), now(), now())",
                a1,
                CANARY,
            )
            known = {tier.table for tier in TABLE_TIERS}
            met = await tables_with(node, "heron")
            assert met == {"memories", "memory_history", "memory_jobs", "a2a_tasks", "diffs"}
            assert met <= known

        done = await requests.erase(origin.ctx, request(agent(a1)))
        await carry_frames(origin, peer)
        await apply.drive(peer.ctx, done.erasure_id or "")
        await carry_frames(peer, origin)
        await carry_frames(origin, peer)

        for node in (origin, peer):
            assert await tables_with(node, "heron") == set()
            copy = (node.ctx.ledger_dir / "ledger.jsonl").read_text()
            assert "heron" not in copy
        told = predicate(done.certificate)["verification"]
        assert (told["hits"], told["residue"]) == (0, 0)
        assert told["scanned"] == ["documents", "ledger", "outbox"]
        assert told["probes"] > 10


async def test_deliveries_to_the_erased_agent_go_and_those_to_peers_stay(
    origin: ErasureNode, peer: ErasureNode
) -> None:
    with trio.fail_after(LIMIT):
        p1 = await join([origin, peer])
        a1, a2 = await add_agent(origin, "a1", p1), await add_agent(origin, "a2", p1)
        mine = await remember(origin, a1, "of a1", p1, seed=1)
        theirs = await remember(origin, a2, "of a2", p1, seed=2)
        add = (
            "INSERT INTO deliveries (memory_id, project_id, recipient_kind, recipient, role, "
            "status, hlc, at) VALUES ($1, $2, $3, $4, 'store', 'served', 1, now())"
        )
        await origin.sql(add, theirs.id, p1, "agent", a1)
        await origin.sql(add, mine.id, p1, "agent", a2)
        await origin.sql(add, theirs.id, p1, "agent", a2)
        await origin.sql(add, mine.id, p1, "peer", peer.id)

        done = await requests.erase(origin.ctx, request(agent(a1)))

        tier = predicate(done.certificate)["tiers"]["pg.deliveries"]
        assert tier["removed"] == 2
        left = await origin.sql("SELECT memory_id, recipient_kind FROM deliveries ORDER BY seq")
        assert [(row["memory_id"], row["recipient_kind"]) for row in left] == [
            (theirs.id, "agent"),
            (mine.id, "peer"),
        ]
        kept = {one["what"]: one["n"] for one in predicate(done.certificate)["retained"]}
        assert kept["holder and delivery rows of peers"] == 1
        assert kept["tombstones"] == 1


async def test_the_ledger_refuses_to_be_changed(origin: ErasureNode) -> None:
    with trio.fail_after(LIMIT):
        a1 = await add_agent(origin, "a1")
        await requests.erase(origin.ctx, request(agent(a1)))
        for statement in (
            "UPDATE ledger SET kind = 'intent'",
            "DELETE FROM ledger",
            "TRUNCATE ledger",
        ):
            with pytest.raises(Exception, match=r"refused|privilege") as caught:
                await origin.sql(statement)
            assert not isinstance(caught.value, MnemeshError)
        kinds = [entry.kind for entry in await origin.db.read(page, 0, 10)]
        assert kinds == ["log_opened", "intent", "certificate", "closure"]
