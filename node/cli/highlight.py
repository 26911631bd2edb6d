"""The words of a question inside its answers, for people who look at a terminal."""

from __future__ import annotations

import os
import re
import sys
from typing import Final

from rich.text import Text

from node.cli.show import safe
from storage.content import bigrams

ROOM: Final = 400
"""Characters of a text that are shown around the first word found."""
STYLE: Final = "bold yellow"
MAX_WORDS: Final = 32
SHORT: Final = 2
"""Letters of a word that is marked only when the question has no longer one."""
_WORD: Final = re.compile(r"\w+")


def words_of(query: str) -> re.Pattern[str] | None:
    """What to mark: words with up to three letters behind them, so that `deploy` marks `deploys`;
    of scripts without spaces, pairs of neighbours. None when nothing is left of the question.
    """
    unspaced = bigrams(query)
    single = {one for one in unspaced if len(one) == 1}
    pairs = [one for one in unspaced if len(one) > 1] or sorted(single)
    words = [word for word in _WORD.findall(query.lower()) if not single & set(word)]
    long = [word for word in words if len(word) > SHORT] or words
    parts = [rf"(?<!\w){re.escape(word)}\w{{0,3}}(?!\w)" for word in long[:MAX_WORDS]]
    parts += [re.escape(pair) for pair in pairs[:MAX_WORDS]]
    return re.compile("|".join(parts), re.IGNORECASE) if parts else None


def excerpt(text: str, wanted: re.Pattern[str] | None, room: int = ROOM) -> str:
    """A text of any length in about `room` characters, around the first word found."""
    if len(text) <= room:
        return text
    found = wanted.search(text) if wanted is not None else None
    start = max(0, found.start() - room // 4) if found is not None else 0
    start = min(start, len(text) - room)
    end = start + room
    return f"{'… ' if start else ''}{text[start:end].strip()}{' …' if end < len(text) else ''}"


def marked(text: str, wanted: re.Pattern[str] | None) -> Text:
    """The text, harmless to a terminal, with its words marked where somebody sees colours."""
    made = Text(safe(text))
    if wanted is not None and colours():
        made.highlight_regex(wanted, STYLE)
    return made


def colours() -> bool:
    """Whether standard output is a terminal whose user did not ask for plain text (NO_COLOR)."""
    plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    return sys.stdout.isatty() and not plain
