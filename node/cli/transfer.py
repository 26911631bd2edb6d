"""Verbs that move many memories: import from files, export to one."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from node.cli.client import open_node, print_json
from node.cli.group import Failure, agent_option, reaching
from node.cli.show import safe

BATCH_ITEMS: Final = 100
BATCH_BYTES: Final = 1 << 20
SHOWN_FAILURES: Final = 20
SUFFIXES: Final = (".jsonl", ".ndjson", ".md", ".txt")
IMPORTED: Final = frozenset(
    {
        "content",
        "project",
        "type",
        "tags",
        "who",
        "importance",
        "pinned",
        "visibility",
        "scope",
        "source_type",
        "source_id",
        "idempotency_key",
        "ttl_seconds",
        "expires_at",
        "created_at",
        "vector",
    }
)
"""Fields of a JSON line that are taken; `agent_id` stays with the importing agent."""

_HEADING: Final = re.compile(r"^#{1,6}\s", re.MULTILINE)
_PARAGRAPH: Final = re.compile(r"\n[ \t]*\n")


@dataclass(slots=True)
class Summary:
    """What an import did."""

    read: int = 0
    stored: int = 0
    deduped: int = 0
    failed: int = 0
    failures: list[dict[str, Any]] = field(default_factory=list)

    def fail(self, place: str, error: str) -> None:
        """Count a failed item; the first few are kept with their reason."""
        self.failed += 1
        if len(self.failures) < SHOWN_FAILURES:
            self.failures.append({"place": place, "error": error})


@dataclass(frozen=True, slots=True)
class Item:
    """One memory to send and the place that it came from."""

    place: str
    body: dict[str, Any]


class _Rate(ProgressColumn):
    """Items a second."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.0f}/s" if speed else "-/s")


@click.command("import")
@click.argument(
    "sources",
    nargs=-1,
    required=True,
    metavar="SOURCE...",
    type=click.Path(exists=True, path_type=Path),
)
@agent_option
@click.option("--project", metavar="NAME", help="Share everything in this project.")
@click.option("--type", "kind", metavar="TYPE", help="Type of texts that name none.")
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="Added to each memory.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@reaching
def import_files(
    sources: tuple[Path, ...],
    agent: str | None,
    project: str | None,
    kind: str | None,
    tags: tuple[str, ...],
    as_json: bool,
    path: str | None,
    url: str | None,
    token: str | None,
) -> None:
    """Store what files hold: JSON lines, Markdown by heading, text by paragraph.

    SOURCE is a file or a folder, which is searched for .jsonl, .ndjson, .md and .txt. What was
    imported before is recognised, so an import that broke off is simply run again.

    \b
    Examples:
      mnemesh import notes/ --tag notes
      mnemesh import export.jsonl --agent bob
      mnemesh import book.txt --type passage --project library
    """
    node = open_node(path, url, token)
    extras = {"project": project, "type": kind, "tags": list(tags)}
    summary = Summary()
    items = [item for source in sources for item in read_items(source, extras, summary)]
    quiet = as_json or not sys.stderr.isatty()
    with Progress(
        TextColumn("importing"),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=quiet,
    ) as progress:
        task = progress.add_task("import", total=len(items))
        for batch in batches(items):
            body = {"memories": [item.body for item in batch], "agent_id": agent}
            done = node.patiently("/api/memory/remember/batch", body)
            for item, result in zip(batch, done["results"], strict=True):
                if "error" in result:
                    summary.fail(item.place, result["error"])
                elif result["deduped"]:
                    summary.deduped += 1
                else:
                    summary.stored += 1
            progress.advance(task, len(batch))
    _report(summary, as_json)


def _report(summary: Summary, as_json: bool) -> None:
    if as_json:
        print_json(asdict(summary))
    else:
        click.echo(
            f"{summary.stored} stored, {summary.deduped} known already, {summary.failed} failed"
        )
        for failure in summary.failures:
            click.echo(f"  {safe(failure['place'])}: {safe(failure['error'])}", err=True)
    if summary.failed:
        click.get_current_context().exit(1)


def read_items(source: Path, extras: dict[str, Any], summary: Summary) -> Iterator[Item]:
    """The memories of a file, or of all known files below a folder, in a stable order."""
    if source.is_dir():
        files = [one for one in sorted(source.rglob("*")) if one.suffix.lower() in SUFFIXES]
    else:
        files = [source]
    for file in files:
        name = file.relative_to(source).as_posix() if source.is_dir() else file.name
        try:
            text = file.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError):
            summary.read += 1
            summary.fail(name, "is no readable UTF-8 file")
            continue
        if file.suffix.lower() in (".jsonl", ".ndjson"):
            yield from _json_lines(name, text, extras, summary)
            continue
        pieces = _sections(text) if file.suffix.lower() == ".md" else _PARAGRAPH.split(text)
        for number, piece in enumerate((one.strip() for one in pieces if one.strip()), 1):
            summary.read += 1
            yield Item(f"{name}#{number}", with_source(name, {"content": piece}, extras))


def batches(items: list[Item]) -> Iterator[list[Item]]:
    """Groups small enough for one request."""
    batch: list[Item] = []
    size = 0
    for item in items:
        weight = len(json.dumps(item.body))
        if batch and (len(batch) == BATCH_ITEMS or size + weight > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += weight
    if batch:
        yield batch


def with_source(name: str, body: dict[str, Any], extras: dict[str, Any]) -> dict[str, Any]:
    """The body with what the command line adds, and with a key that makes a repeat harmless.

    The key is the file's name and a digest of the text, so a changed text is a new memory.
    """
    made = {key: value for key, value in body.items() if key in IMPORTED and value is not None}
    for key in ("project", "type"):
        if extras.get(key) and not (key == "type" and "type" in made):
            made[key] = extras[key]
    if extras.get("tags"):
        present = made.get("tags", [])
        listed = present.split(",") if isinstance(present, str) else list(present)
        made["tags"] = [*filter(None, listed), *(t for t in extras["tags"] if t not in listed)]
    if "source_id" not in made and "idempotency_key" not in made:
        digest = hashlib.sha256(str(made.get("content")).encode("utf-8", "replace")).hexdigest()
        made["source_type"] = made.get("source_type", "file")
        made["source_id"] = f"{name[-200:]}#{digest[:16]}"
    return made


def _json_lines(name: str, text: str, extras: dict[str, Any], summary: Summary) -> Iterator[Item]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        summary.read += 1
        place = f"{name}:{number}"
        try:
            body = json.loads(line)
        except (ValueError, RecursionError):
            body = None
        if isinstance(body, dict):
            yield Item(place, with_source(name, body, extras))
        else:
            summary.fail(place, "is not a JSON object")


def _sections(text: str) -> list[str]:
    starts = [match.start() for match in _HEADING.finditer(text)]
    edges = [0, *starts, len(text)]
    return [text[begin:end] for begin, end in pairwise(edges) if end > begin]


@click.command()
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write here instead of standard output.",
)
@agent_option
@reaching
def export(
    output: Path | None,
    agent: str | None,
    path: str | None,
    url: str | None,
    token: str | None,
) -> None:
    """Write all memories of an agent as JSON lines, ready for `mnemesh import`.

    \b
    Example:
      mnemesh export --agent bob -o bob.jsonl
    """
    node = open_node(path, url, token)
    if output is None:
        with node.lines("/api/memory/export", agent_id=agent) as lines:
            for line in lines:
                click.echo(line)
        return
    fresh = output.with_name(f".{output.name}.{secrets.token_hex(4)}")
    quiet = not sys.stderr.isatty()
    count = 0
    try:
        with (
            fresh.open("x", encoding="utf-8") as file,
            Progress(
                TextColumn("exporting {task.completed:,} memories"),
                _Rate(),
                console=Console(stderr=True),
                disable=quiet,
            ) as progress,
            node.lines("/api/memory/export", agent_id=agent) as lines,
        ):
            task = progress.add_task("export", total=None)
            for line in lines:
                file.write(f"{line}\n")
                count += 1
                progress.advance(task)
        fresh.replace(output)
    except OSError as error:
        raise Failure(f"{output}: {error.strerror}") from error
    finally:
        fresh.unlink(missing_ok=True)
    click.echo(f"{count} memories in {output}", err=True)


VERBS = (import_files, export)
