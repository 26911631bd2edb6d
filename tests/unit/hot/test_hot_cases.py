"""Defects that others have had, as scenarios for the hot graph."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import hnswlib
import numpy as np

from storage.model import MemoryKind


def ids(numbers):
    return [number.to_bytes(16, "big") for number in numbers]


def clustered(rng, count, dim, centres=40):
    points = rng.normal(size=(centres, dim))
    spread = 0.7 * rng.normal(size=(count, dim))
    return (points[rng.integers(centres, size=count)] + spread).astype(np.float32)


def test_es_14_an_erased_slot_gives_nothing_back(graph, resident, rng, tmp_path):
    hot = graph(dim=32)
    hot.insert([resident(n) for n in range(2_000)], rng.normal(size=(2_000, 32)))
    erased = list(range(0, 2_000, 10))
    old = np.stack([hot.vector(memory_id) for memory_id in ids(erased)])
    labels = [hot._residents.get(memory_id).label for memory_id in ids(erased)]
    hot.purge(ids(erased), rebuild=False)

    path = tmp_path / "index.bin"
    hot._index.hnsw.save_index(str(path))
    loaded = hnswlib.Index(space="ip", dim=32)
    loaded.load_index(str(path), max_elements=4_096, allow_replace_deleted=True)
    for label in labels:
        loaded.unmark_deleted(label)
    assert not np.asarray(loaded.get_items(labels)).any()
    image = path.read_bytes()
    assert not any(vector.tobytes() in image for vector in old)
    assert {r.id for r in hot.residents()}.isdisjoint(ids(erased))

    fresh = old[0]
    assert ids(erased)[0] not in {h.resident.id for h in hot.search(fresh, 1_000)}
    hot.insert([resident(5_000, content="after")], fresh[np.newaxis, :])
    assert hot.search(fresh, 1)[0].resident.content == "after"
    np.testing.assert_allclose(hot.vector(resident(5_000).id), fresh, atol=1e-6)
    assert hot.stats().dead == 199


def test_es_41_few_live_unknown_and_removed_ids(graph, resident, rng):
    hot = graph(exact_limit=0)
    hot.insert([resident(n) for n in range(5)], rng.normal(size=(5, 8)))
    hot.hide(ids([0, 1]))
    query = rng.normal(size=8)
    assert len(hot.search(query, 10)) == 3
    assert (hot.hide(ids([99])), hot.hide(ids([0])), hot.evict(ids([1]))) == (0, 0, 0)

    with ThreadPoolExecutor(1) as pool:
        searching = pool.submit(lambda: [len(hot.search(query, 10)) for _ in range(300)])
        for number in (2, 3, 4):
            hot.forget(ids([number]))
        counts = searching.result(timeout=20)
    assert counts == sorted(counts, reverse=True)
    assert hot.search(query, 10) == []


def test_es_42_recall_survives_rounds_of_erasing_half(graph, resident, rng, best):
    hot = graph(dim=32, exact_limit=0)
    vectors = clustered(rng, 12_000, 32)
    present = list(range(600))
    hot.insert([resident(n) for n in present], vectors[:600])
    following = 600
    for _ in range(20):
        rng.shuffle(present)
        hot.purge(ids(present[:300]), rebuild=False)
        added = list(range(following, following + 300))
        following += 300
        hot.insert([resident(n) for n in added], vectors[added])
        if hot.needs_rebuild():
            hot.rebuild()
        present = present[300:] + added
        allowed = np.zeros(len(vectors), np.bool_)
        allowed[present] = True
        found = 0
        for query in vectors[rng.integers(12_000, size=20)]:
            hits = [int.from_bytes(h.resident.id, "big") for h in hot.search(query, 10)]
            assert len(set(hits)) == 10
            found += len(set(hits) & set(best(vectors, query, 10, allowed)))
        assert found / 200 >= 0.95
    assert len(hot) == 600


def test_es_43_dead_entries_do_not_eat_the_candidates(graph, resident, rng, best):
    hot = graph(dim=32, exact_limit=0)
    vectors = clustered(rng, 3_000, 32)
    centre = rng.normal(size=32)
    vectors[:1_000] = centre + 0.1 * rng.normal(size=(1_000, 32))
    hot.insert([resident(n, agent=n % 100) for n in range(3_000)], vectors)
    agents = frozenset(ids([7]))
    one_percent = np.arange(3_000) % 100 == 7

    def numbers(hits):
        return [int.from_bytes(h.resident.id, "big") for h in hits]

    assert numbers(hot.search(centre, 10, agents=agents)) == best(vectors, centre, 10, one_percent)
    hot.purge(ids(range(990)), rebuild=False)
    living = np.arange(3_000) >= 990
    found = numbers(hot.search(centre, 10))
    assert len(found) == 10
    assert len(set(found) & set(best(vectors, centre, 10, living))) >= 9
    assert numbers(hot.search(centre, 10, agents=agents)) == best(
        vectors, centre, 10, living & one_percent
    )


def test_es_45_the_recalled_stay_and_the_evicted_return_as_they_are_now(
    graph, resident, rng, clock, saved
):
    hot = graph(dim=32, ceiling=100)
    hot.insert([resident(n) for n in range(100)], rng.normal(size=(100, 32)))
    for _ in range(20):
        clock.ms += 60_000
        hot.touch(ids(range(10)), clock.ms)
    evicted = []
    for number in range(100, 300):
        clock.ms += 1_000
        report = hot.insert([resident(number)], rng.normal(size=(1, 32)))
        evicted += report.evicted
        assert len(hot) == 100
    assert set(ids(range(10))) <= {r.id for r in hot.residents()}
    assert len(evicted) == 200

    edited = int.from_bytes(evicted[0], "big")
    hot.insert([resident(edited, content="edited")], rng.normal(size=(1, 32)))
    assert hot.get(evicted[0]).content == "edited"

    hot.evict(evicted[:1])
    assert hot.occupants(evicted[:1]) == set(evicted[:1])
    report = hot.purge(evicted[:1], rebuild=True)
    assert (report.slots[evicted[0]], report.vectors[evicted[0]]) == (1, 0)
    assert hot.occupants(evicted[:1]) == set()
    assert evicted[0] not in {h.resident.id for h in hot.search(np.ones(32), 100)}


def test_es_45_exempt_kinds_stay_under_the_same_pressure(graph, resident, rng):
    hot = graph(ceiling=20)
    kept = [resident(n, kind=MemoryKind.BEACON) for n in range(10)]
    hot.insert(kept, rng.normal(size=(10, 8)))
    hot.insert([resident(n) for n in range(100, 300)], rng.normal(size=(200, 8)))
    assert all(r.id in hot for r in kept)
