"""A lock that hands over in turn, so that a stream of writes cannot starve a search.

`threading.Lock` lets a thread that releases and at once takes again win every time. Here whoever
waits holds the door: the next writer queues behind it.
"""

from __future__ import annotations

import threading
from types import TracebackType


class TurnLock:
    """Context manager; not re-entrant."""

    def __init__(self) -> None:
        self._door = threading.Lock()
        self._room = threading.Lock()

    def __enter__(self) -> None:
        with self._door:
            self._room.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._room.release()
