"""How often one actor may do one thing: fixed windows, counted in memory.

Counters die with the process; that only ever allows more. The number of actors that are counted
is bounded, so nobody can fill memory with names.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from node.http.problems import TooManyRequests
from node.sections import RateLimit

MAX_COUNTERS = 10_000


class RateLimiter:
    """Counts calls per actor and operation, from any thread.

    `now_ms` is the wall clock in milliseconds.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str], tuple[int, int]] = {}

    def spend(self, actor: str, operation: str, limit: RateLimit) -> None:
        """Count one call. Raises TooManyRequests when the window's allowance is used up."""
        now = self._now_ms()
        start = now - now % limit.window
        key = (actor, operation)
        with self._lock:
            begun, used = self._counts.get(key, (start, 0))
            if begun != start:
                used = 0
            if used < limit.max:
                if key not in self._counts and len(self._counts) >= MAX_COUNTERS:
                    self._counts.pop(next(iter(self._counts)))
                self._counts[key] = (start, used + 1)
                return
        raise TooManyRequests(operation, start + limit.window, now)
