import pytest
from msgspec import structs

from gossip.affinity import PPM
from gossip.copies import (
    Ack,
    AckIn,
    Intent,
    Keep,
    LocalDiff,
    Persist,
    PersistRefused,
    RecordDelivery,
    Refusal,
    Score,
    Seen,
    Send,
    SetTimer,
    Stop,
    Timer,
)
from gossip.limits import Conduct
from gossip.profile import Candidate
from gossip.wire.messages import AckStatus
from storage import clock
from tests.support.walk_facts import (
    FAR,
    NEAR,
    ORIGIN,
    SELF,
    WALL,
    at,
    copy,
    counted,
    diff,
    facts,
    header,
    node,
    only,
    peers,
    profile,
    walk,
)

SENDER = node(900)
TWENTY_FOUR = tuple(node(number) for number in range(2, 26))


def stops(effects):
    return list(counted(effects, "walk_stop_total"))


def seen(**fields):
    return Seen(b"d" * 32, clock.from_millis(WALL), WALL, **fields)


def test_a_local_diff_goes_to_up_to_six_who_want_it_and_one_explorer():
    candidates = peers(*[NEAR] * 10, *[FAR] * 5)
    effects = walk().handle(LocalDiff(diff(), facts(candidates)), at())
    near = {c.peer for c in candidates[:10]}
    sent = [send.peer for send in only(effects, Send)]
    assert len(sent) == 7
    assert set(sent[:6]) <= near
    assert {send.hop.hop for send in only(effects, Send)} == {1}


def test_a_fully_known_mesh_is_not_explored():
    candidates = peers(*[NEAR] * 3, *[FAR] * 5)
    effects = walk().handle(LocalDiff(diff(), facts(candidates, complete=True)), at())
    assert {s.peer for s in only(effects, Send)} == {c.peer for c in candidates[:3]}


def test_a_node_that_does_not_want_a_diff_passes_nothing_on_in_a_fully_known_mesh():
    given = facts(peers(NEAR, NEAR), own=FAR, complete=True)
    effects = walk().handle(copy(given), at())
    assert only(effects, Send) == []
    assert stops(effects) == ["no_candidate"]


def test_a_second_announcement_of_a_diff_does_nothing():
    assert walk().handle(LocalDiff(diff(), facts(peers(NEAR), seen=seen())), at()) == []


def test_persist_comes_first_then_the_ack_then_the_sends():
    effects = walk().handle(copy(facts(peers(NEAR, NEAR))), at())
    kinds = [type(effect) for effect in effects]
    assert kinds.index(Persist) < kinds.index(Ack) < kinds.index(Send) < kinds.index(SetTimer)
    (persist,) = only(effects, Persist)
    assert [i.peer for i in persist.intents] == [s.peer for s in only(effects, Send)]


@pytest.mark.parametrize(
    "own, keep, status",
    [
        (NEAR, Keep.STORE, AckStatus.STORED),
        (FAR, Keep.RELAY, AckStatus.RELAYED),
        (None, Keep.RELAY, AckStatus.RELAYED),
    ],
)
def test_a_first_copy_is_stored_if_wanted_else_kept_for_relaying(own, keep, status):
    effects = walk().handle(copy(facts(own=own)), at())
    assert only(effects, Persist)[0].keep is keep
    assert only(effects, Ack) == [Ack(SENDER, b"d" * 32, status)]


@pytest.mark.parametrize(
    "own, complete, conducts",
    [
        (NEAR, False, [Conduct.USEFUL]),
        (NEAR, True, [Conduct.USEFUL]),
        (FAR, True, [Conduct.IRRELEVANT]),
        (FAR, False, []),
        (None, True, []),
    ],
)
def test_an_unwanted_copy_counts_only_where_nobody_has_a_reason_to_explore(own, complete, conducts):
    effects = walk().handle(copy(facts(own=own, complete=complete)), at())
    assert only(effects, Score) == [Score(SENDER, conduct) for conduct in conducts]


def test_a_relay_sends_to_the_nearest_peer_only():
    given = facts(peers(FAR, NEAR, (0.6, 0.8)), own=FAR)
    (send,) = only(walk().handle(copy(given), at()), Send)
    assert send.peer == node(2)
    assert (send.hop.explore, send.hop.best_ppm) == (0, PPM)


def test_a_relay_that_does_not_climb_uses_patience():
    given = facts(peers((0.3, 1.0)), own=FAR)
    best = header(best_ppm=900_000, explore=1)
    (send,) = only(walk().handle(copy(given, best), at()), Send)
    assert (send.hop.explore, send.hop.best_ppm) == (2, 900_000)


def test_a_relay_without_patience_left_stops():
    given = facts(peers((0.3, 1.0)), own=FAR)
    effects = walk().handle(copy(given, header(best_ppm=900_000, explore=2)), at())
    assert only(effects, Send) == []
    assert stops(effects) == ["patience"]


def test_a_relay_that_knows_no_profile_tries_anybody_on_patience():
    given = facts(peers(None, None), own=FAR)
    (send,) = only(walk().handle(copy(given), at()), Send)
    assert send.hop.explore == 1
    assert only(walk().handle(copy(given, header(explore=2)), at()), Send) == []


def test_those_who_have_it_are_not_candidates():
    candidates = peers(*[NEAR] * 6)
    row = seen(energy_in=5_000, energy_out=5_000, sent=(node(1),), senders=(node(2),))
    hop = header(skip=(node(3)[:4],))
    effects = walk().handle(copy(facts(candidates, seen=row, complete=True), hop), at())
    assert {s.peer for s in only(effects, Send)} == {node(4), node(5), node(6)}


def test_neither_the_origin_nor_this_node_is_a_candidate():
    others = tuple(Candidate(peer, profile(peer, NEAR)) for peer in (ORIGIN, SELF))
    effects = walk().handle(copy(facts(others)), at())
    assert only(effects, Send) == []


def test_children_skip_their_siblings_and_this_node():
    effects = walk().handle(copy(facts(peers(NEAR, NEAR), complete=True)), at())
    for send in only(effects, Send):
        assert set(send.hop.skip) == {node(1)[:4], node(2)[:4], SELF[:4]}


def test_the_skip_list_keeps_the_newest_thirty_two():
    old = tuple(node(n)[:4] for n in range(100, 132))
    (send,) = only(
        walk().handle(copy(facts(peers(NEAR), complete=True), header(skip=old)), at()), Send
    )
    assert send.hop.skip == (*old[2:], node(1)[:4], SELF[:4])


@pytest.mark.parametrize(
    "given, hop, stop",
    [
        (facts(peers(NEAR), may_send=False), header(), Stop.QUARANTINED),
        (facts(peers(NEAR)), header(energy=100, hop=12), Stop.HOP_MAX),
        (facts(peers(NEAR)), header(energy=999), Stop.ENERGY),
        (facts(peers(NEAR)), header(energy=1_000), None),
        (facts(peers(FAR), complete=True), header(), Stop.NO_CANDIDATE),
        (
            facts(peers(NEAR), seen=seen(sent=tuple(map(node, range(2, 26))))),
            header(),
            "fanout_cap",
        ),
        (facts(peers(NEAR), seen=seen(outcome="tombstoned")), header(), Stop.TOMBSTONED),
        (facts(peers(NEAR), seen=seen(outcome="fenced")), header(), Stop.FENCED),
        (facts(peers(NEAR), seen=seen(outcome="expired_age")), header(), Stop.EXPIRED_AGE),
        (facts(peers(NEAR), seen=seen(outcome="expired_clock")), header(), Stop.EXPIRED_CLOCK),
    ],
)
def test_what_stops_a_walk_and_what_does_not(given, hop, stop):
    effects = walk().handle(copy(given, hop), at())
    assert stops(effects) == ([] if stop is None else [stop])
    assert bool(only(effects, Send)) is (stop is None)


def test_a_copy_at_the_last_hop_is_still_stored():
    effects = walk().handle(copy(facts(peers(NEAR)), header(energy=100, hop=12)), at())
    assert only(effects, Persist)[0].keep is Keep.STORE


@pytest.mark.parametrize("refusal", list(Refusal))
def test_a_refused_copy_changes_nothing_and_goes_nowhere(refusal):
    effects = walk().handle(copy(facts(peers(NEAR), refusal=refusal)), at())
    assert only(effects, Ack) == [Ack(SENDER, b"d" * 32, AckStatus.REFUSED, refusal.value)]
    assert only(effects, Persist) + only(effects, Send) == []
    assert counted(effects, "refused_total") == {refusal.value: 1}
    assert len(stops(effects)) == 1


@pytest.mark.parametrize(
    "hop, now_ms, ttl_ms, refusal",
    [
        (header(hop=13), 0, 3_600_000, Refusal.HOP_MAX),
        (header(age_ms=1_001), 0, 1_000, Refusal.EXPIRED_AGE),
        (header(age_ms=1_000), 0, 1_000, None),
        (header(), 6_001, 1_000, Refusal.EXPIRED_CLOCK),
        (header(), 6_000, 1_000, None),
    ],
)
def test_hop_age_and_clock_are_judged_by_the_signed_limits(hop, now_ms, ttl_ms, refusal):
    effects = walk().handle(copy(facts(), hop, of=diff(ttl_ms=ttl_ms)), at(now_ms))
    (ack,) = only(effects, Ack)
    assert ack.reason == (refusal.value if refusal else "")


def test_expiry_is_judged_before_rates_and_after_signatures():
    late = header(hop=13)
    for refusal, reason in [(Refusal.RATE, "hop_max"), (Refusal.SIGNATURE, "signature")]:
        effects = walk().handle(copy(facts(refusal=refusal), late), at())
        assert only(effects, Ack)[0].reason == reason


def test_the_wait_of_a_parked_copy_counts_as_age():
    event = copy(facts(peers(NEAR)))
    parked = type(event)(event.peer, event.diff_id, event.hop, event.diff, event.facts, read_ms=0)
    (send,) = only(walk().handle(parked, at(30_000)), Send)
    assert send.hop.age_ms == 30_000


def test_forged_energy_is_clamped_and_counted():
    given = facts(peers(NEAR), complete=True)
    effects = walk().handle(copy(given, header(energy=10**9, hop=3)), at())
    assert only(effects, Persist)[0].seen.energy_in == 57_000
    assert Score(SENDER, Conduct.ENERGY_VIOLATION) in effects
    assert counted(effects, "energy_violation_total") == {"": 1}


def test_a_forged_hop_of_zero_gains_nothing():
    effects = walk().handle(copy(facts(peers(NEAR)), header(energy=60_000, hop=0)), at())
    assert only(effects, Persist)[0].seen.energy_in == 59_000
    assert {send.hop.hop for send in only(effects, Send)} == {2}


def test_energy_that_passes_twice_is_clamped_in_silence():
    row = seen(energy_in=55_000, energy_out=55_000)
    effects = walk().handle(copy(facts(peers(NEAR), seen=row)), at())
    assert only(effects, Persist)[0].seen.energy_in == 60_000
    assert only(effects, Score) == []


def test_a_budget_beyond_what_the_mesh_needs_is_cut_without_blame():
    given = facts(peers(NEAR), members=2)
    effects = walk().handle(copy(given, header(energy=900_000), of=diff(e0=10**6)), at())
    assert only(effects, Persist)[0].seen.energy_in == 31_000
    assert counted(effects, "e0_clamped_total") == {"": 1}
    assert counted(effects, "energy_violation_total") == {}


def test_a_duplicate_is_not_stored_and_its_energy_serves_others():
    row = seen(energy_in=3_000, energy_out=3_000, sent=(node(1),), senders=(node(901),))
    effects = walk().handle(copy(facts(peers(NEAR, NEAR), seen=row, complete=True)), at())
    (persist,) = only(effects, Persist)
    assert persist.keep is Keep.NOTHING
    assert persist.seen.sent == (node(1), node(2))
    assert persist.seen.senders == (node(901), SENDER)
    assert only(effects, Ack)[0].status is AckStatus.DUP


@pytest.mark.parametrize("waited_ms", [0, 700])
def test_a_retry_gets_the_same_answer_and_no_blame(waited_ms):
    core, event = walk(), copy(facts(peers(NEAR)))
    row = only(core.handle(event, at()), Persist)[0].seen
    retry = structs.replace(event.hop, age_ms=event.hop.age_ms + waited_ms)
    effects = core.handle(copy(facts(peers(NEAR), seen=row), retry), at(2_000))
    assert only(effects, Ack) == [Ack(SENDER, b"d" * 32, AckStatus.STORED)]
    assert only(effects, Persist) + only(effects, Score) + only(effects, Send) == []


def test_an_answer_ends_the_wait():
    core = walk()
    core.handle(copy(facts(peers(NEAR), complete=True)), at())
    effects = core.handle(AckIn(node(1), b"d" * 32, AckStatus.STORED), at(10))
    assert only(effects, RecordDelivery) == [
        RecordDelivery(b"d" * 32, b"m" * 16, node(1), "store", "stored")
    ]
    assert core.unanswered == 0
    assert core.handle(Timer(node(1), b"d" * 32), at(2_000)) == []


def test_an_answer_from_a_stranger_or_a_second_one_is_ignored():
    core = walk()
    core.handle(copy(facts(peers(NEAR), complete=True)), at())
    assert core.handle(AckIn(node(7), b"d" * 32, AckStatus.STORED), at(10)) == []
    assert core.unanswered == 1


def test_silence_brings_two_retries_with_the_same_header_then_a_timeout():
    core = walk()
    first = only(core.handle(copy(facts(peers(NEAR), complete=True)), at()), Send)[0]
    log = [core.handle(Timer(node(1), b"d" * 32), at(ms)) for ms in (2_000, 4_000, 6_000)]
    retries = [only(effects, Send)[0] for effects in log[:2]]
    assert [retry.hop for retry in retries] == [first.hop, first.hop]
    assert [retry.attempt for retry in retries] == [1, 2]
    assert only(log[1], SetTimer) == [SetTimer(node(1), b"d" * 32, 6_000)]
    assert only(log[2], RecordDelivery)[0].status == "timeout"
    assert core.unanswered == 0


def test_a_refused_commit_sends_nothing_and_waits_for_nobody():
    core = walk()
    (persist,) = only(core.handle(copy(facts(peers(NEAR))), at()), Persist)
    effects = core.handle(PersistRefused(persist, Refusal.TOMBSTONED), at())
    assert only(effects, Ack) == [Ack(SENDER, b"d" * 32, AckStatus.REFUSED, "tombstoned")]
    assert only(effects, Send) == []
    assert stops(effects) == ["tombstoned"]
    assert core.unanswered == 0


def test_intents_say_what_the_peer_will_do_with_it():
    given = facts(peers(FAR), own=FAR)
    (persist,) = only(walk().handle(copy(given), at()), Persist)
    assert persist.intents == (Intent(node(1), "relay"),)


def test_an_unknown_peer_costs_what_half_the_distance_costs():
    effects = walk().handle(copy(facts(peers(None), own=FAR)), at())
    assert counted(effects, "energy_spent_total") == {"": 2_000}


def test_a_big_body_buys_fewer_copies():
    given = facts(peers(*[NEAR] * 6), complete=True)
    small = walk().handle(copy(given, header(energy=8_000)), at())
    large = walk().handle(copy(given, header(energy=8_000), of=diff(body=64 * 1_024)), at())
    assert (len(only(small, Send)), len(only(large, Send))) == (6, 1)


def test_the_last_copies_stop_at_the_cap():
    row = seen(sent=TWENTY_FOUR[:22])
    effects = walk().handle(copy(facts(peers(*[NEAR] * 9, first=100), seen=row)), at())
    assert len(only(effects, Send)) == 2
