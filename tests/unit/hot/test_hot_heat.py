"""The plan of evictions as a function of heat and idleness."""

from __future__ import annotations

import numpy as np
import pytest

from storage.hot import heat

HOUR = 3_600_000


def planned(excess, idle_until_ms, cap):
    rows = heat.plan(
        np.array([5.0, 1.0, 3.0, 2.0, 4.0]),
        np.array([50, 10, 30, 20, 40]),
        np.array([True, True, True, False, True]),
        excess=excess,
        idle_until_ms=idle_until_ms,
        cap=cap,
    )
    return rows.tolist()


@pytest.mark.parametrize(
    "excess, idle_until_ms, cap, expected",
    [
        (0, None, 9, []),
        (-3, None, 9, []),
        (1, None, 9, [1]),
        (2, None, 9, [1, 2]),
        (2, None, 1, [1]),
        (9, None, 9, [1, 2, 4, 0]),
        (0, 40, 9, [1, 2, 4]),
        (0, 40, 2, [1, 2]),
        (1, 9, 9, [1]),
        (0, 9, 9, []),
    ],
)
def test_who_leaves(excess, idle_until_ms, cap, expected):
    assert planned(excess, idle_until_ms, cap) == expected


def test_many_accesses_outweigh_one_a_little_later():
    often = heat.first_heat(0, HOUR)
    for _ in range(9):
        often = heat.warmed(often, 0, HOUR)
    assert often > heat.first_heat(3 * HOUR, HOUR)
    assert often < heat.first_heat(4 * HOUR, HOUR)


def test_an_old_access_adds_little_and_never_cools():
    recent = heat.first_heat(10 * HOUR, HOUR)
    assert recent < heat.warmed(recent, 0, HOUR) < recent + 0.01


def test_accesses_of_many_count_as_one_by_one() -> None:
    heats, accesses = np.array([0.0, 3.0, 7.5]), np.array([1.0, 2.0, 5.0])
    expected = heats.tolist()
    for row, times in enumerate(accesses):
        for _ in range(int(times)):
            expected[row] = heat.warmed(expected[row], 5 * HOUR, HOUR)
    assert heat.warmed_each(heats, accesses, 5 * HOUR, HOUR) == pytest.approx(expected)
