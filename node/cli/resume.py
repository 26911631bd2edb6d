"""How far an import got, kept until it is through, so that the next one goes on there.

Every piece has a key of its own at the node, so nothing is stored twice even without this; what
is saved is the time for sending it again. A file tells how many pieces the node has answered for
and a digest of them: when the sources begin with other pieces now, it counts for nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from node.cli.sources import Fault, Item

START: Final = hashlib.sha256(b"mnemesh import 1").hexdigest()


@dataclass(frozen=True, slots=True)
class Progress:
    """`count` pieces were dealt with, `digest` is theirs; `last_id` was stored for one of them."""

    count: int = 0
    digest: str = START
    last_id: str | None = None
    summary: Mapping[str, Any] = field(default_factory=dict)


def state_folder() -> Path:
    """Where programs keep such things."""
    given = os.environ.get("XDG_STATE_HOME")
    return (Path(given) if given else Path.home() / ".local" / "state") / "mnemesh" / "imports"


class Journal:
    """The progress of one import; `what` tells it from others."""

    def __init__(self, what: Any, folder: Path | None = None) -> None:
        name = hashlib.sha256(json.dumps(what).encode("utf-8", "replace")).hexdigest()[:32]
        self._file = (folder or state_folder()) / f"{name}.json"

    def read(self) -> Progress:
        """What was noted last; nothing when there is no such file, or none that can be read."""
        try:
            told = json.loads(self._file.read_text(encoding="utf-8"))
            return Progress(
                int(told["count"]), str(told["digest"]), told["last_id"], dict(told["summary"])
            )
        except (OSError, ValueError, KeyError, TypeError):
            return Progress()

    def note(self, progress: Progress) -> None:
        """Keep it, at once as a whole. Raises OSError."""
        self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh = self._file.with_name(f".{self._file.name}.{secrets.token_hex(4)}")
        told = {
            "count": progress.count,
            "digest": progress.digest,
            "last_id": progress.last_id,
            "summary": dict(progress.summary),
        }
        try:
            fresh.write_text(json.dumps(told), encoding="utf-8")
            fresh.replace(self._file)
        finally:
            fresh.unlink(missing_ok=True)

    def drop(self) -> None:
        """The import is through."""
        self._file.unlink(missing_ok=True)


def chained(digest: str, piece: Item | Fault) -> str:
    """The digest of the pieces so far and this one."""
    said = (piece.place, piece.body if isinstance(piece, Item) else piece.error)
    text = json.dumps([digest, said], sort_keys=True).encode("utf-8", "replace")
    return hashlib.sha256(text).hexdigest()
