"""An import that is killed, of a node that is killed: nothing twice, nothing lost."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.mesh.nodes import COMMAND, ROOT, Node
from ops.mesh.stage import soon
from tests.e2e.programs import ask, programs

pytestmark = pytest.mark.e2e

TURNS = 3_000
PATIENCE_S = 90.0


@pytest.fixture
def node() -> Iterator[Node]:
    with programs("1") as (made,):
        made.start()
        yield made


def stored(node: Node) -> list[str]:
    """All contents, in no order."""
    lines = node.api.text("/api/memory/export").splitlines()
    rows = [json.loads(line) for line in lines]
    return sorted(row["content"] for row in rows)


def begin(node: Node, file: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*COMMAND, "import", str(file)],
        cwd=ROOT,
        env={**node.environment(), "XDG_STATE_HOME": str(file.parent)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def noted(file: Path) -> int:
    """How far the import says that it is."""
    kept = list((file.parent / "mnemesh" / "imports").glob("*.json"))
    return json.loads(kept[0].read_text())["count"] if kept else 0


def test_an_import_survives_the_end_of_its_program_and_of_its_node(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    file = tmp_path / "talk.chat"
    texts = [f"this is turn {number} of a long talk" for number in range(TURNS)]
    file.write_text("".join(f"ann: {text}\n" for text in texts))
    with begin(node, file) as program:
        soon(lambda: noted(file) > 0, PATIENCE_S, "the first batch")
        program.kill()
    reached = noted(file)
    assert 0 < reached < TURNS
    with begin(node, file) as program:
        soon(lambda: noted(file) > reached, PATIENCE_S, "the next batch")
        node.kill()
        assert program.wait(PATIENCE_S) == 2
    node.start()
    told = ask(node, "import", str(file), "--json")
    assert (told["read"], told["failed"]) == (TURNS, 0)
    assert told["resumed"] > reached
    assert stored(node) == sorted(texts)
