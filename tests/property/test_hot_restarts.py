"""The hot graph through snapshots, crashes and restarts, against the same dictionary.

What a start does with rows is done here with the model: what is gone is forgotten, what changed
since the file is inserted again, and a file that is refused is filled from nothing.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from storage.hot.graph import HotGraph
from storage.hot.settings import HotSettings
from storage.hot.snapshot import NAME, Owner, SnapshotFolder, SnapshotRefused, Stamp
from storage.model import Resident
from tests.property.test_hot_graph import DIM, HotGraphMachine, ids

STAMP = Stamp("7", 1, 0, 0, 0)


class SnapshotMachine(HotGraphMachine):
    """`filed` is the model at the last snapshot, None while there is no file."""

    @initialize(ceiling=st.integers(1, 20), exact_limit=st.sampled_from([0, 100]))
    def start(self, ceiling: int, exact_limit: int) -> None:
        super().start(ceiling, exact_limit)
        self.exact_limit = exact_limit
        self.folder = Path(tempfile.mkdtemp(prefix="hot-"))
        self.snapshots = SnapshotFolder(self.folder, Owner(b"n" * 16, "m", DIM, 1))
        self.filed: dict[bytes, tuple[Resident, np.ndarray]] | None = None

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)

    @rule()
    def snapshot(self) -> None:
        self.snapshots.write(self.graph, STAMP)
        self.filed = dict(self.model)

    @rule(cut=st.none() | st.integers(0, 10_000), flipped=st.none() | st.integers(0, 10_000))
    def crash_and_restart(self, cut: int | None, flipped: int | None) -> None:
        """The process is gone; a half-written new file and a damaged file may be there."""
        path = self.folder / NAME
        damaged = False
        if self.filed is not None:
            image = bytearray(path.read_bytes())
            (self.folder / f"{NAME}.new").write_bytes(image[: len(image) // 2])
            if flipped is not None and flipped % 3 == 0:
                image[flipped % len(image)] ^= 1
                damaged = True
            if cut is not None and cut % 5 == 0:
                del image[cut % len(image) :]
                damaged = True
            path.write_bytes(image)
        self.graph = HotGraph(
            DIM,
            HotSettings(
                ceiling=self.ceiling,
                exact_limit=self.exact_limit,
                idle_ms=50,
                batch=5,
                threads=1,
            ),
            lambda: self.now,
        )
        self.labels = {}
        self.snapshots.drop_remains()
        before: dict[bytes, tuple[Resident, np.ndarray]] = {}
        try:
            found = self.snapshots.read()
        except SnapshotRefused:
            assert damaged
            self.snapshots.set_aside()
            self.filed = None
        else:
            assert not damaged
            assert (found is None) == (self.filed is None)
            if found is not None and self.filed is not None:
                self.graph.restore(found[0])
                before = self.filed
        assert {r.id: r for r in self.graph.residents()} == {
            memory_id: resident for memory_id, (resident, _) in before.items()
        }
        self._follow_the_rows(before)

    def _follow_the_rows(self, before: dict[bytes, tuple[Resident, np.ndarray]]) -> None:
        self.graph.forget([memory_id for memory_id in before if memory_id not in self.model])
        changed = [
            (resident, vector)
            for memory_id, (resident, vector) in self.model.items()
            if memory_id not in before or before[memory_id][0] is not resident
        ]
        if changed:
            stale = [resident.id for resident, _ in changed if resident.id in self.graph]
            self.graph.hide(stale)
            report = self.graph.insert(
                [resident for resident, _ in changed], np.stack([vector for _, vector in changed])
            )
            assert (report.evicted, report.refused) == ((), ())

    @precondition(lambda self: self.filed is not None)
    @rule(group=st.lists(st.integers(0, 30), min_size=1, max_size=8, unique=True))
    def forgotten_bytes_leave_the_file(self, group: list[int]) -> None:
        gone = [self.graph.vector(memory_id) for memory_id in ids(group)]
        self.forget(group)
        self.snapshot()
        image = (self.folder / NAME).read_bytes()
        assert not any(vector.tobytes() in image for vector in gone if vector is not None)

    @invariant()
    def always_one_generation(self) -> None:
        if hasattr(self, "snapshots") and self.filed is not None:
            assert NAME in self.snapshots.generations()


TestHotRestarts = SnapshotMachine.TestCase
TestHotRestarts.settings = settings(
    max_examples=100,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
