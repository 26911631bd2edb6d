"""Log lines: their form, what they never carry, and rotation."""

from __future__ import annotations

import ast
import io
import json
import logging
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.telemetry.logs import DATA_KEYS, DailyFile, JsonLines, Pretty, describe, open_logs
from storage.errors import Conflict

REPO = Path(__file__).parents[3]
SECRET = "the launch code is hunter2"


class Colour(StrEnum):
    RED = "red"


def line_of(message: object, *args: object, name: str = "gossip.walk", **extra: Any) -> Any:
    record = logging.LogRecord(name, logging.INFO, "walk.py", 7, message, args, None)
    record.__dict__.update(extra)
    return describe(record)


def error_line(error: Exception) -> Any:
    try:
        raise error
    except type(error):
        info = sys.exc_info()
    record = logging.LogRecord("node.app", logging.ERROR, "app.py", 3, "failed", (), info)
    return describe(record)


@contextmanager
def moment(text: str, sink: DailyFile) -> Iterator[None]:
    sink._now = lambda: datetime.fromisoformat(text).replace(tzinfo=UTC)
    yield


def records(folder: Path) -> dict[str, list[str]]:
    return {
        path.name: path.read_text().splitlines() for path in sorted(folder.glob("daemon-*.log"))
    }


def test_line_has_the_documented_fields() -> None:
    line = line_of("walk stopped after %d hops", 3, data={"reason": "energy"}, duration=1.5)
    assert line == {
        "timestamp": line["timestamp"],
        "level": "info",
        "category": "gossip.walk",
        "message": "walk stopped after 3 hops",
        "data": {"reason": "energy"},
        "duration": 1.5,
    }
    assert datetime.fromisoformat(line["timestamp"]).tzinfo is not None
    assert line["timestamp"].endswith("Z")


def test_positional_text_is_withheld() -> None:
    assert line_of("stored %s in %d ms", SECRET, 4)["message"] == "stored [withheld] in 4 ms"


@pytest.mark.parametrize("value", ["conflict", Colour.RED, 3, None, True, 1.5, Conflict("busy")])
def test_positional_codes_numbers_and_own_errors_are_shown(value: object) -> None:
    assert line_of("x %s", value)["message"] == f"x {value}"


def test_too_few_arguments_do_not_break_the_line() -> None:
    assert line_of("a %d b %s", 1)["message"] == "a 1 b None"


def test_a_percent_sign_survives() -> None:
    assert line_of("%d%% done", 5)["message"] == "5% done"


def test_named_arguments_are_filtered_too() -> None:
    record = logging.LogRecord(
        "node", 20, "x", 1, "%(n)d %(text)s", ({"n": 1, "text": "abc"},), None
    )
    assert describe(record)["message"] == "1 [withheld]"


@pytest.mark.parametrize("key", ["content", "query", "text", "params", "sql", "agent", "embedding"])
def test_unknown_names_are_dropped_and_counted(key: str) -> None:
    assert line_of("x", data={key: "abc", "rows": 2})["data"] == {"rows": 2, "withheld": 1}


@pytest.mark.parametrize(
    "value", [SECRET, "a b", "x" * 129, "naïve", {"a": 1}, object(), b"x" * 33]
)
def test_known_names_carry_no_free_text(value: object) -> None:
    assert line_of("x", data={"reason": value})["data"] == {"reason": "[withheld]"}


@pytest.mark.parametrize(
    "value, shown",
    [
        ("127.0.0.1:3850", "127.0.0.1:3850"),
        (b"\x01\xff", "01ff"),
        (Colour.RED, "red"),
        (["a.b", "c d"], ["a.b", "[withheld]"]),
        (None, None),
    ],
)
def test_known_names_carry_scalars(value: object, shown: object) -> None:
    assert line_of("x", data={"key": value})["data"] == {"key": shown}


def test_foreign_error_shows_name_and_place_only() -> None:
    error = error_line(ValueError(SECRET))["error"]
    assert error["name"] == "ValueError"
    assert "message" not in error
    assert error["stack"][-1].startswith("node/test_logs.py:")


def test_own_error_shows_its_text() -> None:
    assert error_line(Conflict("two rows"))["error"]["message"] == "two rows"


def test_error_group_shows_each_inner_error_without_text() -> None:
    error = error_line(ExceptionGroup(SECRET, [ValueError(SECRET), Conflict("busy")]))["error"]
    assert [inner["name"] for inner in error["errors"]] == ["ValueError", "Conflict"]
    assert SECRET not in json.dumps(error)


def test_library_text_is_withheld_but_placed() -> None:
    line = line_of(SECRET, name="asyncio", data={"reason": "x"})
    assert line["message"] == "a library reported something"
    assert line["data"] == {"source": "walk:7"}


@given(
    st.text(min_size=1),
    st.dictionaries(st.sampled_from(["content", "query", *sorted(DATA_KEYS)[:5]]), st.text()),
)
def test_always_positional_text_and_unknown_names_stay_out(text: str, data: dict[str, str]) -> None:
    secret = f"<<{text}>>"
    line = line_of("x %s", secret, data=data | {"content": secret, "reason": secret})
    assert secret not in json.dumps(line, ensure_ascii=False)


def test_our_log_calls_have_constant_messages() -> None:
    levels = {"debug", "info", "warning", "error", "exception", "critical"}
    found = []
    for package in ("node", "gossip", "erasure", "storage"):
        for path in (REPO / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and node.func.attr in levels
                    and isinstance(node.func.value, ast.Name)
                    and node.func.value.id in {"log", "logger", "LOG"}
                    and not isinstance(node.args[0], ast.Constant)
                ):
                    found.append(f"{path.relative_to(REPO)}:{node.lineno}")
    assert found == []


# files


@pytest.fixture
def sink(tmp_path: Path) -> Iterator[DailyFile]:
    handler = DailyFile(tmp_path, max_bytes=300, keep=3)
    handler.setFormatter(logging.Formatter("%(message)s"))
    yield handler
    handler.close()


def put(sink: DailyFile, message: str) -> None:
    sink.handle(logging.LogRecord("node", logging.INFO, "x.py", 1, message, (), None))


def test_file_is_named_by_day_and_private(sink: DailyFile, tmp_path: Path) -> None:
    with moment("2026-08-01T12:00:00", sink):
        put(sink, "a")
    assert records(tmp_path) == {"daemon-2026-08-01.log": ["a"]}
    assert stat.S_IMODE((tmp_path / "daemon-2026-08-01.log").stat().st_mode) == 0o600


def test_a_new_day_starts_a_new_file(sink: DailyFile, tmp_path: Path) -> None:
    with moment("2026-08-01T23:59:59", sink):
        put(sink, "a")
    with moment("2026-08-02T00:00:00", sink):
        put(sink, "b")
    assert records(tmp_path) == {
        "daemon-2026-08-01.log": ["a"],
        "daemon-2026-08-02.log": ["b"],
    }


def test_a_full_file_gets_a_time_suffix(sink: DailyFile, tmp_path: Path) -> None:
    with moment("2026-08-01T12:00:00.123", sink):
        put(sink, "a" * 200)
        put(sink, "b" * 200)
    assert records(tmp_path) == {
        "daemon-2026-08-01.120000123.log": ["a" * 200],
        "daemon-2026-08-01.log": ["b" * 200],
    }


def test_only_the_newest_files_stay(sink: DailyFile, tmp_path: Path) -> None:
    with moment("2026-08-01T12:00:00", sink):
        for letter in "abcdef":
            put(sink, letter * 200)
    assert [lines[0][0] for lines in records(tmp_path).values()] == ["d", "e", "f"]


def test_a_restart_appends(sink: DailyFile, tmp_path: Path) -> None:
    with moment("2026-08-01T12:00:00", sink):
        put(sink, "a")
        sink.close()
        put(sink, "b")
    assert records(tmp_path) == {"daemon-2026-08-01.log": ["a", "b"]}


def test_a_failed_write_says_so_without_the_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(DailyFile(tmp_path / "missing"), SECRET)
    assert capsys.readouterr().err == "a log line of x:1 was lost\n"


# the whole


def test_open_logs_writes_json_and_pretty_and_restores(tmp_path: Path) -> None:
    console = io.StringIO()
    before = logging.getLogger().handlers[:]
    with open_logs(tmp_path, console=console):
        logging.getLogger("node.app").info("listening", extra={"data": {"port": 3850}})
        logging.getLogger("node.app").debug("unseen")
        logging.getLogger("httpx").info("unseen %s", SECRET)
    assert logging.getLogger().handlers == before
    (lines,) = records(tmp_path).values()
    assert [json.loads(line)["data"] for line in lines] == [{"port": 3850}]
    assert console.getvalue().endswith("info     node.app  listening port=3850\n")


def test_pretty_shows_the_error_below() -> None:
    record = logging.LogRecord("node", 40, "x.py", 1, "failed", (), None)
    try:
        raise Conflict("two rows")
    except Conflict:
        record.exc_info = sys.exc_info()
    text = Pretty(colour=True).format(record)
    assert "\x1b[31merror" in text
    assert "\n    Conflict: two rows\n" in text


def test_json_line_is_one_line() -> None:
    record = logging.LogRecord("node", 20, "x.py", 1, "a\nb", (), None)
    assert "\n" not in JsonLines().format(record)
