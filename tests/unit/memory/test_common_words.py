"""Words that need not be read again: by reader, for a while, and never many."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from node.memory.commonwords import KEPT_S, LONGEST, READERS, WORDS, CommonWords
from storage.model import Reader

NOW = datetime(2026, 8, 1, tzinfo=UTC)


def reader(number: int) -> Reader:
    return Reader(number.to_bytes(16))


def test_what_is_common_to_one_reader_is_not_to_another() -> None:
    common = CommonWords()
    common.note(reader(1), ["the"], NOW)
    assert set(common.of(reader(1), NOW)) == {"the"}
    assert set(common.of(reader(2), NOW)) == set()


def test_common_words_are_met_anew_after_a_while() -> None:
    common = CommonWords()
    common.note(reader(1), ["the"], NOW)
    later = NOW + timedelta(seconds=KEPT_S + 1)
    assert set(common.of(reader(1), later)) == set()
    common.note(reader(1), ["a"], later)
    assert set(common.of(reader(1), later)) == {"a"}


def test_readers_and_words_are_bounded() -> None:
    common = CommonWords()
    for number in range(READERS + 1):
        common.note(reader(number), ["the"], NOW)
    assert set(common.of(reader(0), NOW)) == set()
    assert set(common.of(reader(READERS), NOW)) == {"the"}
    common.note(reader(READERS), ["the" + "!" * LONGEST], NOW)
    assert set(common.of(reader(READERS), NOW)) == {"the"}
    common.note(reader(READERS), [f"word{number}" for number in range(2 * WORDS)], NOW)
    assert len(common.of(reader(READERS), NOW)) == WORDS
