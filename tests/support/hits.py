"""Records of the hot graph as hypothesis draws them, and what is needed to answer with them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import strategies as st

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


def services(alpha: float, degraded: str | None = None) -> Any:
    """A node that knows one agent and one project by name."""
    names = {AGENT: "eve"}
    return SimpleNamespace(
        agents=SimpleNamespace(label=lambda agent: names.get(agent) or id_text(agent)),
        access=SimpleNamespace(
            current=SimpleNamespace(projects={PROJECT: SimpleNamespace(name="harbour")})
        ),
        memory=SimpleNamespace(
            settings=SimpleNamespace(alpha=alpha), residency=SimpleNamespace(degraded=degraded)
        ),
    )
