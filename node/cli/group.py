"""The shape that all verbs share: exit codes, where a node is found, and options for both.

Exit codes: 0 done, 1 an error, 2 the node cannot be reached. The verbs about erasures have codes
of their own, because there 2 means that something is pending: 4 bad arguments, 7 not reachable.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable
from typing import Any, Final, NoReturn, TypeVar

import click

from storage.errors import MnemeshError

F = TypeVar("F", bound=Callable[..., Any])

ERROR: Final = 1
UNREACHABLE: Final = 2
ERASURE_USAGE: Final = 4
ERASURE_UNREACHABLE: Final = 7
ERASURE_VERBS: Final = frozenset({"erase", "erasure", "certificate", "verify"})


class Failure(click.ClickException):
    """A verb cannot do its work; the message names what is wrong."""

    def __init__(self, message: str, exit_code: int = ERROR) -> None:
        super().__init__(message)
        self.code = exit_code


class Verbs(click.Group):
    """A group whose errors end with this program's exit codes instead of click's."""

    def main(self, *args: Any, **extra: Any) -> NoReturn:
        extra["standalone_mode"] = False
        try:
            code = super().main(*args, **extra)
        except click.UsageError as error:
            error.show()
            code = ERASURE_USAGE if about_erasure(error.ctx) else ERROR
        except click.ClickException as error:
            error.show()
            code = error.code if isinstance(error, Failure) else ERROR
        except click.Abort:
            click.echo("aborted", err=True)
            code = ERROR
        except MnemeshError as error:
            click.echo(f"Error: {error}", err=True)
            code = ERROR
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            click.echo(f"Error: cannot write: {error.strerror}", err=True)
            code = ERROR
        sys.exit(code if isinstance(code, int) else 0)


def about_erasure(context: click.Context | None) -> bool:
    """Whether a verb is one of those with codes of their own."""
    while context is not None and context.parent is not None:
        if context.info_name in ERASURE_VERBS:
            return True
        context = context.parent
    return False


def reaching(verb: F) -> F:
    """Give a verb the options that say which node it speaks to."""
    for option in (
        click.option("--token", help="Bearer token [env MNEMESH_TOKEN].", metavar="TOKEN"),
        click.option("--url", help="The node's address [env MNEMESH_URL].", metavar="URL"),
        click.option(
            "--path", help="The node's workspace [env MNEMESH_WORKSPACE].", metavar="FOLDER"
        ),
    ):
        verb = option(verb)
    return verb


def json_option(verb: F) -> F:
    """Give a read its machine-readable form."""
    return click.option("--json", "as_json", is_flag=True, help="Print the HTTP body unchanged.")(
        verb
    )


def agent_option(verb: F) -> F:
    """Let the caller say on whose behalf."""
    return click.option(
        "--agent", metavar="NAME", help="Act for this agent; the node's own without it."
    )(verb)
