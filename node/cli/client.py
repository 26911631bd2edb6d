"""One node as the verbs see it: found, asked, and its refusals turned into readable errors."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click
import httpx

from node.cli.group import ERASURE_UNREACHABLE, UNREACHABLE, Failure, about_erasure
from node.workspace import Workspace, resolve_workspace

TIMEOUT_S: Final = 60.0
LONG_S: Final = 3_600.0
"""Seconds for what goes through any number of memories."""
CONNECT_S: Final = 5.0
DEFAULT_URL: Final = "http://127.0.0.1:3850"
TRIES: Final = 5
BUSY: Final = (429, 503)
MAX_PAUSE_S: Final = 10.0
MAX_URL_FILE: Final = 4096


class Node:
    """A running node over HTTP. Every refusal leaves as a Failure that a person can act upon."""

    def __init__(self, url: str, token: str | None, *, unreachable: int = UNREACHABLE) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.url = url
        self._unreachable = unreachable
        self._client = httpx.Client(
            base_url=url, headers=headers, timeout=TIMEOUT_S, trust_env=False
        )

    def get(self, path: str, **filters: Any) -> Any:
        """The JSON of a read; filters that are None are left out."""
        return read_json(self.fetch(path, **filters))

    def fetch(self, path: str, **filters: Any) -> httpx.Response:
        """The whole answer of a read."""
        return self._checked(self.ask("GET", path, params=_given(filters)))

    def find(self, path: str, **filters: Any) -> httpx.Response | None:
        """As `fetch`, None when the node answers that there is none."""
        answer = self.ask("GET", path, params=_given(filters))
        return None if answer.status_code == 404 else self._checked(answer)

    def post(
        self, path: str, body: Mapping[str, Any] | None = None, *, timeout: float = TIMEOUT_S
    ) -> Any:
        """The JSON of a change; fields that are None are left out."""
        asked = self.ask("POST", path, json=_given(body or {}), timeout=timeout)
        return read_json(self._checked(asked))

    def delete(self, path: str, **filters: Any) -> Any:
        """The JSON of a removal, which may take long; filters that are None are left out."""
        asked = self.ask("DELETE", path, params=_given(filters), timeout=LONG_S)
        return read_json(self._checked(asked))

    def patiently(self, path: str, body: Mapping[str, Any]) -> Any:
        """As `post`, but waits and tries again while the node is busy or starting."""
        for attempt in range(TRIES):
            answer = self.ask("POST", path, json=_given(body))
            if answer.status_code not in BUSY or attempt + 1 == TRIES:
                break
            wait = answer.headers.get("retry-after", "1")
            time.sleep(min(float(wait) if wait.isdigit() else 1.0, MAX_PAUSE_S))
        return read_json(self._checked(answer))

    @contextmanager
    def lines(self, path: str, **filters: Any) -> Iterator[Iterator[str]]:
        """The lines of a streamed answer; one that breaks off is a Failure."""
        begun = False
        try:
            with self._client.stream("GET", path, params=_given(filters)) as answer:
                if answer.status_code >= 400:
                    answer.read()
                begun = True
                yield self._checked(answer).iter_lines()
        except (httpx.TransportError, httpx.InvalidURL) as error:
            if not begun:
                raise self._no_answer() from error
            raise Failure(f"{self.url}: the answer broke off", self._unreachable) from error

    def ask(self, method: str, path: str, **content: Any) -> httpx.Response:
        """Any answer, also a refusal. A Failure when there is none."""
        limit = httpx.Timeout(content.pop("timeout", TIMEOUT_S), connect=CONNECT_S)
        try:
            return self._client.request(method, path, timeout=limit, **content)
        except httpx.TimeoutException as error:
            raise Failure(f"{self.url} does not answer in time", self._unreachable) from error
        except (httpx.TransportError, httpx.InvalidURL, ValueError) as error:
            raise self._no_answer() from error

    def _no_answer(self) -> Failure:
        return Failure(
            f"no node answers at {self.url}; start one with `mnemesh up`, or name it with --url or "
            "--path",
            self._unreachable,
        )

    def _checked(self, answer: httpx.Response) -> httpx.Response:
        if answer.status_code < 400:
            return answer
        kind = NotNow if answer.status_code in BUSY else Failure
        raise kind(refusal(answer))


class NotNow(Failure):
    """The node is starting, stopping or busy: what was asked may go through later."""


def refusal(answer: httpx.Response) -> str:
    """What a refusing answer says, with a hint where one helps."""
    try:
        body = answer.json()
    except ValueError:
        body = {}
    told = body if isinstance(body, dict) else {}
    text = str(told.get("error") or told.get("status") or f"HTTP {answer.status_code}")
    if answer.status_code == 401:
        text += " (give a token with --token or MNEMESH_TOKEN; `mnemesh token create` makes one)"
    if told.get("requestId"):
        text += f" (request {told['requestId']}, see the node's log)"
    return text


def read_json(answer: httpx.Response) -> Any:
    """The JSON of an answer. A Failure when it is none."""
    try:
        return answer.json()
    except ValueError as error:
        raise Failure(f"{answer.url.host} answers something that is not mnemesh") from error


def workspace(path: str | None) -> Workspace:
    """The workspace that a verb works on; it need not exist."""
    given = Path(path) if path else None
    return Workspace(resolve_workspace(given, os.environ, Path.home()))


def open_node(path: str | None, url: str | None, token: str | None) -> Node:
    """The node that the options, the environment or the workspace's `.daemon/http` name.

    A workspace that was named never leads to another node; without any, the usual port does.
    """
    context = click.get_current_context(silent=True)
    unreachable = ERASURE_UNREACHABLE if about_erasure(context) else UNREACHABLE
    given = url or (os.environ.get("MNEMESH_URL") if path is None else None)
    token = token or os.environ.get("MNEMESH_TOKEN") or None
    if not given:
        place = workspace(path)
        given = _announced(place)
        if given is None and (path or os.environ.get("MNEMESH_WORKSPACE")):
            raise Failure(
                f"the node of {place.root} is not running; start it with `mnemesh up`", unreachable
            )
    given = given or DEFAULT_URL
    if not given.startswith(("http://", "https://")):
        given = f"http://{given}"
    return Node(given.rstrip("/"), token, unreachable=unreachable)


def print_json(value: Any) -> None:
    """JSON for a program: the body as it came."""
    click.echo(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def _announced(place: Workspace) -> str | None:
    try:
        with (place.daemon / "http").open(encoding="ascii") as file:
            return file.read(MAX_URL_FILE).strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
