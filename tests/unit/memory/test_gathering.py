"""Questions that wait together share a call; a lone one takes no detour."""

from __future__ import annotations

import numpy as np
import pytest
import trio
import trio.testing

from node.memory.gathering import MOST, Gathering
from storage.errors import InvalidInput
from storage.hot.graph import HotGraph
from storage.hot.reports import Hit
from storage.hot.searching import Asked
from storage.hot.settings import HotSettings
from storage.model import MemoryKind, Resident, Visibility

DIM = 16
RNG = np.random.default_rng(3)
VECTORS = RNG.normal(size=(300, DIM)).astype(np.float32)


@pytest.fixture
def graph() -> HotGraph:
    made = HotGraph(DIM, HotSettings(exact_limit=50), lambda: 1)
    made.insert(
        [
            Resident(
                id=n.to_bytes(16, "big"),
                kind=MemoryKind.CELL,
                agent_id=(n % 10).to_bytes(16, "big"),
                project_id=None,
                visibility=Visibility.GLOBAL,
                content="",
                created_ms=0,
            )
            for n in range(300)
        ],
        VECTORS,
    )
    return made


def questions(count: int) -> list[Asked]:
    """Of every form: plain, of one agent, filtered so that few pass, with different k."""
    forms = [
        {"k": 5},
        {"k": 7, "agents": frozenset([(1).to_bytes(16, "big")])},
        {"k": 5, "accept": lambda r: r.id[-1] % 3 == 0},
        {"k": 3, "accept": lambda r: r.id[-1] == 7},
        {"k": 4, "agents": frozenset([b"nobody"])},
    ]
    return [Asked(RNG.normal(size=DIM), **forms[n % len(forms)]) for n in range(count)]


def alone(graph: HotGraph, asked: Asked) -> list[Hit]:
    return graph.search(asked.query, asked.k, agents=asked.agents, accept=asked.accept)


def same(one: list[Hit], other: list[Hit]) -> bool:
    return [hit.resident.id for hit in one] == [hit.resident.id for hit in other]


async def ask_all(gathering: Gathering, asked: list[Asked]) -> list[list[Hit]]:
    answers: dict[int, list[Hit]] = {}

    async def ask(position: int) -> None:
        answers[position] = await gathering.ask(asked[position])

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for position in range(len(asked)):
                nursery.start_soon(ask, position)
    return [answers[position] for position in range(len(asked))]


def test_many_questions_in_one_call_are_answered_as_one_by_one(graph: HotGraph) -> None:
    asked = questions(40)
    answers = graph.search_many(asked)
    assert all(
        same(answer, alone(graph, each)) for each, answer in zip(asked, answers, strict=True)
    )


def test_no_question_has_no_answer(graph: HotGraph) -> None:
    assert graph.search_many([]) == []


async def test_a_lone_question_is_answered_without_a_task_switch(graph: HotGraph) -> None:
    gathering = Gathering(graph)
    (asked,) = questions(1)
    await trio.testing.wait_all_tasks_blocked()
    with trio.CancelScope() as scope:
        scope.cancel()
        hits = await gathering.ask(asked)
    assert same(hits, alone(graph, asked))


@pytest.mark.parametrize("count", [2, 8, 40, 3 * MOST])
async def test_those_that_wait_together_share_few_calls(graph: HotGraph, count: int) -> None:
    gathering = Gathering(graph)
    asked = questions(count)
    answers = await ask_all(gathering, asked)
    assert all(
        same(answer, alone(graph, each)) for each, answer in zip(asked, answers, strict=True)
    )
    assert gathering.calls <= 3 + count // MOST


async def test_a_question_that_is_given_up_holds_nobody_back(graph: HotGraph) -> None:
    gathering = Gathering(graph)
    asked = questions(3 * MOST)
    answers: list[list[Hit]] = []

    async def ask(each: Asked, cancelled: bool) -> None:
        with trio.CancelScope() as scope:
            if cancelled:
                scope.cancel()
            answers.append(await gathering.ask(each))

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for position, each in enumerate(asked):
                nursery.start_soon(ask, each, position % 2 == 0)
    assert len(answers) >= len(asked) // 2
    assert gathering._waiting == []


async def test_a_bad_question_is_told_and_the_next_are_answered(graph: HotGraph) -> None:
    gathering = Gathering(graph)
    bad = Asked(np.zeros(DIM), 5)

    async def refused() -> None:
        with pytest.raises(InvalidInput):
            await gathering.ask(bad)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for _ in range(12):
                nursery.start_soon(refused)
    asked = questions(12)
    answers = await ask_all(gathering, asked)
    assert all(
        same(answer, alone(graph, each)) for each, answer in zip(asked, answers, strict=True)
    )
