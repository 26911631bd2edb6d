"""Verbs that compare the parts of a node with each other."""

from __future__ import annotations

from typing import Any, Final

import click

from node.cli.client import open_node, print_json
from node.cli.group import Verbs, json_option, reaching
from node.cli.show import facts, safe, table

DRIFT: Final = 1


@click.group(cls=Verbs)
def audit() -> None:
    """Compare the parts of a node with each other."""


@audit.command("graph")
@click.option("--repair", is_flag=True, help="Make the graph follow the rows.")
@json_option
@reaching
def graph(
    repair: bool, as_json: bool, path: str | None, url: str | None, token: str | None
) -> None:
    """Compare the hot graph, its vectors and the tables of a running node.

    Reads every live row once, while the node serves; a large node takes a while. Rows are never
    changed: --repair loads residents again, embeds rows without a vector, and takes vectors
    without a row away. Exit code 1 when something differs and was not repaired.

    \b
      mnemesh audit graph
      mnemesh audit graph --repair
    """
    told: dict[str, Any] = open_node(path, url, token).post("/api/audit/graph", {"repair": repair})
    if as_json:
        print_json(told)
    else:
        facts([("residents", told["residents"]), ("rows", told["rows"]), ("cold", told["cold"])])
        if told["drift"]:
            table(
                ("what differs", "found", "repaired", "for example"),
                [
                    (
                        kind.replace("_", " "),
                        count,
                        told["repaired"].get(kind, 0),
                        safe(", ".join(told["examples"].get(kind, [])[:2])),
                    )
                    for kind, count in told["drift"].items()
                ],
            )
        else:
            click.echo("no drift")
    if told["left"]:
        click.get_current_context().exit(DRIFT)


VERBS: Final = (audit,)
