"""Single memories end: everywhere at once, and on a node that was away when it happened.

Also the configuration, since what a changed retention does is seen best on a deleted memory.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any, Final

from ops.mesh import evidence
from ops.mesh.api import ApiError
from ops.mesh.asking import foreign, readable
from ops.mesh.feed import Written
from ops.mesh.nodes import Node
from ops.mesh.stage import PROJECT, Stage, counter

SPREAD_S: Final = 30.0
RETURN_S: Final = 45.0
COUNT: Final = 12


def forget(stage: Stage, rng: random.Random) -> None:
    """Forget on A what others hold, and watch it vanish there."""
    with stage.phase("A forgets memories that other nodes hold"):
        home = stage.node("A")
        gone = [
            each
            for holder in stage.nodes[1:]
            for each in foreign(stage, home, holder, rng, COUNT // 2)
        ]
        gone = list({each.id: each for each in gone}.values())
        copies = sum(rows_left(node, gone) for node in stage.nodes)
        begun = time.monotonic()
        forget_all(home, gone)
        stage.wait(
            lambda: sum(rows_left(node, gone) for node in stage.nodes) == 0,
            SPREAD_S,
            "copies of forgotten memories",
        )
        seconds = time.monotonic() - begun
        stage.ledger.drop([each.id for each in gone])
        traces = [trace for node in stage.nodes for trace in traces_of(stage, node, gone)]
        left = readable(stage.nodes, gone) + sum(trace.count for trace in traces)
        stage.findings.note("forget.memories", len(gone))
        stage.findings.note("forget.copies", copies)
        stage.findings.check(
            "forget.seconds",
            "seconds until no node holds a forgotten memory",
            round(seconds, 3),
            "<=",
            SPREAD_S,
            "tables tombstones and outbox of A",
        )
        stage.findings.check(
            "forget.left",
            "traces of forgotten memories on any node",
            left,
            "==",
            0,
            "; ".join(map(str, traces)) or "GET /api/memory/{id}, recall",
        )
        stage.say(
            f"{len(gone)} memories, {copies} copies on three nodes: gone after {seconds:.2f} s, "
            f"{left} traces left"
        )


def forget_while_away(stage: Stage, rng: random.Random) -> None:
    """C is down while A forgets; it must drop its copies when it returns."""
    with stage.phase("A node that was away during a forget drops its copies when it returns"):
        home, away = stage.node("A"), stage.node("C")
        gone = foreign(stage, home, away, rng, COUNT)
        seconds = away.stop()
        stage.findings.note("stop_seconds", round(seconds, 2))
        forget_all(home, gone)
        stage.ledger.drop([each.id for each in gone])
        away.start()
        begun = time.monotonic()
        stage.wait(lambda: rows_left(away, gone) == 0, RETURN_S, "copies on node C")
        waited = time.monotonic() - begun
        traces = [trace for node in stage.nodes for trace in traces_of(stage, node, gone)]
        left = readable(stage.nodes, gone) + sum(trace.count for trace in traces)
        stage.findings.note("forget.returned_node_seconds", round(waited, 3))
        stage.findings.check(
            "forget.returned_node_left",
            "traces of what was forgotten while node C was down",
            left,
            "==",
            0,
            "; ".join(map(str, traces)) or "gossip/repair.py (tombstones first)",
        )
        stage.say(
            f"{len(gone)} memories forgotten while C was down; C dropped its copies "
            f"{waited:.2f} s after it was ready again, {left} traces left"
        )


def forget_all(home: Node, gone: Sequence[Written]) -> None:
    """Forget, each memory by its own agent."""
    for agent in sorted({each.agent for each in gone}):
        home.api.forget(agent, [each.id for each in gone if each.agent == agent])


def rows_left(node: Node, gone: Sequence[Written]) -> int:
    """How many of these memories a node still has a row of."""
    ids = [evidence.raw(each.id) for each in gone]
    rows = evidence.query(
        node, "SELECT count(*) FROM memories WHERE id::bytea = ANY ($1::bytea[])", ids
    )
    return int(rows[0][0])


def traces_of(stage: Stage, node: Node, gone: Sequence[Written]) -> list[evidence.Trace]:
    """Tables that still show a text of these memories."""
    return evidence.rows_with(node, [], stage.ledger.telling(gone))


def reload(stage: Stage) -> None:
    """A changed retention takes effect by SIGHUP; a broken file changes nothing."""
    with stage.phase("SIGHUP: a changed file applies, a broken one changes nothing"):
        node = stage.node("B")
        agent = stage.writers_of(node)[0].name
        row = node.api.remember(agent, PROJECT, "A memory that is deleted and wanted back later.")
        node.api.post("/api/memory/delete", {"agent_id": agent, "id": row["id"]})
        time.sleep(0.1)
        steps = {
            "a recovery window of zero is in force": (
                hang_up(stage, node, "applied", {"retention": {"soft_deleted_ttl": 0}})
                and recover(node, agent, row["id"]) == "retention_expired"
            ),
            "a broken file is rejected and the window stays zero": (
                hang_up(stage, node, "rejected", "retention: {soft_deleted_ttl: soon}\n")
                and recover(node, agent, row["id"]) == "retention_expired"
            ),
            "the old file applies again and the memory comes back": (
                hang_up(stage, node, "applied", {}) and recover(node, agent, row["id"]) == "live"
            ),
        }
        for text, ok in steps.items():
            stage.say(f"{'[green]yes[/]' if ok else '[red]no[/]'}  {text}")
        stage.findings.check(
            "reload",
            "SIGHUP applies a changed file and refuses a broken one",
            all(steps.values()),
            "==",
            True,
            "node/reload.py, <node>/.daemon/logs",
        )


def hang_up(stage: Stage, node: Node, status: str, change: dict[str, Any] | str) -> bool:
    """Change the file, send SIGHUP; whether the node counts a reload with this outcome."""
    name = "mnemesh_reload_reloads_total"
    before = counter(node.api.text("/metrics"), name, status=status)
    if isinstance(change, str):
        node.write_raw(change)
    else:
        node.write_config(change)
    node.hang_up()
    stage.wait(
        lambda: counter(node.api.text("/metrics"), name, status=status) > before,
        10.0,
        f"a reload that is {status}",
    )
    return True


def recover(node: Node, agent: str, memory_id: str) -> str:
    """What comes of recovering a memory: `live`, or the status of the refusal."""
    try:
        node.api.post("/api/memory/recover", {"agent_id": agent, "id": memory_id})
    except ApiError as error:
        status = error.body.get("status") if isinstance(error.body, dict) else None
        return str(status or error)
    return "live"
