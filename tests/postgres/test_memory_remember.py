"""Remember on real rows: normal form, duplicates, expiry, batches, announcements."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pytest
import trio

from node.memory import forget as ending
from node.memory import reading
from node.memory.drafts import Draft
from node.memory.remember import Remembered, remember_batch
from storage import gate, records
from storage.errors import ContentTooLarge, InvalidInput, MnemeshError, NotFound, ScopeErased
from storage.keyring import public_bytes
from storage.model import Scope, ScopeKind, Visibility
from storage.pool import Tx
from tests.support.memory import START, World, lit


async def test_a_memory_is_stored_with_vector_and_history(world: World) -> None:
    agent = await world.agent("a1")
    memory = await world.store(agent, "  The  meeting\nis on Friday. ", tags=("plan",))
    assert memory.content == "The meeting is on Friday."
    assert await reading.get(world.context, agent, memory.id) == memory
    assert memory.id in world.graph
    assert await world.value("SELECT count(*) FROM embeddings") == 1
    (event,) = await reading.events(world.context, agent, memory.id)
    assert (event.event, event.new_content) == ("created", "The meeting is on Friday.")


async def test_graph_and_row_hold_the_same_numbers(world: World) -> None:
    agent = await world.agent("a1")
    memory = await world.store(agent, "equal everywhere")
    before = world.graph.vector(memory.id)
    await world.restart()
    after = world.graph.vector(memory.id)
    assert before is not None
    assert after is not None
    np.testing.assert_allclose(before, after, atol=1e-6)


async def test_l_27_the_same_text_twice_is_one_row(world: World) -> None:
    agent = await world.agent("a1")
    first = await world.remember(agent, "T is true")
    second = await world.remember(agent, "T is true")
    assert (first.deduped, second.deduped) == (False, True)
    assert second.memory.id == first.memory.id
    assert second.memory.seen_count == 2
    assert await world.value("SELECT seen_count FROM memories WHERE kind = 'cell'") == 2


async def test_l_28_sixteen_at_once_are_one_row(world: World) -> None:
    agent = await world.agent("a1")
    done: list[Remembered] = []

    async def store() -> None:
        done.append(await world.remember(agent, "all at once"))

    async with trio.open_nursery() as nursery:
        for _ in range(16):
            nursery.start_soon(store)
    assert len({each.memory.id for each in done}) == 1
    assert sum(not each.deduped for each in done) == 1
    assert await world.value("SELECT max(seen_count) FROM memories") == 16


async def test_opposite_batches_at_once_do_not_fail(world: World) -> None:
    agent = await world.agent("a1")
    texts = [f"statement {number}" for number in range(20)]
    outcomes: list[list[Remembered | MnemeshError]] = []

    async def store(chosen: list[str]) -> None:
        drafts = [Draft(content=text, agent_id=agent.id) for text in chosen]
        outcomes.append(await remember_batch(world.context, drafts))

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(store, texts)
            nursery.start_soon(store, texts[::-1])
    assert all(isinstance(each, Remembered) for outcome in outcomes for each in outcome)
    assert await world.value("SELECT count(*) FROM memories WHERE kind = 'cell'") == 20


async def test_l_16_scripts_and_emoji_stay_apart(world: World) -> None:
    agent = await world.agent("a1")
    rows = [await world.store(agent, text) for text in ("東京", "Αθήνα", "🎉", "🔥")]
    assert len({row.content_hash for row in rows}) == 4


async def test_l_17_punctuation_alone_is_kept(world: World) -> None:
    agent = await world.agent("a1")
    first, second = [await world.store(agent, text) for text in ("!!!", "???")]
    assert first.content_hash == "e84c538e7fe250730ef62de220c40dfa808d3008c0cdb437181564b88b8714b8"
    assert second.content_hash != first.content_hash


async def test_l_18_c_and_its_children_are_three_rows(world: World) -> None:
    agent = await world.agent("a1")
    rows = [await world.store(agent, f"I use {name}") for name in ("C", "C++", "C#")]
    assert len({row.id for row in rows}) == 3


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (("I use C++", "I use C++."), None),
        (
            ("café", "cafe\u0301"),
            "850f7dc43910ff890f8879c0ed26fe697c93a067ad93a7d50f466a7028a9bf4e",
        ),
        (
            ("a\u00a0b", "a b", "a\r\nb", "a\nb"),
            "c8687a08aa5d6ed2044328fa6a697ab8e96dc34291e8c2034ae8c38e6fcc6d65",
        ),
    ],
    ids=["l_19", "l_20", "l_21"],
)
async def test_l_19_20_21_spellings_of_one_text_meet(
    world: World, texts: tuple[str, ...], expected: str | None
) -> None:
    agent = await world.agent("a1")
    done = [await world.remember(agent, text) for text in texts]
    assert len({each.memory.id for each in done}) == 1
    assert [each.deduped for each in done] == [False] + [True] * (len(texts) - 1)
    if expected:
        assert done[0].memory.content_hash == expected


async def test_l_22_joined_emoji_are_their_own_text(world: World) -> None:
    agent = await world.agent("a1")
    joined = await world.store(agent, "👩\u200d💻")
    apart = await world.store(agent, "👩💻")
    assert joined.id != apart.id
    assert "\u200d" in joined.content


async def test_l_23_the_whitespace_flag_never_changes_the_hash(world: World) -> None:
    agent, other = await world.agent("a1"), await world.agent("a2")
    text = "\r\nLine one\r\n\r\nline  two ;"
    folded = await world.store(agent, text)
    world.configure(collapse_storage_whitespace=False)
    kept = await world.store(other, text)
    assert (folded.content, kept.content) == ("Line one line two ;", "Line one\n\nline  two ;")
    assert folded.content_hash == kept.content_hash
    assert folded.content_hash == "e490ed577595f61675761642aa202c2f1f59ef292f58c24fe0b431b05eeb86ec"


async def test_l_24_dots_before_a_space_stay(world: World) -> None:
    memory = await world.store(await world.agent("a1"), "Wait ...  !")
    assert memory.normalized_content == "wait ..."


async def test_l_25_two_agents_hold_two_rows(world: World) -> None:
    first = await world.remember(await world.agent("a1"), "shared words")
    second = await world.remember(await world.agent("a2"), "shared words")
    assert not second.deduped
    assert first.memory.id != second.memory.id


async def test_l_26_forgetting_in_one_project_leaves_the_other(world: World) -> None:
    agent = await world.agent("a1")
    p1, p2 = await world.project("p1"), await world.project("p2")
    one = await world.store(agent, "in both", project_id=p1)
    two = await world.store(agent, "in both", project_id=p2)
    await ending.forget(world.context, agent, [one.id])
    assert (await reading.get(world.context, agent, two.id)).id == two.id
    assert await world.found(agent, "in both") == {two.id}


async def test_l_29_other_numbers_are_other_memories(world: World) -> None:
    agent = await world.agent("a1")
    assert (await world.store(agent, "rent is 900")).id != (
        await world.store(agent, "rent is 950")
    ).id


async def test_l_30_hash_versions_never_meet(world: World) -> None:
    agent = await world.agent("a1")
    old = await world.store(agent, "one text")
    await world.change(f"UPDATE memories SET hash_version = 2 WHERE id = {lit(old.id)}")
    new = await world.store(agent, "one text")
    await ending.forget(world.context, agent, [new.id])
    assert (await reading.get(world.context, agent, old.id)).id == old.id


async def test_a_source_id_wins_over_the_text(world: World) -> None:
    agent = await world.agent("a1")
    by_text = await world.store(agent, "the text")
    by_source = await world.store(agent, "from the file", source_type="file", source_id="f1")
    met = await world.remember(agent, "the text", source_type="file", source_id="f1")
    assert met.deduped
    assert met.memory.id == by_source.id != by_text.id


async def test_an_idempotency_key_is_met_whatever_the_text(world: World) -> None:
    agent = await world.agent("a1")
    first = await world.store(agent, "first try", idempotency_key="k")
    again = await world.remember(agent, "second try", idempotency_key="k")
    assert (again.deduped, again.memory.id) == (True, first.id)


async def test_scope_labels_part_the_memories_of_an_agent(world: World) -> None:
    agent = await world.agent("a1")
    rows = [
        await world.store(agent, "same text", scope_label=label)
        for label in (None, "team-a", "a:b", 'a"b')
    ]
    assert len({row.id for row in rows}) == 4


@pytest.mark.parametrize("name", ["team-a", "a:b", 'a"b'])
async def test_l_52_any_name_stores_recalls_lists_and_forgets(world: World, name: str) -> None:
    agent = await world.agent(name)
    memory = await world.store(agent, "the deploy is on Monday", scope_label=name)
    assert world.context.agents.resolve(name).id == agent.id
    assert await world.found(agent, "deploy Monday") == {memory.id}
    assert await reading.page(world.context, agent) == ([memory], False)
    await ending.forget(world.context, agent, [memory.id])
    assert await reading.page(world.context, agent) == ([], False)


async def test_l_1_a_deleted_text_can_be_stored_again(world: World) -> None:
    agent = await world.agent("a1")
    first = await world.store(agent, "T again")
    await ending.soft_delete(world.context, agent, [first.id])
    second = await world.store(agent, "T again")
    await ending.forget(world.context, agent, [second.id])
    third = await world.store(agent, "T again")
    assert len({first.id, second.id, third.id}) == 3
    assert await world.found(agent, "T again") == {third.id}


async def test_l_2_an_erased_scope_stores_nothing(world: World) -> None:
    agent = await world.agent("a1")

    async def close(tx: Tx) -> None:
        row = await world.node.gate.lock(tx, Scope(ScopeKind.AGENT, agent.id))
        await gate.close_epoch(tx, row.scope_id, 1)

    await world.db.transact(close)
    with pytest.raises(ScopeErased):
        await world.remember(agent, "too late")
    assert await world.value("SELECT count(*) FROM memories WHERE kind = 'cell'") == 0
    assert await world.value("SELECT count(*) FROM embeddings") == 0


async def test_an_erased_scope_spoils_only_its_items_of_a_batch(world: World) -> None:
    gone, here = await world.agent("gone"), await world.agent("here")

    async def close(tx: Tx) -> None:
        row = await world.node.gate.lock(tx, Scope(ScopeKind.AGENT, gone.id))
        await gate.close_epoch(tx, row.scope_id, 1)

    await world.db.transact(close)
    drafts = [Draft("one", gone.id), Draft("two", here.id), Draft("three", gone.id)]
    outcomes = await remember_batch(world.context, drafts)
    assert [type(each) for each in outcomes] == [ScopeErased, Remembered, ScopeErased]


async def test_l_3_an_expired_text_makes_room(world: World) -> None:
    agent = await world.agent("a1")
    first = await world.store(agent, "T for now", expires_at=START + timedelta(seconds=1))
    world.pass_time(seconds=2)
    second = await world.store(agent, "T for now", expires_at=START + timedelta(seconds=60))
    assert second.id != first.id
    assert second.expires_at == START + timedelta(seconds=60)
    assert await world.rows(
        "SELECT deleted_at IS NOT NULL FROM memories WHERE kind = 'cell' ORDER BY created_at"
    ) == [(True,), (False,)]
    assert first.id not in world.graph
    assert second.id in world.graph


async def test_rows_met_by_source_and_by_text_both_make_room_once_expired(world: World) -> None:
    agent = await world.agent("a1")
    soon = START + timedelta(seconds=1)
    await world.store(agent, "by source", source_type="f", source_id="1", expires_at=soon)
    await world.store(agent, "by key", idempotency_key="k", expires_at=soon)
    await world.store(agent, "by text", expires_at=soon)
    world.pass_time(seconds=2)
    stored = await world.remember(
        agent, "by text", source_type="f", source_id="1", idempotency_key="k"
    )
    assert not stored.deduped
    assert await world.value("SELECT count(*) FROM memories WHERE deleted_at IS NOT NULL") == 3


async def test_an_expired_announced_text_leaves_a_tombstone(world: World) -> None:
    agent = await world.agent("a1")
    project = await world.project("p1")
    soon = START + timedelta(seconds=1)
    first = await world.store(agent, "announced", project_id=project, expires_at=soon)
    world.pass_time(seconds=2)
    await world.store(agent, "announced", project_id=project)
    assert await world.rows("SELECT memory_id FROM tombstones") == [(first.id,)]


async def test_l_54_a_bad_item_spoils_only_its_place(world: World) -> None:
    agent = await world.agent("a1")
    for bad in ("zero \x00 byte", "lone \ud800 surrogate"):
        texts = [f"before {bad!r}", bad, f"after {bad!r}"]
        outcomes = await remember_batch(world.context, [Draft(text, agent.id) for text in texts])
        assert [type(each) for each in outcomes] == [Remembered, InvalidInput, Remembered]
        assert str(outcomes[1]) == "content contains a character that cannot be stored"


async def test_l_55_limits_name_themselves_and_long_texts_are_found(world: World) -> None:
    agent = await world.agent("a1")
    with pytest.raises(ContentTooLarge, match="content exceeds 1048576 bytes"):
        await world.remember(agent, "x" * 5_000_000)
    words = [f"w{number:07d}" for number in range(104_000)]
    text = " ".join(words)[: 1 << 20].rsplit(" ", 1)[0]
    memory = await world.store(agent, text)
    within = (1 << 18) // 9 - 2
    assert await world.found(agent, words[0]) == {memory.id}
    (hit,) = (await world.recall(agent, words[within])).hits
    assert (hit.memory.id, hit.words) == (memory.id, 1.0)


async def test_l_58_instants_are_kept_and_naive_times_refused(world: World) -> None:
    agent = await world.agent("a1")
    tokyo = datetime(2026, 8, 1, 9, tzinfo=timezone(timedelta(hours=9)))
    pacific = datetime(2026, 8, 1, 9, tzinfo=timezone(timedelta(hours=-8)))
    later = await world.store(agent, "from the west", created_at=pacific)
    earlier = await world.store(agent, "from the east", created_at=tokyo)
    listed, _ = await reading.page(world.context, agent)
    assert [row.id for row in listed] == [later.id, earlier.id]
    assert listed[1].created_at == datetime(2026, 8, 1, 0, tzinfo=UTC)
    with pytest.raises(InvalidInput, match="created_at must carry a time zone"):
        await world.remember(agent, "naive", created_at=datetime(2026, 8, 1, 9))


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"type": ""}, "type"),
        ({"type": "x" * 65}, "type"),
        ({"who": "w" * 257}, "who"),
        ({"who": "w\x00"}, "who"),
        ({"scope_label": "\udfff"}, "scope_label"),
        ({"source_id": "s" * 257}, "source_id"),
        ({"tags": ("",)}, "tags"),
        ({"tags": ("t",) * 33}, "tags"),
        ({"tags": ("t\x00",)}, "tags"),
        ({"importance": math.nan}, "importance"),
        ({"importance": 1.5}, "importance"),
        ({"visibility": Visibility.ARCHIVED}, "visibility"),
        ({"project_id": bytes(16)}, "project"),
        ({"vector": np.ones(3, np.float32)}, "vector"),
        ({"vector": np.zeros(64, np.float32)}, "vector"),
        ({"vector": np.full(64, np.nan, np.float32)}, "vector"),
        ({"expires_at": datetime(2027, 1, 1)}, "expires_at"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
async def test_bad_input_names_its_field_and_stores_nothing(
    world: World, options: dict[str, object], field: str
) -> None:
    agent = await world.agent("a1")
    with pytest.raises(InvalidInput, match=field):
        await world.remember(agent, "fine text", **options)
    assert await world.value("SELECT count(*) FROM memories WHERE kind = 'cell'") == 0


async def test_es_47_a_vector_of_another_size_names_both(world: World) -> None:
    agent = await world.agent("a1")
    with pytest.raises(InvalidInput, match="vector has 8 numbers, model fake@64#0000 has 64"):
        await world.remember(agent, "eight numbers", vector=np.ones(8, np.float32))
    with pytest.raises(InvalidInput, match="vector has 8 numbers, model fake@64#0000 has 64"):
        await world.recall(agent, "eight numbers", vector=np.ones(8, np.float32))


async def test_a_memory_in_a_project_is_announced_signed_by_its_agent(world: World) -> None:
    agent = await world.agent("a1")
    project = await world.project("p1")
    memory = await world.store(agent, "for the team", project_id=project)
    assert world.announcements == [None]
    ((body, sig, diff_id),) = await world.rows("SELECT body, sig, diff_id FROM diffs")
    diff = records.decode_diff(body)
    key = world.node.keys.agent(agent.id)
    assert key is not None
    assert records.verified(public_bytes(key), records.DOMAIN_DIFF, body, sig)
    assert records.record_id(records.DOMAIN_DIFF, body) == diff_id
    assert (diff.memory, diff.agent, diff.project) == (memory.id, agent.id, project)
    assert diff.content == "for the team"
    stored = world.graph.vector(memory.id)
    assert stored is not None
    np.testing.assert_allclose(records.vector(diff), stored, atol=2e-3)


async def test_large_content_is_announced_by_its_digest(world: World) -> None:
    agent = await world.agent("a1")
    project = await world.project("p1")
    text = "long " * 5_000
    memory = await world.store(agent, text, project_id=project)
    diff = records.decode_diff(await world.value("SELECT body FROM diffs"))
    assert diff.content is None
    assert diff.content_ref is not None
    assert diff.content_ref.digest == records.content_digest(memory.content.encode())


@pytest.mark.parametrize("visibility", [Visibility.PRIVATE, Visibility.GLOBAL])
async def test_only_global_memories_of_a_project_travel(
    world: World, visibility: Visibility
) -> None:
    agent = await world.agent("a1")
    project = await world.project("p1")
    await world.remember(agent, "no project", visibility=visibility)
    await world.remember(agent, "in a project", visibility=visibility, project_id=project)
    expected = 1 if visibility is Visibility.GLOBAL else 0
    assert await world.value("SELECT count(*) FROM diffs") == expected


async def test_a_lost_race_with_a_forget_leaves_no_resident(world: World) -> None:
    agent = await world.agent("a1")
    memory = await world.store(agent, "short life")
    vector = world.graph.vector(memory.id)
    assert vector is not None
    await ending.forget(world.context, agent, [memory.id])
    await world.context.residency.add([(memory, vector)])
    assert memory.id not in world.graph


async def test_a_lost_race_with_a_closing_leaves_no_resident(world: World) -> None:
    agent = await world.agent("a1")
    residency = world.context.residency
    memory = await world.store(agent, "of the old epoch")
    vector = world.graph.vector(memory.id)
    assert vector is not None
    residency.fence(Scope(ScopeKind.AGENT, agent.id))
    assert memory.id not in world.graph
    await residency.add([(memory, vector)])
    assert memory.id not in world.graph
    later = await world.store(agent, "of the next epoch")
    assert later.id in world.graph


async def test_the_batch_size_is_bounded(world: World) -> None:
    agent = await world.agent("a1")
    for count in (0, 501):
        with pytest.raises(InvalidInput, match="a batch has 1 to 500"):
            await remember_batch(world.context, [Draft("x", agent.id)] * count)


async def test_an_unknown_agent_is_not_found(world: World) -> None:
    with pytest.raises(NotFound, match="agent not found: nobody"):
        world.context.agents.resolve("nobody")
