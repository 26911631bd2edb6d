"""Files that become memories: JSON lines, Markdown, plain text and chat exports.

What is taken from each file stands in `FORMATS`; nothing is guessed from the content, except that
a JSON line with a speaker and no `content` is a turn of a chat. Every piece carries the place that
it came from, as `file:line`, and a key that makes storing it twice harmless.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from storage.content import MAX_BYTES

MAX_LINE: Final = 16 << 20
IMPORTED: Final = frozenset(
    {
        "content",
        "project",
        "type",
        "tags",
        "who",
        "importance",
        "pinned",
        "visibility",
        "scope",
        "source_type",
        "source_id",
        "idempotency_key",
        "ttl_seconds",
        "expires_at",
        "created_at",
        "vector",
    }
)
"""Fields of a JSON line that are taken; `agent_id` stays with the importing agent."""
TURN: Final = {
    "content": ("content", "text", "message", "body"),
    "who": ("who", "speaker", "author", "name", "from", "role"),
    "created_at": ("created_at", "timestamp", "time", "date", "ts"),
}
"""A field of a turn, and the names that exports give it, the first that is there counting."""

_HEADING: Final = re.compile(r"#{1,6}\s")
_FENCE: Final = re.compile(r"\s{0,3}(```|~~~)")
_SAID: Final = re.compile(
    r"(?:\[(?P<time>[^\]]{1,64})\]\s*)?(?P<who>[^:\[\]]{1,80}):\s+(?P<text>.*)"
)


@dataclass(frozen=True, slots=True)
class Item:
    """One memory to send and the place that it came from."""

    place: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Fault:
    """What cannot become a memory, where it stands, and why."""

    place: str
    error: str


Piece = tuple[int, dict[str, Any] | str]
"""A line number, and the fields that stand there, or what is wrong with them."""


def files_of(source: Path) -> list[tuple[Path, str]]:
    """A file, or all known files below a folder in a stable order, each with its short name.

    Hidden files and folders are left out.
    """
    if not source.is_dir():
        return [(source, source.name)]
    found = []
    for file in sorted(source.rglob("*")):
        inside = file.relative_to(source)
        hidden = any(part.startswith(".") for part in inside.parts)
        if file.suffix.lower() in FORMATS and not hidden and file.is_file():
            found.append((file, inside.as_posix()))
    return found


def read_items(
    source: Path, extras: dict[str, Any], format_: str | None = None
) -> Iterator[Item | Fault]:
    """What a file or a folder holds, in a stable order.

    `extras` are what the command line adds: `project`, `type`, `tags`. `format_` is a value of
    `FORMATS` for files whose suffix says something else.
    """
    for file, name in files_of(source):
        read = READERS[format_ or FORMATS.get(file.suffix.lower(), "text")]
        try:
            for line, piece in read(file):
                place = f"{name}:{line}"
                error = piece if isinstance(piece, str) else _fault(piece)
                if error is not None:
                    yield Fault(place, error)
                elif isinstance(piece, dict):
                    yield Item(place, with_source(name, piece, extras))
        except UnicodeDecodeError:
            yield Fault(name, "is no UTF-8 text")
        except OSError as error:
            yield Fault(name, f"cannot be read: {error.strerror}")


def with_source(name: str, body: dict[str, Any], extras: dict[str, Any]) -> dict[str, Any]:
    """The body with what the command line adds, and with a key that makes a repeat harmless.

    The key is the file's name and a digest of the text, so a changed text is a new memory.
    """
    made = {key: value for key, value in body.items() if key in IMPORTED and value is not None}
    for key in ("project", "type"):
        if extras.get(key) and not (key == "type" and "type" in body):
            made[key] = extras[key]
    if extras.get("tags"):
        present = made.get("tags", [])
        listed = present.split(",") if isinstance(present, str) else list(present)
        made["tags"] = [*filter(None, listed), *(t for t in extras["tags"] if t not in listed)]
    if "source_id" not in made and "idempotency_key" not in made:
        said = f"{made.get('who', '')}\n{made.get('created_at', '')}\n" if "turn" in body else ""
        text = f"{said}{made.get('content')}".encode("utf-8", "replace")
        made["source_type"] = made.get("source_type", "file")
        made["source_id"] = f"{name[-200:]}#{hashlib.sha256(text).hexdigest()[:16]}"
    if "turn" in body:
        made.setdefault("type", "turn")
    return made


def _fault(body: dict[str, Any]) -> str | None:
    content = body.get("content")
    if not isinstance(content, str) or not content.strip():
        return "content is required"
    if len(content.encode("utf-8", "replace")) > MAX_BYTES:
        return f"content exceeds {MAX_BYTES} bytes"
    if not isinstance(body.get("tags", []), str | list):
        return "tags is invalid"
    try:
        json.dumps(body, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except UnicodeEncodeError:
        return "a text contains a character that cannot be stored"
    except ValueError:
        return "a number is not finite"
    return None


# --- formats --------------------------------------------------------------------------------------


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    """Lines with their numbers, without their ends; empty ones are left out."""
    with file.open("rb") as stream:
        number = 0
        while raw := stream.readline(MAX_LINE):
            number += 1
            text = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            if text.strip():
                yield number, text


def _json_lines(file: Path) -> Iterator[Piece]:
    for number, line in _lines(file):
        yield number, _json_fields(line)


def _json_fields(line: str) -> dict[str, Any] | str:
    try:
        body = json.loads(line)
    except (ValueError, RecursionError):
        return "is not JSON"
    if not isinstance(body, dict):
        return "is not a JSON object"
    speaks = any(name in body for name in TURN["who"])
    return _turn(body) if ("content" not in body and speaks) or "role" in body else body


def _chat(file: Path) -> Iterator[Piece]:
    for number, line in _lines(file):
        if line.lstrip().startswith("{"):
            fields = _json_fields(line)
            yield number, fields if isinstance(fields, str) else _turn(fields)
            continue
        said = _SAID.fullmatch(line.strip())
        if said is None:
            yield number, "is not a turn: expected `[TIME] WHO: TEXT` or `WHO: TEXT`"
        else:
            turn = {"content": said["text"], "who": said["who"].strip(), "time": said["time"]}
            yield number, _turn(turn)


def _turn(body: dict[str, Any]) -> dict[str, Any] | str:
    """The fields of a turn by the names that a memory has."""
    made = {name: value for name, value in body.items() if name in IMPORTED}
    for name, others in TURN.items():
        given = next((body[one] for one in others if body.get(one) is not None), None)
        if given is not None:
            made[name] = given
    if not isinstance(made.get("who"), str | None):
        return "the speaker is no text"
    moment = made.get("created_at")
    if isinstance(moment, int | float) and not isinstance(moment, bool):
        made["created_at"] = _epoch(moment)
    elif isinstance(moment, str):
        made["created_at"] = _iso(moment)
    if moment is not None and made["created_at"] is None:
        return "the time is invalid: expected ISO 8601 with a time zone, or seconds since 1970"
    return made | {"turn": True}


def _epoch(seconds: float) -> str | None:
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return None


def _iso(text: str) -> str | None:
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    return None if moment.tzinfo is None else moment.isoformat(timespec="milliseconds")


def _markdown(file: Path) -> Iterator[Piece]:
    """Sections: a heading with what follows it; the text before the first is one too."""
    fenced = False

    def begins(line: str) -> bool:
        nonlocal fenced
        if _FENCE.match(line):
            fenced = not fenced
        return not fenced and _HEADING.match(line) is not None

    return _cut(file, begins)


def _paragraphs(file: Path) -> Iterator[Piece]:
    """Paragraphs: what stands between empty lines."""
    return _cut(file, lambda line: not line.strip())


def _cut(file: Path, begins: Callable[[str], bool]) -> Iterator[Piece]:
    lines = file.read_text(encoding="utf-8-sig").split("\n")
    first, held = 1, list[str]()
    for number, line in enumerate(lines, 1):
        if begins(line):
            yield from _joined(first, held)
            first, held = number, []
        held.append(line)
    yield from _joined(first, held)


def _joined(first: int, held: Iterable[str]) -> Iterator[Piece]:
    lines = list(held)
    empty = next((at for at, line in enumerate(lines) if line.strip()), None)
    if empty is not None:
        yield first + empty, {"content": "\n".join(lines).strip()}


FORMATS: Final = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".md": "markdown",
    ".txt": "text",
    ".chat": "chat",
}
READERS: Final[dict[str, Callable[[Path], Iterator[Piece]]]] = {
    "jsonl": _json_lines,
    "markdown": _markdown,
    "text": _paragraphs,
    "chat": _chat,
}
