"""One real node: its workspace is its own, and no signal costs what it promised."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import termios
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import FileIO

import pytest

from ops.corpus import Document
from ops.mesh.feed import Ledger, Writer, still_there, write_until_killed
from ops.mesh.nodes import COMMAND, ROOT, Node, await_gone
from ops.mesh.stage import counter, soon
from tests.e2e.programs import programs, say

pytestmark = pytest.mark.e2e

STOP_S = 3.0


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """A running node of the agent `default`."""
    with programs("1") as (made,):
        made.start()
        yield made


def rejected(node: Node) -> float:
    metrics = node.api.text("/metrics")
    return counter(metrics, "mnemesh_reload_reloads_total", status="rejected")


def test_a_second_process_on_one_workspace_is_refused(node: Node) -> None:
    assert node.process is not None
    done = node.command("up", timeout=90)
    assert done.returncode == 1
    assert str(node.process.pid) in done.stderr
    assert node.api.get("/ready")["ready"] is True


def test_a_broken_file_at_hangup_changes_nothing(node: Node) -> None:
    file = node.workspace / "agent.yaml"
    good = file.read_text(encoding="utf-8")
    node.write_raw(f"{good}\nretention: {{soft_deleted_ttl: soon}}\n")
    node.hang_up()
    soon(lambda: rejected(node) == 1, 60.0, "the refusal of the file")
    node.write_raw(good)
    assert node.api.get("/ready")["ready"] is True
    assert node.api.post("/api/reload")["status"] == "unchanged"


def test_kill_9_loses_no_acknowledged_memory(node: Node) -> None:
    texts = tuple(Document("x", "x", f"The kettle number {n} boils.") for n in range(3_000))
    writer = Writer("default", node.name, "", texts)
    ledger = Ledger()
    enough = threading.Event()
    with ThreadPoolExecutor(max_workers=1) as pool:
        writing = pool.submit(write_until_killed, node, None, writer, texts, ledger, enough, 40)
        assert enough.wait(30)
        node.kill()
        acknowledged = writing.result(timeout=90)
    assert 40 <= acknowledged < len(texts)
    node.start()
    assert still_there(node, ledger.of()) == []


def on_a_terminal(node: Node, *arguments: str, **environment: str) -> str:
    """What a verb writes when a person looks."""
    mine, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    with os.fdopen(mine, "rb", buffering=0) as screen:
        done = subprocess.run(
            [*COMMAND, *arguments],
            cwd=ROOT,
            env={**node.environment(), "TERM": "xterm-256color", **environment},
            stdin=subprocess.DEVNULL,
            stdout=its,
            check=False,
            timeout=90,
        )
        assert done.returncode == 0
        os.set_blocking(mine, False)
        os.close(its)
        shown = b""
        while data := _read(screen):
            shown += data
        return shown.decode("utf-8")


def _read(screen: FileIO) -> bytes:
    try:
        return screen.read(65_536) or b""
    except OSError:  # all was read and nobody writes any more
        return b""


def test_a_recall_marks_the_words_of_its_question_on_a_terminal_alone(node: Node) -> None:
    say(node, "remember", "Kettles whistle in the 東京の会議 at noon")
    marked = on_a_terminal(node, "recall", "kettle 会議", NO_COLOR="")
    assert "\x1b[1;33mKettles\x1b[0m" in marked
    assert "\x1b[1;33m会議\x1b[0m" in marked
    assert "1;33m" not in on_a_terminal(node, "recall", "kettle 会議", NO_COLOR="1")
    assert "\x1b" not in say(node, "recall", "kettle 会議")


def stopped_in(node: Node) -> float:
    """Seconds that a running node took to end; one that does not run is started first."""
    if node.process is None:
        node.start()
    return node.stop()


def test_sigterm_stops_within_three_seconds_and_leaves_no_process(node: Node) -> None:
    say(node, "remember", "The last thing before the stop")
    assert any(stopped_in(node) <= STOP_S for _ in range(3))  # a busy machine may be late once
    assert await_gone(node.workspace.parent) == []
    assert not (node.workspace / ".daemon" / "pid").exists()
