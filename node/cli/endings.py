"""Verbs of the end of memories: delete, forget, recover."""

from __future__ import annotations

import sys
from typing import Any

import click

from node.cli.client import LONG_S, Node, open_node, print_json
from node.cli.filters import filter_options, given_filters
from node.cli.group import Failure, agent_option, json_option, reaching
from node.cli.show import memory_rows, table


def _ending(verb: Any) -> Any:
    """The options that delete and forget have in common."""
    for option in (
        click.argument("ids", nargs=-1, metavar="ID..."),
        agent_option,
        click.option("--like", metavar="TEXT", help="Only show the memories that it may mean."),
        filter_options,
        click.option("--dry-run", is_flag=True, help="Only count what the filters match."),
        click.option("--yes", is_flag=True, help="Do not ask before ending all that match."),
        click.option("--reason", metavar="TEXT"),
        json_option,
        reaching,
    )[::-1]:
        verb = option(verb)
    return click.command()(verb)


@_ending
def forget(path: str | None, url: str | None, token: str | None, **given: Any) -> None:
    """Remove memories for good, here and at every peer.

    There is no way back. `mnemesh delete` hides a memory for 30 days instead; `mnemesh erase`
    removes everything of an agent or a project and proves it. Nothing is forgotten by its text:
    --like shows the ids of what you may mean. Without ids, all of the agent's memories that match
    the filters go; there is no filter that means everything.

    \b
    Examples:
      mnemesh forget 1b4e28ba-2fa1-11d2-883f-0016d3cca427
      mnemesh forget --like "the old deploy day"
      mnemesh forget --tag scratch --until 2026-01-01T00:00:00Z --dry-run
      mnemesh forget --tag scratch --until 2026-01-01T00:00:00Z --yes
    """
    _end(open_node(path, url, token), "forget", "forgotten", given)


@_ending
def delete(path: str | None, url: str | None, token: str | None, **given: Any) -> None:
    """Hide memories; `mnemesh recover` brings them back within 30 days.

    Without ids, all of the agent's memories that match the filters are hidden.

    \b
    Examples:
      mnemesh delete 1b4e28ba-2fa1-11d2-883f-0016d3cca427 --reason "wrong day"
      mnemesh delete --who eve --since 2026-08-01T00:00:00Z --dry-run
    """
    _end(open_node(path, url, token), "delete", "deleted", given)


@click.command()
@click.argument("memory_id", metavar="ID")
@agent_option
@json_option
@reaching
def recover(
    memory_id: str,
    agent: str | None,
    as_json: bool,
    path: str | None,
    url: str | None,
    token: str | None,
) -> None:
    """Bring a deleted memory back."""
    row = open_node(path, url, token).post(
        "/api/memory/recover", {"id": memory_id, "agent_id": agent}
    )
    if as_json:
        print_json(row)
    elif row["id"] == row["recovered_from"]:
        click.echo(f"recovered  {row['id']}")
    else:
        click.echo(f"recovered  {row['id']}  (was {row['recovered_from']})")


def _end(node: Node, verb: str, key: str, given: dict[str, Any]) -> None:
    ids, like = given.pop("ids"), given.pop("like")
    dry_run, yes, as_json = given.pop("dry_run"), given.pop("yes"), given.pop("as_json")
    body = {"agent_id": given.pop("agent"), "reason": given.pop("reason")}
    filters = given_filters(given)
    if [bool(ids), like is not None, bool(filters)].count(True) != 1:
        raise click.UsageError("give the ids of memories, or a text with --like, or filters")
    if filters:
        body |= {"filters": filters}
        if dry_run:
            body |= {"dry_run": True}
        else:
            _confirm(node, verb, body, yes)
    elif dry_run or yes:
        raise click.UsageError("--dry-run and --yes belong to filters")
    else:
        body |= {"query": like} if like is not None else {"ids": list(ids)}
    done = node.post(f"/api/memory/{verb}", body, timeout=LONG_S)
    print_json(done) if as_json else _tell(done, verb, key)


def _confirm(node: Node, verb: str, body: dict[str, Any], yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise Failure("--yes is needed where nobody can be asked")
    count = node.post(f"/api/memory/{verb}", body | {"dry_run": True})["count"]
    if not click.confirm(f"{count} memories match. {verb} them?", err=True):
        raise Failure("nothing was done")


def _tell(done: dict[str, Any], verb: str, key: str) -> None:
    if "candidates" in done:
        table(("id", "age", "agent", "type", "text"), memory_rows(done["candidates"]))
    elif done.get("dry_run"):
        click.echo(f"would {verb} {done['count']}")
    elif "count" in done:
        click.echo(f"{key}  {done['count']}")
    else:
        for memory_id in done[key]:
            click.echo(f"{key}  {memory_id}")
        for memory_id in done["already"]:
            click.echo(f"was gone already  {memory_id}")


VERBS = (delete, forget, recover)
