"""The findings as a table for people and as a file for machines."""

from __future__ import annotations

import json
import os
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ops.mesh.findings import Findings, shown
from ops.mesh.nodes import Node


def show(console: Console, findings: Findings, seconds: float) -> None:
    """All checks with value and bar, and what to look at where one failed."""
    table = Table(title="What was checked", title_justify="left", header_style="bold")
    table.add_column("check", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("bar", no_wrap=True)
    table.add_column("ok", justify="center", no_wrap=True)
    table.add_column("what it says")
    for check in findings.checks:
        mark = "[green]ok[/]" if check.ok else "[bold red]NO[/]"
        table.add_row(check.name, shown(check.value), check.bar_text, mark, check.what)
    console.print()
    console.print(table)
    for check in findings.checks:
        if not check.ok:
            console.print(
                f"[bold red]{check.name}[/] look at: {escape(check.look_at)}", highlight=False
            )
    if findings.failure:
        console.print(f"[bold red]the run did not come to its end:[/] {escape(findings.failure)}")
    failed = sum(not check.ok for check in findings.checks)
    if findings.ok:
        console.print(f"\n[bold green]All {len(findings.checks)} checks hold[/] ({seconds:.0f} s)")
    else:
        of = f"{failed} of {len(findings.checks)} checks do not hold"
        console.print(f"\n[bold red]{of}[/] ({seconds:.0f} s)")


def write(path: Path, findings: Findings) -> None:
    """The report as JSON, at once as a whole."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    text = json.dumps(_finite(findings.as_dict()), indent=2, ensure_ascii=False)
    fresh.write_text(f"{text}\n", encoding="utf-8")
    fresh.replace(path)


def tell_kept(console: Console, nodes: list[Node], project: str) -> None:
    """How to go on with nodes that were left running."""
    console.print("\n[bold]The nodes go on running.[/] A token holds for a day.")
    for node in nodes:
        pid = node.process.pid if node.process else "-"
        console.print(
            f"  {node.name}  {node.api.url}  pid {pid}  {node.workspace}", highlight=False
        )
        console.print(f"     token {node.token}", highlight=False, soft_wrap=True)
    console.print(f"  project {project}; try on any of them:")
    first = nodes[0].api.url
    console.print(
        f"  curl -s {first}/api/memory/recall -H 'Authorization: Bearer {nodes[0].token}' "
        "-H 'Content-Type: application/json' "
        '-d \'{"query": "how are tasks cancelled?"}\'',
        highlight=False,
        soft_wrap=True,
    )
    pids = " ".join(str(node.process.pid) for node in nodes if node.process)
    console.print(f"  to end them: kill {pids}", highlight=False)


def _finite(value: object) -> object:
    """The same without numbers that JSON does not know."""
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_finite(part) for part in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), -float("inf"))):
        return None
    return value
