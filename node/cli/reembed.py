"""The verb that changes the embedding model of a node that is down."""

from __future__ import annotations

import os
import sys
from typing import Any, Final

import click

from node.cli.client import print_json, workspace
from node.cli.daemon import path_option
from node.cli.group import Failure
from node.workspace import Workspace
from storage.errors import MnemeshError, StartRefused

STATEMENT_S: Final = 86_400.0
"""The last commit removes all old vectors at once."""


@click.command()
@path_option
@click.option(
    "--model",
    metavar="MODEL",
    help="The model that agent.yaml names: its provider, its name, or the full id.",
)
@click.option("--dry-run", is_flag=True, help="Only say what it would take.")
@click.option("--json", "as_json", is_flag=True, help="Print what a program can read.")
def reembed(path: str | None, model: str | None, dry_run: bool, as_json: bool) -> None:
    """Embed all memories again with the model that agent.yaml names now.

    The node must be down. Write the new model into the section `embedding` of agent.yaml first.
    A run that was stopped or killed goes on where it was; until the end the old model still works.

    \b
    Examples:
      mnemesh reembed --model bundled --dry-run
      mnemesh reembed --model bundled
    """
    import trio

    place = workspace(path)
    if not place.root.exists():
        raise Failure(f"no workspace at {place.root}; make one with `mnemesh init`")
    place.prepare()
    with place.lock():
        try:
            told = trio.run(_run, place, model, dry_run, as_json)
        except* MnemeshError as group:
            raise Failure(str(_first(group))) from None
    if as_json:
        print_json(told)


async def _run(place: Workspace, model: str | None, dry_run: bool, as_json: bool) -> dict[str, Any]:
    from contextlib import AsyncExitStack

    from node.app import wall
    from node.config import load_config
    from node.embed.choose import open_embedder
    from node.workers.reembed import Estimate, Step, estimate
    from node.workers.reembed import reembed as run
    from storage import migrate
    from storage.embedded import open_embedded
    from storage.island import open_island
    from storage.pool import Target, open_database
    from storage.settings import DatabaseSettings

    config = load_config(place.root, os.environ).config

    def say(text: str, *, again: bool = False) -> None:
        if not as_json:
            end = "\r" if again and sys.stdout.isatty() else "\n"
            sys.stdout.write(text + end)
            sys.stdout.flush()

    async with AsyncExitStack() as stack:
        island = await stack.enter_async_context(open_island())
        target: Target
        folder = None
        if config.database.dsn is not None:
            target = config.database.dsn
        else:
            server = await stack.enter_async_context(
                open_embedded(place.pg, place.logs / "postgresql.log")
            )
            target, folder = server.connect_kwargs, place.pg
        await migrate.migrate(island, target)
        db = await stack.enter_async_context(
            open_database(island, target, DatabaseSettings(statement_timeout=STATEMENT_S))
        )
        settings = config.embedding.settings()
        embedder = await stack.enter_async_context(open_embedder(settings, os.environ))
        names = {embedder.model_id, embedder.model_id.partition("@")[0], settings.provider}
        if model is not None and model not in names | {settings.model}:
            raise Failure(
                f"agent.yaml names the model {embedder.model_id} (provider {settings.provider}), "
                f"not {model}; change its section `embedding` first"
            )
        plan = await estimate(db, embedder, folder)
        if plan is None:
            say(f"all memories are embedded with {embedder.model_id} already")
            return {"model": embedder.model_id, "embedded": 0, "needed": 0}
        told = _told(plan)
        say(_sentence(plan))
        if dry_run:
            return {**told, "embedded": 0}
        marks: list[int] = []

        def tell(step: Step) -> None:
            tenth = 20 * step.done // max(step.total, 1)
            if sys.stdout.isatty() or tenth not in marks:
                marks.append(tenth)
                say(
                    f"{step.done:,} of {step.total:,}, {_span(step.seconds_left)} left   ",
                    again=True,
                )

        assert isinstance(plan, Estimate)
        embedded = await run(db, embedder, plan, wall, tell)
        say(f"done: {embedded:,} memories embedded with {embedder.model_id}; start the node")
        return {**told, "embedded": embedded}


def _told(plan: Any) -> dict[str, Any]:
    return {
        "old_model": plan.old_model,
        "model": plan.new_model,
        "needed": plan.rows,
        "done_before": plan.done,
        "estimated_seconds": round(plan.seconds, 1),
        "estimated_bytes": plan.bytes,
        "free_bytes": plan.free_bytes,
        "fits": plan.fits,
    }


def _sentence(plan: Any) -> str:
    free = "" if plan.free_bytes is None else f" of {plan.free_bytes >> 20:,} MiB that are free"
    before = f" ({plan.done:,} were done before)" if plan.done else ""
    return (
        f"{plan.rows:,} memories go from {plan.old_model} to {plan.new_model}{before}: "
        f"about {_span(plan.seconds)}, {max(plan.bytes >> 20, 1):,} MiB{free}"
    )


def _span(seconds: float) -> str:
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    return (
        f"{whole // 60} min" if whole < 7_200 else f"{whole // 3_600} h {whole % 3_600 // 60} min"
    )


def _first(group: BaseExceptionGroup[MnemeshError]) -> MnemeshError:
    for error in group.exceptions:
        return _first(error) if isinstance(error, BaseExceptionGroup) else error
    return StartRefused()


VERBS: Final = (reembed,)
