"""Verbs that move many memories: import from files, export to one."""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import islice
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

from node.cli import resume
from node.cli.client import Node, open_node, print_json, workspace
from node.cli.group import ERROR, Failure, agent_option, reaching
from node.cli.resume import Journal
from node.cli.show import safe
from node.cli.sources import FORMATS, READERS, Fault, Item, read_items

BATCH_ITEMS: Final = 100
BATCH_BYTES: Final = 1 << 20
SHOWN_FAILURES: Final = 20

Pieces = Callable[[], Iterator[Item | Fault]]


@dataclass(slots=True)
class Summary:
    """What an import did; `resumed` pieces were dealt with by the one before."""

    read: int = 0
    stored: int = 0
    deduped: int = 0
    failed: int = 0
    resumed: int = 0
    failures: list[dict[str, Any]] = field(default_factory=list)

    def fail(self, place: str, error: str) -> None:
        """Count a failed item; the first few are kept with their reason."""
        self.failed += 1
        if len(self.failures) < SHOWN_FAILURES:
            self.failures.append({"place": place, "error": error})


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
@click.option(
    "--format", "format_", type=click.Choice(list(READERS)), help="Whatever the file's name says."
)
@click.option("--dry-run", is_flag=True, help="Read and check the files, store nothing.")
@click.option("--restart", is_flag=True, help="Begin anew, also after one that broke off.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@reaching
def import_files(
    sources: tuple[Path, ...],
    agent: str | None,
    project: str | None,
    kind: str | None,
    tags: tuple[str, ...],
    format_: str | None,
    dry_run: bool,
    restart: bool,
    as_json: bool,
    path: str | None,
    url: str | None,
    token: str | None,
) -> None:
    """Store what files hold. SOURCE is a file or a folder, which is searched for these:

    \b
      .jsonl .ndjson  one memory a line: an object with `content` and any other
                      field of POST /api/memory/remember; a line with `role` or a
                      speaker and no `content` is a turn as below
      .md             one memory a heading with what follows it
      .txt            one memory a paragraph
      .chat           one turn a line: `[2026-08-01T12:00:00Z] ann: text`, the time
                      may be missing; or a JSON object with content (or text,
                      message), who (or speaker, author, name, role), created_at
                      (or timestamp, time; ISO 8601 with a zone, or seconds)

    An import that broke off goes on where it was when the same command is run again; what is
    known already is never stored twice. Faults are told with file and line, the rest is stored.

    \b
    Examples:
      mnemesh import notes/ --tag notes
      mnemesh import export.jsonl --agent bob
      mnemesh import talk.chat --project team
      mnemesh import book.txt --type passage --dry-run
    """
    extras = {"project": project, "type": kind, "tags": list(tags)}

    def pieces() -> Iterator[Item | Fault]:
        for source in sources:
            yield from read_items(source, extras, format_)

    if dry_run:
        _report(_looked_at(pieces), as_json, dry_run=True)
        return
    where = url or (os.environ.get("MNEMESH_URL") if path is None else None)
    places = [str(source.resolve()) for source in sources]
    journal = Journal([where or str(workspace(path).root), agent, extras, format_, places])
    if restart:
        journal.drop()
    node = open_node(path, url, token)
    summary = _Import(node, agent, pieces, journal, shown=not as_json).run()
    _report(summary, as_json)


class _Import:
    """One import under way."""

    def __init__(
        self, node: Node, agent: str | None, pieces: Pieces, journal: Journal, *, shown: bool
    ) -> None:
        self._node = node
        self._agent = agent
        self._pieces = pieces
        self._journal = journal
        self._shown = shown and sys.stderr.isatty()
        self._summary = Summary()
        self._noting = True

    def run(self) -> Summary:
        """Do it, behind what is done already."""
        begun, total = self._begin()
        self._summary.read = begun.count
        if begun.count:
            self._summary = Summary(**begun.summary)
            self._summary.resumed = begun.count
            click.echo(f"going on behind the first {begun.count} of {total}", err=True)
        with self._bar(total, begun.count) as advance, self._interrupted(total):
            digest, last_id = begun.digest, begun.last_id
            for batch in batches(islice(self._pieces(), begun.count, None)):
                last_id = self._send(batch) or last_id
                for piece in batch:
                    digest = resume.chained(digest, piece)
                self._summary.read += len(batch)
                self._note(digest, last_id)
                advance(len(batch))
        self._journal.drop()
        return self._summary

    def _begin(self) -> tuple[resume.Progress, int]:
        """How far it is, as far as the sources and the node still agree; and how long it is."""
        noted = self._journal.read()
        digest, total, agrees = resume.START, 0, noted.count == 0
        for total, piece in enumerate(self._pieces(), 1):
            if total <= noted.count:
                digest = resume.chained(digest, piece)
                agrees = total == noted.count and digest == noted.digest
        if agrees and noted.count:
            agrees = noted.last_id is not None and self._has(noted.last_id)
        return (noted if agrees else resume.Progress()), total

    def _note(self, digest: str, last_id: str | None) -> None:
        """Keep how far it is; an import goes on without, but says so once."""
        if not self._noting:
            return
        try:
            self._journal.note(
                resume.Progress(self._summary.read, digest, last_id, asdict(self._summary))
            )
        except OSError as error:
            self._noting = False
            click.echo(f"progress cannot be kept: {error.strerror}", err=True)

    def _has(self, memory_id: str) -> bool:
        """Whether the node shows a memory; a caller who may not read begins anew."""
        try:
            return self._node.find(f"/api/memory/{memory_id}", agent_id=self._agent) is not None
        except Failure as error:
            if error.code != ERROR:
                raise
            return False

    def _send(self, batch: list[Item | Fault]) -> str | None:
        """Store a batch; the id of one of its memories."""
        last_id = None
        items = [piece for piece in batch if isinstance(piece, Item)]
        for piece in batch:
            if isinstance(piece, Fault):
                self._summary.fail(piece.place, piece.error)
        if not items:
            return None
        body = {"memories": [item.body for item in items], "agent_id": self._agent}
        done = self._node.patiently("/api/memory/remember/batch", body)
        for item, result in zip(items, done["results"], strict=True):
            if "error" in result:
                self._summary.fail(item.place, result["error"])
                continue
            last_id = result["id"]
            if result["deduped"]:
                self._summary.deduped += 1
            else:
                self._summary.stored += 1
        return last_id

    @contextmanager
    def _bar(self, total: int, done: int) -> Iterator[Callable[[int], None]]:
        with Progress(
            TextColumn("importing"),
            BarColumn(),
            MofNCompleteColumn(),
            _Rate(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not self._shown,
        ) as progress:
            task = progress.add_task("import", total=total, completed=done)
            yield lambda count: progress.advance(task, count)

    @contextmanager
    def _interrupted(self, total: int) -> Iterator[None]:
        try:
            yield
        except (KeyboardInterrupt, Failure):
            text = f"stopped behind {self._summary.read} of {total}; the same command goes on there"
            click.echo(text, err=True)
            raise


def _looked_at(pieces: Pieces) -> Summary:
    summary = Summary()
    for piece in pieces():
        summary.read += 1
        if isinstance(piece, Fault):
            summary.fail(piece.place, piece.error)
    return summary


def _report(summary: Summary, as_json: bool, *, dry_run: bool = False) -> None:
    if as_json:
        print_json(asdict(summary) | ({"dry_run": True} if dry_run else {}))
    elif dry_run:
        click.echo(f"{summary.read - summary.failed} would be sent, {summary.failed} cannot be")
    else:
        click.echo(
            f"{summary.stored} stored, {summary.deduped} known already, {summary.failed} failed"
        )
    if not as_json:
        if not summary.read:
            click.echo(
                f"nothing was found; a folder is searched for {', '.join(FORMATS)}", err=True
            )
        for failure in summary.failures:
            click.echo(f"  {safe(failure['place'])}: {safe(failure['error'])}", err=True)
        if summary.failed > len(summary.failures):
            click.echo(f"  and {summary.failed - len(summary.failures)} more", err=True)
    if summary.failed:
        click.get_current_context().exit(1)


def batches(pieces: Iterable[Item | Fault]) -> Iterator[list[Item | Fault]]:
    """Groups small enough for one request."""
    batch: list[Item | Fault] = []
    size = 0
    for piece in pieces:
        weight = len(json.dumps(piece.body)) if isinstance(piece, Item) else 0
        if batch and (len(batch) == BATCH_ITEMS or size + weight > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(piece)
        size += weight
    if batch:
        yield batch


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
