import pytest

from gossip.moment import Moment
from gossip.quarantine import (
    Cause,
    ClockJump,
    MemberChanged,
    MemberGone,
    ModeChanged,
    NoMembers,
    Quarantine,
    Started,
    Synced,
    Tick,
)
from gossip.settings import QuarantineSettings

PEERS = [bytes([n]) * 16 for n in range(1, 21)]


def at(ms):
    return Moment(1_700_000_000_000 + ms, ms)


def started(*, down_ms=0, alive=5, dead=0, cause=None):
    machine = Quarantine(QuarantineSettings())
    members = frozenset(PEERS[:alive]), frozenset(PEERS[alive : alive + dead])
    effects = machine.handle(Started(down_ms, *members, cause), at(0))
    return machine, effects


def test_a_short_stop_is_no_quarantine():
    machine, effects = started(down_ms=60_000)
    assert machine.may_send_content
    assert effects == []


def test_a_stop_of_more_than_a_minute_is_one():
    machine, effects = started(down_ms=60_001)
    assert not machine.may_send_content
    assert effects == [ModeChanged(Cause.DOWN)]


def test_it_ends_with_three_distinct_peers():
    machine, _ = started(down_ms=61_000)
    answers = [machine.handle(Synced(PEERS[n]), at(1)) for n in (0, 0, 1)]
    assert answers == [[], [], []]
    assert machine.handle(Synced(PEERS[2]), at(2)) == [ModeChanged(None)]
    assert machine.may_send_content


def test_fewer_live_members_need_fewer_syncs():
    machine, _ = started(down_ms=61_000, alive=1, dead=4)
    assert machine.handle(Synced(PEERS[0]), at(1)) == [ModeChanged(None)]


def test_it_survives_a_restart():
    machine, effects = started(cause=Cause.CLOCK_JUMP)
    assert not machine.may_send_content
    assert effects == []


def test_a_durable_quarantine_without_members_is_over():
    _, effects = started(alive=0, cause=Cause.DOWN)
    assert effects == [ModeChanged(None)]


def test_without_other_members_there_is_none():
    machine, _ = started(down_ms=10**9, alive=0)
    machine.handle(ClockJump(10**6), at(1))
    machine.handle(Tick(), at(10**9))
    assert machine.may_send_content


def test_members_that_cannot_be_reached_keep_it():
    machine, _ = started(down_ms=61_000, alive=0, dead=3)
    machine.handle(Tick(), at(1_000))
    assert not machine.may_send_content


def test_losing_the_last_member_for_good_ends_it():
    machine, _ = started(down_ms=61_000, alive=1)
    assert machine.handle(MemberGone(PEERS[0]), at(1)) == [ModeChanged(None)]
    machine, _ = started(down_ms=61_000, alive=4)
    assert machine.handle(NoMembers(), at(1)) == [ModeChanged(None)]


@pytest.mark.parametrize("by_ms, cause", [(5_000, None), (5_001, True), (-5_001, True)])
def test_a_jump_of_the_clock(by_ms, cause):
    machine, _ = started()
    machine.handle(ClockJump(by_ms), at(1))
    assert machine.cause == (Cause.CLOCK_JUMP if cause else None)


def test_five_minutes_without_a_sync():
    machine, _ = started()
    assert machine.handle(Tick(), at(300_000)) == []
    assert machine.handle(Tick(), at(300_001)) == [ModeChanged(Cause.NO_SYNC)]


def test_a_sync_winds_that_clock_up_again():
    machine, _ = started()
    machine.handle(Synced(PEERS[0]), at(200_000))
    assert machine.handle(Tick(), at(500_000)) == []


def test_a_heal_needs_a_sync_with_the_healed_side():
    machine, _ = started(alive=8, dead=2)
    back = PEERS[8]
    assert machine.handle(MemberChanged(back, True), at(1)) == [ModeChanged(Cause.HEALED)]
    for peer in PEERS[:5]:
        machine.handle(Synced(peer), at(2))
    assert not machine.may_send_content
    machine.handle(Synced(back), at(3))
    assert machine.may_send_content


def test_less_than_a_tenth_coming_back_is_no_heal():
    machine, _ = started(alive=18, dead=2)
    machine.handle(MemberChanged(PEERS[18], True), at(1))
    assert machine.may_send_content
    machine.handle(MemberChanged(PEERS[19], True), at(50_000))
    assert not machine.may_send_content


def test_returns_more_than_a_minute_apart_do_not_add_up():
    machine, _ = started(alive=18, dead=2)
    machine.handle(MemberChanged(PEERS[18], True), at(1))
    machine.handle(MemberChanged(PEERS[19], True), at(60_002))
    assert machine.may_send_content


def test_a_new_cause_makes_earlier_syncs_worthless():
    machine, _ = started(down_ms=61_000)
    machine.handle(Synced(PEERS[0]), at(1))
    machine.handle(Synced(PEERS[1]), at(1))
    machine.handle(ClockJump(10_000), at(2))
    machine.handle(Synced(PEERS[2]), at(3))
    assert not machine.may_send_content


def test_a_mesh_restarted_at_once_frees_itself():
    machines = {}
    for self_id in PEERS[:5]:
        machine = Quarantine(QuarantineSettings())
        others = frozenset(PEERS[:5]) - {self_id}
        machine.handle(Started(3_600_000, others), at(0))
        machines[self_id] = machine
    assert not any(machine.may_send_content for machine in machines.values())
    for self_id, machine in machines.items():
        for peer in machines:
            if peer != self_id:
                machine.handle(Synced(peer), at(1_000))
    assert all(machine.may_send_content for machine in machines.values())
