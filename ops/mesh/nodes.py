"""Real node processes: their folders and files, and how they start, stop and die.

A node is started by the same command that a person would type, in a session of its own, so that
Ctrl-C reaches the run alone and the run ends what it started. Only processes of this run are ever
signalled, each by its id.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from ops.mesh.api import Api, ApiError, Unreachable

ROOT: Final = Path(__file__).resolve().parents[2]
START_S: Final = 60.0
STOP_S: Final = 20.0
POLL_S: Final = 0.05
COMMAND: Final = (sys.executable, "-m", "node.cli.main")
UP: Final = (*COMMAND, "up")


class NodeFailed(Exception):
    """A node did not start or stop; the text names its log."""


def free_port() -> int:
    """A loopback port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def settings(gossip_port: int, ceiling: int) -> dict[str, Any]:
    """The configuration of a node of the run: wide limits, quick repair, everything on loopback."""
    return {
        "network": {"port": 0},
        "auth": {
            "mode": "team",
            "rate_limits": {
                operation: {"window": 1000, "max": 10_000}
                for operation in ("forget", "modify", "batchForget", "admin")
            },
        },
        "eviction": {"ceiling": ceiling},
        "gossip": {
            "listen": f"127.0.0.1:{gossip_port}",
            "tau": 0.40,
            "repair": {"period_s": 5.0},
            "membership": {"preset": "lan"},
            "limits": {
                "peer_diffs_per_s": 100_000,
                "peer_diffs_burst": 1_000_000,
                "peer_bytes_per_s": 1 << 30,
                "agent_diffs_per_s": 100_000,
                "agent_energy_per_min": 1_000_000_000,
                "repair_per_min": 6_000,
                "tombstones_per_s": 100_000,
            },
        },
    }


@dataclass(slots=True)
class Node:
    """One node of the run. `config` is what its file says."""

    name: str
    workspace: Path
    log: Path
    gossip_port: int
    config: dict[str, Any]
    process: subprocess.Popen[bytes] | None = None
    node_id: str = ""
    agent_ids: dict[str, str] = field(default_factory=dict)
    token: str = field(default="", repr=False)
    _api: Api | None = None

    @property
    def address(self) -> str:
        """Where peers dial it."""
        return f"127.0.0.1:{self.gossip_port}"

    @property
    def api(self) -> Api:
        """Its HTTP side. Raises Unreachable while it is down."""
        if self._api is None:
            raise Unreachable(f"node {self.name} is not up")
        return self._api

    @property
    def socket_dir(self) -> Path:
        """Where its PostgreSQL listens, as long as the workspace's path is short."""
        return self.workspace / "memory" / "pg.sock"

    def environment(self) -> Mapping[str, str]:
        """What its commands see: this workspace, this checkout, one BLAS thread."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith("MNEMESH_")}
        one = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "0"}
        own = {"MNEMESH_WORKSPACE": str(self.workspace), "PYTHONPATH": str(ROOT)}
        return kept | one | own | ({"MNEMESH_TOKEN": self.token} if self.token else {})

    def write_config(self, changes: Mapping[str, Any] | None = None) -> None:
        """Write `agent.yaml`: the configuration, with whole sections in `changes` on top."""
        self.workspace.mkdir(parents=True, exist_ok=True)
        text = yaml.safe_dump({**self.config, **(changes or {})}, sort_keys=False)
        self.write_raw(text)

    def write_raw(self, text: str) -> None:
        """Write any text as `agent.yaml`, at once as a whole."""
        fresh = self.workspace / "agent.yaml.new"
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(self.workspace / "agent.yaml")

    def command(self, *arguments: str, timeout: float = 90.0) -> subprocess.CompletedProcess[str]:
        """Run one `mnemesh` command against this workspace; the caller judges the exit code."""
        return subprocess.run(
            [*COMMAND, *arguments],
            cwd=ROOT,
            env=dict(self.environment()),
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
        )

    def spawn(self) -> None:
        """Start the process; `wait_ready` tells when it serves."""
        if self.process is not None and self.process.poll() is None:
            raise NodeFailed(f"node {self.name} runs already")
        (self.workspace / ".daemon" / "http").unlink(missing_ok=True)
        self._issue_token()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                UP,
                cwd=ROOT,
                env=dict(self.environment()),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_ready(self, timeout: float = START_S) -> float:
        """Wait until it serves; seconds that this took. Raises NodeFailed."""
        begun = time.monotonic()
        url_file = self.workspace / ".daemon" / "http"
        while time.monotonic() - begun < timeout:
            if self.process is None or self.process.poll() is not None:
                code = None if self.process is None else self.process.returncode
                raise NodeFailed(f"node {self.name} ended with {code}: {self.last_words()}")
            if url_file.exists():
                api = Api(url_file.read_text(encoding="ascii").strip(), self.token)
                try:
                    api.get("/ready")
                except (ApiError, Unreachable):
                    api.close()
                else:
                    self._api = api
                    self.node_id = api.get("/api/node")["node_id"]
                    return time.monotonic() - begun
            time.sleep(POLL_S)
        raise NodeFailed(f"node {self.name} was not ready after {timeout:.0f} s, see {self.log}")

    def start(self) -> float:
        """Start it and wait; seconds from start to ready."""
        begun = time.monotonic()
        self.spawn()
        self.wait_ready()
        return time.monotonic() - begun

    def stop(self) -> float:
        """Ask it to end and wait; seconds that this took. Kills it when it does not."""
        begun = time.monotonic()
        if self._finish(signal.SIGTERM, STOP_S):
            return time.monotonic() - begun
        self._finish(signal.SIGKILL, STOP_S)
        raise NodeFailed(f"node {self.name} did not stop within {STOP_S:.0f} s, see {self.log}")

    def kill(self) -> None:
        """End it without a chance to tidy up."""
        self._finish(signal.SIGKILL, STOP_S)

    def hang_up(self) -> None:
        """Ask it to read its configuration again."""
        if self.process is not None and self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGHUP)

    def last_words(self) -> str:
        """The end of its log, for a message."""
        try:
            lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            lines = []
        return " | ".join(line.strip() for line in lines[-3:]) + f" (see {self.log})"

    def _issue_token(self) -> None:
        """An admin's token, signed with the workspace's own secret, as its owner may."""
        if self.token:
            return
        signed = self.command("token", "create", "--role", "admin", "--ttl", "1d", "--offline")
        if signed.returncode:
            raise NodeFailed(f"node {self.name} issues no token: {signed.stderr.strip()[-300:]}")
        self.token = signed.stdout.strip()

    def _finish(self, number: signal.Signals, timeout: float) -> bool:
        process = self.process
        if process is None:
            return True
        if process.poll() is None:
            process.send_signal(number)
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        self.process = None
        if self._api is not None:
            self._api.close()
            self._api = None
        return True


def make_nodes(root: Path, names: str, ceiling: int) -> list[Node]:
    """Nodes with a folder and a file each below `root`; nothing is started."""
    nodes = []
    for name in names:
        port = free_port()
        node = Node(name, root / name, root / f"{name}.log", port, settings(port, ceiling))
        node.write_config()
        nodes.append(node)
    return nodes


def processes_below(root: Path) -> list[int]:
    """Ids of processes that work inside `root` or name it; empty where /proc does not exist."""
    found = []
    here = str(root.resolve())
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().decode("utf-8", "replace")
            place = str((entry / "cwd").readlink())
            state = (entry / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()[0]
        except OSError:
            continue
        own = int(entry.name) == os.getpid()
        if not own and state != "Z" and (f"{place}/".startswith(f"{here}/") or here in words):
            found.append(int(entry.name))
    return found


def await_gone(root: Path, timeout: float = 10.0) -> list[int]:
    """Processes that are still there after the time that servers need to end."""
    deadline = time.monotonic() + timeout
    while (left := processes_below(root)) and time.monotonic() < deadline:
        time.sleep(POLL_S * 2)
    return left
