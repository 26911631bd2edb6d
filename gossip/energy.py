"""The price of a copy and the purse of a diff, in whole milli-units.

A walk is bounded because every copy takes at least 1,000 milli-units out of a purse that its
origin filled once and signed. Nothing here refills: costs round up, shares round down with the
remainder given to the first, so children + costs + residue is always exactly what came in.

Called by the walk and by whoever signs a new diff. Never decides who receives a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from math import isqrt

UNIT = 1_000
"""Milli-units in a unit; also c0, the floor of the price of a copy."""

PPM = 1_000_000
C0 = 1
C1 = 2
CROWDING_PERCENT = 3
FREE_BODY = 4_096
MIN_BUDGET = 16
BASE_BUDGET = 20
MIN_INTERESTED = 8
CEILING_PER_MEMBER = 4


class Urgency(StrEnum):
    LOW = "low"
    NORMAL = "normal"
    URGENT = "urgent"


_HALVES = {Urgency.LOW: 1, Urgency.NORMAL: 2, Urgency.URGENT: 3}


def cost(distance_ppm: int, copies_sent: int, body_bytes: int) -> int:
    """Milli-units for one more copy of a diff.

    Rises with the recipient's distance, by 3 % for each copy that this node has sent before,
    and with the square root of a body above 4 KiB. Tombstones count as 0 bytes.
    """
    size_milli = max(UNIT, isqrt(body_bytes * PPM // FREE_BODY))
    base = C0 * PPM + C1 * distance_ppm
    return -(-base * (100 + CROWDING_PERCENT * copies_sent) * size_milli // (100 * PPM))


def interested(members: int, wanting: int, sampled: int) -> int:
    """How many live members probably want a diff, from a sample of profiles; at least 8."""
    if sampled <= 0:
        return MIN_INTERESTED
    return max(MIN_INTERESTED, -(-members * wanting // sampled))


def ceiling(members: int) -> int:
    """The most milli-units that a diff may start with in a project of so many live members."""
    return max(MIN_BUDGET, CEILING_PER_MEMBER * members) * UNIT


def budget(
    kappa: int, interested_members: int, members: int, urgency: Urgency = Urgency.NORMAL
) -> int:
    """Milli-units that the origin signs into a diff."""
    inner = (kappa * interested_members + BASE_BUDGET) * UNIT * _HALVES[urgency] // 2
    return max(MIN_BUDGET * UNIT, min(inner, CEILING_PER_MEMBER * members * UNIT))


def tombstone_budget(diff_budget_milli: int) -> int:
    """A tombstone walks on a quarter of what a diff would get there; follow does the work."""
    return max(MIN_BUDGET * UNIT, diff_budget_milli // 4)


def explorer_weight(eps_ppm: int, normal_picks: int) -> int:
    """The explorer's share in ppm, where a normal pick has a million.

    Chosen so that the explorer gets the fraction eps of what is split.
    """
    if normal_picks == 0:
        return PPM
    return eps_ppm * normal_picks * PPM // (PPM - eps_ppm)


def split(rest_milli: int, weights_ppm: Sequence[int]) -> list[int]:
    """Shares of the rest in proportion to the weights; they add up to the rest exactly.

    Raises ValueError without weights or when they do not add up to more than zero.
    """
    total = sum(weights_ppm)
    if total <= 0 or min(weights_ppm) < 0 or rest_milli < 0:
        raise ValueError("a split needs a rest and weights that are not negative")
    shares = [rest_milli * weight // total for weight in weights_ppm]
    shares[0] += rest_milli - sum(shares)
    return shares
