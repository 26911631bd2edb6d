"""Verbs of memories: remember, recall, get, list, history, modify."""

from __future__ import annotations

import sys
from typing import Any

import click
from rich.text import Text

from node.cli.client import open_node, print_json
from node.cli.filters import filter_options, given_filters
from node.cli.group import Failure, agent_option, json_option, reaching
from node.cli.highlight import excerpt, marked, words_of
from node.cli.show import age, facts, memory_rows, safe, table

MAX_STDIN = 2 << 20


@click.command()
@click.argument("text")
@agent_option
@click.option("--project", metavar="NAME", help="Share it in this project.")
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="May be given several times.")
@click.option("--type", "kind", metavar="TYPE", help="What it is; `fact` without it.")
@click.option("--visibility", type=click.Choice(["global", "private"]))
@click.option("--ttl", type=click.IntRange(min=1), metavar="SECONDS", help="Lives so long.")
@click.option("--importance", type=click.FloatRange(0, 1), metavar="0..1")
@click.option("--who", metavar="WHO", help="Who said it.")
@json_option
@reaching
def remember(
    text: str,
    agent: str | None,
    project: str | None,
    tags: tuple[str, ...],
    kind: str | None,
    visibility: str | None,
    ttl: int | None,
    importance: float | None,
    who: str | None,
    as_json: bool,
    path: str | None,
    url: str | None,
    token: str | None,
) -> None:
    """Store TEXT as a memory; `-` reads it from standard input.

    \b
    Examples:
      mnemesh remember "The deploy runs on Fridays at noon" --tag ops
      git log -1 --format=%B | mnemesh remember - --type decision --project web
      mnemesh remember "the token of the demo" --visibility private --ttl 3600
    """
    if text == "-":
        text = _standard_input()
    row = open_node(path, url, token).post(
        "/api/memory/remember",
        {
            "content": text,
            "agent_id": agent,
            "project": project,
            "tags": list(tags) or None,
            "type": kind,
            "visibility": visibility,
            "ttl_seconds": ttl,
            "importance": importance,
            "who": who,
        },
    )
    if as_json:
        print_json(row)
    else:
        click.echo(f"{'known already' if row['deduped'] else 'remembered'}  {row['id']}")


def _standard_input() -> str:
    raw = sys.stdin.buffer.read(MAX_STDIN + 1)
    if len(raw) > MAX_STDIN:
        raise Failure(f"standard input exceeds {MAX_STDIN} bytes")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Failure("standard input is not UTF-8 text") from error


@click.command()
@click.argument("query")
@agent_option
@click.option("--about", metavar="AGENT", help="Only memories of this agent.")
@click.option("--limit", type=click.IntRange(1, 50), default=10, show_default=True)
@click.option("--superseded", is_flag=True, help="Also what newer memories replaced.")
@click.option("--fast", is_flag=True, help="Resident memories by meaning alone, no database.")
@click.option("--explain", is_flag=True, help="Show what each score is made of.")
@click.option("--full", is_flag=True, help="Show long texts as a whole.")
@click.option("--kind", "kinds", multiple=True, type=click.Choice(["cell", "l1", "l2", "beacon"]))
@filter_options
@click.option("--deadline", type=click.IntRange(1, 60_000), metavar="MS", help="Answer by then.")
@json_option
@reaching
def recall(
    query: str,
    agent: str | None,
    about: str | None,
    limit: int,
    superseded: bool,
    fast: bool,
    explain: bool,
    full: bool,
    kinds: tuple[str, ...],
    deadline: int | None,
    as_json: bool,
    path: str | None,
    url: str | None,
    token: str | None,
    **filters: Any,
) -> None:
    """Ask the memory.

    Shows score, age, agent, tier (hot: resident, cold: read from its row) and text, best first.
    On a terminal the question's words are marked, unless NO_COLOR is set; of a long text the part
    around the first of them is shown.

    \b
    Examples:
      mnemesh recall "when do we deploy?"
      mnemesh recall "deploy" --agent bob --limit 3 --explain
      mnemesh recall "deploy" --tag ops --since 7d
      mnemesh recall "deploy" --json | jq -r '.results[].content'
    """
    asked = given_filters(filters) | ({"kind": list(kinds)} if kinds else {})
    answer = open_node(path, url, token).post(
        "/api/memory/recall",
        {
            "query": query,
            "agent_id": agent,
            "about": about,
            "limit": limit,
            "include_superseded": superseded or None,
            "fast": fast or None,
            "explain": explain or None,
            "deadline_ms": deadline,
            "filters": asked or None,
        },
    )
    if as_json:
        print_json(answer)
        return
    hits = answer["results"]
    wanted = words_of(query)
    for hit in hits:
        shown = hit["content"] if full else excerpt(hit["content"], wanted)
        hit["content"] = marked(shown, wanted)
    if not hits:
        click.echo("nothing comes to mind")
    elif explain:
        table(
            ("score", "cosine", "words", "by", "age", "agent", "tier", "id and text"),
            [_explained(hit) for hit in hits],
        )
        for stage in answer["meta"]["stages"]:
            click.echo(f"{stage['name']}: {stage['count']} in {stage['durationMs']:.1f} ms")
    else:
        table(("score", "age", "agent", "tier", "text"), [_hit(hit) for hit in hits])
    for late in answer["meta"]["degraded"]:
        click.echo(f"incomplete, a search failed: {safe(late)}", err=True)


def _hit(hit: dict[str, Any]) -> tuple[object, ...]:
    return (
        f"{hit['score']:.3f}",
        age(hit["created_at"]),
        hit["agent_id"],
        hit["tier"],
        hit["content"],
    )


def _explained(hit: dict[str, Any]) -> tuple[object, ...]:
    score, *rest = _hit(hit)
    parts = (f"{hit['cosine']:.3f}", f"{hit['words']:.3f}", hit["source"])
    return (score, *parts, *rest[:-1], Text(f"{safe(hit['id'])}\n") + hit["content"])


@click.command()
@click.argument("memory_id", metavar="ID")
@agent_option
@json_option
@reaching
def get(
    memory_id: str,
    agent: str | None,
    as_json: bool,
    path: str | None,
    url: str | None,
    token: str | None,
) -> None:
    """Show one memory with all its fields."""
    row = open_node(path, url, token).get(f"/api/memory/{_part(memory_id)}", agent_id=agent)
    if as_json:
        print_json(row)
    else:
        facts((name, value) for name, value in row.items() if value not in (None, []))


@click.command("list")
@agent_option
@click.option("--about", metavar="AGENT", help="Only memories of this agent.")
@click.option("--limit", type=click.IntRange(1, 200), default=50, show_default=True)
@click.option("--cursor", metavar="CURSOR", help="Go on where the page before ended.")
@click.option("--offset", type=click.IntRange(0, 100_000), help="Pass over so many.")
@json_option
@reaching
def list_memories(
    agent: str | None,
    about: str | None,
    limit: int,
    cursor: str | None,
    offset: int | None,
    as_json: bool,
    path: str | None,
    url: str | None,
    token: str | None,
) -> None:
    """List memories, newest first."""
    page = open_node(path, url, token).get(
        "/api/memories", agent_id=agent, about=about, limit=limit, cursor=cursor, offset=offset
    )
    if as_json:
        print_json(page)
        return
    table(("id", "age", "agent", "type", "text"), memory_rows(page["memories"]))
    if "nextCursor" in page:
        click.echo(f"more: mnemesh list --cursor {page['nextCursor']}")


@click.command()
@click.argument("memory_id", metavar="ID")
@agent_option
@click.option("--limit", type=click.IntRange(1, 1000), default=200, show_default=True)
@click.option("--cursor", metavar="CURSOR", help="Go on where the page before ended.")
@json_option
@reaching
def history(
    memory_id: str,
    agent: str | None,
    limit: int,
    cursor: str | None,
    as_json: bool,
    path: str | None,
    url: str | None,
    token: str | None,
) -> None:
    """Show what happened to a memory, also after it is gone."""
    found = open_node(path, url, token).get(
        f"/api/memory/{_part(memory_id)}/history", agent_id=agent, limit=limit, cursor=cursor
    )
    if as_json:
        print_json(found)
        return
    table(
        ("when", "event", "by", "reason", "text"),
        [
            (
                event["created_at"],
                event["event"],
                event["changed_by"],
                event["reason"],
                event["new_content"] or event["old_content"],
            )
            for event in found["events"]
        ],
    )
    if "nextCursor" in found:
        click.echo(f"more: mnemesh history {memory_id} --cursor {found['nextCursor']}")


@click.command()
@click.argument("memory_id", metavar="ID")
@click.argument("text", required=False)
@agent_option
@click.option("--type", "kind", metavar="TYPE")
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="All of its tags from now on.")
@click.option("--no-tags", is_flag=True, help="Take all tags away.")
@click.option("--importance", type=click.FloatRange(0, 1), metavar="0..1")
@click.option("--pinned/--not-pinned", default=None)
@click.option("--visibility", type=click.Choice(["global", "private", "archived"]))
@json_option
@reaching
def modify(
    memory_id: str,
    text: str | None,
    agent: str | None,
    kind: str | None,
    tags: tuple[str, ...],
    no_tags: bool,
    importance: float | None,
    pinned: bool | None,
    visibility: str | None,
    as_json: bool,
    path: str | None,
    url: str | None,
    token: str | None,
) -> None:
    """Change a memory: its TEXT (`-` reads it from standard input), or what it says of itself.

    What is not given stays as it is. A memory that was shared with the mesh gets a new id when its
    text or visibility changes, and the copies at peers go. An archived one is read by nobody.

    \b
    Examples:
      mnemesh modify 1b4e28ba-2fa1-11d2-883f-0016d3cca427 "The deploy runs on Mondays"
      mnemesh modify 1b4e28ba-2fa1-11d2-883f-0016d3cca427 --tag ops --tag deploy --pinned
      mnemesh modify 1b4e28ba-2fa1-11d2-883f-0016d3cca427 --visibility private
    """
    if tags and no_tags:
        raise click.UsageError("--tag and --no-tags exclude each other")
    row = open_node(path, url, token).post(
        "/api/memory/modify",
        {
            "id": memory_id,
            "agent_id": agent,
            "content": _standard_input() if text == "-" else text,
            "type": kind,
            "tags": list(tags) if tags or no_tags else None,
            "importance": importance,
            "pinned": pinned,
            "visibility": visibility,
        },
    )
    if as_json:
        print_json(row)
    elif row["id"] == row["recovered_from"]:
        click.echo(f"modified  {row['id']}")
    else:
        click.echo(f"modified  {row['id']}  (was {row['recovered_from']})")


def _part(text: str) -> str:
    """A piece of a path; what cannot be an id never becomes another route."""
    if not all(one.isalnum() or one == "-" for one in text) or not text.isascii():
        raise Failure("ID is not an id")
    return text


VERBS = (remember, recall, get, list_memories, history, modify)
