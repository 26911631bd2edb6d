"""Words that say too little about a reader's memories to be looked up again and again."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Final

from storage.model import Reader

KEPT_S: Final = 600.0
"""Seconds after which a reader's common words are met anew."""
READERS: Final = 64
WORDS: Final = 4_096
LONGEST: Final = 64
"""Characters of a word that is remembered: what a question may cost stays bounded."""


class CommonWords:
    """Words that were met in too many rows of a reader, so that they need not be read again."""

    def __init__(self) -> None:
        self._known: dict[Reader, tuple[float, set[str]]] = {}

    def of(self, reader: Reader, now: datetime) -> Collection[str]:
        """The words that are too common for this reader, as far as that was met lately."""
        met = self._known.get(reader)
        if met is None:
            return ()
        since, known = met
        if now.timestamp() - since > KEPT_S:
            del self._known[reader]
            return ()
        return known

    def note(self, reader: Reader, found: Sequence[str], now: datetime) -> None:
        """Remember words that a search of all rows of the reader found to be common."""
        if reader not in self._known:
            while len(self._known) >= READERS:
                del self._known[next(iter(self._known))]
            self._known[reader] = (now.timestamp(), set())
        known = self._known[reader][1]
        short = [word for word in found if len(word) <= LONGEST]
        known.update(short[: WORDS - len(known)])
