"""Which bodies are answered at once: none that the plain way would refuse or read otherwise."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.http.fast import FastBody, read
from node.http.shapes import RecallBody, parse, parse_json
from node.memory.recall import MAX_LIMIT

anything = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
bodies = st.fixed_dictionaries(
    {"vector": st.lists(st.floats() | st.integers(), max_size=4) | anything, "fast": anything},
    optional={
        "query": st.text(max_size=5) | anything,
        "agent_id": st.text(max_size=5) | anything,
        "limit": st.integers(-5, 100) | anything,
        "include_superseded": anything,
        "deadline_ms": st.integers(-5, 100_000) | anything,
        "filters": st.just({}),
    },
)


@given(bodies.map(lambda body: json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")))
def test_what_is_read_is_what_the_plain_way_reads(raw: bytes) -> None:
    swift = read(raw)
    if swift is None:
        return
    plain = parse(RecallBody, parse_json(raw))
    assert plain.filters == {}
    assert (swift.fast, min(max(swift.limit, 1), MAX_LIMIT)) == (plain.fast, plain.limit)
    for name in ("vector", "query", "agent_id", "include_superseded", "deadline_ms"):
        assert getattr(swift, name) == getattr(plain, name), name


def test_a_usual_question_is_read() -> None:
    body = {"vector": [1, 0.5], "fast": True, "limit": 3, "query": "", "agent_id": "eve"}
    assert read(json.dumps(body).encode()) == FastBody([1.0, 0.5], True, "", "eve", 3)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"vector":[1],"fast":true,"vector":[2]}',
        b'{"vector":[1],"fast":true,"vect\\u006fr":[2]}',
        b'{"vector":[1],"fast":false}',
        b'{"vector":[1]}',
        b'{"vector":[],"fast":true}',
        b'{"vector":[NaN],"fast":true}',
        b'{"vector":[1e999],"fast":true}',
        b'{"vector":["1"],"fast":true}',
        b'{"vector":[1],"fast":true,"filters":{"pinned":true}}',
        b'{"vector":[1],"fast":true,"project":"p"}',
        b'{"vector":[1],"fast":true,"explain":true}',
        b'{"vector":[1],"fast":true,"query":"\xff"}',
        b'[{"vector":[1],"fast":true}]',
        b"[" * 5000,
        b"",
    ],
)
def test_what_is_unusual_takes_the_plain_way(raw: bytes) -> None:
    assert read(raw) is None
