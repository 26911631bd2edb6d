"""`python -m ops.mesh`: three real nodes from start to proof of erasure, in a few minutes."""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from ops.corpus import CorpusError, Document, load_default, load_folder
from ops.mesh import asking, building, erasing, feed, forgetting, report, writing
from ops.mesh.api import ApiError, Unreachable
from ops.mesh.evidence import EvidenceFault
from ops.mesh.feed import FeedError
from ops.mesh.nodes import NodeFailed, await_gone, make_nodes
from ops.mesh.stage import PROJECT, Late, Stage

CEILING = 800
WIDTH = 120
FAULTS = (ApiError, Unreachable, NodeFailed, Late, FeedError, EvidenceFault)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options of a run."""
    parser = argparse.ArgumentParser(
        prog="ops/dev mesh",
        description="Starts three real nodes on this machine, lets agents on them write, recall, "
        "gossip, forget and erase, and checks what was observed. Exit code 0 only when every "
        "check holds.",
    )
    parser.add_argument(
        "--input", type=Path, metavar="FOLDER", help="text of your own: .md, .txt and .jsonl files"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the report as JSON")
    parser.add_argument(
        "--keep", action="store_true", help="leave the nodes running and their folders in place"
    )
    parser.add_argument(
        "--ceiling",
        type=int,
        default=0,
        help="memories in a node's hot graph (default: below its "
        "own texts, so that eviction happens)",
    )
    parser.add_argument("--seed", type=int, default=0, help="another choice of samples")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; the exit code."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    try:
        documents = load_folder(options.input, options.seed) if options.input else load_default()
    except CorpusError as error:
        console.print(f"ops/dev mesh: {error}", style="bold red", highlight=False)
        return 2
    signal.signal(signal.SIGTERM, _interrupt)
    return run(options, documents, console)


def run(options: argparse.Namespace, documents: Sequence[Document], console: Console) -> int:
    """The whole run with its end: nodes stopped, folders removed, report shown."""
    root = Path(tempfile.mkdtemp(prefix="mnm-"))
    root.chmod(0o755)
    writers = feed.assign(documents, built_in=options.input is None)
    ceiling = options.ceiling or ceiling_for(writers)
    stage = Stage(root, make_nodes(root, feed.NAMES, ceiling), writers, console, ceiling)
    total = sum(len(writer.documents) for writer in writers)
    console.print(
        f"[bold]mnemesh[/]: three nodes, {len(writers)} agents, {total:,} texts; workspaces and "
        f"logs in {root}"
    )
    begun = time.monotonic()
    interrupted = False
    try:
        play(stage, random.Random(options.seed))
    except FAULTS as error:
        stage.findings.failure = f"{type(error).__name__}: {error}"
    except KeyboardInterrupt:
        interrupted = True
        stage.findings.failure = "interrupted"
    finally:
        kept = options.keep and not interrupted and stage.findings.ok
        if not kept:
            end(stage)
    seconds = time.monotonic() - begun
    stage.findings.note("seconds", round(seconds, 1))
    stage.findings.note("phases", [{"name": n, "seconds": s} for n, s in stage.phases])
    report.show(console, stage.findings, seconds)
    if options.json is not None:
        report.write(options.json, stage.findings)
    if kept:
        report.tell_kept(console, stage.nodes, PROJECT)
    elif stage.findings.ok or interrupted:
        shutil.rmtree(root, ignore_errors=True)
    else:
        console.print(f"workspaces and logs are kept for you in {root}", highlight=False)
    if interrupted:
        return 130
    return 0 if stage.findings.ok else 1


def play(stage: Stage, rng: random.Random) -> None:
    """All phases in their order."""
    building.build(stage)
    writing.begin(stage)
    writing.write_all(stage)
    asking.gossip(stage)
    asking.recall(stage, rng)
    asking.across(stage, rng)
    forgetting.forget(stage, rng)
    forgetting.forget_while_away(stage, rng)
    forgetting.reload(stage)
    erasing.erase(stage, rng)


def end(stage: Stage) -> None:
    """Stop every node, then look whether anything of them is left; cannot be interrupted."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    for node in stage.nodes:
        try:
            node.stop()
        except NodeFailed as error:
            stage.findings.failure = stage.findings.failure or str(error)
    left = await_gone(stage.root)
    stage.findings.check(
        "processes_left",
        "processes of the nodes after the end",
        len(left),
        "==",
        0,
        f"ps -fp {','.join(map(str, left))}",
    )


def ceiling_for(writers: Sequence[feed.Writer]) -> int:
    """A ceiling below what the agents of each node write, so that each node must evict."""
    own = [
        sum(len(writer.documents) for writer in writers if writer.node == name)
        for name in feed.NAMES
    ]
    return max(1, min(CEILING, min(own) * 9 // 10))


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
