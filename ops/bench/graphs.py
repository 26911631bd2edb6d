"""Data and graphs for the benchmarks of the hot graph: vectors that look like embeddings.

Texts of one subject lie close together and vary in few directions: centres in a space of few
dimensions, a spread around each, all turned into the full space with a little noise. Vectors are
rounded to half precision, as the tables keep them.
"""

from __future__ import annotations

import resource
import time
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage.hot.graph import HotGraph
from storage.hot.settings import HotSettings
from storage.model import MemoryKind, Resident, Visibility

DIM: Final = 256
SIZE: Final = 100_000
TOP: Final = 10
_LATENT: Final = 24
_SUBJECTS: Final = 1_000
_NOISE: Final = 0.05

Vectors = NDArray[np.float32]


def now_ms() -> int:
    """The wall clock in milliseconds."""
    return time.time_ns() // 1_000_000


def make_vectors(count: int, seed: int = 1) -> Vectors:
    """Unit vectors of shape (count, DIM); every seed draws from the same subjects."""
    shape = np.random.default_rng(7)
    turn = shape.normal(size=(_LATENT, DIM)).astype(np.float32) / np.float32(_LATENT**0.5)
    centres = shape.normal(size=(_SUBJECTS, _LATENT)).astype(np.float32)
    rng = np.random.default_rng(seed)
    made = np.empty((count, DIM), np.float32)
    for start in range(0, count, 10_000):
        part = made[start : start + 10_000]
        latent = centres[rng.integers(_SUBJECTS, size=len(part))]
        latent = latent + 0.5 * rng.normal(size=latent.shape).astype(np.float32)
        part[:] = latent @ turn + _NOISE * rng.normal(size=part.shape).astype(np.float32)
        part /= np.linalg.norm(part, axis=1, keepdims=True)
        part[:] = part.astype(np.float16)
    return made


def id_of(number: int) -> bytes:
    """The id of the memory with this number."""
    return number.to_bytes(16, "big")


def number_of(memory_id: bytes) -> int:
    """The other way round."""
    return int.from_bytes(memory_id, "big")


def make_resident(number: int, agent: int = 0) -> Resident:
    """A memory with a text of usual length."""
    return Resident(
        id=id_of(number),
        kind=MemoryKind.CELL,
        agent_id=id_of(agent),
        project_id=None,
        visibility=Visibility.GLOBAL,
        content=f"memory {number}: " + "what somebody said about a subject " * 3,
        created_ms=number,
    )


def make_graph(ceiling: int = 1_000_000) -> HotGraph:
    """An empty graph with the settings of a node."""
    return HotGraph(DIM, HotSettings(ceiling=ceiling), now_ms)


def fill(graph: HotGraph, numbers: range, vectors: Vectors, agents: int = 1) -> float:
    """Insert memories by number, vector n for the n-th; memories a second."""
    begun = time.perf_counter()
    for start in range(0, len(numbers), 1_000):
        part = numbers[start : start + 1_000]
        graph.insert(
            [make_resident(n, n % agents) for n in part], vectors[start : start + len(part)]
        )
    return len(numbers) / (time.perf_counter() - begun)


def nearest(vectors: Vectors, queries: Vectors, k: int = TOP) -> list[set[int]]:
    """Rows of the k best of each query by comparison with all."""
    found: list[set[int]] = []
    k = min(k, len(vectors) - 1)
    for start in range(0, len(queries), 100):
        scores = queries[start : start + 100] @ vectors.T
        found += [set(row.tolist()) for row in np.argpartition(-scores, k, axis=1)[:, :k]]
    return found


def resident_mib() -> float:
    """Memory of this process now, in MiB."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 2**20
