"""What the mesh knows: who got which news, and whether questions find their answers."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from typing import Final

from rich.markup import escape

from ops.corpus import question
from ops.mesh import evidence
from ops.mesh.evidence import Spread
from ops.mesh.feed import Written
from ops.mesh.findings import share
from ops.mesh.nodes import Node
from ops.mesh.stage import OWN_AGENT, Stage, samples

SETTLE_S: Final = 90.0
STEADY: Final = 3
"""Looks without a change after which the spread counts as settled."""
PER_AGENT: Final = 12
ACROSS: Final = 30
TOP: Final = 5


def gossip(stage: Stage) -> None:
    """Wait until the news has spread, then compare with what each node wants."""
    with stage.phase("News travels to the nodes whose agents care"):
        at_once, settled = settle(stage)
        recall = share(settled.arrived, settled.wanted)
        precision = share(settled.useful, settled.sends)
        stage.findings.note("gossip.diffs", settled.diffs)
        stage.findings.note("gossip.wanted", settled.wanted)
        stage.findings.note(
            "gossip.recall_when_writing_ended", share(at_once.arrived, at_once.wanted)
        )
        stage.findings.note("gossip.served_by_repair", settled.served)
        stage.findings.note("gossip.unwanted_held", settled.unwanted)
        stage.findings.note("gossip.walk_stops", walk_stops(stage))
        stage.findings.check(
            "gossip.recall",
            "wanted news that arrived, walk and repair together",
            recall,
            ">=",
            0.9,
            "gossip/walk.py, gossip/repair.py, GET /api/members of each node",
        )
        blind = share(settled.wanted, 2 * settled.diffs)
        stage.findings.note("gossip.blind_precision", blind)
        stage.findings.check(
            "gossip.precision",
            "sends that went to a node which wants them; sending to everybody would be the bar",
            precision,
            ">",
            blind,
            "gossip/walk.py (picks), profiles in table peers",
        )
        stage.findings.check(
            "gossip.sends",
            "copies sent for all news, less than flooding",
            settled.sends,
            "<",
            settled.flood_sends,
            "table deliveries of each node",
        )
        stage.findings.note("gossip.flood_sends", settled.flood_sends)
        stage.say(
            f"{settled.diffs:,} announcements; {settled.arrived:,} of {settled.wanted:,} wanted "
            f"copies are where they are wanted"
        )
        stage.say(
            f"{settled.sends:,} sends ({settled.served:,} of them by repair), flooding takes "
            f"{settled.flood_sends:,}; {precision:.0%} of the sends were wanted, "
            f"blind sending has {blind:.0%}"
        )


def walk_stops(stage: Stage) -> dict[str, int]:
    """Why walks ended, counted by the nodes since their last start."""
    stops: Counter[str] = Counter()
    for node in stage.nodes:
        for labels, value in samples(node.api.text("/metrics"), "mnemesh_gossip_walk_stop_total"):
            stops[labels["reason"]] += int(value)
    return dict(sorted(stops.items()))


def settle(stage: Stage) -> tuple[Spread, Spread]:
    """The spread now, and when it no longer changes."""
    first = last = evidence.spread(stage.nodes)
    deadline = time.monotonic() + SETTLE_S
    steady = 0
    while steady < STEADY and time.monotonic() < deadline:
        time.sleep(1.5)
        seen = evidence.spread(stage.nodes)
        same = (seen.arrived, seen.sends) == (last.arrived, last.sends)
        complete = seen.arrived >= 0.99 * seen.wanted
        steady = steady + 1 if same and complete else 0
        last = seen
    return first, last


def recall(stage: Stage, rng: random.Random) -> None:
    """Each node finds what its own agents wrote, resident or cold; and C what A wrote."""
    with stage.phase("Agents ask their own node"):
        asked = [written for writer in stage.writers for written in sample(stage, writer.name, rng)]
        found = half = cold = returned = 0
        for written in asked:
            api = stage.at(written).api
            hits = api.recall(written.agent, written.document.text, TOP)
            found += bool(hits) and hits[0]["id"] == written.id
            if any(hit["id"] == written.id and hit["tier"] == "cold" for hit in hits):
                cold += 1
                again = api.recall(written.agent, written.document.text, TOP)
                returned += any(hit["id"] == written.id and hit["tier"] == "hot" for hit in again)
            hits = api.recall(written.agent, question(written.document), TOP)
            half += any(hit["id"] == written.id for hit in hits)
        stage.findings.note("self_recall_asked", len(asked))
        stage.findings.note("self_question_recall_at_5", share(half, len(asked)))
        stage.findings.check(
            "self_recall_at_1",
            "own memories that come first when asked for in their words",
            share(found, len(asked)),
            ">=",
            0.95,
            "node/memory/recall.py, node/memory/ranking.py",
        )
        stage.say(f"asked {len(asked)} times in the words of a memory: first {found} times")
        stage.say(f"asked with a quarter of the words missing: among the first {TOP} {half} times")
        tiers(stage, cold, returned)


def sample(stage: Stage, agent: str, rng: random.Random) -> list[Written]:
    """Some memories of an agent, old and new."""
    own = sorted(stage.ledger.of(agent=agent), key=lambda each: each.id)
    return rng.sample(own, min(PER_AGENT, len(own)))


def tiers(stage: Stage, cold: int, returned: int) -> None:
    """The hot graph holds part of the memories; the others answer from PostgreSQL and return."""
    stage.look()
    rows = residents = 0
    for node in stage.nodes:
        here = evidence.query(
            node, "SELECT count(*) FROM memories WHERE deleted_at IS NULL AND kind <> 'agent'"
        )
        rows += here[0][0]
        residents += node.api.get("/api/status")["resident"]
    stage.findings.note("resident", residents)
    stage.findings.check(
        "evicted",
        "memories that are only in PostgreSQL now",
        rows - residents,
        ">",
        0,
        "storage/hot/graph.py (ceiling)",
    )
    stage.findings.check(
        "reloaded",
        "cold answers that are resident when asked again",
        returned,
        ">",
        0,
        "node/memory/residency.py (reload)",
    )
    stage.findings.check(
        "resident_max",
        "most residents ever seen on a node, at most the ceiling",
        stage.resident_max,
        "<=",
        stage.ceiling,
        "storage/hot/graph.py (ceiling)",
    )
    stage.say(
        f"{rows:,} rows on three nodes, {residents:,} of them resident "
        f"(ceiling {stage.ceiling} a node); {cold} answers were cold, {returned} of them came back"
    )


def across(stage: Stage, rng: random.Random) -> None:
    """Questions asked on C whose answers were written on A."""
    with stage.phase("A question on node C is answered from a memory written on node A"):
        asked = foreign(stage, stage.node("A"), stage.node("C"), rng, ACROSS)
        node = stage.node("C")
        reader = stage.reader_of(node)
        answered: list[Written] = []
        for written in asked:
            hits = node.api.recall(reader, question(written.document), TOP)
            if any(hit["id"] == written.id and hit["foreign"] for hit in hits):
                answered.append(written)
        stage.findings.note("cross_recall_asked", len(asked))
        stage.findings.check(
            "cross_recall",
            f"questions on C that find A's memory among the first {TOP}",
            share(len(answered), len(asked)),
            ">=",
            0.8,
            "gossip (did it arrive?), read policy of the asking agent",
        )
        if answered:
            shown = min(answered, key=lambda each: len(each.document.text))
            asks = escape(repr(question(shown.document)))
            wrote = escape(repr(shown.document.text[:150]))
            stage.say(f"[italic]{escape(reader)}[/] on C asks: {asks}")
            stage.say(f"[italic]{escape(shown.agent)}[/] on A wrote: {wrote}")
        stage.say(f"{len(answered)} of {len(asked)} questions were answered so")


def foreign(
    stage: Stage, home: Node, holder: Node, rng: random.Random, count: int
) -> list[Written]:
    """Some memories written on `home` that `holder` has a copy of."""
    there = evidence.held(holder)
    shared = [each for each in stage.ledger.of(node=home.name) if evidence.raw(each.id) in there]
    shared.sort(key=lambda each: each.id)
    return rng.sample(shared, min(count, len(shared)))


def readable(nodes: Sequence[Node], written: Sequence[Written]) -> int:
    """How many (memory, node) pairs still answer, by id or in their own words.

    Asked on behalf of each node's own agent, which reads what others share.
    """
    left = 0
    for node in nodes:
        for each in written:
            hits = node.api.recall(OWN_AGENT, each.document.text, 10)
            seen = any(hit["id"] == each.id for hit in hits)
            left += seen or node.api.has(OWN_AGENT, each.id)
    return left
