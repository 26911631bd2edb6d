"""Input from strangers: what fits, and how the rest is told."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.http.shapes import (
    RememberBody,
    SearchQuery,
    parse,
    parse_json,
    parse_query,
    read_cursor,
    write_cursor,
)
from storage.errors import InvalidInput


def refusal(data: dict[str, Any]) -> str:
    with pytest.raises(InvalidInput) as refused:
        parse(RememberBody, data)
    return str(refused.value)


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("content", None, "content is required"),
        ("content", 7, "content is invalid"),
        ("ttl_seconds", "soon", "ttl_seconds is invalid"),
        ("expires_at", "soon", "expires_at is invalid"),
        ("expires_at", 7, "expires_at is invalid"),
        ("expires_at", "2026-01-01T00:00:00", "expires_at must carry a time zone"),
        ("expires_at", "9999-12-31T23:59:59-12:00", "expires_at is invalid"),
        ("created_at", "1900-01-01T00:00:00Z", "created_at is invalid"),
        ("importance", "high", "importance is invalid"),
        ("pinned", "yes", "pinned is invalid"),
        ("visibility", "public", "visibility is invalid"),
        ("tags", [1], "tags[0] is invalid"),
        ("a\x1b]0;x", 1, "unknown field: a?]0;x"),
    ],
)
def test_what_does_not_fit_is_named(field: str, value: Any, reason: str) -> None:
    assert refusal({"content": "x"} | {field: value}) == reason


def test_a_missing_field_is_named() -> None:
    assert refusal({}) == "content is required"


def test_tags_come_as_a_list_or_with_commas() -> None:
    listed = parse(RememberBody, {"content": "x", "tags": ["a", "b,c"]})
    joined = parse(RememberBody, {"content": "x", "tags": " a, b ,,"})
    assert listed.tags == ("a", "b,c")
    assert joined.tags == ("a", "b")


@pytest.mark.parametrize(
    ("text", "limit"), [("7", 7), ("0", 1), ("51", 50), ("x", 10), ("9" * 5000, 10)]
)
def test_a_number_in_a_query_is_moved_into_its_bounds(text: str, limit: int) -> None:
    assert parse(SearchQuery, {"q": "x", "limit": text}).limit == limit


@pytest.mark.parametrize(
    "raw",
    [b"{", b"nul", b"\xff", b'{"a": NaN}', b'{"a": 1e', b"[" * 100_000, b"1" * 5000],
)
def test_a_body_that_is_no_json_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidInput, match="the body is not valid JSON"):
        parse_json(raw)


@pytest.mark.parametrize("raw", [b"", b"  ", b"[]", b"7", b'"x"', b"null", b"{}"])
def test_a_body_without_an_object_is_an_empty_one(raw: bytes) -> None:
    assert parse_json(raw) == {}


def test_a_doubled_name_is_refused() -> None:
    with pytest.raises(InvalidInput, match="doubled field: agent_id"):
        parse_json(b'{"agent_id": "a", "agent_id": "b"}')
    with pytest.raises(InvalidInput, match="doubled filter: q"):
        parse_query([("q", "1"), ("q", "2")])


@given(
    st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=365 * 1000)),
    st.binary(min_size=16, max_size=16),
)
def test_a_cursor_comes_back_exactly(age: timedelta, memory_id: bytes) -> None:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + age
    assert read_cursor(write_cursor(moment, memory_id)) == (moment, memory_id)


@given(st.text(max_size=60))
def test_any_cursor_is_read_or_refused_by_name(text: str) -> None:
    with suppress(InvalidInput):
        place = read_cursor(text)
        assert place is not None
        assert len(place[1]) == 16
