"""The agents write: first a little, through a kill -9 on every node, then everything."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from rich.progress import Progress, TaskID

from ops.corpus import Document
from ops.mesh.api import BATCH
from ops.mesh.building import LINK_S, linked
from ops.mesh.feed import Writer, still_there, write_batches, write_until_killed
from ops.mesh.nodes import Node
from ops.mesh.stage import PROJECT, Stage

FIRST: Final = 30
"""Texts with which each agent begins; enough for the mean of them to be its position."""
SINGLES: Final = 20
"""Acknowledgements after which a node is killed while its next writes are under way."""


def begin(stage: Stage) -> None:
    """First texts of each agent, then kill -9 amid writing, and a check of what was promised."""
    with stage.phase("Every agent writes its first texts"):
        stage.each(lambda node: first_texts(stage, node))
        stage.say(f"{len(stage.ledger.written)} memories stored")
    with stage.phase("kill -9 of every node in the middle of writing"):
        acknowledged = stage.each(lambda node: die_and_return(stage, node))
        lost = sum(stage.each(lambda node: len(still_there(node, stage.ledger.of(node=node.name)))))
        stage.findings.note("crash.acknowledged", len(stage.ledger.written))
        stage.findings.check(
            "crash.lost",
            "acknowledged memories that a kill -9 cost",
            lost,
            "==",
            0,
            "node/memory/remember.py (commit before answer), <node>/.daemon/logs/postgresql.log",
        )
        stage.say(
            f"{sum(acknowledged)} writes were acknowledged right before the kills; "
            f"{lost} of {len(stage.ledger.written)} memories are missing afterwards"
        )
        stage.wait(lambda: linked(stage), LINK_S, "links after the restart")


def first_texts(stage: Stage, node: Node) -> None:
    """The first batch of each agent of a node."""
    for writer in stage.writers_of(node):
        part = writer.documents[:FIRST]
        write_batches(node, PROJECT, writer, part, stage.ledger, lambda _: None)


def die_and_return(stage: Stage, node: Node) -> int:
    """Kill a node while a client writes, start it again; how many writes it acknowledged."""
    writer = stage.writers_of(node)[0]
    enough = threading.Event()
    with ThreadPoolExecutor(max_workers=1) as pool:
        writing = pool.submit(
            write_until_killed,
            node,
            PROJECT,
            writer,
            writer.documents[FIRST:],
            stage.ledger,
            enough,
            SINGLES,
        )
        enough.wait(60)
        node.kill()
        acknowledged = writing.result()
    node.start()
    return acknowledged


def write_all(stage: Stage) -> None:
    """Everything that is left, on all nodes at once."""
    with stage.phase("All agents write all their texts"):
        before = len(stage.ledger.written)
        begun = time.monotonic()
        with stage.progress() as progress:
            bars = {
                node.name: progress.add_task(f"node {node.name}", total=0, rate="")
                for node in stage.nodes
            }
            stage.each(lambda node: feed(stage, node, progress, bars[node.name]))
        seconds = time.monotonic() - begun
        stored = len(stage.ledger.written)
        rate = (stored - before) / seconds
        texts = [
            (writer.name, document.text.lower().rstrip(".,!?;: "))
            for writer in stage.writers
            for document in writer.documents
        ]
        stage.findings.check(
            "stored", "memories stored", stored, ">=", len(set(texts)), "the answers of remember"
        )
        stage.findings.note("stored_per_s", round(rate, 1))
        stage.findings.check(
            "deduped",
            "repeats that met the memory they repeat",
            stage.ledger.deduped,
            ">=",
            len(texts) - len(set(texts)),
            "storage/content.py (normal form), node/memory/remember.py",
        )
        stage.say(
            f"{stored:,} memories stored, {rate:,.0f} a second on three nodes while they gossip; "
            f"{stage.ledger.deduped} repeats recognised"
        )


def feed(stage: Stage, node: Node, progress: Progress, bar: TaskID) -> None:
    """A node's remaining texts, its agents taking turns."""
    known = {(each.agent, each.document.text) for each in stage.ledger.of(node=node.name)}
    left = {writer.name: remaining(writer, known) for writer in stage.writers_of(node)}
    progress.update(bar, total=sum(map(len, left.values())))
    begun = time.monotonic()
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        rate = f"{done / (time.monotonic() - begun):,.0f}/s"
        progress.update(bar, advance=count, rate=rate)
        stage.saw(node.api.get("/api/status")["resident"])

    while any(left.values()) and not stage.stopping.is_set():
        for writer in stage.writers_of(node):
            part, left[writer.name] = left[writer.name][:BATCH], left[writer.name][BATCH:]
            if part:
                write_batches(node, PROJECT, writer, part, stage.ledger, advance)


def remaining(writer: Writer, known: set[tuple[str, str]]) -> list[Document]:
    """A writer's texts that are not stored yet, and the repeats of those that are."""
    met: set[str] = set()
    left: list[Document] = []
    for document in writer.documents:
        if (writer.name, document.text) in known and document.text not in met:
            met.add(document.text)
            continue
        left.append(document)
    return left
