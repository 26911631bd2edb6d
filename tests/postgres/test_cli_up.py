"""The whole program as a user runs it: init, up, a few verbs, stop."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.postgres, pytest.mark.e2e]

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 60


def verb(*args: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if "MNEMESH" not in name}
    return subprocess.run(
        [sys.executable, "-m", "node.cli", *args],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


@pytest.fixture
def workspace(tmp_path: Path) -> str:
    """A workspace whose node takes any free port."""
    place = str(tmp_path / "ws")
    assert verb("init", "--path", place, "--port", "0").returncode == 0
    return place


@pytest.fixture
def running(workspace: str) -> Iterator[subprocess.Popen[str]]:
    """A node that is ready."""
    process = subprocess.Popen(
        [sys.executable, "-m", "node.cli", "up", "--path", workspace],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        told = ""
        for line in process.stdout:
            told += line
            if line.startswith("ready:"):
                break
        assert "ready:" in told, told
        yield process
    finally:
        process.kill()
        process.communicate(timeout=LIMIT_S)


def test_a_node_is_used_and_stopped(workspace: str, running: subprocess.Popen[str]) -> None:
    stored = verb("remember", "Alice likes green tea", "--path", workspace, "--json")
    found = verb("recall", "what does Alice like?", "--path", workspace, "--json")
    assert stored.returncode == 0, stored.stderr
    hits = json.loads(found.stdout)["results"]
    assert [hit["id"] for hit in hits] == [json.loads(stored.stdout)["id"]]

    second = verb("up", "--path", workspace)
    assert second.returncode == 1
    assert f"workspace is in use by pid {running.pid}" in second.stderr

    running.send_signal(signal.SIGTERM)
    assert running.wait(LIMIT_S) == 0
    assert not (Path(workspace) / ".daemon" / "http").exists()
    gone = verb("recall", "x", "--path", workspace)
    assert (gone.returncode, gone.stdout) == (2, "")


def test_a_busy_port_stops_the_start_with_one_line(
    workspace: str, running: subprocess.Popen[str], tmp_path: Path
) -> None:
    port = (Path(workspace) / ".daemon" / "http").read_text().strip().rpartition(":")[2]
    other = str(tmp_path / "other")
    verb("init", "--path", other, "--port", port)
    refused = verb("up", "--path", other)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == f"Error: cannot listen on 127.0.0.1:{port}: Address already in use\n"
