"""Access classes: what a reader may see is judged once a class, and is what `visible` says."""

from __future__ import annotations

import dataclasses

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from storage.hot.classes import HIDDEN, SEEN, SPARE, UNTIL, Classes, Verdicts
from storage.hot.serving import Asking
from storage.model import Reader, ReadPolicy, Resident
from storage.visibility import AccessClass, visible
from tests.support.hits import AGENT, DIM, NOW, graph_of, readers, residents


@given(residents, readers, st.booleans())
def test_a_verdict_and_the_expiry_are_what_visible_looks_at(
    one: Resident, reader: Reader, superseded: bool
) -> None:
    classes = Classes()
    number = classes.enter(one)
    verdict = Verdicts(lambda each: visible(each, reader, NOW, superseded=superseded)).of(classes)
    expired = one.expires_ms is not None and one.expires_ms <= NOW
    says = verdict[number] != HIDDEN and not (verdict[number] == UNTIL and expired)
    assert says == visible(one, reader, NOW, superseded=superseded)


@given(st.lists(st.tuples(residents, st.booleans()), max_size=60))
def test_verdicts_follow_classes_that_come_and_go(steps: list[tuple[Resident, bool]]) -> None:
    classes = Classes()
    verdicts = Verdicts(lambda one: one.agent_id == AGENT)
    entered: list[tuple[Resident, int]] = []
    for one, leaves in steps:
        entered.append((one, classes.enter(one)))
        if leaves:
            classes.leave(entered.pop(0)[1])
        told = verdicts.of(classes)
        for resident, number in entered:
            seen = SEEN if resident.expires_ms is None else UNTIL
            assert told[number] == (seen if resident.agent_id == AGENT else HIDDEN)
    assert len(classes) == len({AccessClass.of(resident) for resident, _ in entered})


def test_numbers_of_agents_that_went_are_used_again(resident) -> None:
    classes = Classes()
    verdicts = Verdicts(lambda one: one.agent_id[-1] == 1)
    for agent in range(3 * SPARE):
        number = classes.enter(resident(1, agent=agent % 256))
        assert verdicts.of(classes)[number] == (SEEN if agent % 256 == 1 else HIDDEN)
        classes.leave(number)
    assert (len(classes), len(classes.by_number)) == (0, 1)
    assert len(classes.entered) <= SPARE + 4


def test_what_expires_is_served_until_then(resident) -> None:
    lasting = [resident(number) for number in range(30)]
    brief = [msgspec.structs.replace(resident(number), expires_ms=NOW) for number in range(30, 60)]
    graph = graph_of(lasting + brief)
    attached = graph.attach(1 << 20)
    everything = Verdicts(lambda one: True)
    query = np.eye(1, DIM, dtype=np.float32)
    before = Asking(k=5, verdicts=everything, agents=None, least=-1, now_ms=NOW - 1)
    nearest = [hit.resident for hit in graph.search(query[0], 5)]
    assert list(graph.serve(query, before, attached).missing.values()) == nearest
    served = graph.serve(query, dataclasses.replace(before, now_ms=NOW), attached)
    still = [hit.resident for hit in graph.search(query[0], 5, accept=lambda one: one in lasting)]
    assert served.short == []
    assert list(served.missing.values()) == still


def test_a_question_that_too_few_pass_is_named_and_counts_nothing(resident) -> None:
    graph = graph_of([resident(number, agent=number % 20) for number in range(400)])
    one = Reader((3).to_bytes(16, "big"), ReadPolicy.ISOLATED)
    asking = Asking(
        k=10,
        verdicts=Verdicts(lambda each: each.agent_id == one.agent_id),
        agents=None,
        least=-1,
        now_ms=NOW,
    )
    served = graph.serve(np.eye(2, DIM, dtype=np.float32), asking, graph.attach(1 << 20))
    assert (served.short, served.bounds, served.values) == ([0, 1], [0, 0, 0], [])
    assert graph.take_accesses() == {}
