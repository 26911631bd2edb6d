"""The verb that follows what a node hands to an agent."""

from __future__ import annotations

import json
import time
from typing import Any

import click

from node.cli.client import NotNow, open_node
from node.cli.group import UNREACHABLE, Failure, agent_option, json_option, reaching
from node.cli.show import safe

PAUSE_S = 1.0


@click.command()
@agent_option
@click.option(
    "--after", type=click.IntRange(min=0), metavar="SEQ", help="Resume behind it; 0: all."
)
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="Stop after so many.")
@json_option
@reaching
def watch(
    agent: str | None,
    after: int | None,
    count: int | None,
    as_json: bool,
    path: str | None,
    url: str | None,
    token: str | None,
) -> None:
    """Follow what the node hands to an agent; ends with Ctrl-C.

    Goes on behind the last memory shown when the node was away.

    \b
    Examples:
      mnemesh watch --agent bob
      mnemesh watch --agent bob --after 0 --count 10 --json
    """
    left = count
    reached = False
    while left is None or left > 0:
        try:
            node = open_node(path, url, token)
            with node.lines("/api/memory/watch", agent_id=agent, after=after) as lines:
                reached = True
                for line in lines:
                    told: dict[str, Any] = json.loads(line) if line.strip() else {}
                    if "watching" in told and after is None:
                        after = told["after"]
                    if "memory" not in told:
                        continue
                    click.echo(line if as_json else _shown(told))
                    after = told["seq"]
                    left = None if left is None else left - 1
                    if left == 0:
                        return
        except Failure as error:
            away = error.code == UNREACHABLE or isinstance(error, NotNow)
            if not (reached and away):
                raise
        except KeyboardInterrupt:
            return
        time.sleep(PAUSE_S)


def _shown(told: dict[str, Any]) -> str:
    memory = told["memory"]
    return f"{told['seq']}  {safe(memory['agent_id'])}  {safe(memory['content'])}"


VERBS = (watch,)
