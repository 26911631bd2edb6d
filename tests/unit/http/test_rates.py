"""Fixed windows."""

from __future__ import annotations

import pytest

from node.http import rates
from node.http.problems import TooManyRequests
from node.http.rates import RateLimiter
from node.sections import RateLimit

LIMIT = RateLimit(window=60_000, max=2)


def test_a_window_lets_its_number_through_and_then_says_when() -> None:
    now = [60_000]
    limiter = RateLimiter(lambda: now[0])
    limiter.spend("a", "forget", LIMIT)
    limiter.spend("a", "forget", LIMIT)
    now[0] = 90_500
    with pytest.raises(TooManyRequests) as refused:
        limiter.spend("a", "forget", LIMIT)
    assert refused.value.headers == {"Retry-After": "30"}
    assert refused.value.body == {"retryAfter": 120_000}


def test_the_next_window_starts_anew() -> None:
    now = [0]
    limiter = RateLimiter(lambda: now[0])
    for _ in range(2):
        limiter.spend("a", "forget", LIMIT)
    now[0] = 60_000
    limiter.spend("a", "forget", LIMIT)


def test_actors_and_operations_are_counted_apart() -> None:
    limiter = RateLimiter(lambda: 0)
    for actor, operation in (("a", "forget"), ("b", "forget"), ("a", "modify")):
        for _ in range(2):
            limiter.spend(actor, operation, LIMIT)


def test_the_number_of_counters_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "MAX_COUNTERS", 3)
    limiter = RateLimiter(lambda: 0)
    for number in range(10):
        limiter.spend(f"actor {number}", "forget", LIMIT)
    assert len(limiter._counts) == 3
