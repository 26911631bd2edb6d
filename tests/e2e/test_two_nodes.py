"""Two real nodes through the flow of the README: admit, remember, recall, forget, erase, verify."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.mesh.erasing import TOLERATED, offline
from ops.mesh.evidence import files_with, raw, rows_with
from ops.mesh.nodes import Node
from ops.mesh.stage import soon
from tests.e2e.programs import ask, hits, programs, say

pytestmark = pytest.mark.e2e

CHICKEN = "Roast the chicken with garlic and lemon for dinner"
SOUP = "Cook the soup of leek and potato slowly for dinner"
BREAD = "Bake bread with rye flour and honey, a recipe for dinner"
FOOD = "food, cooking, recipes and dinner"
ARRIVAL_S = 60.0


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Node, Node]]:
    """Two nodes in one project, with an agent each that cares for food."""
    with programs("1", "2") as (one, two):
        one.start()
        certificate = two.workspace.parent / "node2.pem"
        certificate.write_text(say(two, "node", "certificate"), encoding="ascii")
        say(one, "project", "create", "team")
        invitation = two.workspace.parent / "invitation.json"
        admitted = say(one, "project", "admit", "team", str(certificate), "--address", two.address)
        invitation.write_text(admitted, encoding="ascii")
        say(two, "init", "--join", str(invitation))
        two.start()
        for node, agent in ((one, "ann"), (two, "bob")):
            options = ("--project", "team", "--memory", "shared", "--description", FOOD)
            say(node, "agent", "add", agent, *options)
        soon(lambda: linked(one) and linked(two), ARRIVAL_S, "the link of the nodes")
        yield one, two


def linked(node: Node) -> bool:
    status = ask(node, "status", "--json")
    return bool(status["mesh"]["linked"] == 1)


def remember(node: Node, text: str) -> str:
    row = ask(node, "remember", text, "--agent", "ann", "--project", "team", "--json")
    return str(row["id"])


def test_what_one_node_remembers_the_other_recalls(pair: tuple[Node, Node]) -> None:
    one, two = pair
    remember(one, CHICKEN)
    soon(lambda: CHICKEN in hits(two, "bob", "how do we roast chicken?"), ARRIVAL_S, "the memory")


def test_forgetting_on_one_node_empties_the_other(pair: tuple[Node, Node]) -> None:
    one, two = pair
    memory_id = remember(one, SOUP)
    soon(lambda: SOUP in hits(two, "bob", "leek and potato soup"), ARRIVAL_S, "the memory")
    say(one, "forget", memory_id, "--agent", "ann")
    soon(lambda: not rows_with(two, [], [SOUP]), ARRIVAL_S, "the end of the copy")
    assert SOUP not in hits(two, "bob", "leek and potato soup")
    assert rows_with(one, [], [SOUP]) == []


def test_an_erased_agent_leaves_proof_and_nothing_else(pair: tuple[Node, Node]) -> None:
    one, two = pair
    remember(one, BREAD)
    soon(lambda: BREAD in hits(two, "bob", "rye bread with honey"), ARRIVAL_S, "the memory")
    listed = ask(one, "agent", "list", "--json")["agents"]
    agent_id = next(agent["id"] for agent in listed if agent["name"] == "ann")

    done = one.command("erase", "agent", "ann", "--yes", "--json", "--wait", "closed")
    assert done.returncode in (0, 2), done.stderr
    told = json.loads(done.stdout)
    assert told["receipts"] == {"have": 1, "of": 1}

    folder = one.workspace.parent / "evidence"
    extras = "receipts,closure,addenda,proof,head,trust"
    say(one, "certificate", told["erasure_id"], "-o", str(folder), "--with", extras)
    report, code = offline(folder)
    assert code in (0, 2), report
    assert {item["kind"] for item in report["pending"]} <= TOLERATED

    again = one.command("erase", "agent", agent_id, "--yes", "--json")
    assert again.returncode in (0, 2), again.stderr
    assert json.loads(again.stdout)["removed_now"] == 0

    for node in pair:
        assert rows_with(node, [], [BREAD, CHICKEN]) == []
        assert rows_with(node, [raw(agent_id)], beside=("tombstones", "outbox", "holders")) == []
        assert files_with(node, [raw(agent_id)], [BREAD, CHICKEN]) == []
    assert hits(two, "bob", BREAD) == []


def test_the_verifier_needs_no_workspace(tmp_path: Path) -> None:
    missing = str(tmp_path / "no.json")
    done = subprocess.run(
        [sys.executable, "-m", "node.cli.main", "verify", missing, "--trust", missing],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )
    assert done.returncode == 4
    assert list(tmp_path.iterdir()) == []
