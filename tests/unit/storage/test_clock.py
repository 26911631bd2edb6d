"""Stamps only grow, whatever the wall clock and the peers say."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.clock import (
    COUNTER_MASK,
    DRIFT_MS,
    MAX_MILLIS,
    PARK_MS,
    HybridClock,
    Stamp,
    from_bytes,
    from_millis,
    millis,
    to_bytes,
)

NOW = 1_785_000_000_000
DAY = 86_400_000

steps = st.lists(
    st.tuples(st.just("wall"), st.integers(-10_000, 10_000))
    | st.tuples(st.just("now"), st.just(0))
    | st.tuples(st.just("observe"), st.integers(-DAY, 2 * DAY)),
    max_size=60,
)


@given(steps)
def test_stamps_strictly_increase_and_stay_near_the_wall(steps: list[tuple[str, int]]) -> None:
    wall = highest = NOW
    clock = HybridClock(lambda: wall)
    given_out = 0
    for kind, amount in steps:
        if kind == "wall":
            wall += amount
            highest = max(highest, wall)
        elif kind == "observe":
            stamp = from_millis(wall + amount, 7)
            if clock.observe(stamp) is Stamp.ACCEPTED:
                assert clock.last >= stamp
        else:
            stamp = clock.now()
            assert stamp > given_out
            given_out = stamp
        assert millis(clock.last) <= highest + DRIFT_MS + 1


@pytest.mark.parametrize(
    ("ahead", "expected"),
    [
        (-120_000, Stamp.ACCEPTED),
        (-10 * DAY, Stamp.ACCEPTED),
        (2_000, Stamp.ACCEPTED),
        (DRIFT_MS, Stamp.ACCEPTED),
        (DRIFT_MS + 1, Stamp.PARK),
        (30_000, Stamp.PARK),
        (PARK_MS, Stamp.PARK),
        (PARK_MS + 1, Stamp.REFUSED),
        (DAY, Stamp.REFUSED),
    ],
)
def test_c_25_what_a_received_stamp_may_do(ahead: int, expected: Stamp) -> None:
    clock = HybridClock(lambda: NOW)
    clock.now()
    before = clock.last
    stamp = from_millis(NOW + ahead)
    assert clock.observe(stamp) is expected
    moved = expected is Stamp.ACCEPTED and stamp > before
    assert clock.last == (stamp if moved else before)


def test_c_25_a_parked_stamp_is_accepted_when_it_is_due() -> None:
    wall = NOW
    clock = HybridClock(lambda: wall)
    stamp = from_millis(NOW + 30_000)
    assert clock.observe(stamp) is Stamp.PARK
    wall += 25_000
    assert clock.observe(stamp) is Stamp.ACCEPTED
    assert clock.now() > stamp


def test_c_24_a_new_life_starts_above_every_durable_stamp() -> None:
    clock = HybridClock(lambda: NOW)
    durable = max(clock.now() for _ in range(50))
    restored = HybridClock(lambda: NOW - DAY, start=durable)
    assert restored.now() > durable


def test_an_overflowing_counter_advances_the_milliseconds() -> None:
    clock = HybridClock(lambda: NOW, start=from_millis(NOW, COUNTER_MASK))
    assert clock.now() == from_millis(NOW + 1)


def test_threads_never_get_the_same_stamp() -> None:
    clock = HybridClock(lambda: NOW)
    stamps: list[int] = []

    def take() -> None:
        mine = [clock.now() for _ in range(500)]
        stamps.extend(mine)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(stamps)) == 2_000


@given(st.integers(0, MAX_MILLIS - 1), st.integers(0, COUNTER_MASK))
def test_eight_bytes_keep_value_and_order(ms: int, counter: int) -> None:
    stamp = from_millis(ms, counter)
    assert from_bytes(to_bytes(stamp)) == stamp
    assert millis(stamp) == ms
    assert to_bytes(stamp) < to_bytes(stamp + 1)


@pytest.mark.parametrize("raw", [b"", bytes(7), bytes(9), b"\x80" + bytes(7), b"\xff" * 8])
def test_malformed_stamps_are_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match="a stamp"):
        from_bytes(raw)
