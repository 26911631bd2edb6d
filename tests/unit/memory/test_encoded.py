"""Records that were encoded before: the same bytes as encoded anew, and never longer than alive."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.http import fast
from node.http.views import answer_view
from node.memory.encoded import LARGEST, Encoded, EncodedRecords
from node.memory.nearest import Search, hits_of
from node.memory.ranking import Source
from node.memory.recall import Answer, RecallHit, Stage
from node.port import messages, records
from node.port.answers import Answers
from node.port.codec import encode, read_reply
from storage.hot.graph import HotGraph
from storage.model import MemoryKind, Reader, ReadPolicy, Resident, Visibility
from tests.support.hits import AGENT, DIM, graph_of, readers, residents, search, services

ALPHA = 0.7
EVERYBODY = Reader(AGENT, ReadPolicy.SHARED)
held = st.lists(residents, max_size=40)
exact = st.sampled_from([0, 1_000])
"""The graph is asked, or all are compared."""


def plain(node: Any, asked: Search, degraded: tuple[str, ...] = ()) -> Answer:
    """The same answer, on the way that looks at each record and encodes each time."""
    (hits,) = hits_of(node.memory, [asked])
    found = [(hit.resident, max(hit.score, 0.0)) for hit in hits]
    return Answer(
        tuple(
            RecallHit(resident, ALPHA * cosine, Source.VECTOR, "hot", cosine, 0.0)
            for resident, cosine in found
        ),
        degraded,
    )


@given(held, exact, readers, st.booleans(), st.integers(1, 12), st.integers(1, (1 << 32) - 1))
def test_frames_of_encoded_records_are_the_frames_of_the_answers(
    found: list[Resident],
    limit: int,
    reader: Reader,
    superseded: bool,
    wanted: int,
    number: int,
) -> None:
    node = services(graph_of(found, exact_limit=limit), ALPHA)
    asked = [search(seed, wanted, reader, superseded=superseded) for seed in range(3)]
    degraded = ("hot: being filled",)
    expected = [encode(records.answer(node, number, plain(node, one, degraded))) for one in asked]
    answers = Answers(node)
    for _ in range(2):
        frames, hits = answers.frames([(number, one) for one in asked], degraded)
        assert frames == expected
        assert hits == [len(plain(node, one).hits) for one in asked]


@given(held, exact, readers, st.integers(1, 12), st.booleans())
def test_json_of_encoded_records_is_the_json_of_the_answer(
    found: list[Resident], limit: int, reader: Reader, wanted: int, filling: bool
) -> None:
    degraded = ("hot: being filled",) if filling else ()
    node = services(graph_of(found, exact_limit=limit), ALPHA, "filling" if filling else None)
    asked = search(1, wanted, reader)
    recalls = fast.FastRecalls(node)
    answer = plain(node, asked, degraded)
    hot = Stage("hot", 0.0125, len(answer.hits))
    expected = answer_view(node, replace(answer, stages=(hot,)), wanted)
    for _ in range(2):
        (encoded,) = recalls.encoded.answers([asked])
        told = json.loads(recalls.encode(encoded, wanted, 0.0125))
        assert told == expected
        assert json.dumps(told) == json.dumps(expected)


def test_questions_of_several_readers_and_lengths_are_answered_in_their_order() -> None:
    everything = [record(number, agent=number % 3) for number in range(60)]
    node = services(graph_of(everything), ALPHA)
    asked = [
        search(seed, wanted, Reader(bytes([seed % 3] * 16), policy))
        for seed, (wanted, policy) in enumerate(
            [(3, ReadPolicy.SHARED), (7, ReadPolicy.ISOLATED), (3, ReadPolicy.SHARED)] * 2
        )
    ]
    frames, _ = Answers(node).frames(list(enumerate(asked, 1)), ())
    assert frames == [
        encode(records.answer(node, number, plain(node, one)))
        for number, one in enumerate(asked, 1)
    ]


def test_hits_too_long_for_one_frame_are_left_out_from_the_end() -> None:
    node = services(graph_of([record(n, "x" * (300 << 10)) for n in range(40)]), ALPHA)
    asked = search(1, 10, EVERYBODY)
    (frame,), _ = Answers(node).frames([(5, asked)], ())
    told = read_reply(frame[4:])
    assert isinstance(told, messages.Answer)
    nearest = [hit.memory.id for hit in plain(node, asked).hits]
    assert [hit.raw_id for hit in told.hits] == nearest[: len(told.hits)]
    assert told.degraded == ("size",)


def record(number: int, content: str = "x", agent: int = 0) -> Resident:
    return Resident(
        id=number.to_bytes(16, "big"),
        kind=MemoryKind.CELL,
        agent_id=bytes([agent] * 16),
        project_id=None,
        visibility=Visibility.GLOBAL,
        content=content,
        created_ms=0,
    )


def content_of(resident: Resident) -> bytes:
    return resident.content.encode()


def ask(encoded: EncodedRecords, wanted: int = 10) -> Encoded:
    (answer,) = encoded.answers([search(1, wanted, EVERYBODY)])
    return answer


def test_a_record_is_encoded_once() -> None:
    made: list[bytes] = []

    def count(resident: Resident) -> bytes:
        made.append(resident.id)
        return resident.id

    node = services(graph_of(record(number) for number in range(30)))
    encoded = EncodedRecords(node.memory, count)
    first, second = ask(encoded), ask(encoded)
    assert first.records == second.records == made
    assert len(made) == len(encoded) == 10


def test_another_name_of_an_agent_or_a_project_is_told() -> None:
    node = services(graph_of(record(number) for number in range(30)))
    says = SimpleNamespace(name=b"a")
    encoded = EncodedRecords(node.memory, lambda resident: says.name)
    assert ask(encoded).records == [b"a"] * 10
    says.name = b"b"
    node.agents.names += 1
    assert ask(encoded).records == [b"b"] * 10
    says.name = b"c"
    node.access.current = SimpleNamespace(projects={})
    assert ask(encoded).records == [b"c"] * 10
    assert len(encoded) == 10


@pytest.mark.parametrize("how", ["forget", "hide", "evict", "purge", "insert", "replace_record"])
def test_what_leaves_or_changes_in_the_graph_leaves_no_bytes(how: str) -> None:
    graph = graph_of(record(number, "other") for number in range(100, 130))
    query = search(1, 1, EVERYBODY).vector[np.newaxis, :]
    graph.insert([record(1, "old")], query)
    encoded = EncodedRecords(services(graph).memory, content_of)
    assert ask(encoded, 1).records == [b"old"]
    assert len(encoded) == 1
    if how == "insert":
        graph.insert([record(1, "new")], query)
    elif how == "replace_record":
        graph.replace_record(record(1, "new"))
    elif how == "purge":
        graph.purge([record(1).id], rebuild=False)
    else:
        getattr(graph, how)([record(1).id])
    assert (len(encoded), encoded.size) == (0, 0)
    assert ask(encoded, 1).records == [b"new" if how in ("insert", "replace_record") else b"other"]


def test_what_is_kept_has_a_bound() -> None:
    node = services(graph_of(record(number, "x" * 500) for number in range(500)))
    encoded = EncodedRecords(node.memory, content_of, limit=20_000)
    for seed in range(50):
        (answer,) = encoded.answers([search(seed, 10, EVERYBODY)])
        assert answer.records == [b"x" * 500] * 10
        assert encoded.size <= 20_000
    assert len(encoded) > 10


def test_a_long_record_is_not_kept() -> None:
    node = services(graph_of(record(number, "x" * (LARGEST + 1)) for number in range(5)))
    encoded = EncodedRecords(node.memory, content_of)
    assert ask(encoded).records == [b"x" * (LARGEST + 1)] * 5
    assert len(encoded) == 0


def test_a_record_that_left_while_it_was_encoded_is_not_kept() -> None:
    graph: HotGraph = graph_of(record(number) for number in range(30))

    def forget(resident: Resident) -> bytes:
        graph.forget([resident.id])
        return content_of(resident)

    encoded = EncodedRecords(services(graph).memory, forget)
    assert ask(encoded).records == [b"x"] * 10
    assert (len(encoded), encoded.size) == (0, 0)


def test_what_is_being_forgotten_is_in_no_answer() -> None:
    node = services(graph_of(record(number) for number in range(30)))
    encoded = EncodedRecords(node.memory, lambda resident: resident.id)
    first, *others = ask(encoded, 5).records
    node.memory.residency.leaving = node.memory.residency.has_left = lambda one: one == first
    assert ask(encoded, 5).records[:4] == others


def test_hits_of_an_answer_count_as_accesses() -> None:
    graph = graph_of(record(number) for number in range(30))
    encoded = EncodedRecords(services(graph).memory, lambda resident: resident.id)
    found = ask(encoded, 5).records
    assert ask(encoded, 5).records == found
    encoded.count()
    assert graph.take_accesses() == dict.fromkeys(found, 2)
    assert graph.take_accesses() == {}


def test_accesses_of_what_left_are_not_lost() -> None:
    graph = graph_of(record(number) for number in range(30))
    encoded = EncodedRecords(services(graph).memory, lambda resident: resident.id)
    found = ask(encoded, 5).records
    encoded.count()
    graph.evict(found[:2])
    graph.insert([record(99)], np.ones((1, DIM), np.float32))
    assert graph.take_accesses() == dict.fromkeys(found, 1)


def test_what_left_before_it_is_counted_does_not_warm_who_came_in_its_place() -> None:
    graph = graph_of(record(number) for number in range(30))
    encoded = EncodedRecords(services(graph).memory, lambda resident: resident.id)
    found = ask(encoded, 5).records
    graph.evict(found[:2])
    graph.insert([record(98), record(99)], np.eye(2, DIM, dtype=np.float32))
    encoded.count()
    assert graph.take_accesses() == dict.fromkeys(found[2:], 1)
