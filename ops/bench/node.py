"""One real node for a benchmark: started in a folder of its own, ended and removed afterwards."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from ops.bench.load import HttpFailed
from ops.bench.result import Result
from ops.mesh.nodes import Node, NodeFailed, await_gone
from storage.errors import MnemeshError


def on_a_node(
    name: str,
    peer: str,
    ceiling: int,
    measure: Callable[[Node, Result, Console], None],
    console: Console,
    **sections: Any,
) -> int:
    """Run `measure` on a fresh node and show what it found; the exit code."""
    root = Path(tempfile.mkdtemp(prefix="mnb-"))
    root.chmod(0o755)
    config = {"network": {"port": 0}, "eviction": {"ceiling": 2 * ceiling}, **sections}
    node = Node("B", root / "B", root / "B.log", 0, config)
    node.write_config()
    result = Result(name)
    try:
        node.start()
        measure(node, result, console)
        node.stop()
    except (NodeFailed, HttpFailed, MnemeshError) as error:
        console.print(f"the benchmark failed: {error}; log in {root}", style="bold red")
        node.kill()
        return 1
    finally:
        node.kill()
        left = await_gone(root)
    shutil.rmtree(root, ignore_errors=True)
    result.bar("processes_left", "processes of the node after its end", len(left), "==", 0)
    result.show(console, peer)
    return 0 if result.ok else 1
