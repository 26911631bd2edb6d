"""Small checks that say whether JSON from a stranger has the form of a document.

A check looks at one value and reports into `Findings`; it never raises and never stops at the
first fault. Fields that no check names are reported as unknown: they are shown to people and
decide nothing. Part of the offline verifier.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from itertools import pairwise
from typing import TypeAlias

from erasure.canonical import Json

MAX_TEXT = 1 << 16

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_HEX = re.compile(r"[0-9a-f]+")


@dataclass(slots=True)
class Findings:
    """What a form check found: `faults` refuse the document, `unknown` names extra fields."""

    faults: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


Check: TypeAlias = Callable[[Json, str, Findings], None]


def whole(minimum: int = 0) -> Check:
    """An integer of at least `minimum`."""

    def check(value: Json, at: str, found: Findings) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            found.faults.append(f"{at} is not an integer of at least {minimum}")

    return check


def text(value: Json, at: str, found: Findings) -> None:
    """Text of 1 to `MAX_TEXT` characters."""
    if not isinstance(value, str) or not 0 < len(value) <= MAX_TEXT:
        found.faults.append(f"{at} is not text of 1 to {MAX_TEXT} characters")


def flag(value: Json, at: str, found: Findings) -> None:
    """True or false."""
    if not isinstance(value, bool):
        found.faults.append(f"{at} is not true or false")


def hexadecimal(size: int) -> Check:
    """`size` bytes in lower hex."""

    def check(value: Json, at: str, found: Findings) -> None:
        if not is_hex(value, size):
            found.faults.append(f"{at} is not {size} bytes in lower hex")

    return check


def is_hex(value: object, size: int) -> bool:
    """Whether `value` is text with `size` bytes in lower hex."""
    return isinstance(value, str) and len(value) == 2 * size and bool(_HEX.fullmatch(value))


def matching(pattern: str, what: str) -> Check:
    """Text that matches the whole pattern; `what` names the form for people."""
    compiled = re.compile(pattern, re.ASCII)

    def check(value: Json, at: str, found: Findings) -> None:
        if not isinstance(value, str) or not compiled.fullmatch(value):
            found.faults.append(f"{at} is not {what}")

    return check


def one_of(choices: Iterable[str]) -> Check:
    """One of the given words."""
    allowed = sorted(str(choice) for choice in choices)

    def check(value: Json, at: str, found: Findings) -> None:
        if not isinstance(value, str) or value not in allowed:
            found.faults.append(f"{at} is none of {', '.join(allowed)}")

    return check


def time(value: Json, at: str, found: Findings) -> None:
    """A UTC time in whole seconds, such as 2026-11-30T09:00:09Z."""
    if not isinstance(value, str) or not _TIME.fullmatch(value) or not _parses(value[:-1]):
        found.faults.append(f"{at} is not a UTC time in seconds")


def day(value: Json, at: str, found: Findings) -> None:
    """A calendar date, such as 2027-01-30."""
    if not isinstance(value, str) or not _DATE.fullmatch(value) or not _parses(value):
        found.faults.append(f"{at} is not a date")


def moment(value: Json, at: str, found: Findings) -> None:
    """A date or a time."""
    (time if isinstance(value, str) and "T" in value else day)(value, at, found)


def optional(inner: Check) -> Check:
    """Null or what `inner` wants; the field itself must be there."""

    def check(value: Json, at: str, found: Findings) -> None:
        if value is not None:
            inner(value, at, found)

    return check


def ordered(inner: Check, *, by: tuple[str, ...] = ()) -> Check:
    """A list in ascending order without repetition, by the whole item or by these fields."""

    def check(value: Json, at: str, found: Findings) -> None:
        before = len(found.faults)
        sequence(inner)(value, at, found)
        if len(found.faults) > before or not isinstance(value, list):
            return
        keys = [tuple(item[name] for name in by) if by else item for item in value]
        if any(left >= right for left, right in pairwise(keys)):
            found.faults.append(f"{at} is not sorted")

    return check


def sequence(inner: Check) -> Check:
    """A list whose order has a meaning or is free."""

    def check(value: Json, at: str, found: Findings) -> None:
        if not isinstance(value, list):
            found.faults.append(f"{at} is not a list")
            return
        for index, item in enumerate(value):
            inner(item, f"{at}[{index}]", found)

    return check


def record(fields: Mapping[str, Check]) -> Check:
    """An object with all of these fields; more are allowed and reported as unknown."""

    def check(value: Json, at: str, found: Findings) -> None:
        if not isinstance(value, dict):
            found.faults.append(f"{at} is not an object")
            return
        for name, inner in fields.items():
            if name in value:
                inner(value[name], f"{at}.{name}", found)
            else:
                found.faults.append(f"{at}.{name} is missing")
        found.unknown.extend(f"{at}.{name}" for name in value if name not in fields)

    return check


def table(name: Check, inner: Check) -> Check:
    """An object whose keys are data, each of the form `name`."""

    def check(value: Json, at: str, found: Findings) -> None:
        if not isinstance(value, dict):
            found.faults.append(f"{at} is not an object")
            return
        for key, item in value.items():
            name(key, f"{at} key", found)
            inner(item, f"{at}.{key}", found)

    return check


def _parses(value: str) -> bool:
    try:
        if "T" in value:
            datetime.fromisoformat(value)
        else:
            date.fromisoformat(value)
    except ValueError:
        return False
    return True
