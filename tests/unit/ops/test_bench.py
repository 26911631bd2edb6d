"""The common result of benchmarks, and the texts that the smoke benchmark uses."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from rich.console import Console

from ops.bench.__main__ import main
from ops.bench.ingest import Turns, parts_of
from ops.bench.load import by_tasks
from ops.bench.result import Result, Timing
from ops.bench.smoke import TOTAL, make_texts, nearest, probes
from storage.content import normalize


def test_percentiles_are_those_of_the_ordered_latencies() -> None:
    timing = Timing((0.04, 0.01, 0.03, 0.02), seconds=0.1)
    assert timing.percentile(50) == pytest.approx(20.0)
    assert timing.percentile(99) == pytest.approx(40.0)


def test_a_rate_counts_what_each_operation_moves() -> None:
    assert Timing((0.1, 0.1), seconds=0.5, per=50).rate == pytest.approx(200.0)


def test_a_turn_that_went_badly_does_not_decide_a_ratio() -> None:
    own = Turns([Timing((0.1,), seconds) for seconds in (0.5, 9.0, 0.5)])
    peer = Turns([Timing((0.1,), 1.0)] * 3)
    assert own.by(peer) == pytest.approx(2.0)
    assert own.whole.rate == pytest.approx(0.3)


def test_the_parts_of_a_turn_are_all_of_it_once() -> None:
    parts = parts_of(1_000, 40_000)
    assert sorted(place for part in parts.values() for place in part) == [*range(40_000, 41_000)]


def test_the_last_line_is_the_result_for_machines() -> None:
    result = Result("smoke")
    result.bar("start_s", "start", 4.5, "<=", 3.0)
    result.compare("remember", 8, Timing((0.1,), 0.1), Timing((0.1,), 0.05))
    out = io.StringIO()
    result.show(Console(file=out, width=80), "peer")
    told = json.loads(out.getvalue().splitlines()[-1])
    assert told["bench"] == "smoke"
    assert told["bars"] == [{"name": "start_s", "value": 4.5, "bar": "<= 3.000", "ok": False}]
    assert told["figures"]["remember_8_ratio"] == 0.5
    assert not result.ok


def test_the_texts_are_distinct_to_a_node() -> None:
    texts = make_texts(TOTAL)
    assert len(texts) == TOTAL
    assert len({normalize(text).content_hash for text in texts}) == TOTAL


def test_the_nearest_are_found_by_comparing_with_all() -> None:
    vectors = np.eye(12, dtype=np.float32)
    found = nearest([str(n) for n in range(12)], vectors, vectors[3] + 0.1 * vectors[7])
    assert {"3", "7"} <= found
    assert len(found) == 10


def test_probes_are_the_same_each_time() -> None:
    vectors = np.eye(12, dtype=np.float32)
    assert np.array_equal(probes(vectors), probes(vectors))


def test_an_unknown_benchmark_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["nonsense"])
    assert ended.value.code == 2
    assert "smoke" in capsys.readouterr().err


def test_tasks_do_every_item_once() -> None:
    import asyncio

    done: list[int] = []

    async def work(item: int) -> None:
        await asyncio.sleep(0)
        done.append(item)

    timing = asyncio.run(by_tasks(work, range(20), 4))
    assert sorted(done) == list(range(20))
    assert len(timing.latencies) == 20
