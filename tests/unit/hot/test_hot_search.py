"""Searching: bounds of k, filters at every selectivity, agreement with brute force."""

from __future__ import annotations

import numpy as np
import pytest

from storage.errors import InvalidInput
from storage.hot import filter as filters
from storage.hot.searching import MAX_K, Asked


@pytest.fixture(scope="module")
def corpus():
    """3,000 x 64 in 60 clusters, and 40 queries near them."""
    rng = np.random.default_rng(3)
    centres = rng.normal(size=(60, 64))

    def near(count):
        picked = centres[rng.integers(60, size=count)]
        return (picked + 0.7 * rng.normal(size=(count, 64))).astype(np.float32)

    return near(3_000), near(40)


@pytest.fixture
def filled(graph, resident, corpus):
    """All of the corpus with 1,000 agents: agent n owns every memory with number % 1000 == n."""
    hot = graph(dim=64, exact_limit=20)
    hot.insert([resident(n, agent=n % 1_000) for n in range(3_000)], corpus[0])
    return hot


def recall(hot, corpus, best, allowed, **how):
    found = wanted = 0
    for query in corpus[1]:
        hits = {int.from_bytes(h.resident.id, "big") for h in hot.search(query, 10, **how)}
        truth = set(best(corpus[0], query, min(10, int(allowed.sum())), allowed))
        found += len(hits & truth)
        wanted += len(truth)
        assert all(allowed[number] for number in hits)
    return found / wanted


@pytest.mark.parametrize("agents", [1_000, 100, 10, 1])
def test_recall_by_agents_at_100_10_1_and_a_tenth_percent(filled, corpus, best, agents):
    chosen = frozenset(n.to_bytes(16, "big") for n in range(agents))
    allowed = np.arange(3_000) % 1_000 < agents
    assert recall(filled, corpus, best, allowed, agents=chosen) >= 0.95


@pytest.mark.parametrize("share", [1_000, 100, 10, 1])
def test_recall_by_predicate_at_100_10_1_and_a_tenth_percent(filled, corpus, best, share):
    allowed = np.arange(3_000) % 1_000 < share

    def accept(resident):
        return bool(allowed[int.from_bytes(resident.id, "big")])

    assert recall(filled, corpus, best, allowed, accept=accept) >= 0.95


def test_recall_of_agents_and_predicate_together(filled, corpus, best):
    numbers = np.arange(3_000)
    allowed = (numbers % 1_000 < 500) & (numbers >= 2_000)
    chosen = frozenset(n.to_bytes(16, "big") for n in range(500))
    how = {"agents": chosen, "accept": lambda r: int.from_bytes(r.id, "big") >= 2_000}
    assert recall(filled, corpus, best, allowed, **how) >= 0.95


def test_an_agent_far_from_the_query_is_still_found(graph, resident, rng):
    hot = graph(dim=16, exact_limit=10)
    near = np.eye(1, 16) + 0.05 * rng.normal(size=(1_000, 16))
    far = -np.eye(1, 16) + 0.05 * rng.normal(size=(200, 16))
    hot.insert([resident(n, agent=1) for n in range(1_000)], near)
    hot.insert([resident(n, agent=2) for n in range(1_000, 1_200)], far)
    hits = hot.search(np.eye(1, 16)[0], 10, agents=frozenset({(2).to_bytes(16, "big")}))
    assert [h.resident.agent_id[-1] for h in hits] == [2] * 10


def test_scores_are_cosines_and_fall(graph, resident, rng):
    hot = graph()
    vectors = rng.normal(size=(30, 8)).astype(np.float32) * 9
    hot.insert([resident(n) for n in range(30)], vectors)
    query = rng.normal(size=8)
    hits = hot.search(query, 30)
    cosines = np.sort(vectors @ query / np.linalg.norm(vectors, axis=1) / np.linalg.norm(query))
    np.testing.assert_allclose([h.score for h in hits], cosines[::-1], atol=1e-5)


def test_what_no_code_can_tell_apart_is_in_the_order_of_its_vectors(graph, resident, rng):
    hot = graph(dim=256)
    query = rng.normal(size=256)
    query /= np.linalg.norm(query)
    vectors = query + rng.normal(size=(200, 256)) * np.linspace(1e-3, 2e-3, 200)[:, np.newaxis]
    vectors = vectors.astype(np.float32)
    hot.insert([resident(n, agent=1) for n in range(200)], vectors)
    found = hot.search(query, 20, agents=frozenset({(1).to_bytes(16, "big")}))
    cosines = np.sort(vectors @ query / np.linalg.norm(vectors, axis=1))[::-1]
    np.testing.assert_allclose([hit.score for hit in found], cosines[:20], atol=3e-7)


def test_exact_hits_and_scores_are_those_of_brute_force(graph, resident, corpus, best):
    hot = graph(dim=64, exact_limit=10_000)
    hot.insert([resident(n) for n in range(3_000)], corpus[0])
    units = corpus[0] / np.linalg.norm(corpus[0], axis=1, keepdims=True)
    for query in corpus[1]:
        hits = hot.search(query, 10)
        found = [int.from_bytes(hit.resident.id, "big") for hit in hits]
        assert found == best(corpus[0], query, 10)
        truth = units[found] @ query / np.linalg.norm(query)
        np.testing.assert_allclose([hit.score for hit in hits], truth, atol=1e-6)


def test_many_questions_have_the_answers_of_each(filled, corpus):
    some = frozenset(n.to_bytes(16, "big") for n in range(3))
    most = frozenset(n.to_bytes(16, "big") for n in range(900))
    questions = [
        Asked(query, k, agents, accept)
        for query in corpus[1][:12]
        for k in (1, 10)
        for agents in (None, some, most, frozenset())
        for accept in (None, lambda resident: resident.id[-1] % 2 == 0)
    ]
    alone = [
        filled.search(each.query, each.k, agents=each.agents, accept=each.accept)
        for each in questions
    ]
    assert [[hit.resident.id for hit in hits] for hits in filled.search_many(questions)] == [
        [hit.resident.id for hit in hits] for hits in alone
    ]


def test_no_question_has_no_answer_and_a_bad_one_refuses_all(filled, corpus):
    assert filled.search_many([]) == []
    with pytest.raises(InvalidInput, match="query"):
        filled.search_many([Asked(corpus[1][0], 1), Asked(np.zeros(64), 1)])
    with pytest.raises(InvalidInput, match="k must be"):
        filled.search_many([Asked(corpus[1][0], 0)])


@pytest.mark.parametrize("exact_limit", [0, 100])
def test_k_above_the_live_count_gives_what_there_is(graph, resident, rng, exact_limit):
    hot = graph(exact_limit=exact_limit)
    hot.insert([resident(n) for n in range(5)], rng.normal(size=(5, 8)))
    hot.hide([resident(0).id, resident(1).id])
    assert len(hot.search(rng.normal(size=8), 10)) == 3


@pytest.mark.parametrize("exact_limit", [0, 100])
def test_an_empty_graph_has_no_hits(graph, resident, rng, exact_limit):
    hot = graph(exact_limit=exact_limit)
    assert hot.search(np.ones(8), 10) == []
    hot.insert([resident(1)], rng.normal(size=(1, 8)))
    hot.forget([resident(1).id])
    assert hot.search(np.ones(8), 10) == []


def test_no_agent_and_an_unknown_agent_have_no_hits(filled, corpus):
    assert filled.search(corpus[1][0], 10, agents=frozenset()) == []
    assert filled.search(corpus[1][0], 10, agents=frozenset({b"?" * 16})) == []


@pytest.mark.parametrize("k", [0, -1, MAX_K + 1])
def test_k_out_of_bounds_is_refused(graph, k):
    with pytest.raises(InvalidInput, match="k must be"):
        graph().search(np.ones(8), k)


@pytest.mark.parametrize(
    "query",
    [np.full(8, np.nan), np.full(8, np.inf), np.zeros(8), np.ones(9), np.ones((1, 8)), ["x"] * 8],
    ids=["nan", "inf", "zero", "dimension", "deep", "text"],
)
def test_a_bad_query_is_refused(graph, query):
    with pytest.raises(InvalidInput, match="query"):
        graph().search(query, 1)


def test_the_predicate_may_call_the_graph(filled, corpus):
    hits = filled.search(corpus[1][0], 5, accept=lambda r: filled.get(r.id) is not None)
    assert len(hits) == 5


def test_a_graph_that_cannot_reach_all_is_searched_exactly(filled, corpus, monkeypatch):
    monkeypatch.setattr(filled._index, "nearest", lambda *_: None)
    assert len(filled.search(corpus[1][0], 10)) == 10


def test_blocks_of_falling_scores_name_each_position_once(rng):
    scores = rng.integers(0, 5, size=5_000).astype(np.float32)
    order = np.concatenate(list(filters.descending(scores, 64)))
    assert sorted(order.tolist()) == list(range(5_000))
    assert (np.diff(scores[order]) <= 0).all()


@pytest.mark.parametrize(
    "k, live, scope, filtered, expected",
    [
        (10, 100_000, None, False, [10]),
        (10, 4_000, None, False, []),
        (10, 100_000, 4_000, False, []),
        (10, 100_000, 50_000, False, [40, 80, 160, 320, 640, 1_280]),
        (10, 100_000, None, True, [25, 50, 100, 200, 400, 800, 1_600]),
        (1_000, 1_000_000, 5_000, False, []),
    ],
)
def test_what_is_fetched_from_the_graph(k, live, scope, filtered, expected):
    assert filters.fetches(k, live, scope, filtered, 4_000) == expected


def test_those_that_leave_while_a_search_compares_are_made_up_for(graph, resident, rng):
    hot = graph(dim=16, exact_limit=10_000)
    vectors = rng.normal(size=(500, 16)).astype(np.float32)
    hot.insert([resident(n) for n in range(500)], vectors)
    order = [hit.resident.id for hit in hot.search(vectors[0], 500)]

    def accept(record):
        hot.hide(order[:5])
        return True

    assert [hit.resident.id for hit in hot.search(vectors[0], 10, accept=accept)] == order[5:15]
