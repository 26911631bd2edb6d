"""SQL in named files: found, checked and numbered once, when a row module is imported.

A file of `storage/sql/` holds queries of this form:

    -- name: insert_memory
    -- One line that says what it is for.
    INSERT INTO memories (memory_id, text) VALUES (:memory_id, :text)

`:name` marks a parameter; casts (`::`), strings, quoted names, dollar quotes and comments are
left alone. Row modules ask for `load("memories").insert_memory` at import, so a query that
does not exist fails there. This module never talks to a database and never puts a value into
a text: parameters become `$1, $2, ...`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

SQL_DIR = Path(__file__).with_name("sql")

_HEADER = re.compile(r"^--\s*name:\s*(?P<name>\S.*?)\s*$", re.MULTILINE)
_NAME = re.compile(r"[a-z][a-z0-9_]*\Z")
_TOKEN = re.compile(
    r"""
      (?P<line_comment> --[^\n]*)
    | (?P<block_comment> /\*.*?\*/)
    | (?P<text> [eE]'(?:[^'\\]|''|\\.)*' | '(?:[^']|'')*')
    | (?P<quoted_name> "(?:[^"]|"")*")
    | (?P<dollar> \$(?P<tag>[A-Za-z_][A-Za-z0-9_]*|)\$ .*? \$(?P=tag)\$)
    | (?P<cast> ::)
    | (?P<assign> :=)
    | :(?P<param> [A-Za-z_][A-Za-z0-9_]*)
    | (?P<word> [A-Za-z_][A-Za-z0-9_$]*)
    | (?P<end> ;)
    | (?P<other> .)
    """,
    re.VERBOSE | re.DOTALL,
)


class QueryFileError(Exception):
    """A query file is not written as it must be; a fault of the program, found at import."""


@dataclass(frozen=True, slots=True)
class Query:
    """One statement with its parameters in the order of `$1, $2, ...`."""

    name: str
    text: str
    params: tuple[str, ...]

    def arguments(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        """The values in positional order; TypeError names the query and what does not fit."""
        missing = [name for name in self.params if name not in values]
        unknown = [name for name in values if name not in self.params]
        if missing or unknown:
            complaints = []
            if missing:
                complaints.append(f"missing {', '.join(missing)}")
            if unknown:
                complaints.append(f"unknown {', '.join(unknown)}")
            raise TypeError(f"query {self.name}: parameters {'; '.join(complaints)}")
        return tuple(values[name] for name in self.params)


class Queries:
    """The queries of one file, as attributes."""

    def __init__(self, source: str, queries: Mapping[str, Query]) -> None:
        self._source = source
        self._queries = dict(queries)

    def __getattr__(self, name: str) -> Query:
        try:
            return self._queries[name]
        except KeyError:
            raise AttributeError(f"{self._source} has no query named {name}") from None

    def __iter__(self) -> Any:
        return iter(self._queries.values())


def compile_query(name: str, sql: str) -> Query:
    """Number the parameters of one statement; a name used twice is one parameter.

    Comments are dropped. Raises QueryFileError for an empty text or more than one statement.
    """
    params: dict[str, int] = {}
    pieces: list[str] = []
    ended = False
    for token in _TOKEN.finditer(sql):
        kind = token.lastgroup
        if kind in ("line_comment", "block_comment"):
            pieces.append(" ")
            continue
        piece = token.group()
        if kind == "end":
            ended = True
            continue
        if ended and not piece.isspace():
            raise QueryFileError(f"query {name}: more than one statement")
        if kind == "param":
            piece = f"${params.setdefault(token.group('param'), len(params) + 1)}"
        elif kind == "other" and piece in "'\"":
            raise QueryFileError(f"query {name}: a quote is not closed")
        pieces.append(piece)
    text = "\n".join(line.rstrip() for line in "".join(pieces).splitlines() if line.strip())
    if not text:
        raise QueryFileError(f"query {name}: no statement")
    return Query(name, text.strip(), tuple(params))


def parse(source: str, text: str) -> Queries:
    """Read the queries of a file's text; `source` is its name in error messages."""
    headers = list(_HEADER.finditer(text))
    preamble = text[: headers[0].start()] if headers else text
    for line in preamble.splitlines():
        if line.strip() and not line.lstrip().startswith("--"):
            raise QueryFileError(f"{source}: SQL before the first -- name: line")
    queries: dict[str, Query] = {}
    for position, header in enumerate(headers):
        name = header["name"]
        end = headers[position + 1].start() if position + 1 < len(headers) else len(text)
        body = text[header.end() : end].lstrip("\n")
        if not _NAME.match(name):
            raise QueryFileError(f"{source}: {name!r} is not a name for a query")
        if name in queries:
            raise QueryFileError(f"{source}: two queries named {name}")
        if not re.match(r"--\s*\S", body):
            raise QueryFileError(f"{source}: query {name} has no description line")
        queries[name] = compile_query(name, body)
    return Queries(source, queries)


@cache
def load(subject: str) -> Queries:
    """The queries of `storage/sql/<subject>.sql`."""
    path = SQL_DIR / f"{subject}.sql"
    return parse(f"{subject}.sql", path.read_text(encoding="utf-8"))
