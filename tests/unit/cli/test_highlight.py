"""Which words of a question are marked in its answers, and for whom."""

from __future__ import annotations

import sys

import pytest

from node.cli.highlight import colours, excerpt, marked, words_of


def found(query: str, text: str) -> list[str]:
    wanted = words_of(query)
    return [] if wanted is None else wanted.findall(text)


@pytest.mark.parametrize(
    ("query", "text", "words"),
    [
        (
            "when do we deploy?",
            "We deployed; deploys run when it rains.",
            ["deployed", "deploys", "when"],
        ),
        ("do we", "we do", ["we", "do"]),
        ("ops", "drops of ops", ["ops"]),
        ("会議はいつ", "東京の会議は金曜日", ["会議"]),
        ("東", "東京", ["東"]),
        ("tea 会議", "Tea at the 会議", ["Tea", "会議"]),
        ("c++ (x", "c++ (x", ["c", "x"]),
        ("!!!", "!!!", []),
        ("ÜBER", "über Übergang", ["über"]),
    ],
)
def test_words_of_the_question_are_found(query: str, text: str, words: list[str]) -> None:
    assert found(query, text) == words


def test_a_long_text_is_shown_around_its_first_word() -> None:
    text = "a " * 500 + "harbour " + "b " * 500
    shown = excerpt(text, words_of("the harbour"), 100)
    assert shown.startswith("… a")
    assert shown.endswith("b …")
    assert "harbour" in shown
    assert len(shown) <= 104
    assert excerpt("short", words_of("x")) == "short"
    assert excerpt("x" * 500, None, 100) == "x" * 100 + " …"


@pytest.mark.parametrize(
    ("terminal", "environment", "seen"),
    [(True, "", True), (True, "1", False), (False, "", False)],
)
def test_only_a_terminal_without_no_color_is_coloured(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, environment: str, seen: bool
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", environment)
    assert colours() is seen
    assert bool(marked("green tea", words_of("tea")).spans) is seen


def test_what_is_marked_stays_harmless() -> None:
    assert marked("tea\x1b[2J", words_of("tea")).plain == "tea\ufffd[2J"
