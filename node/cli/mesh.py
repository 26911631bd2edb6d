"""Verbs of agents, projects, members and tokens: who lives here and who may come in."""

from __future__ import annotations

import os
import re
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import click

from node.cli.client import open_node, print_json, workspace
from node.cli.daemon import read_invitation
from node.cli.group import Failure, Verbs, json_option, reaching
from node.cli.show import age, facts, table

MAX_CERTIFICATE: Final = 16_384
_TTL: Final = re.compile(r"(\d{1,6})([smhd])")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


@click.group(cls=Verbs)
def agent() -> None:
    """The agents of this node."""


@agent.command("list")
@json_option
@reaching
def agent_list(as_json: bool, path: str | None, url: str | None, token: str | None) -> None:
    """List the agents of this node."""
    told = open_node(path, url, token).get("/api/agents")
    if as_json:
        print_json(told)
        return
    table(
        ("name", "reads", "group", "project", "id", "description"),
        [
            (
                one["name"],
                one["read_policy"],
                one["policy_group"],
                one["project"],
                one["id"],
                one["description"],
            )
            for one in told["agents"]
        ],
    )


@agent.command("add")
@click.argument("name")
@click.option("--description", metavar="TEXT", help="What it cares about; steers gossip.")
@click.option(
    "--memory",
    "policy",
    type=click.Choice(["isolated", "shared", "group"]),
    help="What it may read: its own, everybody's global ones, or those of its group.",
)
@click.option("--group", metavar="NAME", help="The group of --memory group.")
@click.option("--project", metavar="NAME", help="The project that it belongs to.")
@json_option
@reaching
def agent_add(
    name: str,
    description: str | None,
    policy: str | None,
    group: str | None,
    project: str | None,
    as_json: bool,
    path: str | None,
    url: str | None,
    token: str | None,
) -> None:
    """Make an agent, or change the one of that name.

    \b
    Examples:
      mnemesh agent add bob --description "Runs the billing service" --project team
      mnemesh agent add eve --memory group --group billing
    """
    if policy == "group" and group is None:
        raise Failure("--group is required for group memory")
    told = open_node(path, url, token).post(
        "/api/agents",
        {
            "name": name,
            "description": description,
            "read_policy": policy,
            "policy_group": group,
            "project": project,
        },
    )
    print_json(told) if as_json else facts(told.items())


@agent.command("info")
@click.argument("name")
@json_option
@reaching
def agent_info(
    name: str, as_json: bool, path: str | None, url: str | None, token: str | None
) -> None:
    """Show one agent, by its name or its UUID."""
    told = open_node(path, url, token).get(f"/api/agents/{quote(name, safe='')}")
    print_json(told) if as_json else facts(told.items())


@agent.command("remove")
@click.argument("name")
@json_option
@reaching
def agent_remove(
    name: str, as_json: bool, path: str | None, url: str | None, token: str | None
) -> None:
    """Remove an agent; its memories stay on disk and are read by nobody.

    What it shared with the mesh goes at the peers. `mnemesh agent purge` forgets its memories
    instead, and `mnemesh erase agent` proves it.
    """
    _removed(open_node(path, url, token).delete(f"/api/agents/{quote(name, safe='')}"), as_json)


@agent.command("purge")
@click.argument("name")
@click.option("--force", is_flag=True, help="Needed: there is no way back.")
@json_option
@reaching
def agent_purge(
    name: str,
    force: bool,
    as_json: bool,
    path: str | None,
    url: str | None,
    token: str | None,
) -> None:
    """Remove an agent and forget all of its memories, here and at every peer."""
    if not force:
        raise Failure("--force is required: the memories cannot be brought back")
    node = open_node(path, url, token)
    _removed(node.delete(f"/api/agents/{quote(name, safe='')}", purge="true"), as_json)


def _removed(told: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(told)
    else:
        counts = f"{told['archived']} archived, {told['forgotten']} forgotten"
        click.echo(f"removed  {told['removed']}  {told['id']}  ({counts})")


@click.group(cls=Verbs)
def project() -> None:
    """Projects: what nodes share, and with whom."""


@project.command("list")
@json_option
@reaching
def project_list(as_json: bool, path: str | None, url: str | None, token: str | None) -> None:
    """List the projects of this node."""
    told = open_node(path, url, token).get("/api/projects")
    if as_json:
        print_json(told)
        return
    table(
        ("name", "id", "version", "nodes"),
        [
            (one["name"], one["id"], one["version"], [node["node_id"] for node in one["nodes"]])
            for one in told["projects"]
        ],
    )


@project.command("create")
@click.argument("name")
@json_option
@reaching
def project_create(
    name: str, as_json: bool, path: str | None, url: str | None, token: str | None
) -> None:
    """Found a project; this node keeps its key and admits the others."""
    told = open_node(path, url, token).post("/api/projects", {"name": name})
    print_json(told) if as_json else click.echo(f"created  {told['name']}  {told['id']}")


@project.command("admit")
@click.argument("name")
@click.argument("certificate", metavar="CERTIFICATE")
@click.option("--address", default="", metavar="HOST:PORT", help="Where peers dial the node.")
@click.option("--domain", default="", metavar="NAME", help="Who operates it.")
@reaching
def project_admit(
    name: str,
    certificate: str,
    address: str,
    domain: str,
    path: str | None,
    url: str | None,
    token: str | None,
) -> None:
    """Admit the node with this CERTIFICATE (a PEM file, or - for standard input).

    Prints the invitation, which the other node needs; it is as secret as a key.

    \b
    Example:
      mnemesh project admit team node2.pem --address host2:3851 > invitation.json
    """
    pem = _read_certificate(certificate)
    told = open_node(path, url, token).post(
        f"/api/projects/{quote(name, safe='')}/admit",
        {"certificate_pem": pem, "address": address, "domain": domain},
    )
    print_json(told["invitation"])


def _read_certificate(source: str) -> str:
    try:
        if source == "-":
            return sys.stdin.buffer.read(MAX_CERTIFICATE).decode("ascii")
        with Path(source).open(encoding="ascii") as file:
            return file.read(MAX_CERTIFICATE)
    except OSError as error:
        raise Failure(f"{source}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise Failure(f"{source}: is no PEM certificate") from error


@project.command("join")
@click.argument("invitation", metavar="FILE")
@json_option
@reaching
def project_join(
    invitation: str, as_json: bool, path: str | None, url: str | None, token: str | None
) -> None:
    """Join by the invitation in FILE (- for standard input)."""
    told = open_node(path, url, token).post(
        "/api/projects/join", {"invitation": read_invitation(invitation)}
    )
    if as_json:
        print_json(told)
    elif told.get("pending"):
        click.echo("kept; the node joins at its next start: stop it and run `mnemesh up`")
    else:
        click.echo(f"joined  {told.get('joined')}")


@project.command("revoke")
@click.argument("name")
@click.argument("node_id", metavar="NODE")
@reaching
def project_revoke(
    name: str, node_id: str, path: str | None, url: str | None, token: str | None
) -> None:
    """Exclude the node with id NODE (hex) from a project, for good."""
    open_node(path, url, token).post(
        f"/api/projects/{quote(name, safe='')}/revoke", {"node_id": node_id}
    )
    click.echo(f"revoked  {node_id}")


@click.command()
@json_option
@reaching
def members(as_json: bool, path: str | None, url: str | None, token: str | None) -> None:
    """List the other nodes of the mesh as this one sees them."""
    told = open_node(path, url, token).get("/api/members")
    if as_json:
        print_json(told)
        return
    table(
        ("node", "status", "linked", "score", "contact", "projects", "address"),
        [
            (
                one["node_id"],
                one["status"],
                one["linked"],
                one["score"],
                age(one["last_contact"]),
                one["projects"],
                one["address"],
            )
            for one in told["members"]
        ],
    )


@click.group(cls=Verbs)
def token() -> None:
    """Bearer tokens for the modes team and hybrid."""


@token.command("create")
@click.option(
    "--role",
    required=True,
    type=click.Choice(["admin", "operator", "agent", "readonly", "officer"]),
)
@click.option("--agent", "agent_name", metavar="NAME", help="Bind it to this agent.")
@click.option("--project", "project_name", metavar="NAME", help="Bind it to this project.")
@click.option("--user", metavar="NAME", help="Whom it is for.")
@click.option("--ttl", metavar="TIME", help="How long it holds: 30m, 12h, 7d.")
@click.option(
    "--offline", is_flag=True, help="Sign with the workspace's own secret, without asking the node."
)
@json_option
@reaching
def token_create(
    role: str,
    agent_name: str | None,
    project_name: str | None,
    user: str | None,
    ttl: str | None,
    offline: bool,
    as_json: bool,
    path: str | None,
    url: str | None,
    token: str | None,
) -> None:
    """Issue a token; only an admin may, or with --offline who owns the workspace.

    Every role but admin needs something that it is bound to.

    \b
    Examples:
      mnemesh token create --role admin --offline
      mnemesh token create --role agent --agent bob --ttl 12h
    """
    bound = {"agent": agent_name, "project": project_name, "user": user}
    scope = {name: value for name, value in bound.items() if value is not None}
    if role != "admin" and not scope:
        raise Failure(f"a token of role {role} needs --agent, --project or --user")
    if offline:
        told = _signed_here(path, role, scope, _seconds(ttl))
    else:
        told = open_node(path, url, token).post(
            "/api/auth/token", {"role": role, "scope": scope, "ttlSeconds": _seconds(ttl)}
        )
    if as_json:
        print_json(told)
    else:
        click.echo(told["token"])
        click.echo(f"holds until {told['expiresAt']}", err=True)


def _signed_here(
    path: str | None, role: str, scope: dict[str, str], ttl_s: int | None
) -> dict[str, str | None]:
    from node.config import load_config
    from node.http.auth import Authority
    from node.http.tokens import load_secret
    from node.http.views import when

    place = workspace(path)
    settings = load_config(place.root, os.environ).config.auth
    place.prepare()
    authority = Authority(load_secret(place.auth_secret), lambda: settings, time.time)
    text, expires = authority.issue(role, scope, None if ttl_s is None else ttl_s * 1000)
    return {"token": text, "expiresAt": when(datetime.fromtimestamp(expires, UTC))}


def _seconds(text: str | None) -> int | None:
    if text is None:
        return None
    match = _TTL.fullmatch(text)
    if match is None:
        raise Failure("--ttl: expected a time such as 30m, 12h or 7d")
    return int(match[1]) * _SECONDS[match[2]]


VERBS = (agent, project, members, token)
