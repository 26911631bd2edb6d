"""Operating system signals as trio events.

Opened first and closed last, so that no signal of the node's whole life meets the default
handler. SIGTERM and SIGINT ask for the stop, SIGHUP for a reload; what happens then is for
`node/run.py` to say. A thousand SIGHUPs before the reader looks are one reload.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field

import trio

STOP = (signal.SIGTERM, signal.SIGINT)
RELOAD = tuple(
    getattr(signal, name) for name in ("SIGHUP",) if hasattr(signal, name)
)  # absent on Windows


@dataclass(slots=True)
class Signals:
    """`stop` is set by the first SIGTERM or SIGINT, `stop_now` by the second."""

    stop: trio.Event = field(default_factory=trio.Event)
    stop_now: trio.Event = field(default_factory=trio.Event)
    _reload: trio.Event = field(default_factory=trio.Event)

    async def wait_reload(self) -> None:
        """Returns once a reload was asked for since the last return."""
        await self._reload.wait()
        self._reload = trio.Event()

    def note(self, number: int) -> None:
        """Takes note of one signal; the admin API may call it as well."""
        if number in RELOAD:
            self._reload.set()
        elif self.stop.is_set():
            self.stop_now.set()
        else:
            self.stop.set()


async def receive_signals(
    signals: Signals, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Service: notes signals until cancelled; ready when the handlers are in place.

    Runs in the main thread only. Afterwards the former handlers are back.
    """
    with trio.open_signal_receiver(*STOP, *RELOAD) as received:
        task_status.started()
        async for number in received:
            signals.note(number)
