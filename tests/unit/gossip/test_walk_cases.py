"""Defects that others had, set up against the walk core."""

from dataclasses import replace

import pytest

from gossip.copies import CopyIn, Persist, Refusal, Score, Send
from gossip.limits import Conduct
from gossip.moment import Moment
from gossip.wire.messages import AckStatus
from tests.support.walk_facts import (
    NEAR,
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
    walk,
)
from tests.support.walk_mesh import Faults, WalkMesh

TTL_MS = 3_600_000
DAY_MS = 86_400_000


def test_c_16_a_copy_delayed_beyond_the_ttl_is_not_passed_on():
    aged = header(age_ms=TTL_MS + 1_000)
    effects = walk().handle(copy(facts(peers(NEAR)), aged), at(TTL_MS + 1_000))
    assert only(effects, Send) == []
    assert counted(effects, "refused_total") == {Refusal.EXPIRED_AGE: 1}


def test_c_16_a_copy_that_seen_has_forgotten_is_refused_by_the_signed_expiry():
    forgotten = TTL_MS + 5_000 + DAY_MS + 1_000
    effects = walk().handle(copy(facts(peers(NEAR)), header(age_ms=0)), at(forgotten))
    assert only(effects, Send) + only(effects, Persist) == []
    assert counted(effects, "refused_total") == {Refusal.EXPIRED_CLOCK: 1}


def test_c_16_dwell_refuses_it_also_where_the_wall_clock_was_set_back():
    forgotten = TTL_MS + DAY_MS
    event = replace(copy(facts(peers(NEAR))), read_ms=0)
    effects = walk().handle(event, Moment(WALL, forgotten))
    assert only(effects, Send) == []
    assert counted(effects, "refused_total") == {Refusal.EXPIRED_AGE: 1}


@pytest.mark.parametrize(
    "late_ms, owned, seen_expired",
    [
        (TTL_MS + 1_000, True, False),
        (TTL_MS + 6_000, False, False),
        (TTL_MS + DAY_MS + 6_000, True, True),
        (TTL_MS + DAY_MS + 6_000, False, True),
    ],
)
def test_c_16_a_ring_with_a_slow_node_forwards_nothing_late(late_ms, owned, seen_expired):
    mesh = WalkMesh(5, 4, topics=1, ring=True)
    slow = list(mesh.nodes.values())[1]
    slow.extra_dwell_ms = late_ms
    slow.owned_dwell_ms = late_ms if owned else 0
    published = mesh.publish(next(iter(mesh.nodes)))
    mesh.run(mesh.now + 10_000)
    assert published.diff_id in slow.seen
    if seen_expired:
        for each in mesh.nodes.values():
            each.seen.clear()
    sends = mesh.sends[published.diff_id]
    mesh.run()
    assert mesh.metrics["copies_total", "in,refused"] > 0
    assert mesh.sends[published.diff_id] == sends


def test_c_17_b_raised_energy_and_a_lowered_hop_are_clamped_to_the_signed_limits():
    forged = header(energy=10**9, hop=1)
    effects = walk().handle(copy(facts(peers(NEAR, NEAR), complete=True), forged), at())
    assert Score(node(900), Conduct.ENERGY_VIOLATION) in effects
    assert sum(s.hop.energy_milli for s in only(effects, Send)) <= 59_000 - 2_000
    assert only(effects, Persist)[0].seen.energy_in == 59_000


def test_c_17_b_refilled_energy_is_not_accepted_beyond_the_signed_budget():
    core, row = walk(), None
    for number in range(30):
        forged = header(energy=59_000, hop=1)
        given = facts(peers(*[NEAR] * 30), seen=row, complete=True)
        effects = core.handle(copy(given, forged, peer=node(900 + number)), at())
        row = only(effects, Persist)[0].seen
    assert row.energy_in <= diff().e0_milli
    assert row.fanout <= 24


def test_c_17_c_a_replay_after_a_restart_is_a_duplicate_and_brings_nothing():
    first = only(walk().handle(copy(facts(peers(NEAR))), at()), Persist)[0]
    restarted = walk()
    effects = restarted.handle(copy(facts(peers(NEAR, NEAR), seen=first.seen)), at(1_000))
    assert [effect.status for effect in effects if hasattr(effect, "status")] == [AckStatus.DUP]
    assert only(effects, Send) + only(effects, Persist) == []
    assert Score(node(900), Conduct.ENERGY_VIOLATION) in effects


def test_c_19_a_bad_signature_costs_the_first_hop_only_and_spreads_nowhere():
    mesh = WalkMesh(10, 6, topics=1, known_share=0.5)
    origin, first = list(mesh.nodes)[:2]
    bad = replace(diff(), diff_id=b"x" * 32, origin=origin, q=mesh.vector(0, 0.1))
    mesh.bad.add(bad.diff_id)
    mesh.inject(origin, first, bad, header())
    mesh.run()
    assert mesh.sends[bad.diff_id] == 0
    blamed = [key for key in mesh.scores if key[2] == Conduct.BAD_SIGNATURE]
    assert blamed == [(first, origin, "bad_signature")]


def test_c_19_a_valid_diff_goes_at_most_once_to_each_peer_of_each_node():
    mesh = WalkMesh(10, 6, topics=1, known_share=0.5, faults=Faults(repeat=0.3, loss=0.1))
    valid = mesh.publish()
    mesh.run()
    assert mesh.sends[valid.diff_id] == len(mesh.sent_pairs)
    assert mesh.metrics["energy_violation_total", ""] == 0


def test_a_copy_that_could_not_be_opened_is_answered_by_its_id():
    event = CopyIn(node(1), b"z" * 32, header(), None, facts(refusal=Refusal.NONCANONICAL))
    effects = walk().handle(event, at())
    assert counted(effects, "refused_total") == {Refusal.NONCANONICAL: 1}
    assert Score(node(1), Conduct.BAD_SIGNATURE) in effects
