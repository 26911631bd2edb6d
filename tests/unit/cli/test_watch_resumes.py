"""`mnemesh watch` over a node that goes away and comes back, while it is still starting too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner

from node.cli import watch
from node.cli.main import cli

Script = list[tuple[int, list[object]]]


def delivery(seq: int) -> dict[str, object]:
    return {"seq": seq, "memory": {"agent_id": "bob", "content": f"time {seq}"}}


@contextmanager
def a_node_that_says(script: Script) -> Iterator[tuple[str, list[str]]]:
    """A server that answers each request with the next status and lines; its URL and what came."""
    asked: list[str] = []
    left = iter(script)

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            status, lines = next(left)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(b"".join(json.dumps(line).encode() + b"\n" for line in lines))

        def log_message(self, format: str, *args: object) -> None:
            """Requests are in `asked`."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", asked
        finally:
            server.shutdown()
            serving.join()


def test_a_watch_goes_on_behind_what_it_showed_while_the_node_starts_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch, "PAUSE_S", 0.0)
    script: Script = [
        (200, [{"watching": True, "after": 0}, delivery(1)]),
        (503, [{"error": "starting"}]),
        (200, [{"watching": True, "after": 1}, delivery(2)]),
    ]
    with a_node_that_says(script) as (url, asked):
        done = CliRunner().invoke(cli, ["watch", "--after", "0", "--count", "2", "--url", url])
    assert (done.exit_code, done.stdout) == (0, "1  bob  time 1\n2  bob  time 2\n")
    assert done.stderr == "the node is away; waiting for it\n"
    assert [path.partition("after=")[2] for path in asked] == ["0", "1", "1"]


def test_a_watch_ends_when_nobody_reads_it_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    script: Script = [(200, [{"watching": True, "after": 0}, {}])]
    reading, writing = os.pipe()
    os.close(reading)
    with a_node_that_says(script) as (url, asked), os.fdopen(writing, "w") as unread:
        monkeypatch.setattr(watch.sys, "stdout", unread)
        assert cli.commands["watch"].main(["--url", url], standalone_mode=False) is None
    assert len(asked) == 1


def test_a_node_that_was_never_there_is_told_as_by_every_verb() -> None:
    done = CliRunner().invoke(cli, ["watch", "--url", "http://127.0.0.1:1"])
    assert done.exit_code == 2
    assert done.stderr.startswith("Error: no node answers at http://127.0.0.1:1; start one")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is always full")
def test_a_full_disk_is_told_in_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "node.cli.main", "--help"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
        )
    assert (done.returncode, done.stderr) == (1, "Error: cannot write: No space left on device\n")


def test_a_watch_that_is_refused_at_first_ends() -> None:
    with a_node_that_says([(503, [{"error": "starting"}])]) as (url, _):
        done = CliRunner().invoke(cli, ["watch", "--url", url])
    assert (done.exit_code, done.stderr) == (1, "Error: starting\n")
