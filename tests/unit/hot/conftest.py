"""Residents, clocks and graphs for the tests of the hot graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from storage.hot.graph import HotGraph
from storage.hot.settings import HotSettings
from storage.model import MemoryKind, Resident, Visibility

Vectors = NDArray[np.float32]


@dataclass
class Clock:
    ms: int = 1_700_000_000_000

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.fixture
def resident() -> Callable[..., Resident]:
    def make(
        number: int, agent: int = 0, kind: MemoryKind = MemoryKind.CELL, content: str = "text"
    ) -> Resident:
        return Resident(
            id=number.to_bytes(16, "big"),
            kind=kind,
            agent_id=agent.to_bytes(16, "big"),
            project_id=None,
            visibility=Visibility.GLOBAL,
            content=content,
            created_ms=0,
        )

    return make


@pytest.fixture
def graph(clock: Clock) -> Callable[..., HotGraph]:
    """On one thread, so that a graph is the same in every run."""

    def make(dim: int = 8, **settings: Any) -> HotGraph:
        return HotGraph(dim, HotSettings(**{"threads": 1, **settings}), clock)

    return make


@pytest.fixture
def best() -> Callable[..., list[int]]:
    """Positions of the k nearest by brute force, among `allowed`."""

    def find(
        vectors: Vectors, query: Vectors, k: int, allowed: NDArray[np.bool_] | None = None
    ) -> list[int]:
        scores = vectors @ query / np.linalg.norm(vectors, axis=1)
        if allowed is not None:
            scores = np.where(allowed, scores, -np.inf)
        found: list[int] = np.argsort(-scores)[:k].tolist()
        return found

    return find


@pytest.fixture
def saved(tmp_path: Path) -> Callable[[HotGraph], bytes]:
    """Every byte that hnswlib would write for a graph."""

    def save(graph: HotGraph) -> bytes:
        path = tmp_path / "index.bin"
        graph._index.hnsw.save_index(str(path))
        return path.read_bytes()

    return save
