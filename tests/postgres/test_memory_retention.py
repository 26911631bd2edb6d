"""Retention on real rows: what each step takes, what it leaves, and what a failure stops."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
import trio

from node.memory import forget as ending
from node.memory import reading
from node.workers import retention as worker
from node.workers.retention import ALL, MESH, RESULT_NAMES
from node.workers.settings import DAY_MS, HOUR_MS, RetentionSettings
from storage import memories
from storage import retention as steps
from storage.database_errors import DatabaseUnavailable
from storage.errors import NotFound
from storage.model import AgentProfile, Memory
from storage.pool import Tx
from tests.support.memory import START, World, lit, statement

PEER = bytes([7]) * 16
OTHER = bytes([8]) * 16
PROJECT = bytes([9]) * 16
LONG_AGO = "now() - interval '10 years'"


async def deleted(world: World, agent: AgentProfile, text: str) -> Memory:
    memory = await world.store(agent, text)
    await ending.soft_delete(world.context, agent, [memory.id])
    return memory


async def test_the_report_names_every_count(world: World) -> None:
    report = await world.retention().sweep()
    assert set(report) == {*RESULT_NAMES.values(), "deferred", "failedSteps"}
    assert {value for name, value in report.items() if name != "failedSteps"} == {0}
    assert report["failedSteps"] == []


async def test_v4_1_a_memory_deleted_long_ago_goes_with_vector_and_texts(world: World) -> None:
    agent = await world.agent("a1")
    memory = await deleted(world, agent, "old secret")
    world.pass_time(days=31)
    report = await world.retention().sweep()
    assert (report["softDeletedPurged"], report["embeddingsPurged"]) == (1, 1)
    assert await world.value("SELECT count(*) FROM memories WHERE kind = 'cell'") == 0
    assert "secret" not in await world.value("SELECT string_agg(h::text, '') FROM memory_history h")
    events = await reading.events(world.context, agent, memory.id)
    assert [event.event for event in events] == ["created", "deleted"]
    assert world.graph.occupants([memory.id]) == set()


@pytest.mark.parametrize(
    ("age", "gone"),
    [
        (timedelta(days=29, hours=23), 0),
        (timedelta(days=30), 0),
        (timedelta(days=30, milliseconds=1), 1),
    ],
)
async def test_v4_2_the_recovery_window_is_kept_to_its_end(
    world: World, age: timedelta, gone: int
) -> None:
    agent = await world.agent("a1")
    memory = await deleted(world, agent, "in the window")
    world.now[0] += age
    assert (await world.retention().sweep())["softDeletedPurged"] == gone
    if not gone:
        assert (await ending.recover(world.context, agent, memory.id)).memory.id == memory.id


async def test_v4_3_l_12_a_run_removes_no_more_than_its_batch(world: World) -> None:
    agent = await world.agent("a1")
    world.retention_settings = replace(world.retention_settings, batch_limit=5)
    for number in range(12):
        await deleted(world, agent, f"many {number}")
    world.pass_time(days=31)
    counts = [(await world.retention().sweep())["softDeletedPurged"] for _ in range(4)]
    assert counts == [5, 5, 2, 0]


async def test_the_oldest_go_first(world: World) -> None:
    agent = await world.agent("a1")
    world.retention_settings = replace(world.retention_settings, batch_limit=1)
    first = await deleted(world, agent, "first")
    world.pass_time(minutes=1)
    second = await deleted(world, agent, "second")
    world.pass_time(days=31)
    await world.retention().sweep()
    assert await world.rows("SELECT id FROM memories WHERE kind = 'cell'") == [(second.id,)]
    assert first.id != second.id


async def test_v4_4_history_outlives_its_memory_and_then_goes(world: World) -> None:
    agent = await world.agent("a1")
    await deleted(world, agent, "long gone")
    world.pass_time(days=31)
    assert (await world.retention().sweep())["historyPurged"] == 0
    world.pass_time(days=150)
    assert (await world.retention().sweep())["historyPurged"] == 2


async def test_an_expired_memory_becomes_a_soft_delete(world: World) -> None:
    agent = await world.agent("a1")
    memory = await world.store(agent, "short", expires_at=START + timedelta(hours=1))
    kept = await world.store(agent, "longer", expires_at=START + timedelta(hours=3))
    world.pass_time(hours=2)
    assert (await world.retention().sweep())["memoriesExpired"] == 1
    assert memory.id not in world.graph
    assert kept.id in world.graph
    assert await world.value(
        f"SELECT deleted_at FROM memories WHERE id = {lit(memory.id)}"
    ) == START + timedelta(hours=2)
    (_, event) = await reading.events(world.context, agent, memory.id)
    assert (event.event, event.changed_by, event.reason) == ("deleted", "retention", "expired")
    world.pass_time(days=31)
    assert (await world.retention().sweep())["softDeletedPurged"] == 1


async def test_the_expiry_of_an_announced_memory_is_told(world: World) -> None:
    agent = await world.agent("a1")
    project = await world.project("p1")
    memory = await world.store(
        agent, "told", project_id=project, expires_at=START + timedelta(hours=1)
    )
    world.pass_time(hours=2)
    await world.retention().sweep()
    assert await world.rows("SELECT memory_id, purged_at FROM tombstones") == [(memory.id, None)]
    world.pass_time(days=31)
    await world.retention().sweep()
    assert await world.value("SELECT purged_at FROM tombstones") == world.now[0]


async def test_a_peers_memory_expires_here_without_a_word(world: World) -> None:
    agent = await world.agent("a1")
    project = await world.project("p1")
    memory = await world.store(
        agent, "foreign", project_id=project, expires_at=START + timedelta(hours=1)
    )
    await world.change(f"UPDATE memories SET origin_node = {lit(PEER)}")
    await world.change(
        "INSERT INTO holders (memory_id, peer_id, project_id, agent_id, first_seq, state) VALUES"
        f" ({lit(memory.id)}, {lit(OTHER)}, {lit(project)}, {lit(agent.id)}, 1, 'stored')"
    )
    world.pass_time(hours=2)
    assert (await world.retention().sweep())["memoriesExpired"] == 1
    assert await world.value("SELECT count(*) FROM tombstones") == 0
    world.pass_time(days=31)
    assert (await world.retention().sweep())["softDeletedPurged"] == 1
    assert await world.value("SELECT count(*) FROM holders") == 0


# Holds, erasures, races


async def hold(world: World, memory: Memory) -> None:
    await world.change(
        "INSERT INTO erasure_holds (memory_id, ground, placed_by, placed_at, review_at, seq)"
        f" VALUES ({lit(memory.id)}, 'law', 'officer', now(), now(), 1)"
    )


async def test_a_held_memory_is_neither_removed_nor_expired_but_counted(world: World) -> None:
    agent = await world.agent("a1")
    held = await deleted(world, agent, "held")
    lapsing = await world.store(agent, "held, too", expires_at=START + timedelta(hours=1))
    await hold(world, held)
    await hold(world, lapsing)
    world.pass_time(days=200)
    report = await world.retention().sweep()
    assert (report["softDeletedPurged"], report["memoriesExpired"]) == (0, 0)
    assert (report["historyPurged"], report["deferred"]) == (0, 2)
    await world.change("UPDATE erasure_holds SET released_at = now()")
    report = await world.retention().sweep()
    assert (report["softDeletedPurged"], report["memoriesExpired"]) == (1, 1)
    assert report["deferred"] == 0


@pytest.mark.parametrize("kind", ["agent", "project"])
async def test_a_scope_under_hold_keeps_its_rows(world: World, kind: str) -> None:
    agent, other = await world.agent("a1"), await world.agent("a2")
    project = await world.project("p1")
    held = await world.store(agent, "of the scope", project_id=project)
    free = await world.store(other, "of nobody")
    await ending.soft_delete(world.context, agent, [held.id])
    await ending.soft_delete(world.context, other, [free.id])
    scope = agent.id if kind == "agent" else project
    await world.change(
        "INSERT INTO erasure_holds (scope_id, ground, placed_by, placed_at, review_at, seq)"
        " SELECT scope_id, 'law', 'officer', now(), now(), 1 FROM scopes"
        f" WHERE kind = '{kind}' AND ext_id = {lit(scope)}"
    )
    world.pass_time(days=31)
    report = await world.retention().sweep()
    assert (report["softDeletedPurged"], report["deferred"]) == (1, 1)
    assert await world.rows("SELECT id FROM memories WHERE kind = 'cell'") == [(held.id,)]


async def test_es_34_a_scope_that_is_being_erased_is_left_to_the_erasure(world: World) -> None:
    agent = await world.agent("a1")
    await deleted(world, agent, "the erasure's own")
    await world.change(
        "INSERT INTO erasures (erasure_id, scope_id, epoch, role, state, basis, requested_at,"
        " due_by, started_at, intent_seq) SELECT 'er_1', scope_id, 1, 'origin', 'intended', 'x',"
        f" now(), now(), now(), 1 FROM scopes WHERE ext_id = {lit(agent.id)}"
    )
    world.pass_time(days=31)
    report = await world.retention().sweep()
    assert (report["softDeletedPurged"], report["deferred"]) == (0, 1)
    await world.change("UPDATE erasures SET completed_at = now() + interval '1 hour'")
    assert (await world.retention().sweep())["softDeletedPurged"] == 1


async def test_es_34_f_19_a_row_recovered_after_its_selection_lives(world: World) -> None:
    agent = await world.agent("a1")
    memory = await deleted(world, agent, "saved in time")
    world.pass_time(days=31)
    before = world.now[0] - timedelta(days=30)
    ids = await world.db.transact(steps.deleted, before, 10)
    assert ids == [memory.id]
    await world.change(f"UPDATE memories SET deleted_at = NULL WHERE id = {lit(memory.id)}")
    assert await world.db.transact(steps.drop_vectors, ids, before) == 0
    assert await world.db.transact(steps.drop_deleted, ids, before, world.now[0]) == []
    assert await world.value("SELECT count(*) FROM embeddings") == 1
    assert "saved" in await world.value("SELECT string_agg(h::text, '') FROM memory_history h")


async def test_f_19_a_hold_placed_after_the_selection_wins(world: World) -> None:
    agent = await world.agent("a1")
    memory = await deleted(world, agent, "held in time")
    world.pass_time(days=31)
    before = world.now[0] - timedelta(days=30)
    ids = await world.db.transact(steps.deleted, before, 10)
    await hold(world, memory)
    assert await world.db.transact(steps.drop_vectors, ids, before) == 0
    assert await world.db.transact(steps.drop_deleted, ids, before, world.now[0]) == []


async def test_a_row_that_somebody_has_locked_waits_for_the_next_run(world: World) -> None:
    agent = await world.agent("a1")
    locked, free = await deleted(world, agent, "locked"), await deleted(world, agent, "free")
    world.pass_time(days=31)
    done = trio.Event()
    reached = trio.Event()

    async def keep(tx: Tx) -> None:
        await tx.fetch(statement(f"SELECT FROM memories WHERE id = {lit(locked.id)} FOR UPDATE"))
        await world.db.island.to_trio(wait)

    async def wait() -> None:
        reached.set()
        await done.wait()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.db.transact, keep)
        await reached.wait()
        report = await world.retention().sweep()
        done.set()
    assert report["softDeletedPurged"] == 1
    assert await world.rows("SELECT id FROM memories WHERE kind = 'cell'") == [(locked.id,)]
    assert free.id != locked.id


async def test_a_failing_step_stops_its_two_partners_and_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await world.agent("a1")
    await deleted(world, agent, "stays for now")
    await world.change(
        "INSERT INTO a2a_tasks (task_id, agent_id, state, created_at, updated_at) VALUES"
        f" ('t', {lit(agent.id)}, 'completed', {LONG_AGO}, {LONG_AGO})"
    )

    async def fail(*args: object) -> int:
        raise DatabaseUnavailable

    monkeypatch.setattr(steps, "drop_vectors", fail)
    world.pass_time(days=31)
    retention = world.retention()
    report = await retention.sweep()
    assert report["failedSteps"] == ["embeddings"]
    assert (report["softDeletedPurged"], report["a2aTasksPurged"]) == (0, 1)
    assert "embeddings" not in retention.last_success
    monkeypatch.undo()
    assert (await retention.sweep())["softDeletedPurged"] == 1


# Rows of jobs, tasks and the mesh


async def test_v4_7_l_13_a_dead_job_without_a_time_is_kept(world: World) -> None:
    agent = lit((await world.agent("a1")).id)
    for status, completed, failed in (
        ("completed", LONG_AGO, "NULL"),
        ("completed", "NULL", "NULL"),
        ("dead", "NULL", LONG_AGO),
        ("dead", LONG_AGO, "NULL"),
        ("pending", "NULL", "NULL"),
    ):
        await world.change(
            "INSERT INTO memory_jobs (agent_id, kind, status, created_at, completed_at, failed_at)"
            f" VALUES ({agent}, 'x', '{status}', {LONG_AGO}, {completed}, {failed})"
        )
    report = await world.retention().sweep()
    assert (report["completedJobsPurged"], report["deadJobsPurged"]) == (1, 1)
    assert await world.rows("SELECT status FROM memory_jobs ORDER BY id") == [
        ("completed",),
        ("dead",),
        ("pending",),
    ]


async def test_l_8_a_finished_task_goes_and_its_memory_stays(world: World) -> None:
    agent = await world.agent("a1")
    memory = await world.store(agent, "named by a task")
    for name, state, days in (
        ("old", "failed", 31),
        ("new", "failed", 29),
        ("open", "working", 99),
    ):
        at = f"timestamptz '{START - timedelta(days=days)}'"
        await world.change(
            "INSERT INTO a2a_tasks (task_id, agent_id, state, payload, created_at, updated_at)"
            f" VALUES ('{name}', {lit(agent.id)}, '{state}',"
            f' \'{{"memory": "{memory.id.hex()}"}}\', {at}, {at})'
        )
    assert (await world.retention().sweep())["a2aTasksPurged"] == 1
    assert await world.rows("SELECT task_id FROM a2a_tasks ORDER BY 1") == [("new",), ("open",)]
    assert await reading.get(world.context, agent, memory.id) == memory


async def test_v4_10_l_9_an_announcement_ends_but_its_memory_stays(world: World) -> None:
    agent = await world.agent("a1")
    memory = await world.store(agent, "announced", project_id=await world.project("p1"))
    world.pass_time(hours=24, minutes=59)
    assert (await world.retention().tick())["diffsPurged"] == 0
    world.pass_time(minutes=2)
    assert (await world.retention().tick())["diffsPurged"] == 1
    assert await reading.get(world.context, agent, memory.id) == memory
    world.pass_time(days=1)
    assert await world.found(agent, "announced") == {memory.id}


async def test_the_memory_of_a_walk_goes_at_its_time(world: World) -> None:
    for number, hours in ((1, -1), (2, 1)):
        at = f"timestamptz '{START + timedelta(hours=hours)}'"
        await world.change(
            "INSERT INTO seen (diff_id, first_hlc, expires_at, drop_after, energy_in, energy_out,"
            f" fanout, outcome) VALUES ({lit(bytes([number]) * 32)}, 1, {at}, {at}, 1, 0, 0, 'x')"
        )
    await world.retention().tick()
    assert await world.rows("SELECT diff_id FROM seen") == [(bytes([2]) * 32,)]


async def delivery(
    world: World, number: int, *, days: int = 31, kind: str = "peer", diff: bool = True
) -> None:
    diff_id = lit(bytes([number]) * 32) if diff else "NULL"
    at = f"timestamptz '{START - timedelta(days=days)}'"
    await world.change(
        "INSERT INTO deliveries (diff_id, memory_id, project_id, recipient_kind, recipient, role,"
        f" status, hlc, at) VALUES ({diff_id}, {lit(bytes([number]) * 16)}, {lit(PROJECT)},"
        f" '{kind}', {lit(PEER)}, 'store', 'stored', 1, {at})"
    )


async def holder(world: World, number: int) -> None:
    await world.change(
        "INSERT INTO holders (memory_id, peer_id, project_id, agent_id, first_seq, state) VALUES"
        f" ({lit(bytes([number]) * 16)}, {lit(PEER)}, {lit(PROJECT)}, {lit(OTHER)}, 1, 'stored')"
    )


async def mark(world: World, number: int) -> None:
    await world.change(
        f"INSERT INTO diff_marks (diff_id, mark, hlc) VALUES ({lit(bytes([number]) * 32)},"
        " 'promoted', 1)"
    )


async def tombstone(
    world: World,
    number: int,
    *,
    days: int = 91,
    hlc: int | None = None,
    purged: bool = True,
    home: bytes | None = None,
    project: bytes | None = PROJECT,
    erasure: str | None = None,
) -> None:
    at = f"timestamptz '{START - timedelta(days=days)}'"
    cause = f"'erase', '{erasure}'" if erasure else "'forget', NULL"
    await world.change(
        "INSERT INTO tombstones (memory_id, kind, project_id, agent_handle, epoch, hlc,"
        " origin_node, home_node, cause, erasure_id, recv_seq, created_at, purged_at) VALUES"
        f" ({lit(bytes([number]) * 16)}, 'cell', {lit(project) if project else 'NULL'},"
        f" {lit(bytes(32))}, 1, {hlc or number}, {lit(PEER)}, {lit(home or world.node.node_id)},"
        f" {cause}, nextval('recv_seq'), {at}, {at if purged else 'NULL'})"
    )


async def member(
    world: World, node_id: bytes, status: str = "alive", acked: int | None = None
) -> None:
    await world.member(PROJECT, node_id, b"certificate")
    wire = "decode('00', 'hex')" if status == "decommissioned" else "NULL"
    await world.change(
        f"UPDATE members SET status = '{status}', decommission_wire = {wire}"
        f" WHERE node_id = {lit(node_id)}"
    )
    if acked is not None:
        await world.change(
            "INSERT INTO sync_marks (peer_id, project_id, acked_recv_seq) VALUES"
            f" ({lit(node_id)}, {lit(PROJECT)}, {acked})"
        )


async def left(world: World) -> list[int]:
    return [row[0][0] for row in await world.rows("SELECT memory_id FROM tombstones ORDER BY 1")]


async def test_v4_11_a_delivery_goes_only_when_nobody_needs_it(world: World) -> None:
    for number in range(1, 6):
        await delivery(world, number, days=29 if number == 5 else 31)
    for number in (1, 3, 4, 5):
        await mark(world, number)
    for number in (1, 2, 4, 5):
        await holder(world, number)
    await tombstone(world, 4, days=1)
    report = await world.retention().tick()
    assert report["deliveriesPurged"] == 1
    remaining = await world.rows("SELECT memory_id FROM deliveries ORDER BY seq")
    assert [row[0][0] for row in remaining] == [2, 3, 4, 5]
    marks = await world.rows("SELECT diff_id FROM diff_marks ORDER BY 1")
    assert [row[0][0] for row in marks] == [3, 4, 5]
    assert await world.value("SELECT count(*) FROM holders") == 4


async def test_a_delivery_of_a_living_announcement_stays(world: World) -> None:
    agent = await world.agent("a1")
    await world.store(agent, "living", project_id=await world.project("p1"))
    await world.change(
        "INSERT INTO deliveries (diff_id, memory_id, project_id, recipient_kind, recipient, role,"
        f" status, hlc, at) SELECT diff_id, memory_id, project_id, 'agent', {lit(PEER)}, 'store',"
        f" 'stored', 1, {LONG_AGO} FROM diffs"
    )
    assert (await world.retention().tick())["deliveriesPurged"] == 0
    await delivery(world, 9, kind="agent", diff=False)
    assert (await world.retention().tick())["deliveriesPurged"] == 1


async def test_a_stable_tombstone_goes_with_holders_and_deliveries(world: World) -> None:
    await member(world, PEER, acked=100)
    await tombstone(world, 1)
    await holder(world, 1)
    await delivery(world, 1)
    await delivery(world, 2)
    report = await world.retention().tick()
    assert report["tombstoneRecordsPurged"] == 1
    assert await left(world) == []
    assert await world.value("SELECT count(*) FROM holders") == 0
    assert await world.value("SELECT count(*) FROM deliveries") == 1
    assert await world.value("SELECT floor_hlc FROM gossip_floors") == 1


@pytest.mark.parametrize(
    "case", ["young", "unpurged", "unacked member", "never met", "unacked home", "erasing"]
)
async def test_an_unstable_tombstone_stays(world: World, case: str) -> None:
    await member(world, PEER, acked={"unacked member": 0, "never met": None}.get(case, 100))
    if case == "unacked home":
        await member(world, OTHER, "expelled", acked=0)
    if case == "erasing":
        await world.change(
            "INSERT INTO erasure_recipients (erasure_id, node_id, status, source, first_at)"
            f" VALUES ('er_1', {lit(PEER)}, 'pending', 'member', now())"
        )
    await tombstone(
        world,
        1,
        days=90 if case == "young" else 91,
        purged=case != "unpurged",
        home=OTHER if case == "unacked home" else None,
        erasure="er_1" if case == "erasing" else None,
    )
    assert (await world.retention().tick())["tombstoneRecordsPurged"] == 0
    assert await left(world) == [1]
    assert await world.value("SELECT count(*) FROM gossip_floors") == 0


@pytest.mark.parametrize("status", ["expelled", "decommissioned"])
async def test_members_that_do_not_count_hold_nothing_back(world: World, status: str) -> None:
    await member(world, OTHER, status)
    home = OTHER if status == "decommissioned" else None
    await tombstone(world, 1, home=home)
    assert (await world.retention().tick())["tombstoneRecordsPurged"] == 1


async def test_rows_above_the_first_unstable_one_wait(world: World) -> None:
    await member(world, PEER, acked=100)
    for number in (1, 2, 4, 5):
        await tombstone(world, number)
    await tombstone(world, 3, days=10)
    assert (await world.retention().tick())["tombstoneRecordsPurged"] == 2
    assert await left(world) == [3, 4, 5]
    assert await world.value("SELECT floor_hlc FROM gossip_floors") == 2
    world.pass_time(days=81)
    assert (await world.retention().tick())["tombstoneRecordsPurged"] == 3
    assert await world.value("SELECT floor_hlc FROM gossip_floors") == 5


async def test_a_late_tombstone_below_the_floor_waits_its_own_time(world: World) -> None:
    await member(world, PEER, acked=100)
    await tombstone(world, 5, hlc=50)
    await world.retention().tick()
    await tombstone(world, 1, hlc=10, days=1)
    await tombstone(world, 2, hlc=20)
    report = await world.retention().tick()
    assert report["tombstoneRecordsPurged"] == 1
    assert await left(world) == [1]
    assert await world.value("SELECT floor_hlc FROM gossip_floors") == 50


async def test_one_project_does_not_wait_for_another(world: World) -> None:
    await member(world, PEER, acked=0)
    await tombstone(world, 1)
    await tombstone(world, 2, project=OTHER)
    await tombstone(world, 3, project=None)
    assert (await world.retention().tick())["tombstoneRecordsPurged"] == 2
    assert await left(world) == [1]


async def test_tombstones_outlive_the_backups_that_may_be_restored(world: World) -> None:
    world.retention_settings = replace(world.retention_settings, tombstone_ttl_ms=400 * DAY_MS)
    await tombstone(world, 1, days=399)
    assert (await world.retention().tick())["tombstoneRecordsPurged"] == 0


async def test_settled_frames_go_after_a_week(world: World) -> None:
    for number, days, state in ((1, 8, "done"), (2, 6, "done"), (3, 8, "ready")):
        at = f"timestamptz '{START - timedelta(days=days)}'"
        await world.change(
            "INSERT INTO outbox (topic, peer, subject, body, priority, state, not_before,"
            f" created_at, done_at) VALUES ('gossip.tombstone', {lit(PEER)},"
            f" {lit(bytes([number]))}, {lit(b'x')}, 1, '{state}', {at}, {at}, {at})"
        )
    assert (await world.retention().tick())["outboxPurged"] == 1
    assert await world.value("SELECT count(*) FROM outbox") == 2


# The timetable


async def test_lifecycle_steps_run_at_their_own_interval(world: World) -> None:
    agent = await world.agent("a1")
    retention = world.retention()
    await retention.tick()
    await deleted(world, agent, "due soon")
    world.pass_time(days=31)
    assert (await retention.tick())["softDeletedPurged"] == 1
    await deleted(world, agent, "due, but not looked at")
    world.retention_settings = replace(world.retention_settings, soft_deleted_ttl_ms=0)
    world.pass_time(hours=5)
    assert (await retention.tick())["softDeletedPurged"] == 0
    world.pass_time(hours=1)
    assert (await retention.tick())["softDeletedPurged"] == 1


async def test_v4_12_a_changed_age_counts_from_the_next_run(world: World) -> None:
    agent = await world.agent("a1")
    await deleted(world, agent, "eight days")
    retention = world.retention()
    world.pass_time(days=8)
    assert (await retention.sweep())["softDeletedPurged"] == 0
    world.retention_settings = replace(world.retention_settings, soft_deleted_ttl_ms=7 * DAY_MS)
    assert (await retention.sweep())["softDeletedPurged"] == 1


async def test_l_7_every_step_succeeds_at_every_tick_while_others_write(world: World) -> None:
    agent = await world.agent("a1")
    retention = world.retention()
    world.retention_settings = replace(world.retention_settings, lifecycle_interval_ms=HOUR_MS)

    async def write() -> None:
        number = 0
        while True:
            number += 1
            await world.store(agent, f"constant {number}")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        for _ in range(20):
            world.pass_time(hours=1)
            report = await retention.tick()
            assert report["failedSteps"] == []
            assert retention.last_success == dict.fromkeys(ALL, world.now[0])
        nursery.cancel_scope.cancel()


async def test_only_one_run_is_under_way(world: World) -> None:
    agent = await world.agent("a1")
    for number in range(5):
        await deleted(world, agent, f"once {number}")
    world.pass_time(days=31)
    retention = world.retention()
    reports: list[dict[str, object]] = []

    async def sweep() -> None:
        reports.append(await retention.sweep())

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(sweep)
    assert sorted(str(report["softDeletedPurged"]) for report in reports) == ["0", "0", "5"]


def test_the_plan_has_mesh_steps_always_and_the_others_when_due() -> None:
    settings = RetentionSettings()
    assert worker.steps_due(settings, START, None) == ALL
    assert worker.steps_due(settings, START, START - timedelta(hours=5)) == MESH
    assert worker.steps_due(settings, START, START - timedelta(hours=6)) == ALL


async def test_no_live_row_is_ever_touched(world: World) -> None:
    agent = await world.agent("a1")
    kept = [await world.store(agent, f"kept {number}") for number in range(10)]
    world.retention_settings = replace(
        world.retention_settings,
        soft_deleted_ttl_ms=0,
        history_ttl_ms=0,
        completed_job_ttl_ms=0,
        dead_job_ttl_ms=0,
    )
    before = await world.rows("SELECT * FROM memories ORDER BY id")
    world.pass_time(days=4_000)
    await world.retention().sweep()
    assert await world.rows("SELECT * FROM memories ORDER BY id") == before
    stored = await world.db.read(
        memories.with_vectors, [memory.id for memory in kept], world.context.embedder.model_id
    )
    assert len(stored) == 10
    with pytest.raises(NotFound):
        await reading.events(world.context, agent, kept[0].id)
