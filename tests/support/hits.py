"""Records of the hot graph as hypothesis draws them, and what is needed to answer with them."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from hypothesis import strategies as st

from storage.hot.graph import HotGraph
from storage.hot.reports import Hit
from storage.hot.settings import HotSettings
from storage.model import MemoryKind, Resident, Visibility, id_text

AGENT = bytes(range(16))
PROJECT = bytes(range(16, 32))

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)
labels = st.none() | texts
milliseconds = st.integers(0, 4_000_000_000_000)

residents = st.builds(
    Resident,
    id=st.binary(min_size=16, max_size=16),
    kind=st.sampled_from(MemoryKind),
    agent_id=st.sampled_from([AGENT, bytes(16)]),
    project_id=st.sampled_from([None, PROJECT, bytes(16)]),
    visibility=st.sampled_from(Visibility),
    content=texts,
    created_ms=milliseconds,
    scope_label=labels,
    type=texts,
    tags=st.lists(texts, max_size=3).map(tuple),
    who=labels,
    importance=st.floats(0, 1, width=32),
    pinned=st.booleans(),
    expires_ms=st.none() | milliseconds,
    superseded=st.booleans(),
    foreign=st.booleans(),
)


class Held(HotGraph):
    """A graph without vectors: these records are in it and stay."""

    def __init__(self, held: Iterable[Resident]) -> None:
        super().__init__(4, HotSettings(), lambda: 1)
        self._held = {resident.id: resident for resident in held}

    def get(self, memory_id: bytes) -> Resident | None:
        return self._held.get(memory_id)


def services(alpha: float, hits: Iterable[Hit], degraded: str | None = None) -> Any:
    """A node that has these residents and knows one agent and one project by name."""
    names = {AGENT: "eve"}
    graph = Held(hit.resident for hit in hits)
    return SimpleNamespace(
        agents=SimpleNamespace(label=lambda agent: names.get(agent) or id_text(agent)),
        access=SimpleNamespace(
            current=SimpleNamespace(projects={PROJECT: SimpleNamespace(name="harbour")})
        ),
        memory=SimpleNamespace(
            settings=SimpleNamespace(alpha=alpha),
            residency=SimpleNamespace(degraded=degraded, graph=graph),
        ),
    )
