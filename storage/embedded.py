"""The node's own PostgreSQL: started with it, reachable only by it, gone when it is gone.

The server listens on a socket in a folder that only its account may enter, checks the user id
of whoever connects, and has no TCP port. It is started by a small shell that waits on a pipe
from the node: closing the pipe asks for a fast shutdown, and the kernel closes it when the node
is killed. The server has its own session, so that Ctrl-C reaches the node alone.

A lock keeps two nodes off one data folder. A server that a killed node left behind is waited
for, then asked to stop; it is never joined and its data folder never shared.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import trio

from storage.cluster import (
    DATABASE,
    ROLE,
    SERVER_ENV,
    ServerFolder,
    ensure_cluster,
    own_folder,
    server_folder,
)
from storage.errors import StartRefused, Unavailable
from storage.postgres_install import Account, choose_account, programs_for
from storage.settings import EmbeddedSettings

SOCKET_DIR_MAX = 93
"""Bytes of a socket folder's path: 107 of a socket address less the name of the socket."""
PORT = 5432
LOG_ROTATE_BYTES = 5_000_000
LEFTOVER_PATIENCE = 3.0
"""Seconds that a left-behind server gets to stop by itself before it is asked to."""
POLL = 0.005

_SHIM = """\
trap '' TERM HUP INT
exec 3<&0 </dev/null
"$@" 3<&- &
server=$!
(read -r _ <&3; kill -INT "$server") >/dev/null 2>&1 &
watcher=$!
exec 3<&-
wait "$server"
code=$?
kill -KILL "$watcher" 2>/dev/null
exit "$code"
"""


class DatabaseStopped(Unavailable):
    """The embedded PostgreSQL stopped unasked."""


@dataclass(frozen=True, slots=True)
class EmbeddedServer:
    """A running server; `connect_kwargs` are what a connection needs."""

    connect_kwargs: dict[str, Any]
    data_dir: Path
    programs: Path
    process: subprocess.Popen[bytes]
    leaving: threading.Event = field(default_factory=threading.Event)
    """Set before the server is stopped on purpose."""

    async def watch(self) -> None:
        """Return when the server was stopped on purpose; raise DatabaseStopped when it was not."""
        while self.process.poll() is None:  # noqa: ASYNC110 - a process has no event to wait on
            await trio.sleep(0.5)
        if not self.leaving.is_set():
            raise DatabaseStopped


def server_options(settings: EmbeddedSettings) -> dict[str, str]:
    """Settings on the command line: small in memory, and silent about what rows hold."""
    options = {
        "listen_addresses": "",
        "unix_socket_permissions": "0700",
        "shared_buffers": f"{settings.shared_buffers_mb}MB",
        "max_connections": str(settings.max_connections),
        "io_method": "sync",
        "max_worker_processes": "0",
        "max_parallel_workers": "0",
        "max_logical_replication_workers": "0",
        "max_wal_senders": "0",
        "wal_level": "minimal",
        "autovacuum_max_workers": "1",
        "autovacuum_worker_slots": "1",
        "wal_buffers": "256kB",
        "work_mem": "2MB",
        "maintenance_work_mem": "16MB",
        "max_wal_size": f"{settings.max_wal_mb}MB",
        "min_wal_size": "32MB",
        "jit": "off",
        "huge_pages": "off",
        "timezone": "UTC",
        "client_connection_check_interval": "1s",
        "idle_in_transaction_session_timeout": "10min",
        "logging_collector": "off",
        "log_timezone": "UTC",
        "log_min_messages": "log",
        "log_min_error_statement": "panic",
        "log_error_verbosity": "terse",
        "log_statement": "none",
        "log_min_duration_statement": "-1",
        "log_checkpoints": "off",
        "log_parameter_max_length": "0",
        "log_parameter_max_length_on_error": "0",
    }
    if not settings.durable:
        options |= {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
    return options


@contextmanager
def run_embedded(
    data_dir: Path, log_file: Path, settings: EmbeddedSettings
) -> Iterator[EmbeddedServer]:
    """Blocking form of `open_embedded`."""
    data_dir = data_dir.absolute()
    data_dir.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with ExitStack() as stack:
        stack.enter_context(_exclusive(data_dir))
        _settle_leftover(data_dir, settings.stop_timeout)
        account = choose_account(data_dir, settings.run_as)
        programs = programs_for(account)
        ensure_cluster(data_dir, programs, account, durable=settings.durable)
        socket_dir = stack.enter_context(_socket_dir(data_dir, account))
        with (
            server_folder(data_dir, account) as data,
            server_folder(socket_dir, account) as sockets,
            _open_log(log_file) as log,
        ):
            command = [str(programs / "postgres"), "-D", data.name, "-k", sockets.name]
            command += ["-p", str(PORT)]
            for name, value in server_options(settings).items():
                command += ["-c", f"{name}={value}"]
            process, lifeline = _launch(command, data, sockets, account, log)
        stack.callback(_stop, process, lifeline, data_dir, settings.stop_timeout)
        _await_ready(process, data_dir, log_file, settings.start_timeout)
        server = EmbeddedServer(
            {"host": str(socket_dir), "port": PORT, "user": ROLE, "database": DATABASE},
            data_dir,
            programs,
            process,
        )
        stack.callback(server.leaving.set)
        yield server


@asynccontextmanager
async def open_embedded(
    data_dir: Path, log_file: Path, settings: EmbeddedSettings | None = None
) -> AsyncIterator[EmbeddedServer]:
    """Run the server for the body; makes the data folder at the first start (about 1 s).

    Raises StartRefused with one line: programs missing, folder in use, damaged or of another
    version of PostgreSQL, no account to run as, or the server's own reason not to start.
    """
    manager = run_embedded(data_dir, log_file, settings or EmbeddedSettings())
    server = await trio.to_thread.run_sync(manager.__enter__)
    try:
        yield server
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(manager.__exit__, None, None, None)


@contextmanager
def _exclusive(data_dir: Path) -> Iterator[None]:
    """Hold the lock of the data folder; the kernel drops it when this process dies."""
    lock = data_dir.with_name(f"{data_dir.name}.lock")
    fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StartRefused(f"another process uses the database in {data_dir}") from None
        yield
    finally:
        os.close(fd)


@contextmanager
def _socket_dir(data_dir: Path, account: Account) -> Iterator[Path]:
    """A folder for the socket: beside the data, or a private one when that path is too long."""
    beside = data_dir.with_name(f"{data_dir.name}.sock")
    if len(os.fsencode(beside)) <= SOCKET_DIR_MAX:
        own_folder(beside, account)
        yield beside
        return
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    root = runtime if runtime and Path(runtime).is_dir() else tempfile.gettempdir()
    with tempfile.TemporaryDirectory(prefix="mnemesh-", dir=root) as short:
        if len(os.fsencode(short)) > SOCKET_DIR_MAX:
            raise StartRefused(f"{root} is too long a path for a socket: set a shorter TMPDIR")
        own_folder(Path(short), account)
        yield Path(short)


@contextmanager
def _open_log(log_file: Path) -> Iterator[IO[bytes]]:
    log_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if log_file.exists() and log_file.stat().st_size > LOG_ROTATE_BYTES:
        log_file.replace(log_file.with_name(f"{log_file.name}.1"))
    fd = os.open(log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "ab") as log:
        yield log


def _launch(
    command: list[str],
    data: ServerFolder,
    sockets: ServerFolder,
    account: Account,
    log: IO[bytes],
) -> tuple[subprocess.Popen[bytes], int]:
    """Start the shell and the server; the second value is our end of the pipe."""
    reading, writing = os.pipe()
    try:
        process = subprocess.Popen(
            ["/bin/sh", "-c", _SHIM, "mnemesh-postgres", *command],
            stdin=reading,
            stdout=log,
            stderr=log,
            cwd="/",
            env=SERVER_ENV,
            pass_fds=data.fds + sockets.fds,
            start_new_session=True,
            umask=0o077,
            **account.popen(),
        )
    except BaseException:
        os.close(writing)
        raise
    finally:
        os.close(reading)
    return process, writing


def _await_ready(
    process: subprocess.Popen[bytes], data_dir: Path, log_file: Path, timeout: float
) -> None:
    """Wait until the server says in its pid file that it is ready."""
    deadline = time.monotonic() + timeout
    while process.poll() is None:
        if _pid_file(data_dir)[7:8] == ["ready"]:
            return
        if time.monotonic() > deadline:
            raise StartRefused(f"PostgreSQL was not ready after {timeout:.0f} s, see {log_file}")
        time.sleep(POLL)
    raise StartRefused(f"PostgreSQL did not start: {_last_words(log_file)} (see {log_file})")


def _pid_file(data_dir: Path) -> list[str]:
    try:
        text = (data_dir / "postmaster.pid").read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    return [line.strip() for line in text.splitlines()]


def _last_words(log_file: Path) -> str:
    with log_file.open("rb") as log:
        log.seek(max(0, log_file.stat().st_size - 8_192))
        lines = log.read().decode("utf-8", errors="replace").splitlines()
    fatal = [line for line in lines if "FATAL:" in line or "PANIC:" in line]
    return fatal[-1].partition("]")[2].strip() if fatal else "it gave no reason"


def _stop(process: subprocess.Popen[bytes], lifeline: int, data_dir: Path, timeout: float) -> None:
    """Fast shutdown, then immediate, then kill; the data survives each of them."""
    os.close(lifeline)
    for last_resort in (None, signal.SIGQUIT, signal.SIGKILL):
        if last_resort is not None:
            for pid in _occupants(data_dir):
                _signal(pid, last_resort)
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            continue
        return


def _settle_leftover(data_dir: Path, timeout: float) -> None:
    """Wait for, then stop, a server of an earlier node; then drop its stale pid file.

    The caller holds the lock, so whoever still works in the data folder has lost its node.
    """
    if not data_dir.exists() or not Path("/proc/self/cwd").exists():
        return
    begin = time.monotonic()
    asked = False
    while occupants := _occupants(data_dir):
        waited = time.monotonic() - begin
        if waited > LEFTOVER_PATIENCE + timeout:
            raise StartRefused(f"an earlier PostgreSQL still runs in {data_dir} and does not stop")
        if waited > LEFTOVER_PATIENCE and not asked:
            first_line = _pid_file(data_dir)[:1]
            for pid in occupants:
                if [str(pid)] == first_line:
                    _signal(pid, signal.SIGINT)
            asked = True
        time.sleep(POLL * 4)
    (data_dir / "postmaster.pid").unlink(missing_ok=True)


def _occupants(data_dir: Path) -> list[int]:
    """Processes that work in the data folder: the server's, each of them."""
    here = data_dir.stat()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            there = (entry / "cwd").stat()
            if (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino):
                continue
            program = (entry / "exe").readlink().name
        except OSError:
            continue
        if program.startswith("postgres"):
            found.append(int(entry.name))
    return found


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
