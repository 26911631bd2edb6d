"""One real node and its snapshot: stopped, killed, and with a file that was damaged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ops.mesh.nodes import Node
from tests.e2e.programs import ask, programs

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """A running node with 60 memories."""
    with programs("1") as (made,):
        made.start()
        store(made, "first", 60)
        yield made


def store(node: Node, word: str, count: int) -> None:
    for n in range(count):
        node.api.post("/api/memory/remember", {"content": f"the {word} memory, number {n}"})


def hot(node: Node) -> tuple[int, str, Any]:
    told = node.api.get("/api/status")
    return told["resident"], told["hot"]["started_from"], told["hot"]["degraded"]


def drift(node: Node) -> Any:
    return ask(node, "audit", "graph", "--json")["drift"]


def test_a_stopped_node_starts_from_its_snapshot(node: Node) -> None:
    node.stop()
    node.start()
    assert hot(node) == (60, "snapshot", None)
    assert drift(node) == {}


def test_es_49_a_killed_node_has_what_came_after_the_snapshot(node: Node) -> None:
    store(node, "second", 10)
    node.kill()
    node.start()
    assert hot(node) == (70, "snapshot", None)
    assert drift(node) == {}


def test_es_49_a_damaged_snapshot_costs_no_answer(node: Node) -> None:
    node.kill()
    file = node.workspace / "memory" / "hot" / "graph.snapshot"
    image = bytearray(file.read_bytes())
    image[len(image) // 2] ^= 16
    file.write_bytes(image)
    node.start()
    told = node.api.get("/api/status")["hot"]
    assert told["snapshot_refused"] == "corrupt: the checksum differs"
    found = node.api.post("/api/memory/recall", {"query": "the second memory, number 3"})
    assert found["results"]
    node.stop()
    node.start()
    assert hot(node) == (70, "snapshot", None)
    assert drift(node) == {}
