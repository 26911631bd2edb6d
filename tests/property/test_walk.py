import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gossip.walk
from gossip.affinity import PPM
from gossip.copies import LocalDiff, Persist, Send
from gossip.settings import GossipSettings
from gossip.wire.messages import Hop
from tests.support.walk_facts import (
    FAR,
    NEAR,
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

directions = st.sampled_from([NEAR, FAR, (0.8, 0.6), (0.5, 0.9), None])
crowds = st.lists(directions, max_size=30).map(lambda found: peers(*found))
headers = st.builds(
    Hop,
    st.integers(0, 10**7),
    st.integers(0, 14),
    st.integers(0, 4_000_000),
    st.integers(0, 3),
    st.integers(-PPM, PPM),
    st.lists(st.integers(1, 30).map(lambda n: node(n)[:4]), max_size=32).map(tuple),
)
meshes = st.builds(
    lambda size, seed, share, loss, repeat, delay: WalkMesh(
        size,
        seed,
        topics=4,
        known_share=share,
        faults=Faults(loss, repeat, (1, delay)),
    ),
    st.integers(2, 16),
    st.integers(0, 2**32),
    st.floats(0, 1),
    st.floats(0, 0.5),
    st.floats(0, 0.5),
    st.integers(1, 3_000),
)


@settings(deadline=None)
@given(crowds, headers, st.sampled_from([NEAR, FAR, None]), st.booleans(), st.integers(0, 2**32))
def test_shares_costs_and_residue_add_up_to_what_came_in(crowd, hop, own, complete, seed):
    effects = walk(seed).handle(copy(facts(crowd, own=own, complete=complete), hop), at())
    for persist in only(effects, Persist):
        shares = [send.hop.energy_milli for send in only(effects, Send)]
        paid = counted(effects, "energy_spent_total").get("", 0)
        residue = counted(effects, "energy_residual_total").get("", 0)
        assert min(shares, default=0) >= 0
        assert sum(shares) + paid + residue == persist.seen.energy_in
        assert paid >= 1_000 * len(shares)


@settings(deadline=None)
@given(st.lists(st.tuples(headers, st.integers(800, 820)), max_size=40), st.integers(0, 2**32))
def test_whatever_headers_say_a_node_takes_in_at_most_e0_and_sends_at_most_24(frames, seed):
    core, row, sent = walk(seed), None, []
    for hop, sender in frames:
        given_now = facts(peers(*[NEAR] * 40), seen=row)
        effects = core.handle(copy(given_now, hop, peer=node(sender)), at())
        row = next((p.seen for p in only(effects, Persist)), row)
        sent += [send.peer for send in only(effects, Send)]
    if row is not None:
        assert 0 <= row.energy_out <= row.energy_in <= diff().e0_milli
        assert tuple(sent) == row.sent
    assert len(sent) == len(set(sent)) <= 24


@settings(max_examples=40, deadline=None)
@given(meshes)
def test_an_honest_mesh_keeps_the_bound_and_counts_no_violation(mesh):
    for _ in range(4):
        mesh.publish()
    mesh.run()
    mesh.finally_bounded()
    assert mesh.metrics["energy_violation_total", ""] == 0
    assert mesh.metrics["copies_total", "in,refused"] == 0


@settings(deadline=None)
@given(headers, st.integers(3_605_001, 10**9))
def test_an_expired_diff_is_never_forwarded(hop, now_ms):
    effects = walk().handle(copy(facts(peers(NEAR)), hop), at(now_ms))
    assert only(effects, Send) + only(effects, Persist) == []


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32))
def test_one_seed_gives_one_run_byte_for_byte(seed):
    def run():
        core = walk(seed)
        event = LocalDiff(diff(), facts(peers(*[NEAR] * 9, *[FAR] * 9, None)))
        return core.handle(event, at()) + core.handle(copy(facts(peers(NEAR, FAR))), at(1))

    assert run() == run()


def test_the_same_mesh_without_the_clamp_breaks_its_bound(monkeypatch):
    def trusting(self, peer, diff, hop, facts):
        return hop.energy_milli, []

    monkeypatch.setattr(gossip.walk.Walk, "_clamp", trusting)
    forged = header(energy=10**6)
    effects = walk().handle(copy(facts(peers(NEAR)), forged), at())
    assert only(effects, Persist)[0].seen.energy_in > diff().e0_milli


def test_one_forger_cannot_lift_a_mesh_beyond_its_bound():
    mesh = WalkMesh(20, 13, topics=1, known_share=0.7)
    origin, forger = list(mesh.nodes)[:2]
    published = mesh.publish(origin)
    mesh.run()
    honest = mesh.sends[published.diff_id]
    for victim in list(mesh.nodes)[2:]:
        mesh.inject(forger, victim, published, header(energy=10**7))
    mesh.run()
    assert mesh.metrics["energy_violation_total", ""] > 0
    assert honest * 1_000 <= published.e0_milli
    assert all(row.fanout <= 24 for n in mesh.nodes.values() for row in n.seen.values())


@pytest.mark.parametrize("patience", [0, 2])
def test_a_mesh_that_knows_nobody_walks_on_patience(patience):
    rng = random.Random(patience)
    mesh = WalkMesh(
        12, rng.randrange(1_000), known_share=0.0, settings=GossipSettings(patience=patience)
    )
    published = mesh.publish()
    mesh.run()
    assert 1 <= mesh.sends[published.diff_id] <= published.e0_milli // 1_000
