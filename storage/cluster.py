"""The data folder of the embedded PostgreSQL: made whole or not at all, and its access rules.

A folder is built beside its final place and renamed when complete, so a build that was
interrupted is never taken for a database. The node connects as the role `mnemesh`, which owns
its database and is no superuser. Exactly one operating-system user may connect, the one that
the node runs as; the rules are written anew at each start.

When the server runs as another account, that account must reach the data folder although every
folder above it is closed to it. No folder is opened for this: the node opens the data folder
itself and the server inherits the descriptor, addressing the folder as /proc/self/fd/N.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from storage.errors import StartRefused
from storage.postgres_install import MAJOR, Account, account_name

ROLE = "mnemesh"
DATABASE = "mnemesh"
INITDB_TIMEOUT = 120.0
FIRST_FREE_FD = 20
"""Inherited descriptors start here, out of the way of those that a shell uses."""

FIRST_NORMAL_OID = 16_384
"""Below it objects count as PostgreSQL's own and pg_dump leaves them out. A server in single-user
mode goes on counting where initdb stopped, far below, hence the step between the two."""

SERVER_ENV = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "LANG": "C.UTF-8", "TZ": "UTC"}

_INITDB = (
    "--username=postgres",
    "--auth-local=peer",
    "--auth-host=reject",
    "--encoding=UTF8",
    "--locale-provider=builtin",
    "--builtin-locale=C.UTF-8",
    "--locale=C.UTF-8",
    "--no-instructions",
)
_FIRST_STATEMENTS = f"""\
CREATE EXTENSION vector;
CREATE ROLE {ROLE} LOGIN CREATEDB;
GRANT pg_monitor, pg_checkpoint TO {ROLE};
CREATE DATABASE {DATABASE} OWNER {ROLE};
"""
"""Run in template1, so that each database has pgvector; one statement a line."""


@dataclass(frozen=True, slots=True)
class ServerFolder:
    """A folder as the server names it: by path, or by an inherited descriptor."""

    path: Path
    name: str
    fds: tuple[int, ...]


@contextmanager
def server_folder(path: Path, account: Account) -> Iterator[ServerFolder]:
    """Make a folder reachable for the server's account, and for nobody else, in the body."""
    if not account.foreign:
        yield ServerFolder(path, str(path), ())
        return
    if sys.platform != "linux":
        raise StartRefused("the embedded PostgreSQL cannot be run by root here: use another user")
    first = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fd = fcntl.fcntl(first, fcntl.F_DUPFD_CLOEXEC, FIRST_FREE_FD)
    finally:
        os.close(first)
    try:
        yield ServerFolder(path, f"/proc/self/fd/{fd}", (fd,))
    finally:
        os.close(fd)


def own_folder(path: Path, account: Account) -> None:
    """Make sure of a folder that only the server's account may enter."""
    path.mkdir(mode=0o700, exist_ok=True)
    if account.foreign:
        os.chown(path, account.uid, account.gid, follow_symlinks=False)
    path.chmod(0o700)


def ensure_cluster(data_dir: Path, programs: Path, account: Account, *, durable: bool) -> None:
    """Make the data folder when there is none; refuse one that is not whole or of another age.

    The caller holds the lock of the folder. Half-built folders of earlier starts are removed;
    each build has a name of its own, because a builder may outlive the node that started it.
    """
    for abandoned in data_dir.parent.glob(f"{data_dir.name}.building-*"):
        shutil.rmtree(abandoned, ignore_errors=True)
    if data_dir.exists() and any(data_dir.iterdir()):
        _check_cluster(data_dir)
    else:
        building = data_dir.with_name(f"{data_dir.name}.building-{secrets.token_hex(4)}")
        own_folder(building, account)
        try:
            with server_folder(building, account) as folder:
                _initialise(folder, programs, account, durable)
        except BaseException:
            shutil.rmtree(building, ignore_errors=True)
            raise
        building.rename(data_dir)
        _sync(data_dir.parent)
    _write_access_rules(data_dir, account)


def _check_cluster(data_dir: Path) -> None:
    version_file = data_dir / "PG_VERSION"
    if not version_file.is_file() or not (data_dir / "global" / "pg_control").is_file():
        raise StartRefused(f"{data_dir} is not a whole PostgreSQL data folder; restore a backup")
    version = version_file.read_text(encoding="ascii").strip()
    if version != MAJOR:
        raise StartRefused(
            f"{data_dir} was made by PostgreSQL {version}, this mnemesh brings {MAJOR}: "
            "dump it with the old version and restore it"
        )


def _initialise(folder: ServerFolder, programs: Path, account: Account, durable: bool) -> None:
    sync = () if durable else ("--no-sync",)
    _run([str(programs / "initdb"), "-D", folder.name, *_INITDB, *sync], folder, account)
    reset = [str(programs / "pg_resetwal"), f"--next-oid={FIRST_NORMAL_OID}", "-D", folder.name]
    _run(reset, folder, account)
    single = [str(programs / "postgres"), "--single", "-D", folder.name]
    single += ["-c", "exit_on_error=on", "-c", f"fsync={'on' if durable else 'off'}", "template1"]
    _run(single, folder, account, stdin=_FIRST_STATEMENTS)


def _run(command: list[str], folder: ServerFolder, account: Account, stdin: str = "") -> None:
    step = Path(command[0]).name
    try:
        result = subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
            env=SERVER_ENV,
            pass_fds=folder.fds,
            timeout=INITDB_TIMEOUT,
            umask=0o077,
            **account.popen(),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StartRefused(f"cannot make the database: {step}: {error}") from error
    if result.returncode != 0:
        lines = [line for line in result.stderr.splitlines() if line.strip()]
        blamed = [line for line in lines if re.search(r"error:|ERROR:|FATAL:|PANIC:", line)]
        reason = (blamed or lines or [f"exit code {result.returncode}"])[0]
        raise StartRefused(f"cannot make the database: {step}: {reason}")


def _write_access_rules(data_dir: Path, account: Account) -> None:
    """Only the node's own user may connect, over the socket, and only as ROLE."""
    user = account_name(os.geteuid()).replace('"', '""')
    rules = {
        "pg_hba.conf": "local all all peer map=node\n",
        "pg_ident.conf": f'node "{user}" {ROLE}\n',
    }
    for name, text in rules.items():
        fresh = data_dir / f"{name}.new"
        with fresh.open("w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), 0o600)
            if account.foreign:
                os.fchown(file.fileno(), account.uid, account.gid)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(data_dir / name)
    _sync(data_dir)


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
