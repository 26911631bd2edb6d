"""Evicting, hiding, forgetting and purging, and which bytes are left."""

from __future__ import annotations

import numpy as np
import pytest

from storage.hot.codes import Codes
from storage.hot.index import IndexFault, LabelIndex
from storage.hot.rows import ROW_MASK
from storage.hot.snapshot import Owner, SnapshotFolder, Stamp
from storage.model import MemoryKind


def ids(*numbers):
    return [number.to_bytes(16, "big") for number in numbers]


@pytest.fixture
def ten(graph, resident, rng):
    """Ten residents and the bytes of their stored vectors."""
    hot = graph(dim=32)
    hot.insert([resident(n) for n in range(10)], rng.normal(size=(10, 32)))
    return hot, [hot.vector(resident(n).id).tobytes() for n in range(10)]


def in_rows(hot, needle):
    """Whether a row has the code of these bytes of a vector."""
    codes = Codes(len(needle) // 4, 1)
    codes.put(np.array([0]), np.frombuffer(needle, np.float32)[np.newaxis, :])
    return codes.codes.tobytes() in hot._rows.codes.codes.tobytes()


@pytest.mark.parametrize("leave", ["evict", "hide", "forget"])
def test_who_left_is_in_no_search_and_leaving_twice_counts_once(ten, leave):
    hot, _ = ten
    assert getattr(hot, leave)(ids(3)) == 1
    assert getattr(hot, leave)(ids(3)) == 0
    assert getattr(hot, leave)(ids(77)) == 0
    assert ids(3)[0] not in hot
    assert hot.get(ids(3)[0]) is None
    assert hot.vector(ids(3)[0]) is None
    assert ids(3)[0] not in {h.resident.id for h in hot.search(np.ones(32), 10)}
    assert len(hot) == 9


def test_hiding_keeps_the_bytes_of_the_slot_but_not_of_the_row(ten, saved):
    hot, stored = ten
    hot.hide(ids(3))
    assert stored[3] in saved(hot)
    assert not in_rows(hot, stored[3])
    assert hot.occupants(ids(3, 4, 77)) == set(ids(3, 4))


def test_forgetting_overwrites_slot_and_row(ten, saved):
    hot, stored = ten
    assert hot.forget(ids(3)) == 1
    image = saved(hot)
    assert [vector in image for vector in stored] == [n != 3 for n in range(10)]
    assert not in_rows(hot, stored[3])
    assert hot.occupants(ids(3)) == set()


def test_forgetting_overwrites_what_was_evicted_earlier(ten, saved):
    hot, stored = ten
    hot.evict(ids(2, 5))
    assert hot.forget(ids(5)) == 1
    image = saved(hot)
    assert (stored[2] in image, stored[5] in image) == (True, False)
    assert hot.occupants(ids(2, 5)) == set(ids(2))


def test_forgetting_overwrites_every_version_of_a_memory(ten, resident, rng, saved):
    hot, stored = ten
    hot.hide(ids(9))
    hot.insert([resident(3)], rng.normal(size=(1, 32)))
    newest = hot.vector(resident(3).id).tobytes()
    hot.forget(ids(3, 9))
    image = saved(hot)
    assert [v in image for v in (stored[3], stored[9], newest)] == [False, False, False]


def test_a_reused_dead_slot_has_a_new_occupant(ten, resident, rng, saved):
    hot, stored = ten
    hot.evict(ids(3))
    hot.insert([resident(20)], rng.normal(size=(1, 32)))
    assert stored[3] not in saved(hot)
    assert hot.occupants(ids(3, 20)) == set(ids(20))
    assert hot.forget(ids(3)) == 0
    assert ids(20)[0] in hot
    assert hot.stats().dead == 0


def test_exempt_kinds_are_hidden_and_forgotten_but_not_evicted(graph, resident, rng):
    hot = graph()
    kept = [resident(n, kind=MemoryKind.AGENT) for n in range(2)]
    hot.insert(kept, rng.normal(size=(2, 8)))
    assert hot.evict([r.id for r in kept]) == 0
    assert hot.hide([kept[0].id]) == 1
    assert hot.forget([kept[1].id]) == 1
    assert hot.stats().exempt == 0


def test_a_purge_reports_what_it_found_and_overwrites(ten, resident, rng, saved):
    hot, stored = ten
    hot.evict(ids(2))
    report = hot.purge(ids(1, 2, 77), rebuild=False)
    assert report.mode == "overwritten"
    assert report.slots == dict(zip(ids(1, 2, 77), [1, 1, 0], strict=True))
    assert report.vectors == dict(zip(ids(1, 2, 77), [1, 0, 0], strict=True))
    image = saved(hot)
    assert (stored[1] in image, stored[2] in image, stored[3] in image) == (False, False, True)


def test_a_purge_with_rebuild_leaves_no_dead_slot(ten, saved):
    hot, stored = ten
    hot.evict(ids(2))
    assert hot.purge(ids(1, 2), rebuild=True).mode == "rebuilt"
    assert (hot.stats().dead, hot.stats().rebuilds_total) == (0, 1)
    assert hot.occupants(ids(*range(10))) == set(ids(0, *range(3, 10)))
    image = saved(hot)
    assert [vector in image for vector in stored] == [n not in (1, 2) for n in range(10)]


def test_a_purge_that_finds_nothing_touches_nothing(ten):
    hot, _ = ten
    assert hot.purge(ids(50), rebuild=True).mode == "untouched"
    assert hot.stats().rebuilds_total == 0


def test_a_purge_can_empty_the_graph(ten, resident, rng):
    hot, _ = ten
    hot.purge(ids(*range(10)), rebuild=True)
    assert (len(hot), hot.search(np.ones(32), 5)) == (0, [])
    hot.insert([resident(1)], rng.normal(size=(1, 32)))
    assert len(hot.search(np.ones(32), 5)) == 1


def test_more_than_half_dead_asks_for_a_rebuild(ten):
    hot, _ = ten
    hot.hide(ids(0, 1, 2, 3, 4))
    assert not hot.needs_rebuild()
    hot.hide(ids(5))
    assert hot.needs_rebuild()
    hot.rebuild()
    assert not hot.needs_rebuild()
    assert sorted(h.resident.id for h in hot.search(np.ones(32), 10)) == ids(6, 7, 8, 9)


def test_a_graph_that_is_nearly_full_asks_to_grow(graph, resident, rng):
    hot = graph()
    hot.insert([resident(n) for n in range(900)], rng.normal(size=(900, 8)))
    assert hot.needs_rebuild()
    hot.rebuild()
    assert (hot.stats().capacity, hot.needs_rebuild()) == (2_048, False)


def test_a_failed_rebuild_leaves_the_old_graph_serving(ten, resident, rng, monkeypatch):
    hot, _ = ten
    hot.hide(ids(0))
    with monkeypatch.context() as patch:
        patch.setattr(LabelIndex, "add", _raise_fault)
        with pytest.raises(IndexFault):
            hot.rebuild()
    assert len(hot.search(np.ones(32), 10)) == 9
    assert hot.occupants(ids(0)) == set(ids(0))
    hot.insert([resident(30)], rng.normal(size=(1, 32)))
    hot.rebuild()
    assert len(hot.search(np.ones(32), 10)) == 10


def _raise_fault(*_args):
    raise IndexFault


def test_a_large_insert_into_a_hollow_graph_builds_it_anew_first(graph, resident, rng):
    hot = graph(dim=16, exact_limit=0)
    hot.insert([resident(n) for n in range(300)], rng.normal(size=(300, 16)))
    hot.evict(ids(*range(160)))
    hot.insert([resident(n) for n in range(300, 310)], rng.normal(size=(10, 16)))
    assert (hot.stats().rebuilds_total, hot.stats().dead) == (0, 150)
    hot.insert([resident(n) for n in range(310, 400)], rng.normal(size=(90, 16)))
    assert (hot.stats().rebuilds_total, hot.stats().dead) == (1, 0)
    found = {h.resident.id for h in hot.search(rng.normal(size=16), 1_000)}
    assert found == set(ids(*range(160, 400)))


def test_labels_name_their_rows_through_reuse_growth_rebuild_and_restore(
    graph, resident, rng, tmp_path
):
    hot = graph(exact_limit=0)
    seen: dict[int, bytes] = {}

    def check(number):
        for record in hot.residents():
            entry = hot._residents.get(record.id)
            assert entry.label & ROW_MASK == entry.row
            assert seen.setdefault(entry.label, record.id) == record.id
        assert hot.faulty([record.id for record in hot.residents()]) == []
        assert hot.ghosts(drop=False) == 0
        vector = hot.vector(ids(number)[0])
        assert hot.search(vector, 1)[0].resident.id == ids(number)[0]

    hot.insert([resident(n) for n in range(900)], rng.normal(size=(900, 8)))
    check(5)
    hot.evict(ids(*range(0, 900, 7)))
    hot.insert([resident(n) for n in range(900, 950)], rng.normal(size=(50, 8)))
    check(949)
    hot.insert([resident(n) for n in range(950, 1_300)], rng.normal(size=(350, 8)))
    assert hot.stats().capacity == 2_048
    check(1_299)
    hot.forget(ids(*range(1, 900, 7)))
    hot.rebuild()
    check(1_000)
    folder = SnapshotFolder(tmp_path, Owner(b"n" * 16, "m", 8, 1))
    folder.write(hot, Stamp("7", 1, 0, 0, 0))
    again = graph(exact_limit=0)
    again.restore(folder.read()[0])
    hot = again
    hot.insert([resident(n) for n in range(1_300, 1_360)], rng.normal(size=(60, 8)))
    check(1_359)


@pytest.fixture
def during_a_build(monkeypatch):
    """Run something once, right after the first rows went into the index being built."""

    def arrange(hot, write):
        add = LabelIndex.add
        pending = [write]

        def add_and_write(index, *args):
            add(index, *args)
            if index is not hot._index and pending:
                pending.pop()()

        monkeypatch.setattr(LabelIndex, "add", add_and_write)

    return arrange


def test_writes_during_a_rebuild_are_replayed(graph, resident, rng, saved, during_a_build):
    hot = graph(dim=32, exact_limit=0)
    hot.insert([resident(n) for n in range(600)], rng.normal(size=(600, 32)))
    stored = {n: hot.vector(resident(n).id).tobytes() for n in (1, 2, 3)}

    def write():
        hot.forget(ids(1))
        hot.evict(ids(2))
        hot.insert([resident(3, content="new"), resident(700)], rng.normal(size=(2, 32)))
        assert hot.occupants(ids(1)) == set(ids(1))

    during_a_build(hot, write)
    hot.rebuild()
    found = {h.resident.id for h in hot.search(np.ones(32), 1_000)}
    assert found == set(ids(0, *range(3, 600), 700))
    for number in (3, 700):
        assert hot.search(hot.vector(ids(number)[0]), 1)[0].resident.id == ids(number)[0]
    assert hot.get(ids(3)[0]).content == "new"
    image = saved(hot)
    assert [vector in image for vector in stored.values()] == [False, False, False]
    assert hot.occupants(ids(1, 2)) == set()


def test_writes_while_the_graph_grows_are_in_the_larger_one(
    graph, resident, rng, saved, during_a_build
):
    hot = graph(dim=32)
    hot.insert([resident(n) for n in range(1_000)], rng.normal(size=(1_000, 32)))
    gone = hot.vector(ids(1)[0]).tobytes()
    axis = np.eye(1, 32, dtype=np.float32)

    def write():
        hot.forget(ids(1))
        hot.insert([resident(2_000)], axis)

    during_a_build(hot, write)
    hot.rebuild()
    assert hot.stats().capacity == 2_048
    np.testing.assert_array_equal(hot.vector(ids(2_000)[0]), axis[0])
    assert not in_rows(hot, gone)
    assert gone not in saved(hot)


def test_the_list_of_dead_occupants_stays_bounded(graph, resident, rng):
    hot = graph(ceiling=40)
    for start in range(0, 4_000, 40):
        numbers = range(start, start + 40)
        hot.insert([resident(n) for n in numbers], rng.normal(size=(40, 8)))
        hot.hide(ids(start))
    assert len(hot._index._buried) <= 2 * hot.stats().dead + 1_024


def test_the_idle_are_planned_coldest_first_and_exempt_kinds_never(graph, resident, rng, clock):
    hot = graph(idle_ms=1_000, batch=2)
    for number in range(4):
        clock.ms += 10
        kind = MemoryKind.BEACON if number == 0 else MemoryKind.CELL
        hot.insert([resident(number, kind=kind)], rng.normal(size=(1, 8)))
    assert hot.plan_eviction(clock.ms + 900) == []
    assert hot.plan_eviction(clock.ms + 2_000) == ids(1, 2)
    hot.touch(ids(1, 99), clock.ms + 1_500)
    assert hot.plan_eviction(clock.ms + 2_000) == ids(2, 3)
