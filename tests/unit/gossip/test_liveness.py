from gossip.liveness import Heard, Life, LifeChanged, LinkDown, LinkUp, Liveness, SendPing, Tick
from gossip.moment import Moment
from gossip.quarantine import Cause, MemberChanged, Quarantine, Started
from gossip.settings import MembershipSettings, QuarantineSettings

A = b"a" * 16
B = b"b" * 16


def at(ms):
    return Moment(1_700_000_000_000 + ms, ms)


def linked():
    liveness = Liveness(MembershipSettings())
    liveness.add(A, at(0))
    liveness.handle(LinkUp(A), at(0))
    return liveness


def test_a_member_unheard_of_is_suspect_and_a_link_makes_it_alive():
    liveness = Liveness(MembershipSettings())
    liveness.add(A, at(0))
    assert liveness.life(A) is Life.SUSPECT
    assert liveness.handle(LinkUp(A), at(1)) == [LifeChanged(A, Life.SUSPECT, Life.ALIVE)]


def test_pings_go_out_once_a_period_over_links_only():
    liveness = linked()
    liveness.add(B, at(0))
    assert liveness.handle(Tick(), at(10)) == [SendPing(A, 1)]
    assert liveness.handle(Tick(), at(1_009)) == []
    assert liveness.handle(Tick(), at(1_010)) == [SendPing(A, 2)]


def test_silence_makes_suspect_then_dead():
    liveness = linked()
    liveness.handle(Tick(), at(0))
    assert LifeChanged(A, Life.ALIVE, Life.SUSPECT) in liveness.handle(Tick(), at(3_001))
    assert LifeChanged(A, Life.SUSPECT, Life.DEAD) in liveness.handle(Tick(), at(15_002))
    assert liveness.live() == frozenset()


def test_a_sign_of_life_ends_suspicion():
    liveness = linked()
    liveness.handle(Tick(), at(3_001))
    assert liveness.handle(Heard(A), at(4_000)) == [LifeChanged(A, Life.SUSPECT, Life.ALIVE)]


def test_a_broken_link_makes_suspect_at_once():
    assert linked().handle(LinkDown(A), at(5)) == [LifeChanged(A, Life.ALIVE, Life.SUSPECT)]


def test_no_copy_goes_to_a_peer_suspected_for_more_than_ten_seconds():
    liveness = linked()
    liveness.handle(LinkDown(A), at(0))
    assert liveness.unwalkable(at(10_000)) == frozenset()
    assert liveness.unwalkable(at(10_001)) == {A}


def test_strangers_are_ignored():
    liveness = linked()
    assert liveness.handle(Heard(B), at(1)) == []
    assert liveness.life(B) is Life.DEAD


def test_a_return_from_the_dead_is_a_heal_for_quarantine():
    liveness, machine = linked(), Quarantine(QuarantineSettings())
    machine.handle(Started(0, frozenset({A})), at(0))
    for ms in (3_001, 15_002):
        for effect in liveness.handle(Tick(), at(ms)):
            if isinstance(effect, LifeChanged):
                alive = effect.after is not Life.DEAD
                machine.handle(MemberChanged(effect.peer, alive), at(ms))
    for effect in liveness.handle(LinkUp(A), at(20_000)):
        machine.handle(MemberChanged(effect.peer, effect.after is not Life.DEAD), at(20_000))
    assert machine.cause is Cause.HEALED
