"""`python -m ops.bench NAME`: run one benchmark; exit code 1 when a bar is missed."""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
from collections.abc import Sequence
from typing import Final

from rich.console import Console

NAMES: Final = {
    "smoke": "one node over HTTP next to a plain pgvector table; start and stop (about a minute)",
    "recall": "by vector over the agent port and HTTP next to pgvector and Chroma (4 minutes)",
    "ingest": "single memories and batches next to pgvector and PostgresStore (2 minutes)",
    "text": "words, meaning and both next to one SQL statement that fuses them (2 minutes)",
    "floor": "the hot graph next to hnswlib alone: time, threads, memory (3 minutes)",
    "filter": "filtered searches next to a comparison with all that pass (2 minutes)",
    "churn": "half of the hot graph replaced 20 times: recall, memory, file (10 minutes)",
    "loop": "stalls of the loop while the hot graph is worked on (3 minutes)",
    "restart": "start from a snapshot next to one from the rows; killed while writing (6 minutes)",
    "hostile": "good clients with and without a hundred bad ones (4 minutes)",
    "cold": "a corpus ten times the ceiling next to a pgvector HNSW index (about six minutes)",
}
WIDTH: Final = 120


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; the exit code."""
    listed = "\n".join(f"  {name:10} {what}" for name, what in NAMES.items())
    parser = argparse.ArgumentParser(
        prog="ops/dev bench",
        description=f"Benchmarks:\n{listed}",
        epilog="The last line of the output is one JSON object: bench, bars, figures.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=NAMES, metavar="NAME")
    parser.add_argument("--size", type=int, help="memories, where the benchmark takes a number")
    options = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    try:
        size = {} if options.size is None else {"size": options.size}
        code = importlib.import_module(f"ops.bench.{options.name}").run(console, **size)
    except KeyboardInterrupt:
        console.print("interrupted", style="bold red")
        return 130
    return int(code)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
