"""The options by which verbs say which memories they mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from node.cli.moments import moment

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--project", multiple=True, metavar="NAME", help="Of this project."),
    click.option("--type", multiple=True, metavar="TYPE", help="Of this type."),
    click.option("--tag", "tags", multiple=True, metavar="TAG", help="With all of these tags."),
    click.option("--who", multiple=True, metavar="WHO", help="Said by this one."),
    click.option("--since", callback=moment, metavar="TIME", help="Not older; 7d, or ISO 8601."),
    click.option("--until", callback=moment, metavar="TIME", help="Older than this."),
    click.option("--importance-min", type=click.FloatRange(0, 1), metavar="0..1"),
    click.option("--pinned/--not-pinned", default=None, help="Only pinned ones, or only others."),
    click.option("--visibility", type=click.Choice(["global", "private"])),
    click.option("--scope", metavar="LABEL", help="With this scope label."),
)


def filter_options(verb: F) -> F:
    """Give a verb the filters of the API, by their names there."""
    for option in reversed(_OPTIONS):
        verb = option(verb)
    return verb


def given_filters(options: Mapping[str, Any]) -> dict[str, Any]:
    """The `filters` of a request: what was given of these options."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in options.items()
        if value not in (None, ())
    }
