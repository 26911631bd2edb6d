"""Verbs of the node itself: init, up, status, node, reload, migrate, retention."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Final

import click

from node.cli.client import open_node, print_json, workspace
from node.cli.group import Failure, Verbs, json_option, reaching
from node.cli.show import facts, safe, table
from node.workspace import Workspace
from storage.errors import MnemeshError, StartRefused

MAX_INVITATION: Final = 1 << 20
CONFIG: Final = """\
# mnemesh: everything is optional, what is missing has its default.
version: 1
schema: mnemesh/v1

network:
  port: {port}

# Peers reach this node here; without it the node gossips only to those that it dials itself.
# gossip:
#   listen: 0.0.0.0:3851
#   advertise: host.example:3851

auth:
  mode: local
"""

path_option = click.option(
    "--path", metavar="FOLDER", help="The node's workspace [env MNEMESH_WORKSPACE]."
)


@click.command()
@path_option
@click.option("--port", type=click.IntRange(0, 65_535), default=3850, show_default=True)
@click.option(
    "--join", "invitation", metavar="FILE", help="Join the project of this invitation; - is stdin."
)
@json_option
def init(path: str | None, port: int, invitation: str | None, as_json: bool) -> None:
    """Make a workspace: folders, keys, certificate and agent.yaml. Harmless when there is one.

    \b
    Examples:
      mnemesh init
      mnemesh init --path ~/mesh/node2 --port 3950

    \b
    A second node joins a project in three steps:
      node 2   mnemesh init; mnemesh node certificate > node2.pem
      node 1   mnemesh project admit team node2.pem --address host2:3851 > invitation.json
      node 2   mnemesh init --join invitation.json; mnemesh up
    """
    from storage.keyring import KeyStore

    place = workspace(path)
    place.prepare()
    keys = KeyStore(place.keys)
    keys.prepare()
    identity = keys.node()
    config = place.root / "agent.yaml"
    if not config.exists():
        config.write_text(CONFIG.format(port=port), encoding="utf-8")
    joins = None
    if invitation is not None:
        joins = _keep_invitation(place, invitation)
    told = {
        "workspace": str(place.root),
        "config": str(config),
        "node_id": identity.node_id.hex(),
        "certificate": str(place.keys / "node.crt"),
    }
    if joins is not None:
        told["joins"] = joins
    if as_json:
        print_json(told)
    else:
        facts(told.items())
        click.echo(f"next: mnemesh up{f' --path {place.root}' if path else ''}")


def _keep_invitation(place: Workspace, source: str) -> str:
    """Leave an invitation for the next start; the name of the mesh that it leads to."""
    from node.projects import check_invited, parse_invitation
    from storage.keyring import KeyStore

    if place.running_pid() is not None:
        raise Failure("the node is running; use `mnemesh project join` instead")
    invitation = parse_invitation(read_invitation(source))
    keys = KeyStore(place.keys)
    check_invited(invitation, keys.node().certificate_der)
    keys.keep_invitation(json.dumps(invitation.as_dict()).encode("ascii"))
    return invitation.mesh_id


def read_invitation(source: str) -> dict[str, Any]:
    """The invitation in a file, or of standard input for `-`; also as `admit --json` prints it."""
    try:
        if source == "-":
            raw = sys.stdin.buffer.read(MAX_INVITATION)
        else:
            with Path(source).open("rb") as file:
                raw = file.read(MAX_INVITATION)
        value = json.loads(raw)
    except OSError as error:
        raise Failure(f"{source}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise Failure(f"{source}: is no invitation") from error
    if isinstance(value, dict) and isinstance(value.get("invitation"), dict):
        value = value["invitation"]
    if not isinstance(value, dict):
        raise Failure(f"{source}: is no invitation")
    return value


@click.command()
@path_option
@click.option("--port", type=click.IntRange(0, 65_535), help="Instead of the configured one.")
@click.option("--bind", metavar="ADDRESS", help="Instead of the configured one.")
def up(path: str | None, port: int | None, bind: str | None) -> None:
    """Run the node in the foreground until Ctrl-C.

    The first start makes the database and takes some seconds. SIGHUP reloads agent.yaml, as
    `mnemesh reload` does.
    """
    from node.run import run_node

    place = workspace(path)
    if not place.root.exists():
        raise Failure(f"no workspace at {place.root}; make one with `mnemesh init`")
    if port is not None:
        os.environ["MNEMESH_PORT"] = str(port)
    if bind is not None:
        os.environ["MNEMESH_BIND"] = bind
    run_node(place, _announce)


def _announce(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


@click.command()
@json_option
@reaching
def status(as_json: bool, path: str | None, url: str | None, token: str | None) -> None:
    """Show the node in one page."""
    told = open_node(path, url, token).get("/api/status")
    if as_json:
        print_json(told)
        return
    mesh = told.pop("mesh")
    cold = "yes, older memories only in the database" if told.pop("cold") else "no"
    hot = told.pop("hot", {})
    graph = [(key.replace("_", " "), value) for key, value in hot.items()]
    facts([*told.items(), ("cold", cold), *graph, *((f"mesh {key}", mesh[key]) for key in mesh)])


@click.group(cls=Verbs)
def node() -> None:
    """Who this node is."""


@node.command("certificate")
@path_option
def node_certificate(path: str | None) -> None:
    """Print the node's certificate as PEM, for `mnemesh project admit` elsewhere."""
    place = workspace(path)
    file = place.keys / "node.crt"
    try:
        click.echo(file.read_text(encoding="ascii"), nl=False)
    except OSError as error:
        raise Failure(f"no certificate at {file}; run `mnemesh init` first") from error


@node.command("show")
@json_option
@reaching
def node_show(as_json: bool, path: str | None, url: str | None, token: str | None) -> None:
    """Show id, mesh and addresses of the running node."""
    told = open_node(path, url, token).get("/api/node")
    if as_json:
        print_json(told)
    else:
        facts((name, value) for name, value in told.items() if name != "certificate_pem")


@click.command()
@json_option
@reaching
def reload(as_json: bool, path: str | None, url: str | None, token: str | None) -> None:
    """Take agent.yaml over, all or nothing."""
    answer = open_node(path, url, token).ask("POST", "/api/reload")
    told = answer.json()
    if "status" not in told:
        raise Failure(str(told.get("error", f"HTTP {answer.status_code}")))
    if as_json:
        print_json(told)
    else:
        click.echo(told["status"])
        for key in ("changed", "restart", "warnings", "problems"):
            for one in told[key]:
                click.echo(f"  {key}: {safe(one)}", err=key == "problems")
    if told["status"] == "rejected":
        click.get_current_context().exit(1)


@click.command()
@path_option
@click.option("--dry-run", is_flag=True, help="Only name what would be applied.")
def migrate(path: str | None, dry_run: bool) -> None:
    """Bring the workspace's database to this version's schema; the node must be down.

    `mnemesh up` does the same at its start.
    """
    import trio

    place = workspace(path)
    if not place.root.exists():
        raise Failure(f"no workspace at {place.root}; make one with `mnemesh init`")
    place.prepare()
    with place.lock():
        try:
            names = trio.run(_migrate, place, dry_run)
        except* MnemeshError as group:
            raise Failure(str(_first(group))) from None
    for name in names:
        click.echo(f"{'would apply' if dry_run else 'applied'}  {name}")
    if not names:
        click.echo("the schema is up to date")


async def _migrate(place: Workspace, dry_run: bool) -> tuple[str, ...]:
    from contextlib import AsyncExitStack

    from node.config import load_config
    from storage import migrate as migrations
    from storage.embedded import open_embedded
    from storage.island import open_island
    from storage.pool import Target

    dsn = load_config(place.root, os.environ).config.database.dsn
    async with AsyncExitStack() as stack:
        island = await stack.enter_async_context(open_island())
        target: Target
        if dsn is not None:
            target = dsn
        else:
            server = await stack.enter_async_context(
                open_embedded(place.pg, place.logs / "postgresql.log")
            )
            target = server.connect_kwargs
        if dry_run:
            return await migrations.pending(island, target)
        return await migrations.migrate(island, target)


def _first(group: BaseExceptionGroup[MnemeshError]) -> MnemeshError:
    for error in group.exceptions:
        return _first(error) if isinstance(error, BaseExceptionGroup) else error
    return StartRefused()


@click.group(cls=Verbs)
def retention() -> None:
    """How long things are kept."""


@retention.command("show")
@path_option
@click.option("--json", "as_json", is_flag=True)
def retention_show(path: str | None, as_json: bool) -> None:
    """Show what is kept for how long, as the configuration file says."""
    from node.config import load_config
    from node.units import format_duration

    config = load_config(workspace(path).root, os.environ).config
    kept = config.retention
    window = config.erasure.backup_window
    rows = [
        ("deleted memories", format_duration(kept.soft_deleted_ttl), "recoverable until then"),
        ("history of memories", format_duration(kept.history_ttl), "texts go with a forget"),
        ("finished jobs", format_duration(kept.completed_job_ttl), "-"),
        ("failed jobs", format_duration(kept.dead_job_ttl), "-"),
        ("announcements", f"{kept.diff_grace_h}h", "after their walk ended"),
        ("deliveries", f"{kept.delivery_retention_d}d", "-"),
        ("tombstones", f"at least {kept.tomb_min_retention_d}d", "ids only, no content"),
        ("ledger of erasures", format_duration(config.erasure.audit_until), "no content"),
        ("backups", format_duration(window) if window else "not stated", "erasure.backup_window"),
    ]
    if as_json:
        print_json([{"category": a, "kept": b, "note": c} for a, b, c in rows])
    else:
        table(("category", "kept", "note"), rows)


@retention.command("run")
@json_option
@reaching
def retention_run(as_json: bool, path: str | None, url: str | None, token: str | None) -> None:
    """Run the retention steps now."""
    told = open_node(path, url, token).post("/api/repair/retention-sweep")
    if as_json:
        print_json(told)
    else:
        facts(told.items())


VERBS = (init, up, status, node, reload, migrate, retention)
