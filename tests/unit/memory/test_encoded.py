"""Records that were encoded before: the same bytes as encoded anew, and never longer than alive."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.http import fast
from node.http.views import answer_view
from node.memory.encoded import LARGEST, EncodedRecords
from node.memory.ranking import Source
from node.memory.recall import Answer, RecallHit, Stage
from node.port import records
from node.port.answers import Answers
from node.port.codec import encode
from storage.hot.graph import HotGraph
from storage.hot.reports import Hit
from storage.hot.settings import HotSettings
from storage.model import MemoryKind, Resident, Visibility
from tests.support.hits import Held, residents, services

ALPHA = 0.7
scores = st.floats(-1, 1, width=32)
marks = st.sampled_from([(), ("hot: being filled",)])


def plain(services: Any, hits: list[Hit], degraded: tuple[str, ...]) -> Answer:
    """The same answer, on the way that encodes each time."""
    return Answer(
        tuple(
            RecallHit(
                hit.resident,
                ALPHA * max(hit.score, 0.0),
                Source.VECTOR,
                "hot",
                max(hit.score, 0.0),
                0.0,
            )
            for hit in hits
        ),
        degraded,
    )


@given(
    st.lists(st.tuples(residents, scores), max_size=20),
    st.integers(1, (1 << 32) - 1),
    marks,
)
def test_a_frame_of_encoded_records_is_the_frame_of_the_answer(
    found: list[tuple[Resident, float]], number: int, degraded: tuple[str, ...]
) -> None:
    hits = [Hit(resident, score) for resident, score in found]
    node = services(ALPHA, hits)
    answers = Answers(node)
    expected = encode(records.answer(node, number, plain(node, hits, degraded)))
    assert answers.frame(number, hits, degraded) == expected
    assert answers.frame(number, hits, degraded) == expected


@given(st.lists(st.tuples(residents, scores), max_size=20), st.integers(1, 50), marks)
def test_json_of_encoded_records_is_the_json_of_the_answer(
    found: list[tuple[Resident, float]], limit: int, degraded: tuple[str, ...]
) -> None:
    hits = [Hit(resident, score) for resident, score in found]
    node = services(ALPHA, hits, "filling" if degraded else None)
    recalls = fast.FastRecalls(node)
    answer = replace(plain(node, hits, degraded), stages=(Stage("hot", 0.0125, len(hits)),))
    expected = answer_view(node, answer, limit)
    for _ in range(2):
        told = json.loads(recalls.encode(hits, limit, 0.0125))
        assert told == expected
        assert json.dumps(told) == json.dumps(expected)


def record(number: int, content: str = "x") -> Resident:
    return Resident(
        id=number.to_bytes(16, "big"),
        kind=MemoryKind.CELL,
        agent_id=bytes(16),
        project_id=None,
        visibility=Visibility.GLOBAL,
        content=content,
        created_ms=0,
    )


def pieces_of(resident: Resident, agent: str, project: str | None) -> tuple[bytes, bytes]:
    return f"{resident.content} of {agent} in {project}".encode(), b""


def test_a_record_is_encoded_once() -> None:
    made: list[Resident] = []

    def count(resident: Resident, agent: str, project: str | None) -> tuple[bytes, bytes]:
        made.append(resident)
        return pieces_of(resident, agent, project)

    one = record(1)
    encoded = EncodedRecords(count, Held([one]))
    assert encoded.pieces(one, "a", None) == encoded.pieces(one, "a", None)
    assert made == [one]


def test_another_name_of_its_agent_or_project_is_told() -> None:
    one = record(1)
    encoded = EncodedRecords(pieces_of, Held([one]))
    assert encoded.pieces(one, "a", None)[0] == b"x of a in None"
    assert encoded.pieces(one, "b", None)[0] == b"x of b in None"
    assert encoded.pieces(one, "b", "p")[0] == b"x of b in p"
    assert len(encoded) == 1


@pytest.mark.parametrize("how", ["forget", "hide", "evict", "purge", "insert", "replace_record"])
def test_what_leaves_or_changes_in_the_graph_leaves_no_bytes(how: str) -> None:
    graph = HotGraph(4, HotSettings(), lambda: 1)
    graph.insert([record(1, "old")], np.ones((1, 4), np.float32))
    encoded = EncodedRecords(pieces_of, graph)

    def ask() -> list[bytes]:
        hits = graph.search(np.full(4, 0.5, np.float32), 1)
        return [encoded.pieces(hit.resident, "a", None)[0] for hit in hits]

    assert ask() == [b"old of a in None"]
    assert len(encoded) == 1
    if how == "insert":
        graph.insert([record(1, "new")], np.ones((1, 4), np.float32))
    elif how == "replace_record":
        graph.replace_record(record(1, "new"))
    elif how == "purge":
        graph.purge([record(1).id], rebuild=False)
    else:
        getattr(graph, how)([record(1).id])
    assert (len(encoded), encoded.size) == (0, 0)
    assert ask() == ([b"new of a in None"] if how in ("insert", "replace_record") else [])


def test_what_is_kept_has_a_bound() -> None:
    alive = [record(number, "x" * 500) for number in range(500)]
    encoded = EncodedRecords(pieces_of, Held(alive), limit=50_000)
    for one in alive:
        assert encoded.pieces(one, "a", None) == pieces_of(one, "a", None)
        assert encoded.size <= 50_000
    assert len(encoded) > 20


def test_a_long_record_is_not_kept() -> None:
    one = record(1, "x" * LARGEST)
    encoded = EncodedRecords(pieces_of, Held([one]))
    assert encoded.pieces(one, "a", None) == pieces_of(one, "a", None)
    assert len(encoded) == 0


def test_a_record_that_left_while_it_was_encoded_is_not_kept() -> None:
    graph = HotGraph(4, HotSettings(), lambda: 1)
    graph.insert([record(1)], np.ones((1, 4), np.float32))

    def forget(resident: Resident, agent: str, project: str | None) -> tuple[bytes, bytes]:
        graph.forget([resident.id])
        return pieces_of(resident, agent, project)

    encoded = EncodedRecords(forget, graph)
    (hit,) = graph.search(np.full(4, 0.5, np.float32), 1)
    assert encoded.pieces(hit.resident, "a", None)[0] == b"x of a in None"
    assert (len(encoded), encoded.size) == (0, 0)
