"""What all phases of a run share: the nodes, the texts, what was found, and the screen."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

from ops.mesh.feed import Ledger, Writer, Written
from ops.mesh.findings import Findings
from ops.mesh.nodes import Node

PROJECT: Final = "commons"
OWN_AGENT: Final = "default"
"""Every node has this agent, which reads what others share."""
PAUSE_S: Final = 0.1
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')

T = TypeVar("T")


class Late(Exception):
    """Something that the run waited for did not come in time."""


@dataclass(slots=True)
class Stage:
    """One run. `root` holds the workspaces and logs; `resident_max` is the highest count seen."""

    root: Path
    nodes: list[Node]
    writers: list[Writer]
    console: Console
    ceiling: int
    ledger: Ledger = field(default_factory=Ledger)
    findings: Findings = field(default_factory=Findings)
    resident_max: int = 0
    phases: list[tuple[str, float]] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)

    def node(self, name: str) -> Node:
        """The node with this name."""
        return next(node for node in self.nodes if node.name == name)

    def writers_of(self, node: Node) -> list[Writer]:
        """The agents of a node."""
        return [writer for writer in self.writers if writer.node == node.name]

    def reader_of(self, node: Node) -> str:
        """An agent of a node that reads what others share."""
        return self.writers_of(node)[0].name

    def at(self, written: Written) -> Node:
        """The home of a memory."""
        return self.node(written.node)

    @contextmanager
    def phase(self, title: str) -> Iterator[None]:
        """A numbered heading, and how long it took."""
        number = len(self.phases) + 1
        self.console.print(f"\n[bold cyan]{number:2}[/]  [bold]{escape(title)}[/]")
        begun = time.monotonic()
        yield
        seconds = time.monotonic() - begun
        self.phases.append((title, round(seconds, 2)))
        self.look()
        self.console.print(f"    [dim]{seconds:.1f} s[/]")

    def say(self, text: str) -> None:
        """A line below the heading; texts of others are escaped first."""
        self.console.print(f"    {text}")

    def look(self) -> None:
        """Note how many memories are resident now."""
        for node in self.nodes:
            if node.process is not None:
                self.saw(node.api.get("/api/status")["resident"])

    def saw(self, residents: int) -> None:
        """A count of residents was seen."""
        self.resident_max = max(self.resident_max, residents)

    def each(self, work: Callable[[Node], T], nodes: Sequence[Node] | None = None) -> list[T]:
        """Do something on all nodes side by side; results in their order.

        Work that may last looks at `stopping`, which is set when the run is interrupted.
        """
        chosen = self.nodes if nodes is None else list(nodes)
        with ThreadPoolExecutor(max_workers=max(1, len(chosen))) as pool:
            try:
                return list(pool.map(work, chosen))
            except BaseException:
                self.stopping.set()
                raise

    def progress(self) -> Progress:
        """Bars for work that takes a while."""
        return Progress(
            TextColumn("   "),
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=32),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            console=self.console,
            transient=not self.console.is_terminal,
        )

    def wait(self, ask: Callable[[], object], seconds: float, what: str) -> None:
        """Return as soon as the answer is true. Raises Late."""
        soon(ask, seconds, f"{what}, see the logs in {self.root}")


def soon(ask: Callable[[], object], seconds: float, what: str) -> None:
    """Ask until the answer is true. Raises Late."""
    deadline = time.monotonic() + seconds
    while not ask():
        if time.monotonic() > deadline:
            raise Late(f"not within {seconds:.0f} s: {what}")
        time.sleep(PAUSE_S)


def counter(text: str, name: str, **labels: str) -> float:
    """The sum of a metric's samples in Prometheus text whose labels include these."""
    return sum(value for found, value in samples(text, name) if labels.items() <= found.items())


def samples(text: str, name: str) -> Iterator[tuple[dict[str, str], float]]:
    """Labels and value of each sample of a metric in Prometheus text."""
    for line in text.splitlines():
        head, _, value = line.rpartition(" ")
        bare, _, inner = head.partition("{")
        if bare == name:
            yield dict(_LABEL.findall(inner)), float(value)


def mesh_of(node: Node) -> dict[str, Any]:
    """The mesh part of a node's status page."""
    status: dict[str, Any] = node.api.get("/api/status")["mesh"]
    return status
