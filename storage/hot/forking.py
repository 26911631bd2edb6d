"""One piece of work in a forked child that sees the memory of the process as it stands.

The child shares all pages until either side writes, so a large picture of the graph costs the
parent one fork and no lock beyond it, and none of the child's work holds the parent's
interpreter. The child closes what it inherited, answers to no signal of a terminal, dies with its
parent, and leaves by `os._exit`: nothing of the parent's clean-up runs in it. It must not take a
lock of the parent, log, or touch an event loop.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NoReturn

from storage.errors import MnemeshError

NICENESS: Final = 10
POLL_S: Final = 0.01
MAX_REASON: Final = 200
_DIE_WITH_PARENT: Final = 1
_LIBC: Final = ctypes.CDLL(None) if sys.platform == "linux" else None


class ChildFailed(MnemeshError):
    """The child did not finish its work; the message names the kind of fault."""

    code = "internal"
    retryable = True


@dataclass(slots=True)
class Child:
    """A running child; `wait` must be called once."""

    pid: int
    answer: int

    def wait(self, patience_s: float, check: Callable[[], object] | None = None) -> None:
        """Block until the child has ended. Raises ChildFailed, also after `patience_s`.

        What `check` raises, called every now and then, ends the child and leaves.
        """
        deadline = time.monotonic() + patience_s
        status: int | None = None
        try:
            while (status := self._ended()) is None and time.monotonic() <= deadline:
                time.sleep(POLL_S)
                if check is not None:
                    check()
            reason = os.read(self.answer, MAX_REASON) if status is not None else b""
        finally:
            os.close(self.answer)
            if status is None:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
        if status is None:
            raise ChildFailed(f"the child took longer than {patience_s:g} s")
        code = os.waitstatus_to_exitcode(status)
        if code != 0:
            raise ChildFailed(reason.decode("ascii", "replace") or f"the child ended with {code}")

    def _ended(self) -> int | None:
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        return status if pid else None


def start(work: Callable[[], None]) -> Child:
    """Fork and run `work` in the child, from any thread. Raises OSError when no fork is had.

    What `work` raises is told by its kind and, for system errors, its name; never by its text.
    """
    parent = os.getpid()
    answer, tell = os.pipe()
    try:
        pid = os.fork()
    except OSError:
        os.close(answer)
        os.close(tell)
        raise
    if pid == 0:
        _run(work, parent, tell)
    os.close(tell)
    return Child(pid, answer)


def _run(work: Callable[[], None], parent: int, tell: int) -> NoReturn:
    code = 1
    try:
        _settle(parent, tell)
        work()
        code = 0
    except OSError as error:
        _say(tell, f"{type(error).__name__}: {os.strerror(error.errno or 0)}")
    except BaseException as error:  # noqa: BLE001  # the child has nobody else to tell
        _say(tell, type(error).__name__)
    finally:
        os._exit(code)


def _settle(parent: int, tell: int) -> None:
    gc.disable()
    with contextlib.suppress(ValueError):  # not the main thread of the interpreter
        signal.set_wakeup_fd(-1)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if _LIBC is not None:
        _LIBC.prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    os.closerange(3, tell)
    os.closerange(tell + 1, os.sysconf("SC_OPEN_MAX"))
    os.nice(NICENESS)


def _say(tell: int, reason: str) -> None:
    with contextlib.suppress(OSError):
        os.write(tell, reason.encode("ascii", "replace")[:MAX_REASON])
