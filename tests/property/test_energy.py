import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossip.energy import (
    Urgency,
    budget,
    ceiling,
    cost,
    explorer_weight,
    interested,
    split,
    tombstone_budget,
)

distances = st.integers(0, 1_000_000)
copies = st.integers(0, 23)
sizes = st.integers(0, 1 << 20)


@given(distances, copies, sizes)
def test_a_copy_never_costs_less_than_c0(distance_ppm, sent, size):
    assert cost(distance_ppm, sent, size) >= 1_000


@given(distances, copies, sizes)
def test_cost_rises_with_distance_copies_and_size(distance_ppm, sent, size):
    price = cost(distance_ppm, sent, size)
    assert price <= cost(min(distance_ppm + 5_000, 1_000_000), sent, size)
    assert price < cost(distance_ppm, sent + 1, size)
    assert price <= cost(distance_ppm, sent, size + 4_096)


@pytest.mark.parametrize(
    "expected, args",
    [
        (1_000, (0, 0, 0)),
        (1_000, (0, 0, 4_096)),
        (2_000, (0, 0, 16_384)),
        (3_000, (1_000_000, 0, 0)),
        (1_030, (0, 1, 0)),
        (1_001, (1, 0, 0)),
    ],
)
def test_cost_of_known_copies(expected, args):
    assert expected == cost(*args)


@given(st.integers(0, 10**7), st.lists(st.integers(0, 10**6), min_size=1, max_size=25))
def test_shares_add_up_to_the_rest(rest, weights):
    if sum(weights) == 0:
        return
    shares = split(rest, weights)
    assert rest == sum(shares)
    assert min(shares) >= 0


def test_the_remainder_goes_to_the_first():
    assert split(10, [1, 1, 1]) == [4, 3, 3]


def test_a_split_without_weights_is_refused():
    with pytest.raises(ValueError, match="weights"):
        split(10, [])


def test_the_explorer_gets_the_fraction_eps():
    weight = explorer_weight(120_000, 6)
    shares = split(1_000_000, [1_000_000] * 6 + [weight])
    assert abs(shares[-1] - 120_000) <= 7


def test_a_lone_explorer_gets_all():
    assert explorer_weight(120_000, 0) == 1_000_000


@pytest.mark.parametrize(
    "expected, args",
    [
        (16_000, (5, 8, 3)),
        (60_000, (5, 8, 1_000)),
        (90_000, (5, 8, 1_000, Urgency.URGENT)),
        (30_000, (5, 8, 1_000, Urgency.LOW)),
        (120_000, (5, 1_000, 30)),
    ],
)
def test_budget_of_known_meshes(expected, args):
    assert expected == budget(*args)


@given(st.integers(1, 50), st.integers(1, 5_000), st.integers(1, 5_000))
def test_no_normal_budget_is_above_the_ceiling(kappa, wanting, members):
    assert 16_000 <= budget(kappa, wanting, members) <= ceiling(members)


def test_a_tombstone_walks_on_a_quarter():
    assert (tombstone_budget(100_000), tombstone_budget(20_000)) == (25_000, 16_000)


@pytest.mark.parametrize("expected, args", [(8, (5, 1, 5)), (50, (100, 32, 64)), (8, (9, 0, 0))])
def test_interested_members_are_scaled_from_the_sample(expected, args):
    assert expected == interested(*args)
