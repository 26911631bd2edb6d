"""What the hot graph answers: hits, counts and what a write did. Plain values."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from storage.model import Resident


class Hit(msgspec.Struct, frozen=True, gc=False):
    """A resident and the cosine of its vector to the query."""

    resident: Resident
    score: float


@dataclass(frozen=True, slots=True)
class InsertReport:
    """What an insert did; an id evicted to make room for later ones of its batch is in both."""

    inserted: int
    updated: int
    evicted: tuple[bytes, ...]
    refused: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class PurgeReport:
    """How many slots (live and dead) and vector rows held bytes of each id before the purge.

    `mode` is `rebuilt`, `overwritten`, or `untouched` when nothing was found.
    """

    mode: str
    slots: dict[bytes, int]
    vectors: dict[bytes, int]


@dataclass(frozen=True, slots=True)
class LimitsReport:
    """Names of the settings taken over and of those that were not, and who was evicted."""

    applied: frozenset[str]
    refused: frozenset[str]
    evicted: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class HotStats:
    """Counts and allocated bytes at one moment."""

    resident: int
    ceiling: int
    dead: int
    exempt: int
    capacity: int
    bytes: int
    inserted_total: int
    evicted_total: int
    rebuilds_total: int
    searches_total: int
    changes_total: int = 0
