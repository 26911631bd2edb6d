"""Inserting: validation before any change, replacement by id, ceiling and exempt kinds."""

from __future__ import annotations

import numpy as np
import pytest

from storage.errors import InvalidInput
from storage.hot.index import IndexFault
from storage.hot.settings import HotSettings
from storage.model import MemoryKind


def ids(*numbers):
    return [number.to_bytes(16, "big") for number in numbers]


@pytest.mark.parametrize(
    "bad",
    [
        np.full((1, 8), np.nan),
        np.full((1, 8), np.inf),
        np.full((1, 8), -np.inf),
        np.zeros((1, 8)),
        np.ones((1, 7)),
        np.ones(8),
        np.ones((1, 1, 8)),
    ],
    ids=["nan", "inf", "minus-inf", "zero", "dimension", "flat", "deep"],
)
def test_a_bad_vector_is_refused_by_name_and_dimension(graph, resident, bad):
    hot = graph()
    with pytest.raises(InvalidInput, match=r"vectors.*8"):
        hot.insert([resident(1)], bad.astype(np.float32))
    assert len(hot) == 0


def test_one_bad_row_refuses_the_whole_batch(graph, resident, rng):
    hot = graph()
    vectors = rng.normal(size=(20, 8)).astype(np.float32)
    vectors[19, 3] = np.nan
    with pytest.raises(InvalidInput):
        hot.insert([resident(n) for n in range(20)], vectors)
    assert hot.residents() == []


def test_vectors_and_residents_must_agree_in_number(graph, resident, rng):
    with pytest.raises(InvalidInput, match="2 rows for 1 residents"):
        graph().insert([resident(1)], rng.normal(size=(2, 8)))


def test_a_vector_is_normalised_even_when_its_squares_overflow(graph, resident):
    hot = graph()
    hot.insert([resident(1)], np.full((1, 8), 3e38, np.float32))
    assert np.linalg.norm(hot.vector(resident(1).id)) == pytest.approx(1)


def test_an_empty_batch_changes_nothing(graph):
    report = graph().insert([], np.empty((0, 8), np.float32))
    assert (report.inserted, report.updated, report.evicted, report.refused) == (0, 0, (), ())


def test_a_known_id_is_replaced_with_its_new_vector_and_text(graph, resident):
    hot = graph()
    axes = np.eye(8, dtype=np.float32)
    hot.insert([resident(1, content="old"), resident(2)], axes[:2])
    report = hot.insert([resident(1, content="new")], axes[4:5])
    assert (report.inserted, report.updated) == (0, 1)
    assert [h.resident.content for h in hot.search(axes[4], 1)] == ["new"]
    assert sorted(h.resident.id for h in hot.search(axes[0], 10)) == ids(1, 2)
    np.testing.assert_array_equal(hot.vector(resident(1).id), axes[4])


def test_of_an_id_named_twice_the_last_counts(graph, resident):
    hot = graph()
    axes = np.eye(8, dtype=np.float32)
    report = hot.insert([resident(1, content="a"), resident(1, content="b")], axes[:2])
    assert (report.inserted, hot.get(resident(1).id).content) == (1, "b")


def test_many_updates_of_one_id_leave_one_visible_version(graph, resident, rng):
    hot = graph(exact_limit=0)
    for _ in range(50):
        hot.insert([resident(1)], rng.normal(size=(1, 8)))
    assert [h.resident.id for h in hot.search(rng.normal(size=8), 10)] == ids(1)


def test_above_the_ceiling_the_coldest_leave(graph, resident, rng, clock):
    hot = graph(ceiling=5)
    for number in range(5):
        clock.ms += 1_000
        hot.insert([resident(number)], rng.normal(size=(1, 8)))
    hot.touch(ids(0), clock.ms + 1)
    clock.ms += 1_000
    report = hot.insert([resident(10), resident(11)], rng.normal(size=(2, 8)))
    assert list(report.evicted) == ids(1, 2)
    assert sorted(r.id for r in hot.residents()) == ids(0, 3, 4, 10, 11)


def test_a_batch_larger_than_the_ceiling_ends_at_the_ceiling(graph, resident, rng):
    hot = graph(ceiling=3)
    hot.insert([resident(n) for n in range(40)], rng.normal(size=(40, 8)))
    assert len(hot) == 3


def test_exempt_kinds_fill_half_the_ceiling_and_the_rest_is_refused(graph, resident, rng):
    hot = graph(ceiling=10)
    agents = [resident(n, kind=MemoryKind.AGENT) for n in range(7)]
    report = hot.insert(agents, rng.normal(size=(7, 8)))
    assert (report.inserted, list(report.refused)) == (5, ids(5, 6))
    assert hot.stats().exempt == 5


def test_an_exempt_resident_is_updated_at_the_full_half(graph, resident, rng):
    hot = graph(ceiling=4)
    kept = [resident(n, kind=MemoryKind.L2) for n in range(2)]
    hot.insert(kept, rng.normal(size=(2, 8)))
    report = hot.insert(kept[:1], rng.normal(size=(1, 8)))
    assert (report.updated, report.refused) == (1, ())


def test_exempt_kinds_outlive_any_number_of_inserts(graph, resident, rng):
    hot = graph(ceiling=6)
    kept = [resident(n, kind=MemoryKind.BEACON) for n in range(3)]
    hot.insert(kept, rng.normal(size=(3, 8)))
    hot.insert([resident(n) for n in range(100, 150)], rng.normal(size=(50, 8)))
    assert all(r.id in hot for r in kept)
    assert len(hot) == 6


def test_a_ceiling_of_one_admits_no_exempt_kind(graph, resident, rng):
    report = graph(ceiling=1).insert(
        [resident(1, kind=MemoryKind.L2), resident(2)], rng.normal(size=(2, 8))
    )
    assert (list(report.refused), report.inserted) == (ids(1), 1)


def test_a_large_ceiling_costs_little_until_it_is_needed(graph, resident, rng):
    hot = graph(dim=256, ceiling=1_000_000)
    hot.insert([resident(n) for n in range(100)], rng.normal(size=(100, 256)))
    assert hot.stats().bytes < 4 << 20


def test_the_graph_grows_past_its_first_capacity_and_keeps_all(graph, resident, rng):
    hot = graph(exact_limit=0)
    vectors = rng.normal(size=(2_500, 8)).astype(np.float32)
    hot.insert([resident(n) for n in range(2_500)], vectors)
    assert hot.stats().capacity == 4_096
    assert [hot.search(v, 1)[0].resident.id for v in vectors[::250]] == ids(*range(0, 2_500, 250))


def test_a_failing_index_leaves_ids_and_vectors_in_agreement(graph, resident, rng, monkeypatch):
    hot = graph()
    hot.insert([resident(1)], rng.normal(size=(1, 8)))

    def broken(*_args, **_options):
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(hot._index, "hnsw", _Failing(hot._index.hnsw, broken))
        with pytest.raises(IndexFault):
            hot.insert([resident(2)], rng.normal(size=(1, 8)))
    assert [r.id for r in hot.residents()] == ids(1)
    assert len(hot.search(rng.normal(size=8), 5)) == 1
    assert hot.insert([resident(2)], rng.normal(size=(1, 8))).inserted == 1


class _Failing:
    """An index whose add_items is replaced; all else passes through."""

    def __init__(self, real, add_items):
        self._real = real
        self.add_items = add_items

    def __getattr__(self, name):
        return getattr(self._real, name)


def test_a_record_changes_without_its_vector(graph, resident, rng):
    hot = graph()
    hot.insert([resident(1, agent=1)], rng.normal(size=(1, 8)))
    before = hot.vector(resident(1).id)
    assert hot.replace_record(resident(1, agent=2, content="moved"))
    np.testing.assert_array_equal(hot.vector(resident(1).id), before)
    query = rng.normal(size=8)
    assert hot.search(query, 5, agents=frozenset(ids(1))) == []
    assert [h.resident.content for h in hot.search(query, 5, agents=frozenset(ids(2)))] == ["moved"]


def test_records_of_one_agent_share_their_ids(graph, resident, rng):
    hot = graph()
    hot.insert([resident(n, agent=1) for n in range(3)], rng.normal(size=(3, 8)))
    hot.replace_record(resident(0, agent=1, content="again"))
    assert len({id(record.agent_id) for record in hot.residents()}) == 1


def test_an_unknown_record_is_not_taken_over(graph, resident):
    hot = graph()
    assert not hot.replace_record(resident(1))
    assert resident(1).id not in hot


def test_a_record_that_turns_exempt_beyond_the_half_leaves(graph, resident, rng):
    hot = graph(ceiling=2)
    hot.insert([resident(1, kind=MemoryKind.L2), resident(2)], rng.normal(size=(2, 8)))
    assert not hot.replace_record(resident(2, kind=MemoryKind.L2))
    assert resident(2).id not in hot


def test_a_lower_ceiling_evicts_and_a_higher_one_is_reported(graph, resident, rng):
    hot = graph(ceiling=20)
    hot.insert([resident(n) for n in range(20)], rng.normal(size=(20, 8)))
    report = hot.set_limits(HotSettings(ceiling=5, idle_ms=9, threads=1))
    assert (report.applied, report.refused) == (frozenset({"ceiling", "idle_ms"}), frozenset())
    assert (len(report.evicted), len(hot)) == (15, 5)
    report = hot.set_limits(HotSettings(ceiling=21, idle_ms=9, m=32, threads=1))
    assert report.refused == {"ceiling", "m"}
    assert hot.stats().ceiling == 5


def test_a_ceiling_too_low_for_the_exempt_kinds_changes_nothing(graph, resident, rng):
    hot = graph(ceiling=20)
    kept = [resident(n, kind=MemoryKind.L2) for n in range(8)]
    hot.insert(kept, rng.normal(size=(8, 8)))
    with pytest.raises(InvalidInput, match="ceiling 10"):
        hot.set_limits(HotSettings(ceiling=10))
    assert hot.stats().ceiling == 20


@pytest.mark.parametrize(
    "field, value",
    [
        ("ceiling", 0),
        ("ceiling", 2**27 + 1),
        ("m", 1),
        ("dead_share", 0.0),
        ("exact_limit", -1),
        ("threads", 0),
    ],
)
def test_a_bad_setting_is_named(field, value):
    with pytest.raises(InvalidInput, match=field):
        HotSettings(**{field: value})
