import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossip.limits import (
    MAX_AGENTS,
    AgentLimits,
    Conduct,
    LinkLimits,
    PeerLimits,
    Standing,
    TokenBucket,
    Traffic,
)
from gossip.settings import LimitSettings

A = b"a" * 16


def peer():
    return PeerLimits(LimitSettings(), 0)


def test_a_bucket_gives_its_burst_then_its_rate():
    bucket = TokenBucket(2, 3, 0)
    assert [bucket.take(1, 0) for _ in range(4)] == [True, True, True, False]
    assert bucket.take(1, 499) is False
    assert bucket.take(1, 500) is True


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(1, 5)), max_size=60))
def test_a_bucket_never_gives_more_than_burst_and_rate_allow(steps):
    bucket, now, given_out = TokenBucket(10, 20, 0), 0, 0
    for wait, tokens in steps:
        now += wait
        given_out += tokens if bucket.take(tokens, now) else 0
    assert given_out * 1_000 <= 20 * 1_000 + now * 10


def test_a_clock_that_steps_back_gives_nothing():
    bucket = TokenBucket(1_000, 1, 5_000)
    bucket.take(1, 5_000)
    assert bucket.take(1, 4_000) is False


def test_walk_copies_beyond_the_burst_are_dropped():
    limits = peer()
    answers = [limits.admit(Traffic.WALK, 100, 1, 0) for _ in range(201)]
    assert all(answer.accepted for answer in answers[:200])
    assert not answers[200].accepted
    assert answers[200].pause_ms > 0


@given(st.lists(st.integers(1, 256), min_size=1, max_size=30))
def test_tombstones_are_delayed_and_never_dropped(pages):
    limits = peer()
    for _ in range(20):
        limits.note(Conduct.BAD_SIGNATURE, 0)
    answers = [limits.admit(Traffic.TOMBSTONE, 60_000, count, 0) for count in pages]
    assert all(answer.accepted for answer in answers)
    assert all(answer.pause_ms <= 10_000 for answer in answers)
    if sum(pages) > 400:
        assert answers[-1].pause_ms > 0


def test_bytes_beyond_the_rate_pause_the_reader():
    limits = peer()
    limits.admit(Traffic.REPAIR, 1 << 20, 0, 0)
    assert limits.admit(Traffic.REPAIR, 1 << 19, 0, 0).pause_ms == 500


@pytest.mark.parametrize(
    "conducts, standing",
    [
        ([Conduct.BAD_SIGNATURE], Standing.FULL),
        ([Conduct.BAD_SIGNATURE, Conduct.ENERGY_VIOLATION], Standing.NO_COPIES),
        ([Conduct.SERVED_TOMBSTONED] * 3, Standing.REPAIR_ONLY),
        ([Conduct.BAD_SIGNATURE] * 11, Standing.DISCONNECT),
    ],
)
def test_bad_conduct_takes_privileges_away(conducts, standing):
    limits = peer()
    for conduct in conducts:
        limits.note(conduct, 0)
    assert limits.standing(0) is standing


def test_merit_is_capped():
    limits = peer()
    for _ in range(80):
        limits.note(Conduct.USEFUL, 0)
    assert limits.score(0) == 50_000


def test_a_score_decays_by_a_tenth_each_minute():
    limits = peer()
    limits.note(Conduct.SERVED_TOMBSTONED, 0)
    assert limits.score(59_999) == -20_000
    assert limits.score(60_000) == -18_000
    assert limits.score(10**9) == 0


def test_a_disconnected_peer_is_out_for_ten_minutes():
    limits = peer()
    for _ in range(11):
        limits.note(Conduct.BAD_FRAME, 0)
    assert limits.standing(599_999) is Standing.DISCONNECT
    assert limits.standing(600_000) is not Standing.DISCONNECT


def test_irrelevant_copies_within_the_share_of_exploring_are_free():
    limits = peer()
    for _ in range(50):
        limits.note(Conduct.USEFUL, 0)
    before = limits.score(0)
    for _ in range(5):
        limits.note(Conduct.IRRELEVANT, 0, explore_ppm=120_000)
    assert limits.score(0) == before
    for _ in range(20):
        limits.note(Conduct.IRRELEVANT, 0, explore_ppm=120_000)
    assert limits.score(0) < before


def test_an_agent_gets_its_energy_cut_then_must_wait():
    limits = AgentLimits(LimitSettings(agent_energy_per_min=100))
    assert limits.grant(A, 60_000, 0) == 60_000
    assert limits.grant(A, 60_000, 0) == 40_000
    assert limits.grant(A, 60_000, 0) is None


def test_an_agent_announces_five_diffs_a_second():
    limits = AgentLimits(LimitSettings())
    assert [limits.grant(A, 1_000, 0) for _ in range(6)] == [1_000] * 5 + [None]
    assert limits.grant(A, 1_000, 200) == 1_000


def test_agents_do_not_fill_memory():
    limits = AgentLimits(LimitSettings())
    for number in range(MAX_AGENTS + 10):
        limits.grant(number.to_bytes(16, "big"), 1_000, 0)
    assert len(limits._buckets) == MAX_AGENTS


def test_barred_are_those_that_get_no_copies():
    links = LinkLimits(LimitSettings())
    links.of(A, 0, score_milli=-11_000)
    links.of(b"b" * 16, 0)
    assert links.barred(0) == {A}
