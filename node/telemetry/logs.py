"""Structured logs that cannot carry what somebody remembered.

Every module logs with the standard library; this is the one place that decides what leaves. A
line is a constant message, numbers, and named values from an allow-list; positional text, the
text of foreign exceptions and everything unknown is withheld, because driver errors and
libraries quote their input. Only errors of our own, whose text never holds content, are shown.

Named values go in as `log.info("peer admitted", extra={"data": {"peer": ..., "port": ...}})`.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any, Final, TextIO

from storage.errors import MnemeshError

MAX_FILE_BYTES: Final = 10_000_000
KEEP_FILES: Final = 5
WITHHELD: Final = "[withheld]"
MAX_FRAMES: Final = 30

DATA_KEYS: Final = frozenset(
    {
        "address",
        "aggregates",
        "attempt",
        "attempts",
        "batch",
        "bytes",
        "ceiling",
        "changed",
        "code",
        "count",
        "dead",
        "deleted",
        "delay_ms",
        "dimension",
        "direction",
        "duration_ms",
        "epoch",
        "erasure",
        "evicted",
        "failed",
        "files",
        "hops",
        "items",
        "key",
        "kind",
        "listen",
        "members",
        "method",
        "migration",
        "mode",
        "model",
        "node",
        "oldest_ms",
        "operation",
        "path",
        "peer",
        "peers",
        "pending",
        "phase",
        "pid",
        "port",
        "problem",
        "provider",
        "reason",
        "rebuilt",
        "refused",
        "removed",
        "request",
        "residents",
        "restart",
        "result",
        "retries",
        "rows",
        "route",
        "schema",
        "score",
        "section",
        "seconds",
        "session",
        "signal",
        "size",
        "slots",
        "source",
        "state",
        "status",
        "step",
        "task",
        "topic",
        "total",
        "version",
        "wait_ms",
        "warning",
        "watermark",
        "worker",
    }
)
"""Names under which a value may stand in a line; ids of peers and requests, never of agents."""
_SENTENCES = frozenset({"problem", "warning", "path"})
_TOKEN = re.compile(r"[\w.:/@#+\-\[\]]{1,128}", re.ASCII)
_OURS = ("node", "gossip", "erasure", "storage")
_PLACEHOLDER = re.compile(r"%(?:\((\w+)\))?[-+ #0]*\d*(?:\.\d+)?[a-zA-Z]|%%")


def describe(record: logging.LogRecord) -> dict[str, Any]:
    """The fields of one line: timestamp, level, category, message, then data, duration, error."""
    ours = record.name.split(".", 1)[0] in _OURS
    line: dict[str, Any] = {
        "timestamp": _iso(record.created),
        "level": record.levelname.lower(),
        "category": record.name[:64],
        "message": _message(record) if ours else "a library reported something",
    }
    data = _data(getattr(record, "data", None)) if ours else {}
    if not ours:
        data["source"] = f"{record.module}:{record.lineno}"
    if data:
        line["data"] = data
    duration = getattr(record, "duration", None)
    if isinstance(duration, int | float) and not isinstance(duration, bool):
        line["duration"] = duration
    if record.exc_info and record.exc_info[1] is not None:
        line["error"] = _error(record.exc_info[1])
    return line


class JsonLines(logging.Formatter):
    """One JSON object per line, for files and for machines."""

    def format(self, record: logging.LogRecord) -> str:
        """See `describe`."""
        return json.dumps(describe(record), ensure_ascii=False, separators=(",", ":"))


class Pretty(logging.Formatter):
    """The same facts for a person at a terminal; colour when asked for."""

    def __init__(self, *, colour: bool) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        """Time, level, category, message, `key=value`, and the error in lines below."""
        line = describe(record)
        level = f"{line['level']:<8}"
        if self._colour:
            shade = 31 if record.levelno >= logging.ERROR else 33 if level[0] == "w" else 36
            level = f"\x1b[{shade}m{level}\x1b[0m"
        text = f"{line['timestamp'][11:23]} {level} {line['category']}  {line['message']}"
        for key, value in line.get("data", {}).items():
            text += f" {key}={value}"
        if error := line.get("error"):
            text += f"\n    {error['name']}: {error.get('message', WITHHELD)}"
            text += "".join(f"\n      {frame}" for frame in error["stack"])
        return text


class DailyFile(logging.Handler):
    """`daemon-YYYY-MM-DD.log` in a folder, 0600; a full file gets a time suffix.

    At most `keep` files stay. A write that fails says so on standard error, without the line.
    """

    def __init__(
        self,
        folder: Path,
        *,
        max_bytes: int = MAX_FILE_BYTES,
        keep: int = KEEP_FILES,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        super().__init__()
        self._folder = folder
        self._max_bytes = max_bytes
        self._keep = keep
        self._now = now
        self._path: Path | None = None
        self._descriptor = -1
        self._size = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Appends one line."""
        try:
            self._write(self.format(record).encode("utf-8", "replace") + b"\n")
        except (OSError, ValueError, TypeError):
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """Standard error gets the place of the log call only."""
        report_failure(record)

    def close(self) -> None:
        """Closes the file; a later line opens it again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        super().close()

    def _write(self, line: bytes) -> None:
        now = self._now()
        path = self._folder / f"daemon-{now:%Y-%m-%d}.log"
        if self._descriptor < 0 or path != self._path:
            self._open(path)
        if self._size and self._size + len(line) > self._max_bytes:
            path.rename(self._free_name(path, now))
            self._open(path)
        os.write(self._descriptor, line)
        self._size += len(line)

    def _open(self, path: Path) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        self._descriptor = os.open(path, flags, 0o600)
        self._size = os.fstat(self._descriptor).st_size
        self._path = path
        for old in sorted(self._folder.glob("daemon-*.log"))[: -self._keep]:
            old.unlink(missing_ok=True)

    def _free_name(self, path: Path, now: datetime) -> Path:
        """The time, or more than the day's newest suffix, so that names sort by age."""
        suffixes = (old.name.split(".")[1] for old in path.parent.glob(f"{path.stem}.*.log"))
        newest = max((int(suffix) for suffix in suffixes if suffix.isdecimal()), default=-1)
        number = max(int(f"{now:%H%M%S}{now.microsecond // 1000:03d}"), newest + 1)
        return path.with_suffix(f".{number:09d}.log")


class _Console(logging.StreamHandler[TextIO]):
    def handleError(self, record: logging.LogRecord) -> None:
        report_failure(record)


@contextmanager
def open_logs(
    folder: Path | None, *, console: TextIO | None = None, level: int = logging.INFO
) -> Iterator[None]:
    """Sends all logging of the process to files in `folder` and, pretty, to `console`.

    Replaces whatever handlers the root logger had and puts them back at the end. Libraries are
    heard from warning on.
    """
    handlers: list[logging.Handler] = []
    if folder is not None:
        handlers.append(DailyFile(folder))
        handlers[-1].setFormatter(JsonLines())
    if console is not None:
        handlers.append(_Console(console))
        handlers[-1].setFormatter(Pretty(colour=console.isatty()))
    root = logging.getLogger()
    former, former_level = root.handlers[:], root.level
    former_ours = {name: logging.getLogger(name).level for name in _OURS}
    root.handlers[:] = handlers
    root.setLevel(max(level, logging.WARNING))
    for name in _OURS:
        logging.getLogger(name).setLevel(level)
    try:
        yield
    finally:
        root.handlers[:] = former
        root.setLevel(former_level)
        for name, old in former_ours.items():
            logging.getLogger(name).setLevel(old)
        for handler in handlers:
            handler.close()


def report_failure(record: logging.LogRecord) -> None:
    """Says on standard error that a line was lost, and where it came from."""
    if sys.stderr is not None:
        sys.stderr.write(f"a log line of {record.module}:{record.lineno} was lost\n")


def _message(record: logging.LogRecord) -> str:
    template = record.msg if isinstance(record.msg, str) else WITHHELD
    if not record.args:
        return template[:500]
    named = record.args if isinstance(record.args, Mapping) else {}
    rest = iter(record.args if isinstance(record.args, tuple) else ())

    def fill(match: re.Match[str]) -> str:
        if match[0] == "%%":
            return "%"
        value = named.get(match[1]) if match[1] else next(rest, None)
        return _positional(value)

    return _PLACEHOLDER.sub(fill, template)[:500]


def _positional(value: object) -> str:
    if value is None or isinstance(value, bool | int | float):
        return str(value)
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, str) and value in _codes(MnemeshError):
        return value
    if isinstance(value, MnemeshError):
        return str(value)
    return WITHHELD


def _codes(root: type[MnemeshError]) -> set[str]:
    return {root.code}.union(*(_codes(child) for child in root.__subclasses__()))


def _data(values: object) -> dict[str, Any]:
    if not isinstance(values, Mapping):
        return {}
    shown = {key: _value(key, value) for key, value in values.items() if key in DATA_KEYS}
    hidden = len(values) - len(shown)
    return shown | ({"withheld": hidden} if hidden else {})


def _value(key: str, value: object) -> object:
    if isinstance(value, Enum):
        value = value.value
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, bytes) and len(value) <= 32:
        return value.hex()
    if isinstance(value, Path):
        value = str(value)
    if isinstance(value, str):
        if key in _SENTENCES and len(value) <= 500 and value.isprintable():
            return value
        if _TOKEN.fullmatch(value):
            return value
    if isinstance(value, list | tuple) and len(value) <= 64:
        return [_value(key, each) for each in value if not isinstance(each, list | tuple)]
    return WITHHELD


def _error(error: BaseException) -> dict[str, Any]:
    shown: dict[str, Any] = {"name": type(error).__name__}
    if isinstance(error, MnemeshError):
        shown["message"] = str(error)[:500]
    if isinstance(error, BaseExceptionGroup):
        shown["errors"] = [_error(inner) for inner in error.exceptions[:8]]
    frames = traceback.extract_tb(error.__traceback__)[-MAX_FRAMES:]
    shown["stack"] = [
        f"{'/'.join(Path(frame.filename).parts[-2:])}:{frame.lineno} {frame.name}"
        for frame in frames
    ]
    return shown


def _iso(seconds: float) -> str:
    moment = datetime.fromtimestamp(seconds, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z"
