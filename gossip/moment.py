"""The two clocks that a core is told about; it never reads one itself."""

from __future__ import annotations

from typing import NamedTuple


class Moment(NamedTuple):
    """When an event happened: wall milliseconds since 1970, and monotonic milliseconds.

    Expiry against signed stamps uses the wall; waits, dwell and rates use the monotonic clock.
    """

    wall_ms: int
    mono_ms: int
