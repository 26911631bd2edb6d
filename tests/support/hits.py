"""Records of the hot graph as hypothesis draws them, and what is needed to answer with them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from node.memory.nearest import Search
from storage.filters import NO_FILTERS
from storage.hot.graph import HotGraph
from storage.hot.settings import HotSettings
from storage.model import MemoryKind, Reader, ReadPolicy, Resident, Visibility, id_text

AGENT = bytes(range(16))
PROJECT = bytes(range(16, 32))
DIM = 8
NOW = 2_000_000_000_000
"""In the middle of the times at which records expire."""

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


readers = st.builds(
    Reader,
    agent_id=st.sampled_from([AGENT, bytes(16)]),
    policy=st.sampled_from(ReadPolicy),
    group=st.sampled_from([frozenset(), frozenset([AGENT, bytes(16)])]),
    projects=st.sampled_from([frozenset(), frozenset([PROJECT]), frozenset([PROJECT, bytes(16)])]),
)


def graph_of(held: Iterable[Resident], **settings: Any) -> HotGraph:
    """A graph with these records under random vectors."""
    records = list({resident.id: resident for resident in held}.values())
    graph = HotGraph(DIM, HotSettings(**{"threads": 1, "exact_limit": 0, **settings}), lambda: NOW)
    vectors = np.random.default_rng(len(records)).normal(size=(len(records), DIM))
    if records:
        graph.insert(records, vectors)
    return graph


def services(graph: HotGraph, alpha: float = 0.7, degraded: str | None = None) -> Any:
    """A node that has this graph and knows one agent and one project by name."""
    names = {AGENT: "eve"}
    agents = SimpleNamespace(names=0, label=lambda agent: names.get(agent) or id_text(agent))
    access = SimpleNamespace(
        current=SimpleNamespace(projects={PROJECT: SimpleNamespace(name="harbour")})
    )
    return SimpleNamespace(
        agents=agents,
        access=access,
        memory=SimpleNamespace(
            settings=SimpleNamespace(alpha=alpha, min_score=0.0),
            residency=SimpleNamespace(
                degraded=degraded,
                graph=graph,
                leaving=None,
                has_left=lambda memory_id: False,
                touch=graph.touch,
            ),
            agents=agents,
            access=access,
            now=lambda: datetime.fromtimestamp(NOW / 1000, UTC),
        ),
    )


def search(seed: int, wanted: int, reader: Reader, *, superseded: bool = False) -> Search:
    """A search for a random vector."""
    vector = np.random.default_rng(seed).normal(size=DIM).astype(np.float32)
    return Search(vector / np.linalg.norm(vector), wanted, reader, NO_FILTERS, superseded)
