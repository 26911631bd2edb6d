"""Real node programs for tests: made by the command line as a person would, never left behind."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ops.mesh.nodes import Node, await_gone, free_port


@contextmanager
def programs(*names: str) -> Iterator[list[Node]]:
    """Initialised workspaces with a gossip address each; whatever was started ends with it.

    The folder has a short path, because a socket's name has room for 107 bytes only.
    """
    root = Path(tempfile.mkdtemp(prefix="mne-"))
    root.chmod(0o755)
    nodes = [Node(name, root / name, root / f"{name}.log", free_port(), {}) for name in names]
    try:
        for node in nodes:
            told = ask(node, "init", "--port", "0", "--json")
            assert told["workspace"] == str(node.workspace)
            file = node.workspace / "agent.yaml"
            text = file.read_text(encoding="utf-8")
            gossip = f"gossip:\n  listen: {node.address}\n  repair: {{period_s: 2}}\n"
            file.write_text(f"{text}\n{gossip}", encoding="utf-8")
        yield nodes
    finally:
        for node in nodes:
            node.kill()
        assert await_gone(root) == []
        shutil.rmtree(root, ignore_errors=True)


def say(node: Node, *arguments: str) -> str:
    """What a command printed; it must end well."""
    done = node.command(*arguments)
    assert done.returncode == 0, f"mnemesh {' '.join(arguments)}: {done.stderr}{done.stdout}"
    return done.stdout


def ask(node: Node, *arguments: str) -> Any:
    """The JSON that a command printed; it must end well."""
    return json.loads(say(node, *arguments))


def hits(node: Node, agent: str, query: str) -> list[str]:
    """Contents that a recall finds, best first."""
    found = ask(node, "recall", query, "--agent", agent, "--json")
    return [hit["content"] for hit in found["results"]]
