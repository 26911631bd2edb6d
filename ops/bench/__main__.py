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
    options = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    try:
        code = importlib.import_module(f"ops.bench.{options.name}").run(console)
    except KeyboardInterrupt:
        console.print("interrupted", style="bold red")
        return 130
    return int(code)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
