"""Writing the corpus into the mesh: who writes what, in batches, and what was acknowledged.

An acknowledged memory is one whose answer arrived; the run holds the mesh to exactly those.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from ops.corpus import Document, by_subject, for_agent, with_repeats
from ops.mesh.api import BATCH, ApiError, Unreachable
from ops.mesh.nodes import Node
from ops.subjects import ASSIGNMENT, Agent

NAMES: Final = "ABC"
AGENTS: Final = (
    *ASSIGNMENT,
    Agent("archives", "A", ("archives",)),
    Agent("containers", "B", ("containers",)),
    Agent("web", "C", ("web",)),
)
"""The nine agents whose subjects concern each other, and three that few care about."""


class FeedError(Exception):
    """A node refused a memory; the text says which and why."""


@dataclass(frozen=True, slots=True)
class Writer:
    """One agent of the run: where it lives, its introduction, its texts in their order."""

    name: str
    node: str
    description: str
    documents: tuple[Document, ...]


@dataclass(frozen=True, slots=True)
class Written:
    """A memory that a node acknowledged."""

    id: str
    node: str
    agent: str
    document: Document


@dataclass(slots=True)
class Ledger:
    """All acknowledged memories, by id, and how many writes met one that was there."""

    written: dict[str, Written] = field(default_factory=dict)
    deduped: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, written: Written, deduped: bool) -> None:
        """Take an acknowledgement down."""
        with self.lock:
            self.deduped += deduped
            self.written.setdefault(written.id, written)

    def drop(self, ids: Sequence[str]) -> None:
        """Memories that were removed on purpose."""
        with self.lock:
            for memory_id in ids:
                self.written.pop(memory_id, None)

    def telling(self, gone: Sequence[Written]) -> list[str]:
        """Texts of removed memories that no standing memory contains: found, they are traces."""
        standing = "\n".join(each.document.text for each in self.of()).lower()
        texts = (each.document.text.rstrip(".,!?;: ") for each in gone)
        return [text for text in texts if text.lower() not in standing]

    def of(self, node: str | None = None, agent: str | None = None) -> list[Written]:
        """What stands, by home node and author."""
        with self.lock:
            return [
                each
                for each in self.written.values()
                if node in (None, each.node) and agent in (None, each.agent)
            ]


def assign(documents: Sequence[Document], *, built_in: bool, repeats: int = 2) -> list[Writer]:
    """Who writes what. Each writer meets `repeats` of its texts again.

    The built-in corpus has its own agents; of another one, each subject becomes an agent, and the
    subjects go round the nodes by size.
    """
    if built_in:
        agents = [
            (agent.name, agent.node, agent.description, for_agent(agent, documents))
            for agent in AGENTS
        ]
    else:
        groups = sorted(by_subject(documents).items(), key=lambda item: (-len(item[1]), item[0]))
        agents = [
            (subject[:128], NAMES[position % len(NAMES)], _introduction(subject, found), found)
            for position, (subject, found) in enumerate(_at_least_three(groups))
        ]
    return [
        Writer(name, node, description, tuple(with_repeats(found, repeats)))
        for name, node, description, found in agents
    ]


def _at_least_three(groups: list[tuple[str, list[Document]]]) -> list[tuple[str, list[Document]]]:
    """Cut the largest subject in two until each node has an agent."""
    groups = list(groups)
    while len(groups) < len(NAMES) and len(groups[0][1]) >= 2:
        name, found = groups.pop(0)
        half = len(found) // 2
        groups += [(f"{name} (1)", found[:half]), (f"{name} (2)", found[half:])]
        groups.sort(key=lambda item: -len(item[1]))
    return groups


def _introduction(subject: str, documents: Sequence[Document]) -> str:
    return f"{subject}: {' '.join(document.text for document in documents[:3])}"[:1000]


Advance = Callable[[int], None]


def write_batches(
    node: Node,
    project: str,
    writer: Writer,
    documents: Sequence[Document],
    ledger: Ledger,
    advance: Advance,
) -> None:
    """Store texts through the batch route. Raises FeedError for a text that was refused."""
    for start in range(0, len(documents), BATCH):
        part = documents[start : start + BATCH]
        results = node.api.remember_batch(writer.name, project, [each.text for each in part])
        for document, result in zip(part, results, strict=True):
            if "id" not in result:
                raise FeedError(f"node {node.name} refused a memory: {result.get('error')}")
            written = Written(result["id"], node.name, writer.name, document)
            ledger.note(written, bool(result.get("deduped")))
        advance(len(part))


def write_until_killed(
    node: Node,
    project: str | None,
    writer: Writer,
    documents: Sequence[Document],
    ledger: Ledger,
    enough: threading.Event,
    after: int,
) -> int:
    """Store texts one by one until the node is gone; how many were acknowledged.

    `enough` is set after so many acknowledgements, while writing goes on.
    """
    acknowledged = 0
    try:
        for document in documents:
            row = node.api.remember(writer.name, project, document.text)
            ledger.note(Written(row["id"], node.name, writer.name, document), row["deduped"])
            acknowledged += 1
            if acknowledged == after:
                enough.set()
    except (Unreachable, ApiError, RuntimeError):
        # The connection broke or the client was closed: what follows was not acknowledged.
        return acknowledged
    finally:
        enough.set()
    return acknowledged


def still_there(node: Node, written: Sequence[Written]) -> list[Written]:
    """Which of these memories the node has lost."""
    return [each for each in written if not node.api.has(each.agent, each.id)]
