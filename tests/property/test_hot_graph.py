"""The hot graph against a dictionary: any order of writes, one set of visible memories."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from storage.hot.classes import Verdicts
from storage.hot.graph import HotGraph
from storage.hot.rows import ROW_MASK
from storage.hot.serving import Asking
from storage.hot.settings import HotSettings
from storage.model import EXEMPT_KINDS, MemoryKind, Resident, Visibility
from storage.visibility import AccessClass

DIM = 6
IDLE_MS = 50
numbers = st.integers(0, 30)
groups = st.lists(numbers, min_size=1, max_size=8, unique=True)


def id_of(number: int) -> bytes:
    return number.to_bytes(16, "big")


def ids(group: list[int]) -> list[bytes]:
    return [id_of(number) for number in group]


def said(resident: Resident) -> bytes:
    return resident.id + resident.content.encode()


class HotGraphMachine(RuleBasedStateMachine):
    """`model` holds (record, vector) of what must be resident; reports tell who was evicted."""

    @initialize(ceiling=st.integers(1, 20), exact_limit=st.sampled_from([0, 100]))
    def start(self, ceiling: int, exact_limit: int) -> None:
        self.now = 1_000
        self.ceiling = ceiling
        settings_ = HotSettings(
            ceiling=ceiling, exact_limit=exact_limit, idle_ms=IDLE_MS, batch=5, threads=1
        )
        self.graph = HotGraph(DIM, settings_, lambda: self.now)
        self.kept = self.graph.attach(10_000)
        self.verdicts: dict[frozenset[bytes] | None, Verdicts] = {}
        self.rng = np.random.default_rng(5)
        self.model: dict[bytes, tuple[Resident, np.ndarray]] = {}
        self.clean: set[bytes] = set()
        self.labels: dict[int, bytes] = {}

    @rule(group=groups, kind=st.sampled_from(MemoryKind), agent=st.integers(0, 2))
    def insert(self, group: list[int], kind: MemoryKind, agent: int) -> None:
        self.now += 1
        batch = [
            Resident(
                id=id_of(number),
                kind=kind,
                agent_id=id_of(agent),
                project_id=None,
                visibility=Visibility.GLOBAL,
                content=f"at {self.now}",
                created_ms=self.now,
            )
            for number in group
        ]
        vectors = self.rng.normal(size=(len(batch), DIM)).astype(np.float32)
        exempt_before = {i for i, (r, _) in self.model.items() if r.kind in EXEMPT_KINDS}
        report = self.graph.insert(batch, vectors)
        for resident, vector in zip(batch, vectors, strict=True):
            self.model[resident.id] = (resident, vector / np.linalg.norm(vector))
            self.clean.discard(resident.id)
        assert report.inserted + report.updated + len(report.refused) == len(batch)
        if kind not in EXEMPT_KINDS:
            assert report.refused == ()
        assert exempt_before.isdisjoint(set(report.evicted) - set(ids(group)))
        for memory_id in (*report.evicted, *report.refused):
            if memory_id not in self.graph:
                self.model.pop(memory_id, None)

    @rule(group=groups)
    def touch(self, group: list[int]) -> None:
        self.now += 5
        self.graph.touch(ids(group), self.now)

    @rule(group=groups)
    def evict(self, group: list[int]) -> None:
        gone = [i for i in ids(group) if i in self.model and not self.exempt(i)]
        assert self.graph.evict(ids(group)) == len(gone)
        self.drop(gone)

    @rule()
    def evict_as_planned(self) -> None:
        self.now += IDLE_MS
        planned = self.graph.plan_eviction(self.now)
        assert len(planned) <= 5
        assert not any(self.exempt(memory_id) for memory_id in planned)
        assert self.graph.evict(planned) == len(planned)
        self.drop(planned)

    @rule(group=groups)
    def hide(self, group: list[int]) -> None:
        gone = [i for i in ids(group) if i in self.model]
        assert self.graph.hide(ids(group)) == len(gone)
        self.drop(gone)

    @rule(group=groups)
    def forget(self, group: list[int]) -> None:
        had_bytes = self.graph.occupants(ids(group))
        assert self.graph.forget(ids(group)) == len(had_bytes)
        self.drop(ids(group))
        self.clean.update(ids(group))

    @rule(group=groups, rebuild=st.booleans())
    def purge(self, group: list[int], rebuild: bool) -> None:
        had_bytes = self.graph.occupants(ids(group))
        report = self.graph.purge(ids(group), rebuild=rebuild)
        assert {i for i, found in report.slots.items() if found} == had_bytes
        assert {i for i, n in report.vectors.items() if n} == set(ids(group)) & set(self.model)
        self.drop(ids(group))
        self.clean.update(ids(group))

    @rule()
    def rebuild(self) -> None:
        self.graph.rebuild()
        assert self.graph.stats().dead == 0

    @rule(k=st.integers(1, 40), agents=st.none() | st.frozensets(st.integers(0, 2)))
    def search(self, k: int, agents: frozenset[int] | None) -> None:
        query = self.rng.normal(size=DIM)
        query /= np.linalg.norm(query)
        chosen = None if agents is None else frozenset(id_of(agent) for agent in agents)
        hits = self.graph.search(query, k, agents=chosen)
        visible = {
            i: float(vector @ query)
            for i, (resident, vector) in self.model.items()
            if chosen is None or resident.agent_id in chosen
        }
        assert len(hits) == len({h.resident.id for h in hits}) == min(k, len(visible))
        for hit in hits:
            assert hit.resident == self.model[hit.resident.id][0]
            assert abs(hit.score - visible[hit.resident.id]) < 1e-4
        assert [h.score for h in hits] == sorted((h.score for h in hits), reverse=True)

    @rule(k=st.integers(1, 6), agent=st.integers(0, 2), shared=st.booleans())
    def serve(self, k: int, agent: int, shared: bool) -> None:
        """What is kept is what the record says now, for those who may see it."""
        query = self.rng.normal(size=(1, DIM)).astype(np.float32)
        query /= np.linalg.norm(query)
        own = None if shared else frozenset([id_of(agent)])
        verdicts = self.verdicts.setdefault(
            own, Verdicts(lambda one: own is None or one.agent_id in own)
        )
        asking = Asking(k=k, verdicts=verdicts, agents=own, least=-1, now_ms=self.now)
        served = self.graph.serve(query, asking, self.kept)
        if served.short:
            return
        self.graph.keep(self.kept, ((r, said(r)) for r in served.missing.values()))
        told = [value or said(served.missing[at]) for at, value in enumerate(served.values)]
        nearest = sorted(
            (-float(vector @ query[0]), said(resident))
            for resident, vector in self.model.values()
            if own is None or resident.agent_id in own
        )
        assert told == [one for _, one in nearest[:k]]

    @invariant()
    def always_one_class_for_those_alike(self) -> None:
        assert len(self.graph._residents.classes) == len(
            {AccessClass.of(resident) for resident, _ in self.model.values()}
        )
        assert len(self.kept) <= len(self.model)

    @invariant()
    def always_equal_to_the_model(self) -> None:
        assert {r.id: r for r in self.graph.residents()} == {
            i: resident for i, (resident, _) in self.model.items()
        }

    @invariant()
    def always_one_label_for_one_write(self) -> None:
        for memory_id in self.model:
            entry = self.graph._residents.get(memory_id)
            assert entry is not None
            assert entry.label & ROW_MASK == entry.row
            assert self.labels.setdefault(entry.label, memory_id) == memory_id

    @rule()
    def compare_codes_and_labels_with_the_index(self) -> None:
        assert self.graph.faulty(self.model) == []
        assert self.graph.ghosts(drop=False) == 0

    @invariant()
    def always_bounded(self) -> None:
        stats = self.graph.stats()
        assert stats.resident == len(self.graph) <= self.ceiling
        assert stats.exempt == sum(self.exempt(i) for i in self.model) <= self.ceiling // 2
        assert stats.resident + stats.dead <= stats.capacity

    @invariant()
    def always_clean_after_forgetting(self) -> None:
        assert self.graph.occupants(self.clean) == set()

    def exempt(self, memory_id: bytes) -> bool:
        return memory_id in self.model and self.model[memory_id][0].kind in EXEMPT_KINDS

    def drop(self, gone: list[bytes]) -> None:
        for memory_id in gone:
            self.model.pop(memory_id, None)


TestHotGraph = HotGraphMachine.TestCase
TestHotGraph.settings = settings(
    max_examples=150,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
