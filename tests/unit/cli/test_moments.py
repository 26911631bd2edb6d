"""Times on the command line."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import click
import pytest

from node.cli.moments import moment


def read(text: str) -> str:
    command = click.Command("recall", params=[click.Option(["--since"])])
    made = moment(click.Context(command), command.params[0], text)
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("text", "ago"),
    [("30m", timedelta(minutes=30)), ("12h", timedelta(hours=12)), ("7d", timedelta(days=7))],
)
def test_an_age_is_so_long_ago(text: str, ago: timedelta) -> None:
    begun = datetime.now(UTC)
    made = datetime.fromisoformat(read(text))
    assert begun - ago <= made <= datetime.now(UTC) - ago


def test_a_time_keeps_its_moment() -> None:
    assert read("2026-08-01T12:00:00+02:00") == "2026-08-01T10:00:00+00:00"


@pytest.mark.parametrize("text", ["yesterday", "2026-08-01T12:00:00", "7 d", "", "999999y", "-1d"])
def test_anything_else_is_refused_with_what_was_expected(text: str) -> None:
    with pytest.raises(click.BadParameter, match="expected 7d"):
        read(text)
