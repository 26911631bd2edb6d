"""Query files: what is a parameter, what is not, and what is refused at import."""

from __future__ import annotations

import pytest

from storage.queries import Query, QueryFileError, compile_query, load, parse

GOOD = """\
-- queries of notes

-- name: insert_note
-- Store one note.
INSERT INTO notes (id, text) VALUES (:id, :text);

-- name: count_notes
-- How many there are.
SELECT count(*) FROM notes
"""


@pytest.mark.parametrize(
    "sql, text, params",
    [
        ("SELECT :a, :b, :a", "SELECT $1, $2, $1", ("a", "b")),
        ("SELECT :a::int, b::text", "SELECT $1::int, b::text", ("a",)),
        ("SELECT ':no', :yes", "SELECT ':no', $1", ("yes",)),
        ("SELECT 'it''s :no'", "SELECT 'it''s :no'", ()),
        (r"SELECT E'a\' :no'", r"SELECT E'a\' :no'", ()),
        ('SELECT ":no"', 'SELECT ":no"', ()),
        ("SELECT $$ :no $$, $x$ ':no $$ $x$", "SELECT $$ :no $$, $x$ ':no $$ $x$", ()),
        ("SELECT 1 -- :no ; it's\n, :a", "SELECT 1\n, $1", ("a",)),
        ("SELECT /* :no ' */ :a", "SELECT   $1", ("a",)),
        ("SELECT f(x := :a)", "SELECT f(x := $1)", ("a",)),
        ("SELECT a[1:2]", "SELECT a[1:2]", ()),
        ("SELECT ';' ;\n", "SELECT ';'", ()),
    ],
)
def test_parameters_are_numbered(sql: str, text: str, params: tuple[str, ...]) -> None:
    assert compile_query("q", sql) == Query("q", text, params)


@pytest.mark.parametrize("sql", ["", "-- only words", "SELECT 1; SELECT 2", "SELECT 'open"])
def test_what_is_not_one_statement_is_refused(sql: str) -> None:
    with pytest.raises(QueryFileError, match="query q"):
        compile_query("q", sql)


def test_a_file_gives_its_queries_as_attributes() -> None:
    queries = parse("notes.sql", GOOD)
    assert queries.insert_note.params == ("id", "text")
    assert [query.name for query in queries] == ["insert_note", "count_notes"]


def test_an_unknown_query_fails_where_it_is_named() -> None:
    with pytest.raises(AttributeError, match=r"notes\.sql has no query named nonsense"):
        _ = parse("notes.sql", GOOD).nonsense


@pytest.mark.parametrize(
    "text, complaint",
    [
        ("-- name: a\nSELECT 1", "no description"),
        ("-- name: a\n-- x\nSELECT 1\n-- name: a\n-- x\nSELECT 2", "two queries named a"),
        ("SELECT 1\n-- name: a\n-- x\nSELECT 2", "SQL before"),
        ("-- name: A-b\n-- x\nSELECT 1", "not a name"),
    ],
)
def test_a_file_with_a_fault_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(QueryFileError, match=complaint):
        parse("bad.sql", text)


def test_arguments_come_in_positional_order() -> None:
    query = compile_query("q", "SELECT :b, :a")
    assert query.arguments({"a": 1, "b": 2}) == (2, 1)


def test_missing_and_unknown_parameters_are_both_named() -> None:
    query = compile_query("q", "SELECT :a, :b")
    with pytest.raises(TypeError, match="query q: parameters missing b; unknown c"):
        query.arguments({"a": 1, "c": 2})


def test_an_unknown_file_is_not_found() -> None:
    with pytest.raises(FileNotFoundError):
        load("no_such_subject")
