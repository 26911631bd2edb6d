"""The bounded graph of resident memories: find the nearest without touching PostgreSQL.

Called by recall (inline, a search takes a fraction of a millisecond), and from worker threads by
whatever writes, evicts, forgets and rebuilds. It decides nothing about who may read, what is
tombstoned or when to persist; it never opens a file and never blocks on IO.

Thread-safe. Locks are taken in the order building, writing, graph; the graph lock is held for a
few rows at a time and handed over in turn.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np
from numpy.typing import NDArray

from storage.errors import InvalidInput
from storage.hot import forking, heat
from storage.hot.attached import Attached
from storage.hot.building import MANY, Building
from storage.hot.consistency import Consistency
from storage.hot.image import BadImage, Image, live_index, vectors_of
from storage.hot.index import LabelIndex
from storage.hot.reports import HotStats, InsertReport, LimitsReport, PurgeReport
from storage.hot.residents import OBJECT_BYTES, Residents
from storage.hot.rows import ROW_MASK, Rows, label_of
from storage.hot.serving import Serving
from storage.hot.settings import RELOADABLE, HotSettings
from storage.hot.turns import Pace, TurnLock
from storage.hot.vectors import unit_rows
from storage.model import EXEMPT_KINDS, Resident

MAX_DIM = 8_192
START_CAPACITY = 1_024
HIDE_ROWS = 64
SPARE = 1_024
"""At the ceiling an eviction takes 1/SPARE of it more, so that not every insert plans one."""


@dataclass(slots=True)
class _Tally:
    inserted: int = 0
    updated: int = 0
    evicted: list[bytes] = field(default_factory=list)
    refused: list[bytes] = field(default_factory=list)


class HotGraph(Serving, Building, Consistency):
    """Residents of one embedding model, at most `settings.ceiling` at any time."""

    def __init__(self, dim: int, settings: HotSettings, now_ms: Callable[[], int]) -> None:
        if not 1 <= dim <= MAX_DIM:
            raise InvalidInput(f"dim must be between 1 and {MAX_DIM}")
        self._dim = dim
        self._settings = settings
        self._now_ms = now_ms
        self._attached: list[Attached] = []
        self._limit = settings.ceiling
        capacity = min(START_CAPACITY, self._limit)
        self._index = LabelIndex(dim, capacity, settings)
        self._rows = Rows(dim, capacity)
        self._residents = Residents(self._rows)
        self._next_serial = 1
        self._aside = None
        self._inserted = self._evicted = self._rebuilds = self._searches = self._changes = 0
        self._unlinked = False
        self._pace = Pace()
        self._untidy = 0
        self._building = threading.Lock()
        self._writing = threading.Lock()
        self._lock = TurnLock()

    def __len__(self) -> int:
        return len(self._residents)

    def __contains__(self, memory_id: object) -> bool:
        return memory_id in self._residents

    def get(self, memory_id: bytes) -> Resident | None:
        """The resident record, or None."""
        with self._lock:
            entry = self._residents.get(memory_id)
            return entry.resident if entry else None

    def vector(self, memory_id: bytes) -> NDArray[np.float32] | None:
        """A copy of the unit vector of a resident, or None."""
        with self._lock:
            entry = self._residents.get(memory_id)
            return self._index.vector(entry.label) if entry else None

    def holds(self, resident: Resident, vector: NDArray[np.float32]) -> bool:
        """Whether this very record is resident under this vector."""
        unit = unit_rows(vector[np.newaxis, :], self._dim)[0]
        with self._lock:
            entry = self._residents.get(resident.id)
            if entry is None or entry.resident != resident:
                return False
            held = self._index.vector(entry.label)
            return held is not None and np.array_equal(held, unit)

    def residents(self) -> list[Resident]:
        """All resident records at one moment."""
        with self._lock:
            return list(self._residents)

    def stats(self) -> HotStats:
        """Counts for metrics and the console."""
        with self._lock:
            return HotStats(
                resident=len(self._residents),
                ceiling=self._settings.ceiling,
                dead=self._index.dead,
                exempt=self._residents.exempt,
                capacity=self._rows.capacity,
                bytes=self._rows.nbytes + self._index.nbytes + OBJECT_BYTES * len(self._residents),
                inserted_total=self._inserted,
                evicted_total=self._evicted,
                rebuilds_total=self._rebuilds,
                searches_total=self._searches,
                changes_total=self._changes,
            )

    # Writing

    def insert(
        self,
        residents: Sequence[Resident],
        vectors: NDArray[np.float32],
        *,
        only_absent: bool = False,
    ) -> InsertReport:
        """Make memories resident; `vectors` has the shape (n, dim).

        An id that is resident is replaced, with `only_absent` it stays as it is; of an id that
        is named twice the last one counts.
        Above the ceiling the coldest leave. An exempt kind that finds half of the ceiling full
        of exempt kinds is refused, and an older version of it leaves. May build a larger graph
        aside: call it from a worker thread. Raises InvalidInput before anything changes, and
        IndexFault, after which the graph lacks some of the batch but is consistent.
        """
        units = unit_rows(vectors, self._dim)
        if len(residents) != len(units):
            raise InvalidInput(f"vectors has {len(units)} rows for {len(residents)} residents")
        last = {resident.id: position for position, resident in enumerate(residents)}
        batch = [(residents[position], units[position]) for position in last.values()]
        if len(batch) >= MANY:
            self._relink()
        tally = _Tally()
        done = 0
        while done < len(batch):
            with self._writing, self._lock:
                part = batch[done : done + self._step()]
                if self._has_room(len(part)):
                    done += len(part)
                    if only_absent:
                        part = [each for each in part if each[0].id not in self._residents]
                    with self._pace.of(len(part)):
                        self._insert_part(part, tally)
                    continue
            self._grow(len(part))
        self._tidy(len(batch))
        return InsertReport(
            tally.inserted, tally.updated, tuple(tally.evicted), tuple(tally.refused)
        )

    def replace_record(self, resident: Resident) -> bool:
        """Take over changed metadata; False when the id is not resident afterwards.

        A memory that turns into an exempt kind while these fill their half leaves the graph.
        """
        with self._lock:
            entry = self._residents.get(resident.id)
            if entry is None:
                return False
            self._detach(entry.row)
            was, now = (r.kind in EXEMPT_KINDS for r in (entry.resident, resident))
            if now and not was and self._residents.exempt >= self._settings.ceiling // 2:
                self._take_out(resident.id)
                self._evicted += 1
                return False
            self._residents.replace(entry.row, resident)
            self._changes += 1
            return True

    def touch(self, ids: Iterable[bytes], now_ms: int) -> None:
        """Count one access for each time that a memory is named, and warm the residents by it."""
        with self._lock:
            self._residents.touch(ids, now_ms, self._settings.half_life_ms)

    def take_accesses(self) -> dict[bytes, int]:
        """How often each memory was accessed since the last call, whether it is resident or not."""
        with self._lock:
            return self._residents.take_accesses()

    # Leaving

    def plan_eviction(self, now_ms: int) -> list[bytes]:
        """Who should leave now, coldest first: above the ceiling or idle, at most one batch."""
        with self._lock:
            used, settings = self._rows.used, self._settings
            temperatures = self._rows.heat[:used].copy()
            last_ms = self._rows.last_ms[:used].copy()
            evictable = self._rows.evictable[:used].copy()
            labels = self._rows.labels[:used].copy()
            excess = len(self._residents) - settings.ceiling
        rows = heat.plan(
            temperatures,
            last_ms,
            evictable,
            excess=excess,
            idle_until_ms=now_ms - settings.idle_ms,
            cap=settings.batch,
        )
        with self._lock:
            return self._residents.ids(labels[rows])

    def evict(self, ids: Iterable[bytes]) -> int:
        """Take residents out of the graph, but not exempt kinds; how many left."""
        left = 0
        for part in _parts(ids, HIDE_ROWS):
            with self._lock:
                for memory_id in part:
                    entry = self._residents.get(memory_id)
                    if entry is not None and entry.resident.kind not in EXEMPT_KINDS:
                        self._take_out(memory_id)
                        self._evicted += 1
                        left += 1
        return left

    def hide(self, ids: Iterable[bytes]) -> int:
        """Take residents of any kind out of every search that starts from now on.

        Their vectors stay in dead slots until reuse, `forget` or a rebuild.
        """
        hidden = 0
        for part in _parts(ids, HIDE_ROWS):
            with self._lock:
                for memory_id in part:
                    hidden += self._take_out(memory_id)
        return hidden

    def forget(self, ids: Iterable[bytes]) -> int:
        """Take memories out of every search and overwrite their vectors; how many had any.

        Also those that left earlier and whose slots were not reused. A rebuild under way drops
        its copy before it serves. Idempotent. Raises IndexFault; then call it again.
        """
        chosen = list(dict.fromkeys(ids))
        self.hide(chosen)
        forgotten = done = 0
        while done < len(chosen):
            with self._lock:
                part = chosen[done : done + self._pace.rows(self._searches)]
                done += len(part)
                for memory_id in part:
                    self._take_out(memory_id)
                with self._pace.of(len(part)):
                    forgotten += self._index.wipe_graves(part, self._settings.threads)
        return forgotten

    def purge(self, ids: Iterable[bytes], *, rebuild: bool) -> PurgeReport:
        """Remove every byte of these memories for an erasure, and say what was found.

        With `rebuild` the survivors move to a new graph in shuffled order, which also drops the
        neighbour links that the removed vectors made; without it slots are overwritten. Searches
        go on meanwhile. Raises IndexFault; then call it again.
        """
        slots: dict[bytes, int] = {}
        vectors: dict[bytes, int] = {}
        chosen = list(dict.fromkeys(ids))
        for part in _parts(chosen, HIDE_ROWS):
            with self._lock:
                for memory_id in part:
                    vectors[memory_id] = int(self._take_out(memory_id))
                    slots[memory_id] = len(self._index.graves(memory_id))
        if not any(slots.values()):
            return PurgeReport("untouched", slots, vectors)
        if rebuild:
            self.rebuild()
            return PurgeReport("rebuilt", slots, vectors)
        self.forget(chosen)
        return PurgeReport("overwritten", slots, vectors)

    def occupants(self, ids: Iterable[bytes]) -> set[bytes]:
        """Those of the ids that have bytes in a live or dead slot, or may have in a rebuild."""
        found: set[bytes] = set()
        for part in _parts(ids, HIDE_ROWS):
            with self._lock:
                for memory_id in part:
                    building = self._aside is not None and self._aside.may_hold(memory_id)
                    if building or memory_id in self._residents or self._index.graves(memory_id):
                        found.add(memory_id)
        return found

    # Whole

    def in_child(self, work: Callable[[Image], None]) -> forking.Child:
        """Hand an image of this moment to `work` in a forked child; the lock is held for the fork.

        `work` runs with the child's own copy of everything. Raises OSError without a fork.
        """
        with self._lock:
            return forking.start(lambda: work(self._image()))

    def restore(self, image: Image) -> None:
        """Fill this empty graph from an image; nobody else may use it yet.

        Raises BadImage, with nothing changed, for an image of another dimension, of other index
        parameters, that is larger than the ceiling, or that contradicts itself.
        """
        state, settings, count = image.index, self._settings, len(image.residents)
        if len(self._residents) or self._index.dead:
            raise BadImage("the graph is not empty")
        image.check(self._dim, settings, self._limit)
        rows = Rows(self._dim, int(state["max_elements"]))
        for labels, units in vectors_of(state, image.labels):
            rows.codes.put(labels & ROW_MASK, units)
        residents = Residents(rows)
        residents.adopt(image.residents, image.labels)
        taken = image.labels & ROW_MASK
        rows.heat[taken], rows.last_ms[taken] = image.heat, image.last_ms
        index = LabelIndex.restored(state, count, settings)
        with self._lock:
            self._rows, self._residents, self._index = rows, residents, index
            self._next_serial = image.next_serial
            self._unlinked = True

    def set_limits(self, settings: HotSettings) -> LimitsReport:
        """Take over the reloadable settings and evict down to a lower ceiling.

        A ceiling above the one that the graph was made with is not taken over, nor are the
        parameters of the index: both are reported. Raises InvalidInput, with nothing changed,
        when the exempt kinds already fill more than half of the new ceiling.
        """
        evicted: list[bytes] = []
        with self._writing:
            with self._lock:
                old = self._settings
                changed = {
                    f.name
                    for f in fields(HotSettings)
                    if getattr(old, f.name) != getattr(settings, f.name)
                }
                refused = changed - RELOADABLE
                if settings.ceiling > self._limit:
                    refused.add("ceiling")
                applied = changed - refused
                new = replace(old, **{name: getattr(settings, name) for name in applied})
                exempt = self._residents.exempt
                if exempt > new.ceiling // 2:
                    raise InvalidInput(
                        f"ceiling {new.ceiling} leaves no half for {exempt} exempt memories"
                    )
                self._settings = new
            while len(self._residents) > new.ceiling:
                with self._lock:
                    excess = len(self._residents) - new.ceiling
                    evicted += self._evict_coldest(min(excess, new.batch))
        return LimitsReport(frozenset(applied), frozenset(refused), tuple(evicted))

    # Under the lock

    def _detach(self, row: int) -> None:
        for attached in self._attached:
            attached.drop(row)

    def _image(self) -> Image:
        labels = self._rows.living()
        rows = labels & ROW_MASK
        return Image(
            residents=list(self._residents),
            labels=labels,
            heat=self._rows.heat[rows],
            last_ms=self._rows.last_ms[rows],
            next_serial=self._next_serial,
            index=live_index(self._index.state()),
        )

    def _step(self) -> int:
        """Rows of one part; never more than can be made room for beside the exempt half."""
        ceiling = self._settings.ceiling
        return min(self._pace.rows(self._searches), ceiling - ceiling // 2)

    def _insert_part(
        self, part: Sequence[tuple[Resident, NDArray[np.float32]]], tally: _Tally
    ) -> None:
        now_ms, half_life = self._now_ms(), self._settings.half_life_ms
        half = self._settings.ceiling // 2
        admitted: list[tuple[Resident, NDArray[np.float32], float]] = []
        updated = exempt = 0
        for resident, unit in part:
            warmth = heat.first_heat(now_ms, half_life)
            row = self._residents.row_of(resident.id)
            if row is not None:
                warmth = heat.warmed(float(self._rows.heat[row]), now_ms, half_life)
                self._take_out(resident.id)
            if resident.kind in EXEMPT_KINDS:
                if self._residents.exempt + exempt >= half:
                    tally.refused.append(resident.id)
                    continue
                exempt += 1
            updated += row is not None
            admitted.append((resident, unit, warmth))
        excess = len(self._residents) + len(admitted) - self._settings.ceiling
        if excess > 0:
            tally.evicted += self._evict_coldest(excess + self._settings.ceiling // SPARE)
        if admitted:
            self._admit(admitted, now_ms)
        self._changes += len(admitted)
        tally.updated += updated
        tally.inserted += len(admitted) - updated
        self._inserted += len(admitted) - updated

    def _admit(
        self, admitted: Sequence[tuple[Resident, NDArray[np.float32], float]], now_ms: int
    ) -> None:
        residents, units, warmth = zip(*admitted, strict=True)
        rows = self._rows.next_free(len(admitted))
        labels = [label_of(self._next_serial + n, row) for n, row in enumerate(rows)]
        self._next_serial += len(labels)
        vectors = np.stack(units)
        self._index.add(labels, vectors, self._settings.threads)
        self._residents.add(residents, labels, vectors, warmth, now_ms)
        if self._aside is not None:
            for label in labels:
                self._aside.note_added(label)

    def _evict_coldest(self, count: int) -> list[bytes]:
        ids = self._residents.coldest(count)
        for memory_id in ids:
            self._take_out(memory_id)
        self._evicted += len(ids)
        return ids

    def _take_out(self, memory_id: bytes) -> bool:
        """Make a resident the occupant of a dead slot; False when it is not resident."""
        entry = self._residents.get(memory_id)
        if entry is None:
            return False
        self._detach(entry.row)
        self._changes += 1
        self._index.bury(entry.label, memory_id)
        self._residents.remove(entry.row)
        if self._aside is not None:
            self._aside.note_gone(entry.label, memory_id)
        return True


def _parts(ids: Iterable[bytes], size: int) -> Iterator[list[bytes]]:
    chosen = list(ids)
    for start in range(0, len(chosen), size):
        yield chosen[start : start + size]
