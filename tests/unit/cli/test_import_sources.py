"""What files become, where their faults are, and how an import remembers how far it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from node.cli.main import cli
from node.cli.resume import START, Journal, Progress, chained
from node.cli.sources import Fault, Item, read_items, with_source
from node.cli.transfer import batches


def items(source: Path, format_: str | None = None, **extras: Any) -> list[Item | Fault]:
    return list(read_items(source, extras, format_))


def contents(found: list[Item | Fault]) -> list[str]:
    return [one.body["content"] for one in found if isinstance(one, Item)]


def faults(found: list[Item | Fault]) -> dict[str, str]:
    return {one.place: one.error for one in found if isinstance(one, Fault)}


def test_files_become_memories_by_heading_paragraph_and_line(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("intro\n\n# One\ntext\n\n## Two\nmore\n")
    (tmp_path / "b.txt").write_text("first\nstill first\n\n  \nsecond\n")
    (tmp_path / "c.jsonl").write_text('{"content": "x", "tags": ["t"]}\n\nnot json\n[1]\n')
    (tmp_path / "d.bin").write_text("ignored")
    (tmp_path / "e.txt").write_bytes(b"\xff\xfe\xff")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "f.md").write_text("ignored")
    found = items(tmp_path, tags=["n"])
    assert contents(found) == [
        "intro",
        "# One\ntext",
        "## Two\nmore",
        "first\nstill first",
        "second",
        "x",
    ]
    assert found[5].body["tags"] == ["t", "n"]  # type: ignore[union-attr]
    assert [one.place for one in found] == [
        "a.md:1", "a.md:3", "a.md:6", "b.txt:1", "b.txt:5", "c.jsonl:1", "c.jsonl:3", "c.jsonl:4",
        "e.txt",
    ]  # fmt: skip
    assert faults(found) == {
        "c.jsonl:3": "is not JSON",
        "c.jsonl:4": "is not a JSON object",
        "e.txt": "is no UTF-8 text",
    }


def test_a_comment_inside_a_fence_is_no_heading(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# One\n```sh\n# not two\n```\n# Three\n")
    assert contents(items(tmp_path)) == ["# One\n```sh\n# not two\n```", "# Three"]


def test_a_chat_is_one_turn_a_line(tmp_path: Path) -> None:
    file = tmp_path / "talk.chat"
    file.write_text(
        "[2026-08-01T12:00:00Z] ann: When do we deploy?\n"
        "bob: Fridays: at noon\n"
        '{"role": "assistant", "content": "Noted.", "timestamp": 1785585600}\n'
        "\n"
        "nobody said this\n"
        "[2026-08-01 12:00] ann: too vague\n"
        "ann:\n"
    )
    found = items(file)
    told = [one.body for one in found if isinstance(one, Item)]
    assert [(one["who"], one["content"], one.get("created_at"), one["type"]) for one in told] == [
        ("ann", "When do we deploy?", "2026-08-01T12:00:00.000+00:00", "turn"),
        ("bob", "Fridays: at noon", None, "turn"),
        ("assistant", "Noted.", "2026-08-01T12:00:00.000+00:00", "turn"),
    ]
    assert list(faults(found)) == ["talk.chat:5", "talk.chat:6", "talk.chat:7"]
    assert "time zone" in faults(found)["talk.chat:6"]


def test_a_json_line_with_a_speaker_and_no_content_is_a_turn(tmp_path: Path) -> None:
    file = tmp_path / "export.jsonl"
    file.write_text(
        '{"speaker": "ann", "text": "hello", "time": "2026-08-01T12:00:00+02:00"}\n'
        '{"content": "a fact", "who": "bob"}\n'
    )
    turn, fact = (one.body for one in items(file) if isinstance(one, Item))
    assert (turn["who"], turn["content"], turn["type"]) == ("ann", "hello", "turn")
    assert (fact["who"], fact["content"], "type" in fact) == ("bob", "a fact", False)


def test_equal_words_of_two_speakers_have_keys_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "talk.chat"
    file.write_text("ann: yes\nbob: yes\nann: yes\n")
    keys = [one.body["source_id"] for one in items(file) if isinstance(one, Item)]
    assert keys[0] == keys[2]
    assert keys[0] != keys[1]


def test_a_format_may_be_named(tmp_path: Path) -> None:
    file = tmp_path / "talk.log"
    file.write_text("ann: hello\nbob: good day\n")
    assert contents(items(file, "chat")) == ["hello", "good day"]
    assert contents(items(file)) == ["ann: hello\nbob: good day"]


def test_the_key_of_an_import_changes_with_its_text() -> None:
    one = with_source("a.md", {"content": "x"}, {})
    same = with_source("a.md", {"content": "x"}, {})
    other = with_source("a.md", {"content": "y"}, {})
    assert one["source_id"] == same["source_id"]
    assert one["source_id"] != other["source_id"]
    kept = with_source("a.jsonl", {"content": "x", "idempotency_key": "k"}, {})
    assert "source_id" not in kept


def test_batches_are_bounded_by_number_and_size(tmp_path: Path) -> None:
    (tmp_path / "many.txt").write_text("\n\n".join(f"p{number}" for number in range(250)))
    (tmp_path / "large.txt").write_text("\n\n".join("x" * 400_000 for _ in range(4)))
    assert [len(one) for one in batches(items(tmp_path / "many.txt"))] == [100, 100, 50]
    assert [len(one) for one in batches(items(tmp_path / "large.txt"))] == [2, 2]


def test_what_no_request_can_carry_is_a_fault_of_its_line(tmp_path: Path) -> None:
    file = tmp_path / "c.jsonl"
    lines = ['{"content": "\\ud800"}', '{"content": "x", "importance": NaN}']
    file.write_text("\n".join([*lines, json.dumps({"content": "x" * ((1 << 20) + 1)})]))
    assert faults(items(file)) == {
        "c.jsonl:1": "a text contains a character that cannot be stored",
        "c.jsonl:2": "a number is not finite",
        "c.jsonl:3": "content exceeds 1048576 bytes",
    }


@given(st.binary(max_size=200))
def test_no_bytes_make_a_file_unreadable(
    tmp_path_factory: pytest.TempPathFactory, raw: bytes
) -> None:
    folder = tmp_path_factory.getbasetemp()
    for name in ("x.jsonl", "x.chat", "x.md", "x.txt"):
        (folder / name).write_bytes(raw)
        for one in items(folder / name):
            assert isinstance(one, Fault) or one.body["content"].strip()


@given(st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["content", "text", "who", "role", "time", "tags", "type"]), inner
    ),
))  # fmt: skip
def test_no_json_makes_a_line_unreadable(
    tmp_path_factory: pytest.TempPathFactory, value: Any
) -> None:
    file = tmp_path_factory.getbasetemp() / "y.jsonl"
    file.write_text(json.dumps(value))
    assert len(items(file)) == 1


def test_a_dry_run_needs_no_node_and_tells_faults(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text('{"content": "x"}\n{"content": ""}\n')
    told = CliRunner().invoke(cli, ["import", str(tmp_path), "--dry-run"])
    assert (told.exit_code, told.stdout) == (1, "1 would be sent, 1 cannot be\n")
    assert told.stderr == "  c.jsonl:2: content is required\n"
    found = json.loads(
        CliRunner().invoke(cli, ["import", str(tmp_path), "--dry-run", "--json"]).stdout
    )
    assert (found["read"], found["failed"], found["stored"], found["dry_run"]) == (2, 1, 0, True)


def test_a_folder_without_known_files_is_told(tmp_path: Path) -> None:
    (tmp_path / "photo.png").write_bytes(b"\x89PNG")
    told = CliRunner().invoke(cli, ["import", str(tmp_path), "--dry-run"])
    assert (told.exit_code, told.stdout) == (0, "0 would be sent, 0 cannot be\n")
    assert told.stderr == (
        "nothing was found; a folder is searched for .jsonl, .ndjson, .md, .txt, .chat\n"
    )


def test_a_journal_is_kept_per_import_until_it_is_dropped(tmp_path: Path) -> None:
    one, other = Journal(["a"], tmp_path), Journal(["b"], tmp_path)
    noted = Progress(3, chained(START, Item("x:1", {"content": "x"})), "id", {"stored": 3})
    one.note(noted)
    assert (one.read(), other.read()) == (noted, Progress())
    one.drop()
    assert one.read() == Progress()
    (file,) = [tmp_path / "x"]
    file.write_text("x")
    assert Journal(["c"], file).read() == Progress()
