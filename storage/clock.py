"""Hybrid logical clock: order that survives restarts and wrong wall clocks.

A stamp is one integer, 48 bits of milliseconds and 16 bits of counter. The wall clock is passed
in. Wall time never decides a conflict; stamps do, with the node id as tie-break.
After Kulkarni et al., "Logical Physical Clocks", 2014.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum

from storage.model import Hlc

COUNTER_BITS = 16
COUNTER_MASK = (1 << COUNTER_BITS) - 1
MAX_MILLIS = 1 << 47
DRIFT_MS = 5_000
PARK_MS = 60_000


class Stamp(Enum):
    """What to do with a received stamp."""

    ACCEPTED = "accepted"
    PARK = "park"
    REFUSED = "refused"


def millis(stamp: Hlc) -> int:
    """The wall-clock part of a stamp, in milliseconds since 1970."""
    return stamp >> COUNTER_BITS


def from_millis(ms: int, counter: int = 0) -> Hlc:
    """The stamp of a wall time in milliseconds."""
    return ms << COUNTER_BITS | counter


def to_bytes(stamp: Hlc) -> bytes:
    """8 bytes, big endian: the form inside signed records."""
    return stamp.to_bytes(8, "big")


def from_bytes(raw: bytes) -> Hlc:
    """The stamp of 8 bytes. Raises ValueError for another length or for year-9999 nonsense."""
    if len(raw) != 8:
        raise ValueError("a stamp has 8 bytes")
    stamp = int.from_bytes(raw, "big")
    if millis(stamp) >= MAX_MILLIS:
        raise ValueError("a stamp of 2^47 milliseconds or more is malformed")
    return stamp


class HybridClock:
    """Strictly increasing stamps of one node, safe to call from several threads.

    `start` must be above every stamp that this node ever made durable (the reserve), else two
    records could carry one stamp after a crash. Stamps are never given out at or beyond the
    durable reserve, which the node raises each second.
    """

    def __init__(self, wall_ms: Callable[[], int], start: Hlc = 0) -> None:
        self._wall_ms = wall_ms
        self._last = start
        self._lock = threading.Lock()

    @property
    def last(self) -> Hlc:
        """The newest stamp given out or observed."""
        return self._last

    def now(self) -> Hlc:
        """A new stamp, larger than all before; counter overflow advances the milliseconds."""
        with self._lock:
            self._last = max(self._last + 1, from_millis(self._wall_ms()))
            return self._last

    def observe(self, stamp: Hlc) -> Stamp:
        """Take note of a received stamp.

        More than 5 s ahead of the wall clock never moves this clock: up to 60 s ahead the
        caller parks the record until it is due, beyond that it refuses it. Past stamps are
        always accepted.
        """
        ahead = millis(stamp) - self._wall_ms()
        if ahead > PARK_MS:
            return Stamp.REFUSED
        if ahead > DRIFT_MS:
            return Stamp.PARK
        with self._lock:
            self._last = max(self._last, stamp)
        return Stamp.ACCEPTED
