"""Turns text that somebody wrote into what is stored, compared and indexed.

Every writer of memories passes here, so that two spellings of one statement meet in one hash on
every node. Pure functions: nothing is read, nothing is logged, and an error never repeats the
text that caused it. PostgreSQL never lowercases or hashes content; only this module does.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from storage.errors import ContentTooLarge, InvalidInput

HASH_VERSION: Final = 1
MAX_BYTES: Final = 1 << 20
FULL_TEXT_BYTES: Final = 1 << 18
"""How much of a content the full-text columns cover; keeps any text below tsvector's limit."""

_SPACE = re.compile(r"[\s\ufeff]+")
_OUTER_SPACE = re.compile(r"\A[\s\ufeff]+|[\s\ufeff]+\Z")
_NEWLINE = re.compile(r"\r\n?")
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_INVISIBLE = str.maketrans("", "", "\u200b\u2060")
_TRAILING = ".,!?;:"

_UNSPACED = re.compile(
    "["
    "\u0e00-\u0eff"  # Thai, Lao
    "\u0f40-\u0fbc"  # Tibetan
    "\u1000-\u109f\u1780-\u17d3"  # Myanmar, Khmer
    "\u1100-\u11ff\uac00-\ud7a3"  # Hangul
    "\u3005-\u3007\u3041-\u309f\u30a1-\u30ff\u3105-\u312f\u31f0-\u31ff"  # kana, bopomofo
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"  # Han
    "]+"
)


@dataclass(frozen=True, slots=True)
class NormalContent:
    """The forms of one content.

    `storage` is what readers get back; `normalized` is what duplicates are judged by and never
    empty; `content_hash` is the lower hex SHA-256 of `normalized` in UTF-8. `folded_empty` tells
    that nothing but stripped characters was left, so `normalized` is the lowercased text instead.
    """

    storage: str
    normalized: str
    content_hash: str
    hash_version: int = HASH_VERSION
    folded_empty: bool = False


def normalize(content: str, *, collapse: bool = True, max_bytes: int = MAX_BYTES) -> NormalContent:
    """All stored forms of `content`, hash version 1.

    `collapse=False` keeps inner whitespace and newlines in the storage form; the hash is the same
    either way, because it always starts from the collapsed text.

    Raises InvalidInput for a missing content or one with characters that cannot be stored, and
    ContentTooLarge when the text, as given or in its storage form, has more than `max_bytes`
    bytes of UTF-8.
    """
    if content is None:
        raise InvalidInput("content is required")
    check_text(content, "content")
    _check_size(content, max_bytes)
    composed = unicodedata.normalize("NFC", content)
    trimmed = _OUTER_SPACE.sub("", _NEWLINE.sub("\n", composed))
    if not trimmed:
        raise InvalidInput("content is required")
    collapsed = _SPACE.sub(" ", trimmed)
    storage = collapsed if collapse else trimmed
    _check_size(storage, max_bytes)
    folded = _fold(collapsed)
    basis = folded or collapsed.lower()
    return NormalContent(
        storage=storage,
        normalized=basis,
        content_hash=sha256(basis.encode("utf-8")).hexdigest(),
        folded_empty=not folded,
    )


def check_text(value: str, field: str) -> str:
    """`value` unchanged, if PostgreSQL can store it as text.

    Raises InvalidInput naming `field` for another type, for U+0000 and for lone surrogates.
    """
    if not isinstance(value, str):
        raise InvalidInput(f"{field} must be text")
    if _UNSTORABLE.search(value):
        raise InvalidInput(f"{field} contains a character that cannot be stored")
    return value


def full_text_part(text: str) -> str:
    """The part of `text` that full-text search covers: whole characters, at most 256 KiB."""
    if len(text) * 4 <= FULL_TEXT_BYTES:
        return text
    head = text[:FULL_TEXT_BYTES].encode("utf-8", "replace")[:FULL_TEXT_BYTES]
    return head.decode("utf-8", "ignore")


def bigrams(text: str) -> list[str]:
    """Search terms for the runs of scripts that put no spaces between words.

    Each character of such a run and each pair of neighbours, after NFKC and lower case, without
    repetition, in order of appearance. The same function serves the stored text and the query,
    so that a query's terms are a subset of those of every text that contains it. Only
    `full_text_part` is looked at.
    """
    folded = unicodedata.normalize("NFKC", full_text_part(text)).lower()
    terms: dict[str, None] = {}
    for run in _UNSPACED.findall(folded):
        terms.update(dict.fromkeys(run))
        terms.update(dict.fromkeys(run[at : at + 2] for at in range(len(run) - 1)))
    return list(terms)


def _fold(collapsed: str) -> str:
    lowered = unicodedata.normalize("NFC", collapsed.lower()).translate(_INVISIBLE)
    return _OUTER_SPACE.sub("", _SPACE.sub(" ", lowered).rstrip(_TRAILING))


def _check_size(text: str, max_bytes: int) -> None:
    if len(text) > max_bytes or len(text.encode("utf-8")) > max_bytes:
        raise ContentTooLarge(f"content exceeds {max_bytes} bytes")
