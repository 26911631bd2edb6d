"""The snapshot file: the same graph comes out, or a reason; and never a byte of what left."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from storage.hot import snapshot
from storage.hot.forking import ChildFailed
from storage.hot.graph import HotGraph
from storage.hot.image import BadImage
from storage.hot.rows import ROW_BITS, ROW_MASK
from storage.hot.settings import HotSettings
from storage.hot.snapshot import Owner, SnapshotFailed, SnapshotFolder, SnapshotRefused, Stamp
from storage.model import MemoryKind, Visibility

OWNER = Owner(b"n" * 16, "model@8", 8, 1)
STAMP = Stamp("7", 1, 2, 3, 4)


def ids(*numbers):
    return [number.to_bytes(16, "big") for number in numbers]


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "hot"
    path.mkdir(mode=0o700)
    return SnapshotFolder(path, OWNER)


@pytest.fixture
def full(graph, resident, rng):
    """A graph of 300, of which every third was evicted, with records of every form."""
    hot = graph(exact_limit=0)
    records = [
        msgspec.structs.replace(
            resident(n, agent=n % 5, kind=MemoryKind.L2 if n % 50 == 1 else MemoryKind.CELL),
            project_id=ids(n % 3 + 900)[0] if n % 2 else None,
            visibility=Visibility.PRIVATE if n % 7 == 0 else Visibility.GLOBAL,
            content=f"text {n} 記憶 \U0001f9e0" * (n % 4),
            scope_label=None if n % 3 else "label",
            tags=tuple(f"t{i}" for i in range(n % 4)),
            who="someone" if n % 5 else None,
            importance=n / 300,
            pinned=n % 11 == 0,
            expires_ms=None if n % 2 else n * 1_000,
            superseded=n % 13 == 0,
            foreign=n % 17 == 0,
        )
        for n in range(300)
    ]
    hot.insert(records, rng.normal(size=(300, 8)))
    hot.evict(ids(*range(0, 300, 3)))
    return hot


def restored(folder, graph, **settings):
    image, stamp = folder.read()
    hot = graph(**settings)
    hot.restore(image)
    return hot, stamp


def test_the_same_residents_vectors_heat_and_answers_come_back(folder, full, graph, rng, clock):
    clock.ms += 60_000
    full.touch(ids(1, 2), clock.ms)
    written = folder.write(full, STAMP)
    again, stamp = restored(folder, graph, exact_limit=0)
    assert (written.residents, stamp) == (len(full), STAMP)
    assert {r.id: r for r in again.residents()} == {r.id: r for r in full.residents()}
    for resident in full.residents():
        np.testing.assert_array_equal(again.vector(resident.id), full.vector(resident.id))
    assert again.plan_eviction(clock.ms + 10**10) == full.plan_eviction(clock.ms + 10**10)
    assert again.stats().exempt == full.stats().exempt
    for _ in range(20):
        query = rng.normal(size=8)
        assert again.search(query, 1)[0].resident == full.search(query, 1)[0].resident


def test_a_restored_graph_takes_evicts_forgets_and_rebuilds(folder, full, graph, resident, rng):
    folder.write(full, STAMP)
    again, _ = restored(folder, graph, exact_limit=0)
    again.insert([resident(n) for n in range(1_000, 1_200)], rng.normal(size=(200, 8)))
    assert again.stats().dead == 0
    again.forget(ids(1_000, 4))
    again.rebuild()
    assert len(again) == len(full) + 198
    assert not again.occupants(ids(1_000, 4))
    assert len(again.search(rng.normal(size=8), 50)) == 50


def test_an_empty_graph_is_written_and_read(folder, graph, resident, rng):
    folder.write(graph(), STAMP)
    again, _ = restored(folder, graph)
    assert len(again) == 0
    again.insert([resident(1)], rng.normal(size=(1, 8)))
    assert [h.resident.id for h in again.search(rng.normal(size=8), 3)] == ids(1)


def test_no_vector_of_a_memory_that_left_is_in_the_file(folder, full):
    kept = {n: full.vector(ids(n)[0]) for n in range(300) if ids(n)[0] in full}
    gone = [n for n in kept if n % 2]
    full.hide(ids(*gone[:40]))
    full.forget(ids(*gone[40:]))
    folder.write(full, STAMP)
    image = folder.path.read_bytes()
    assert [n for n in gone if kept[n].tobytes() in image] == []
    assert all(vector.tobytes() in image for n, vector in kept.items() if n not in gone)


def test_many_unlinked_dead_slots_ask_for_a_rebuild(folder, full, graph):
    folder.write(full, STAMP)
    again, _ = restored(folder, graph)
    assert again.needs_rebuild()
    again.rebuild()
    assert not again.needs_rebuild()


def test_the_file_is_private_and_alone(folder, full):
    (folder.path.parent / snapshot.REFUSED).write_bytes(b"x")
    folder.write(full, STAMP)
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o600
    assert folder.generations() == [snapshot.NAME]


def test_no_file_is_no_fault(folder):
    assert folder.read() is None


@pytest.mark.parametrize(
    "owner, reason",
    [
        (replace(OWNER, node_id=b"m" * 16), "foreign: node"),
        (replace(OWNER, model="other@8"), "foreign: model"),
        (replace(OWNER, dim=9), "foreign: dim"),
        (replace(OWNER, schema=2), "foreign: schema"),
    ],
)
def test_es_44_a_foreign_file_is_refused_by_what_differs(folder, full, owner, reason):
    folder.write(full, STAMP)
    with pytest.raises(SnapshotRefused, match=reason):
        SnapshotFolder(folder.path.parent, owner).read()


@pytest.mark.parametrize(
    "changed, reason",
    [
        ({"m": 12}, "parameters"),
        ({"ceiling": 100}, "ceiling"),
        ({"ceiling": 500}, "ceiling"),
    ],
)
def test_settings_that_the_file_does_not_fit_refuse_it(folder, full, graph, changed, reason):
    folder.write(full, STAMP)
    image, _ = folder.read()
    hot = graph(**changed)
    with pytest.raises(BadImage, match=reason):
        hot.restore(image)
    assert len(hot) == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda labels: labels.__setitem__(1, labels[0] + (1 << ROW_BITS)),
        lambda labels: labels.__setitem__(0, labels[0] | ROW_MASK),
        lambda labels: labels.__setitem__(0, labels[0] & ROW_MASK),
        lambda labels: labels.__setitem__(0, labels[0] + (1_000 << ROW_BITS)),
    ],
    ids=["row twice", "no such row", "no serial number", "serial number to come"],
)
def test_labels_that_name_no_row_of_their_own_refuse_the_image(folder, full, graph, change):
    folder.write(full, STAMP)
    image, _ = folder.read()
    change(image.labels)
    hot = graph()
    with pytest.raises(BadImage, match="label"):
        hot.restore(image)
    assert len(hot) == 0


def test_es_49_every_flipped_byte_is_noticed(folder, graph, resident, rng):
    hot = graph(ceiling=4)
    hot.insert([resident(n) for n in range(3)], rng.normal(size=(3, 8)))
    folder.write(hot, STAMP)
    good = folder.path.read_bytes()
    unnoticed = []
    for at in range(len(good)):
        folder.path.write_bytes(good[:at] + bytes([good[at] ^ 1 << at % 8]) + good[at + 1 :])
        try:
            folder.read()
        except SnapshotRefused:
            continue
        unnoticed.append(at)
    assert unnoticed == []


def test_es_44_every_truncation_is_noticed(folder, graph, resident, rng):
    hot = graph(ceiling=4)
    hot.insert([resident(n) for n in range(3)], rng.normal(size=(3, 8)))
    folder.write(hot, STAMP)
    good = folder.path.read_bytes()
    unnoticed = []
    for length in [*range(len(good)), len(good) + 1]:
        folder.path.write_bytes((good + b"\0")[:length])
        try:
            folder.read()
        except SnapshotRefused:
            continue
        unnoticed.append(length)
    assert unnoticed == []


def test_es_44_a_header_without_its_model_is_refused(folder, full, monkeypatch):
    monkeypatch.setattr(
        snapshot.canonical,
        "encode",
        lambda value, encode=snapshot.canonical.encode: encode(
            {k: v for k, v in value.items() if k != "model"} if isinstance(value, dict) else value
        ),
    )
    folder.write(full, STAMP)
    monkeypatch.undo()
    with pytest.raises(SnapshotRefused, match="foreign: model"):
        folder.read()


def test_a_link_or_a_folder_in_its_place_is_refused(folder, tmp_path):
    folder.path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SnapshotRefused):
        folder.read()
    folder.path.unlink()
    folder.path.mkdir()
    with pytest.raises(SnapshotRefused):
        folder.read()


@pytest.mark.parametrize("call", ["open", "write", "fsync"])
def test_a_failing_disk_leaves_the_old_file(folder, full, resident, rng, monkeypatch, call):
    folder.write(full, STAMP)
    old = folder.path.read_bytes()
    full.insert([resident(500)], rng.normal(size=(1, 8)))

    def no_space(*args, **kwargs):
        raise OSError(28, "No space left on device")

    if call == "write":
        monkeypatch.setattr(snapshot, "_write_all", no_space)
    else:
        monkeypatch.setattr(snapshot.os, call, no_space)
    with pytest.raises(SnapshotFailed, match=r"No space|ENOSPC"):
        folder.write(full, STAMP)
    monkeypatch.undo()
    assert folder.path.read_bytes() == old
    assert folder.generations() == [snapshot.NAME]


def test_a_child_that_hangs_is_given_up(folder, full, monkeypatch):
    monkeypatch.setattr(snapshot, "write_image", lambda *a: time.sleep(60))
    with pytest.raises(SnapshotFailed, match="longer than"):
        folder.write(full, STAMP, patience_s=0.2)


def test_a_fault_in_the_child_is_told_by_its_kind_alone(full):
    def fail(image):
        raise ValueError("secret text")

    with pytest.raises(ChildFailed, match=r"^ValueError$"):
        full.in_child(fail).wait(10)


def test_the_child_has_none_of_the_open_files(full, tmp_path):
    with (tmp_path / "held").open("w") as held:
        number = held.fileno()

        def look(image):
            os.fstat(number)

        with pytest.raises(ChildFailed, match="Bad file descriptor"):
            full.in_child(look).wait(10)


WRITER = """
import sys, numpy as np
from pathlib import Path
from storage.hot.graph import HotGraph
from storage.hot.settings import HotSettings
from storage.hot.snapshot import Owner, SnapshotFolder, Stamp
from storage.model import MemoryKind, Resident, Visibility
hot = HotGraph(8, HotSettings(), lambda: 1)
folder = SnapshotFolder(Path(sys.argv[1]), Owner(b"n" * 16, "model@8", 8, 1))
rng = np.random.default_rng(1)
for turn in range(10_000):
    first = turn * 50
    hot.insert([Resident(n.to_bytes(16, "big"), MemoryKind.CELL, b"a" * 16, None,
        Visibility.GLOBAL, "text", 0) for n in range(first, first + 50)], rng.normal(size=(50, 8)))
    folder.write(hot, Stamp("7", turn, 0, 0, 0))
    print(turn, flush=True)
"""


def test_es_44_killed_at_twenty_points_of_a_write_the_old_or_the_new_loads(folder, graph, rng):
    confirmed = -1
    for _ in range(20):
        folder.drop_remains()
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(folder.path.parent)],
            stdout=subprocess.PIPE,
            cwd=Path(snapshot.__file__).parents[2],
        ) as writer:
            confirmed = int(writer.stdout.readline())
            time.sleep(float(rng.uniform(0, 0.03)))
            writer.send_signal(signal.SIGKILL)
            confirmed = max([confirmed, *map(int, writer.stdout.read().split())])
        again, stamp = restored(folder, graph, ceiling=1_000_000)
        assert stamp.xid >= confirmed
        assert len(again) == 50 * (stamp.xid + 1)


def test_es_20_older_generations_go_with_the_next_and_a_stuck_one_is_told(
    folder, full, monkeypatch
):
    for turn in range(5):
        folder.write(full, replace(STAMP, xid=turn))
    assert folder.generations() == [snapshot.NAME]
    (folder.path.parent / snapshot.REFUSED).write_bytes(folder.path.read_bytes())
    wanted = ids(1)[0]
    holding = folder.holders_of(lambda memory, agent, project: memory == wanted)
    assert holding == [snapshot.NAME, snapshot.REFUSED]
    full.forget([wanted])

    def stuck(self, missing_ok=False):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "unlink", stuck)
    with pytest.raises(SnapshotFailed):
        folder.write(full, STAMP)
    with pytest.raises(OSError, match="Input/output"):
        folder.remove(holding)
    monkeypatch.undo()
    folder.write(full, STAMP)
    assert folder.holders_of(lambda memory, agent, project: memory == wanted) == []


def test_an_unreadable_file_counts_as_a_holder(folder):
    (folder.path.parent / "anything").write_bytes(b"\0" * 40)
    assert folder.holders_of(lambda *row: False) == ["anything"]
    assert folder.remove(["anything"]) == 1


def test_a_settings_object_is_enough_to_restore(folder, full, clock):
    folder.write(full, STAMP)
    hot = HotGraph(8, HotSettings(), clock)
    hot.restore(folder.read()[0])
    assert len(hot) == len(full)
