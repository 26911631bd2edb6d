"""The pure parts of a mesh run: who writes what, what counts as found, and how it is judged."""

from __future__ import annotations

import base64
import json
import math
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.config import parse_config
from ops.corpus import Document, load_default
from ops.mesh.__main__ import ceiling_for, parse
from ops.mesh.evidence import Spread, in_base64
from ops.mesh.feed import AGENTS, NAMES, Ledger, Writer, Written, assign
from ops.mesh.findings import Check, Findings, share, shown
from ops.mesh.nodes import settings
from ops.mesh.report import write
from ops.mesh.stage import counter
from ops.mesh.writing import remaining

METRICS = """\
# HELP mnemesh_reload_reloads_total Reloads
mnemesh_reload_reloads_total{status="applied"} 2.0
mnemesh_reload_reloads_total{status="rejected"} 1.0
mnemesh_reload_reloads_total_created{status="applied"} 17.0
mnemesh_hot_residents 41.0
"""


def documents(subject: str, count: int) -> list[Document]:
    return [Document(subject, "t", f"{subject} text number {n} of them all") for n in range(count)]


def written(name: str, text: str) -> Written:
    return Written(name, "A", "a", Document("s", "t", text))


def test_the_built_in_run_has_nine_agents_or_more_and_three_thousand_texts() -> None:
    writers = assign(load_default(), built_in=True)
    assert len(writers) == len(AGENTS) >= 9
    assert {writer.node for writer in writers} == set(NAMES)
    assert len({d.text for writer in writers for d in writer.documents}) >= 3_000
    assert all(writer.description for writer in writers)


def test_each_writer_of_the_run_repeats_two_of_its_texts() -> None:
    for writer in assign(load_default(), built_in=True):
        keys = [document.text.rstrip(".,!?;: ") for document in writer.documents]
        assert len(keys) - len(set(keys)) == 2


def test_subjects_of_a_folder_go_round_the_nodes() -> None:
    texts = [*documents("a", 5), *documents("b", 4), *documents("c", 3), *documents("d", 2)]
    writers = assign(texts, built_in=False, repeats=0)
    assert Counter(writer.node for writer in writers) == {"A": 2, "B": 1, "C": 1}


def test_a_single_subject_still_gives_each_node_an_agent() -> None:
    writers = assign(documents("only", 9), built_in=False, repeats=0)
    assert {writer.node for writer in writers} == set(NAMES)
    assert sum(len(writer.documents) for writer in writers) == 9


def test_the_ceiling_lies_below_what_each_node_writes() -> None:
    sizes = {"A": 50, "B": 40, "C": 30}
    writers = [Writer(n, n, "", tuple(documents(n, count))) for n, count in sizes.items()]
    assert ceiling_for(writers) == 27


def test_the_configuration_of_a_run_is_valid() -> None:
    loaded = parse_config(settings(4000, 700), {})
    assert loaded.config.eviction.ceiling == 700
    assert loaded.config.gossip.tau == 0.40
    assert loaded.config.network.port == 0


def test_what_is_left_to_write_keeps_exact_repeats() -> None:
    first, second = documents("x", 2)
    writer = Writer("a", "A", "", (first, first, second))
    assert remaining(writer, {("a", first.text)}) == [first, second]


def test_a_text_that_a_standing_memory_contains_tells_nothing() -> None:
    ledger = Ledger()
    ledger.note(written("1", "asyncio: the loop runs forever"), deduped=False)
    gone = [written("2", "The loop runs"), written("3", "A lock is released.")]
    assert ledger.telling(gone) == ["A lock is released"]


def test_a_second_acknowledgement_counts_once() -> None:
    ledger = Ledger()
    ledger.note(written("1", "x"), deduped=False)
    ledger.note(written("1", "x!"), deduped=True)
    assert (len(ledger.of()), ledger.deduped) == (1, 1)
    assert ledger.of()[0].document.text == "x"


@given(st.binary(min_size=16, max_size=40), st.binary(max_size=9), st.binary(max_size=9))
def test_bytes_are_found_inside_base64_wherever_they_stand(
    needle: bytes, before: bytes, after: bytes
) -> None:
    whole = base64.b64encode(before + needle + after).decode("ascii")
    assert any(part in whole for part in in_base64(needle))


def test_flooding_takes_four_sends_a_diff() -> None:
    assert Spread(10, 0, 0, 0, 0, 0, 0).flood_sends == 40


def test_a_metric_is_summed_by_its_labels_alone() -> None:
    name = "mnemesh_reload_reloads_total"
    assert counter(METRICS, name) == 3.0
    assert counter(METRICS, name, status="rejected") == 1.0
    assert counter(METRICS, "mnemesh_hot_residents") == 41.0
    assert counter(METRICS, "mnemesh_hot") == 0.0


@pytest.mark.parametrize(
    "value, relation, bar, ok",
    [
        (0.9, ">=", 0.9, True),
        (0.89, ">=", 0.9, False),
        (3, "<", 3, False),
        (True, "==", True, True),
    ],
)
def test_a_check_compares_with_its_bar(value: float, relation: str, bar: float, ok: bool) -> None:
    assert Check("x", "", value, relation, bar).ok is ok  # type: ignore[arg-type]


def test_nothing_found_is_no_success() -> None:
    findings = Findings()
    assert not findings.ok
    findings.check("recall", "", share(0, 0), ">=", 0.9)
    assert not findings.ok


def test_a_run_that_broke_off_is_no_success() -> None:
    findings = Findings()
    findings.check("lost", "", 0, "==", 0)
    assert findings.ok
    findings.failure = "node A ended"
    assert not findings.ok


def test_the_report_nests_dotted_names_and_stays_json(tmp_path: Path) -> None:
    findings = Findings()
    findings.note("gossip.diffs", 3)
    findings.check("gossip.recall", "arrived", math.nan, ">=", 0.9, "gossip/")
    write(tmp_path / "report.json", findings)
    told = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert told["gossip"] == {"diffs": 3, "recall": None}
    assert told["ok"] is False
    assert told["checks"][0]["bar"] == ">= 0.900"
    assert list(tmp_path.iterdir()) == [tmp_path / "report.json"]


def test_numbers_are_shown_for_people() -> None:
    assert [shown(v) for v in (True, 3292, 0.9489, 345.67, "x")] == [
        "yes", "3,292", "0.949", "345.7", "x",
    ]  # fmt: skip


def test_options_have_defaults() -> None:
    options = parse([])
    assert (options.input, options.json, options.keep, options.seed) == (None, None, False, 0)
