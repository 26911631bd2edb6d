"""The folder of one node: where it is, what is in it, who may read it, and who runs on it.

Every path below the workspace has its name here. Nothing here reads what the files say; keys and
secrets are read by their own modules, which rely on the folder modes that `prepare` enforces.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from storage.errors import StartRefused

LOCATION_FILE: Final = Path(".config", "mnemesh", "location.json")
MAX_LOCATION_BYTES: Final = 1 << 16
_LOCK_TRIES = 5
_LOCK_PAUSE_S = 0.02


class WorkspaceInUse(StartRefused):
    """The workspace is in use by another process."""

    code = "workspace_in_use"


def resolve_workspace(path: Path | None, environ: Mapping[str, str], home: Path) -> Path:
    """The workspace folder: `--path`, MNEMESH_WORKSPACE, the location file, `~/.mnemesh`.

    The location file is `~/.config/mnemesh/location.json` with `{"workspace": "<path>"}`. The
    folder need not exist. Raises StartRefused naming the source of an unusable path.
    """
    if path is not None:
        return _absolute(str(path), "--path", home)
    if named := environ.get("MNEMESH_WORKSPACE", ""):
        return _absolute(named, "MNEMESH_WORKSPACE", home)
    location = home / LOCATION_FILE
    if location.exists():
        return _absolute(_read_location(location), str(location), home)
    return home / ".mnemesh"


@dataclass(frozen=True, slots=True)
class Workspace:
    """Paths of one workspace, and the actions on the folder itself."""

    root: Path

    @property
    def pg(self) -> Path:
        """Files of the embedded PostgreSQL; made by its own module, for its own user."""
        return self.root / "memory" / "pg"

    @property
    def hot(self) -> Path:
        """Snapshots of the hot graph."""
        return self.root / "memory" / "hot"

    @property
    def scripts(self) -> Path:
        """Optional batch tools."""
        return self.root / "memory" / "scripts"

    @property
    def agents(self) -> Path:
        """Identity files of named agents."""
        return self.root / "agents"

    @property
    def skills(self) -> Path:
        """Installed skills."""
        return self.root / "skills"

    @property
    def keys(self) -> Path:
        """The key store."""
        return self.root / "keys"

    @property
    def ledger(self) -> Path:
        """File copy of the ledger and the clock's reserve."""
        return self.root / "ledger"

    @property
    def secrets(self) -> Path:
        """Encrypted secrets and the machine id."""
        return self.root / ".secrets"

    @property
    def daemon(self) -> Path:
        """What the running process leaves for others to find."""
        return self.root / ".daemon"

    @property
    def logs(self) -> Path:
        """Log files."""
        return self.daemon / "logs"

    @property
    def pid_file(self) -> Path:
        """Decimal pid; exists while the node listens."""
        return self.daemon / "pid"

    @property
    def lock_file(self) -> Path:
        """Locked while a process owns the workspace; holds that process's pid."""
        return self.daemon / "lock"

    @property
    def auth_secret(self) -> Path:
        """32 raw bytes that sign tokens."""
        return self.daemon / "auth-secret"

    @property
    def agent_socket(self) -> Path:
        """The agent port."""
        return self.daemon / "agent.sock"

    @property
    def memory_summary(self) -> Path:
        """The generated working-memory summary."""
        return self.root / "MEMORY.md"

    def prepare(self) -> None:
        """Creates what is missing and checks the folders that hold secrets; idempotent.

        Folders are 0700. Run by root, the way to `memory/pg` can be passed but not listed (0711),
        because the embedded server runs as another user. Existing folders keep their mode;
        `keys`, `ledger`, `.secrets` and `.daemon` are refused when they belong to somebody else,
        let others in, or are links. Raises StartRefused naming the folder.
        """
        passage = 0o711 if os.geteuid() == 0 else 0o700
        try:
            self.root.parent.mkdir(parents=True, exist_ok=True)
            for folder in (self.root, self.root / "memory"):
                _make(folder, passage)
            private = (self.keys, self.ledger, self.secrets, self.daemon)
            for folder in (*private, self.logs, self.hot, self.scripts, self.agents, self.skills):
                _make(folder, 0o700)
        except OSError as error:
            raise StartRefused(
                f"workspace {self.root}: {error.filename} cannot be made ({error.strerror})"
            ) from error
        for folder in private:
            _check_private(folder)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Owns the workspace until the end of the block, or of the process, however it ends.

        Needs `prepare` first. Removes the pid file of a process that died. Raises
        WorkspaceInUse with the other process's pid.
        """
        try:
            descriptor = os.open(self.lock_file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise StartRefused(f"{self.lock_file} cannot be opened ({error.strerror})") from error
        try:
            if not _try_lock(descriptor, _LOCK_TRIES):
                pid = _read_pid(self.lock_file)
                raise WorkspaceInUse(
                    f"workspace is in use by pid {pid if pid else 'unknown'}: {self.root}"
                )
            self.pid_file.unlink(missing_ok=True)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            try:
                yield
            finally:
                self.pid_file.unlink(missing_ok=True)
                os.ftruncate(descriptor, 0)
        finally:
            os.close(descriptor)

    def write_pid(self) -> None:
        """Tells others that the node listens; `lock` removes the file again."""
        fresh = self.pid_file.with_suffix(".new")
        fresh.write_text(f"{os.getpid()}\n", encoding="ascii")
        fresh.replace(self.pid_file)

    def running_pid(self) -> int | None:
        """The pid of the process that owns the workspace, if any; removes a stale pid file."""
        try:
            descriptor = os.open(self.lock_file, os.O_RDWR | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        try:
            if _try_lock(descriptor, 1):
                self.pid_file.unlink(missing_ok=True)
                return None
            return _read_pid(self.lock_file)
        finally:
            os.close(descriptor)


def _absolute(text: str, source: str, home: Path) -> Path:
    if "\0" in text or not text.strip():
        raise StartRefused(f"{source}: no usable path")
    if text == "~" or text.startswith("~/"):
        text = str(home) + text[1:]
    path = Path(text)
    return path if path.is_absolute() else Path.cwd() / path


def _read_location(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            value = json.loads(opened.read(MAX_LOCATION_BYTES))["workspace"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise StartRefused(f'{file}: expected {{"workspace": "<path>"}}') from error
    if not isinstance(value, str):
        raise StartRefused(f"{file}: workspace must be text")
    return value


def _make(folder: Path, mode: int) -> None:
    try:
        folder.mkdir(mode=mode)
    except FileExistsError:
        if not folder.is_dir():
            raise
        return
    folder.chmod(mode)


def _check_private(folder: Path) -> None:
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise StartRefused(f"{folder} must be a folder, not a link or a file")
    if found.st_uid != os.geteuid():
        raise StartRefused(f"{folder} belongs to another user; chown it to the node's user")
    if found.st_mode & 0o077:
        raise StartRefused(f"{folder} lets others in; run chmod 700 on it")


def _try_lock(descriptor: int, tries: int) -> bool:
    """Repeats a little, because `running_pid` holds the lock for a moment."""
    for attempt in range(tries):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if attempt + 1 < tries:
                time.sleep(_LOCK_PAUSE_S)
    return False


def _read_pid(file: Path) -> int | None:
    try:
        text = file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return int(text) if text.isdigit() and len(text) < 12 else None
