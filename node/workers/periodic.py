"""A loop that runs one piece of work again and again until it is cancelled.

A failing pass is logged and counted, and the next one comes at its time. A pass that outlasts its
interval delays the next one; missed passes are never made up for.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from storage.errors import MnemeshError

log = logging.getLogger(__name__)

RECHECK_S = 5.0
"""How soon a shorter or longer interval of a reloaded configuration is noticed."""


async def every(
    interval: Callable[[], float],
    work: Callable[[], Awaitable[object]],
    *,
    name: str,
    first_after: float | None = None,
    on_failure: Callable[[], None] | None = None,
    task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run `work` every `interval()` seconds, counted from start to start; never returns.

    The first pass comes after `first_after` seconds, without it after one interval.
    """
    task_status.started()
    armed = trio.current_time()
    if first_after is None:
        await _pause(armed, interval)
    else:
        await trio.sleep(first_after)
    while True:
        armed = trio.current_time()
        try:
            await work()
        except MnemeshError as error:
            log.warning("%s: a pass failed: %s (%s)", name, error, error.code)
            _count(on_failure)
        except Exception:
            # A fault of one pass must not end upkeep for good.
            log.exception("%s: a pass failed", name)
            _count(on_failure)
        await _pause(armed, interval)


async def _pause(armed: float, interval: Callable[[], float]) -> None:
    """Until one interval after `armed`, asking for the interval again in between."""
    await trio.lowlevel.checkpoint()
    while True:
        left = armed + interval() - trio.current_time()
        if left <= 0:
            return
        await trio.sleep(min(left, RECHECK_S))


def _count(on_failure: Callable[[], None] | None) -> None:
    if on_failure is not None:
        on_failure()
