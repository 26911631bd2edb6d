"""The program `mnemesh`."""

from __future__ import annotations

import os

import click

from node.cli import audits, daemon, endings, erasures, memory, mesh, reembed, transfer, watch
from node.cli.group import Verbs
from node.import_guard import ForeignPackage, check_imports
from node.version import VERSION


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="mnemesh")
def cli() -> None:
    """Memory for meshes of agents, with provable forgetting.

    \b
    First steps:
      mnemesh init                         make a workspace with keys
      mnemesh up                           run the node in the foreground
      mnemesh remember "Alice likes tea"   store a memory
      mnemesh recall "what does Alice like?"

    A running node is found by --url, by --path, or in the usual workspace. `mnemesh VERB --help`
    explains each verb with examples.

    \b
    Exit codes:
      0  done
      1  an error; the text is on standard error
      2  the node cannot be reached
    The verbs erase, erasure, certificate and verify have codes of their own.
    """


for part in (memory, endings, watch, transfer, daemon, reembed, mesh, erasures, audits):
    for verb in part.VERBS:
        cli.add_command(verb)


def main() -> None:
    """Entry point of the installed program."""
    try:
        check_imports()
    except ForeignPackage as error:
        click.echo(f"Error: {error}", err=True)
        raise SystemExit(1) from None
    os.umask(0o077)
    cli.main(prog_name="mnemesh")


if __name__ == "__main__":
    main()
