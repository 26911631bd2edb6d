"""Searching while others write and rebuild."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np

from storage.hot import turns
from storage.hot.turns import FEW, MOST, Pace, TurnLock


def test_searches_stay_right_while_others_write_and_rebuild(graph, resident, rng):
    hot = graph(dim=16, ceiling=3_000, exact_limit=0, threads=2)
    vectors = rng.normal(size=(4_000, 16)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    fixed = range(200)
    hot.insert([resident(n, agent=1) for n in fixed], vectors[:200])
    start = threading.Barrier(5)

    def search():
        start.wait(20)
        for turn in range(3_000):
            number = turn % 200
            hits = hot.search(vectors[number], 5)
            assert len({h.resident.id for h in hits}) == len(hits) > 0
            for hit in hits:
                stored = vectors[int.from_bytes(hit.resident.id, "big")]
                assert abs(float(stored @ vectors[number]) - hit.score) < 1e-4
            mine = hot.search(vectors[number], 1, agents=frozenset({(1).to_bytes(16, "big")}))
            assert int.from_bytes(mine[0].resident.id, "big") == number

    def insert():
        start.wait(20)
        for first in range(200, 2_600, 40):
            numbers = range(first, first + 40)
            hot.insert([resident(n) for n in numbers], vectors[first : first + 40])

    def leave():
        start.wait(20)
        for first in range(200, 2_600, 40):
            hot.evict([n.to_bytes(16, "big") for n in range(first, first + 10)])
            hot.forget([n.to_bytes(16, "big") for n in range(first + 10, first + 20)])

    def rebuild():
        start.wait(20)
        for _ in range(20):
            hot.rebuild()

    with ThreadPoolExecutor(5) as pool:
        work = [pool.submit(task) for task in (search, search, insert, leave, rebuild)]
        for future in work:
            future.result(timeout=60)
    residents = {r.id for r in hot.residents()}
    assert {n.to_bytes(16, "big") for n in fixed} <= residents
    assert len(hot) == len(residents) == hot._index.live


def test_a_waiting_thread_gets_the_lock_before_it_is_taken_again():
    lock = TurnLock()
    waiting = threading.Event()
    order = []

    def wait_for_turn():
        waiting.set()
        with lock:
            order.append("waiter")

    waiter = threading.Thread(target=wait_for_turn)
    with lock:
        waiter.start()
        assert waiting.wait(20)
        deadline = time.monotonic() + 5
        while not lock._door.locked() and time.monotonic() < deadline:
            continue
        assert lock._door.locked()
    with lock:
        order.append("again")
    waiter.join(20)
    assert order == ["waiter", "again"]


def test_turns_grow_while_nobody_searches_and_stay_short(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(turns, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    pace = Pace()

    def turn(searches, seconds_a_row):
        rows = pace.rows(searches)
        with pace.of(rows):
            now[0] += rows * seconds_a_row
        return rows

    assert [turn(0, 1e-5) for _ in range(6)] == [FEW, 8, 16, 32, MOST, MOST]
    assert turn(1, 1e-5) == FEW
    assert [turn(1, 1e-3) for _ in range(3)] == [8, FEW, FEW]
