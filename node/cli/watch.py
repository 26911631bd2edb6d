"""The verb that follows what a node hands to an agent."""

from __future__ import annotations

import json
import select
import sys
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
    "--after", type=click.IntRange(min=0), metavar="SEQ", help="Behind this number; 0: all."
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

    Shows the number of each delivery, who said it, and the text; from now on without --after.
    When the node was away it goes on behind the last one shown, and so does --after with the
    number of the last one that was dealt with.

    \b
    Examples:
      mnemesh watch --agent bob
      mnemesh watch --agent bob --after 0 --count 10 --json
    """
    left = count
    reached = waiting = False
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
                        if _unread():
                            return
                        waiting = False
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
            if not waiting:
                click.echo("the node is away; waiting for it", err=True)
            waiting = True
        except KeyboardInterrupt:
            return
        time.sleep(PAUSE_S)


def _unread() -> bool:
    """Whether whoever read standard output has left, as `head` does."""
    looking = select.poll()
    try:
        looking.register(sys.stdout.fileno(), select.POLLERR)
    except OSError:  # no file at all
        return False
    return any(event & select.POLLERR for _, event in looking.poll(0))


def _shown(told: dict[str, Any]) -> str:
    memory = told["memory"]
    return f"{told['seq']}  {safe(memory['agent_id'])}  {safe(memory['content'])}"


VERBS = (watch,)
