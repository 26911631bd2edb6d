"""The common form of a benchmark's result: bars, figures, and one JSON object as the last line."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from ops.mesh.findings import Check as Bar
from ops.mesh.findings import Relation, shown


@dataclass(frozen=True, slots=True)
class Timing:
    """Latencies of `count` operations by several clients, in seconds, and how long all took.

    `per` is how many memories one operation moves.
    """

    latencies: tuple[float, ...]
    seconds: float
    per: int = 1

    @property
    def rate(self) -> float:
        """Memories, or questions, a second."""
        return len(self.latencies) * self.per / self.seconds

    def percentile(self, percent: float) -> float:
        """Milliseconds that so many per cent of the operations took at most."""
        ordered = sorted(self.latencies)
        return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)] * 1000


@dataclass(slots=True)
class Result:
    """What one benchmark found. `rows` pair a timing with its peer's, by a readable name."""

    name: str
    bars: list[Bar] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    rows: list[tuple[str, int, Timing, Timing | None]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def bar(
        self, name: str, what: str, value: float | bool, relation: Relation, bound: float | bool
    ) -> None:
        """A figure that must reach a bound."""
        value = round(value, 3) if isinstance(value, float) else value
        self.figures[name] = value
        self.bars.append(Bar(name, what, value, relation, bound))

    def compare(self, name: str, clients: int, own: Timing, peer: Timing | None) -> None:
        """A timing, and that of the peer on the same data."""
        self.rows.append((name, clients, own, peer))
        key = f"{name.replace(' ', '_').replace(',', '')}_{clients}"
        self.figures[f"{key}_per_s"] = round(own.rate, 1)
        self.figures[f"{key}_p50_ms"] = round(own.percentile(50), 3)
        self.figures[f"{key}_p99_ms"] = round(own.percentile(99), 3)
        if peer is not None:
            self.figures[f"{key}_peer_per_s"] = round(peer.rate, 1)
            self.figures[f"{key}_ratio"] = round(own.rate / peer.rate, 3)

    @property
    def ok(self) -> bool:
        """Whether every bar is reached."""
        return all(bar.ok for bar in self.bars)

    def as_dict(self) -> dict[str, Any]:
        """For machines."""
        return {
            "bench": self.name,
            "bars": [
                {"name": bar.name, "value": bar.value, "bar": bar.bar_text, "ok": bar.ok}
                for bar in self.bars
            ],
            "figures": self.figures,
        }

    def show(self, console: Console, peer: str) -> None:
        """Tables for people, then the JSON line."""
        if self.rows:
            console.print(_timings(self.rows, peer))
        for note in self.notes:
            console.print(f"[dim]{note}[/]", highlight=False)
        console.print(_bars(self.bars))
        console.print(json.dumps(self.as_dict()), soft_wrap=True, highlight=False, markup=False)


def _timings(rows: list[tuple[str, int, Timing, Timing | None]], peer: str) -> Table:
    table = Table(header_style="bold", title="Over one run, on the same data", title_justify="left")
    table.add_column("operation")
    for title in ("clients", "mnemesh/s", "p50 ms", "p99 ms", f"{peer}/s", "p50 ms", "p99 ms"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("ratio", justify="right")
    for name, clients, own, other in rows:
        cells = [f"{own.rate:,.0f}", f"{own.percentile(50):.2f}", f"{own.percentile(99):.2f}"]
        if other is not None:
            cells += [f"{other.rate:,.0f}", f"{other.percentile(50):.2f}"]
            cells += [f"{other.percentile(99):.2f}", f"{own.rate / other.rate:.2f}"]
        table.add_row(name, str(clients), *cells)
    return table


def _bars(bars: list[Bar]) -> Table:
    table = Table(header_style="bold", title="Bars", title_justify="left")
    for title in ("bar", "value", "wanted", "ok", "what it says"):
        table.add_column(title, no_wrap=title != "what it says")
    for bar in bars:
        mark = "[green]ok[/]" if bar.ok else "[bold red]NO[/]"
        table.add_row(bar.name, shown(bar.value), bar.bar_text, mark, bar.what)
    return table
