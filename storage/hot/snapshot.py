"""One file from which the hot graph starts warm: written whole or not at all, checked whole.

    magic (8) | length of the header (4) | header | columns | SHA-256 of all before (32)

The header is a canonical map: whose file it is, the stamp of the database state that the file is
known to be no older than, and names and lengths of the columns. The file is a cache: a file that
is not exactly right is refused with a reason, and PostgreSQL fills the graph. Nothing here
decides when to write, and nothing here reads the database.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from storage import canonical
from storage.errors import InvalidInput, MnemeshError
from storage.hot.graph import HotGraph
from storage.hot.image import (
    COLUMN_TYPES,
    ID_BYTES,
    INDEX_COLUMNS,
    BadImage,
    Image,
    columns_of,
    index_scalars,
    residents_of,
    whole_index,
)
from storage.keyring import sync_folder
from storage.model import MemoryKind, NodeId, Visibility

MAGIC: Final = b"MNEMEHOT"
FORMAT: Final = 2
NAME: Final = "graph.snapshot"
FRESH: Final = "graph.snapshot.new"
REFUSED: Final = "graph.snapshot.refused"
DIGEST_BYTES: Final = 32
MAX_HEADER: Final = 1 << 16
CHUNK: Final = 4 << 20
PATIENCE_S: Final = 300.0
_ROWS: Final[dict[str, np.dtype[Any]]] = {
    "labels": np.dtype("<i8"),
    "heat": np.dtype("<f8"),
    "last_ms": np.dtype("<i8"),
}
_TYPES: Final[dict[str, np.dtype[Any]]] = {**COLUMN_TYPES, **_ROWS, **INDEX_COLUMNS}


class SnapshotRefused(MnemeshError):
    """The snapshot cannot be used; the graph is filled from the rows."""

    code = "snapshot_refused"


class SnapshotFailed(MnemeshError):
    """The snapshot was not written; the one before is still there."""

    code = "internal"
    retryable = True


@dataclass(frozen=True, slots=True)
class Stamp:
    """A state of the database: every change up to here is in the file that bears it.

    `system` identifies the database cluster, `xid` is the oldest transaction that was not
    finished, the others are the newest tombstone or fence, ledger entry and clock stamp.
    """

    system: str
    xid: int
    recv_seq: int
    ledger_seq: int
    hlc: int


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose snapshot it is; a file of another owner is of no use."""

    node_id: NodeId
    model: str
    dim: int
    schema: int


@dataclass(frozen=True, slots=True)
class Written:
    """What a write left on disk."""

    residents: int
    size: int
    seconds: float


class SnapshotFolder:
    """The snapshot of one node in its folder, and what lies around it.

    Thread-safe: one write or removal at a time, from the fork to the rename.
    """

    def __init__(self, folder: Path, owner: Owner) -> None:
        self.path = folder / NAME
        self._folder = folder
        self._owner = owner
        self._one = threading.Lock()

    def write(
        self,
        graph: HotGraph,
        stamp: Stamp,
        patience_s: float = PATIENCE_S,
        check: Callable[[], object] | None = None,
    ) -> Written:
        """Put the graph of now in the place of the file before. For a worker thread.

        A forked child encodes and writes; only the rename happens here, so that an orphan never
        changes what the next life of the node reads. Afterwards this is the only file in the
        folder. Raises SnapshotFailed, or what `check` raises to give up, with the old file in
        place.
        """
        with self._one:
            begun = time.monotonic()
            fresh = self._folder / FRESH
            try:
                fresh.unlink(missing_ok=True)
                child = graph.in_child(lambda image: write_image(fresh, image, self._owner, stamp))
                child.wait(patience_s, check)
                header, size = _peek(fresh)
                fresh.replace(self.path)
                sync_folder(self._folder)
                self._unlink_others()
            except (OSError, MnemeshError) as error:
                with contextlib.suppress(OSError):
                    fresh.unlink(missing_ok=True)
                raise SnapshotFailed(f"no snapshot: {_kind(error)}") from error
            return Written(header["residents"], size, time.monotonic() - begun)

    def read(self) -> tuple[Image, Stamp] | None:
        """What the file holds, None without one. Raises SnapshotRefused."""
        with self._one:
            return read_image(self.path, self._owner)

    def set_aside(self) -> None:
        """Move a file that was refused out of the way, for whoever wants to look at it."""
        with self._one, contextlib.suppress(FileNotFoundError):
            self.path.replace(self._folder / REFUSED)
            sync_folder(self._folder)

    def drop_remains(self) -> None:
        """Unlink what a crash left of a write."""
        with self._one:
            (self._folder / FRESH).unlink(missing_ok=True)

    def generations(self) -> list[str]:
        """Names of all files in the folder, whatever they hold."""
        return sorted(each.name for each in self._folder.iterdir())

    def holders_of(self, holds: Callable[[bytes, bytes, bytes], bool]) -> list[str]:
        """Files with a memory of which `holds(id, agent, project)` says so, and unreadable ones."""
        with self._one:
            return [n for n in self.generations() if _holds(self._folder / n, holds)]

    def remove(self, names: Iterator[str] | list[str]) -> int:
        """Unlink files of the folder; how many were there. Raises OSError."""
        removed = 0
        with self._one:
            for name in names:
                path = self._folder / Path(name).name
                if path.exists():
                    path.unlink()
                    removed += 1
            sync_folder(self._folder)
        return removed

    def _unlink_others(self) -> None:
        for name in self.generations():
            if name != NAME:
                (self._folder / name).unlink(missing_ok=True)


def write_image(path: Path, image: Image, owner: Owner, stamp: Stamp) -> None:
    """Write a new file, 0600, down to the disk. Raises OSError."""
    columns = columns_of(image.residents)
    columns |= {"labels": image.labels, "heat": image.heat, "last_ms": image.last_ms}
    columns |= {name: image.index[name] for name in INDEX_COLUMNS}
    header = {
        "format": FORMAT,
        "byteorder": sys.byteorder,
        "node": owner.node_id,
        "model": owner.model,
        "dim": owner.dim,
        "space": "ip",
        "schema": owner.schema,
        "kinds": [kind.value for kind in MemoryKind],
        "visibilities": [each.value for each in Visibility],
        "stamp": {name: getattr(stamp, name) for name in Stamp.__slots__},
        "residents": len(image.residents),
        "next_serial": image.next_serial,
        "index": index_scalars(image.index),
        "columns": [[name, columns[name].nbytes] for name in _TYPES],
    }
    head = canonical.encode(header)
    digest = hashlib.sha256()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        parts: list[Any] = [MAGIC, len(head).to_bytes(4, "little"), head]
        parts += [
            np.ascontiguousarray(columns[name].astype(kind, copy=False)).view(np.uint8).data
            for name, kind in _TYPES.items()
        ]
        for part in parts:
            _write_all(file, part, digest)
        _write_all(file, digest.digest(), None)
        os.fsync(file.fileno())


def read_image(path: Path, owner: Owner) -> tuple[Image, Stamp] | None:
    """The image of a file, None without one. Raises SnapshotRefused naming what is wrong."""
    with _opened(path) as file:
        if file is None:
            return None
        header, columns = _checked(file)
    _check_owner(header, owner)
    try:
        image = Image(
            residents=residents_of(columns),
            labels=columns["labels"],
            heat=columns["heat"],
            last_ms=columns["last_ms"],
            next_serial=header["next_serial"],
            index=whole_index(header["index"], {name: columns[name] for name in INDEX_COLUMNS}),
        )
        stamp = Stamp(**header["stamp"])
    except BadImage as error:
        raise SnapshotRefused(f"contradicts itself: {error}") from error
    except (KeyError, TypeError) as error:
        raise SnapshotRefused("contradicts itself: the header is incomplete") from error
    count = header["residents"]
    if {len(image.residents), len(image.labels), len(image.heat), len(image.last_ms)} != {count}:
        raise SnapshotRefused("contradicts itself: columns of different lengths")
    return image, stamp


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO | None]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        yield None
        return
    except OSError as error:
        raise SnapshotRefused(f"cannot be opened: {_kind(error)}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise SnapshotRefused("is no regular file")
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        try:
            yield file
        except OSError as error:
            raise SnapshotRefused(f"cannot be read: {_kind(error)}") from error


def _read_header(file: BinaryIO) -> tuple[dict[str, Any], bytes, int]:
    """Header, the bytes up to its end, and the size of the file. Raises SnapshotRefused."""
    on_disk = os.fstat(file.fileno()).st_size
    start = file.read(len(MAGIC) + 4)
    if len(start) < len(MAGIC) + 4:
        raise SnapshotRefused("truncated")
    if not start.startswith(MAGIC):
        raise SnapshotRefused("is no snapshot")
    length = int.from_bytes(start[len(MAGIC) :], "little")
    if length > MAX_HEADER:
        raise SnapshotRefused("corrupt: the header is too long")
    head = file.read(length)
    try:
        header = canonical.decode_map(head, max_bytes=MAX_HEADER)
        sizes = [size for _, size in header["columns"]]
        whole = len(start) + length + sum(sizes) + DIGEST_BYTES
    except (InvalidInput, KeyError, TypeError, ValueError) as error:
        raise SnapshotRefused("corrupt: the header does not decode") from error
    if header.get("format") != FORMAT:
        raise SnapshotRefused(f"of another format than {FORMAT}")
    if min(sizes, default=0) < 0 or whole != on_disk:
        raise SnapshotRefused("truncated, or longer than it says")
    return header, start + head, on_disk


def _checked(file: BinaryIO) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    header, head, _ = _read_header(file)
    digest = hashlib.sha256(head)
    columns: dict[str, NDArray[Any]] = {}
    raw: dict[str, NDArray[np.uint8]] = {}
    for name, size in header["columns"]:
        raw[name] = np.empty(size, np.uint8)
        view = raw[name].data
        for start in range(0, size, CHUNK):
            _read_all(file, view[start : start + CHUNK], digest)
    if file.read(DIGEST_BYTES) != digest.digest():
        raise SnapshotRefused("corrupt: the checksum differs")
    if list(raw) != list(_TYPES):
        raise SnapshotRefused("of another format: the columns differ")
    for name, kind in _TYPES.items():
        if len(raw[name]) % kind.itemsize:
            raise SnapshotRefused("contradicts itself: a column is cut")
        columns[name] = raw[name].view(kind)
    return header, columns


def _check_owner(header: Mapping[str, Any], owner: Owner) -> None:
    wanted = {
        "byteorder": sys.byteorder,
        "node": owner.node_id,
        "model": owner.model,
        "dim": owner.dim,
        "space": "ip",
        "schema": owner.schema,
        "kinds": [kind.value for kind in MemoryKind],
        "visibilities": [each.value for each in Visibility],
    }
    for name, value in wanted.items():
        if header.get(name) != value:
            raise SnapshotRefused(f"foreign: {name} differs")


def _peek(path: Path) -> tuple[dict[str, Any], int]:
    with _opened(path) as file:
        if file is None:
            raise SnapshotRefused("is missing")
        header, _, size = _read_header(file)
        return header, size


def _holds(path: Path, holds: Callable[[bytes, bytes, bytes], bool]) -> bool:
    """Reads the columns that name memories and scopes; a file that cannot be read may hold all."""
    try:
        with _opened(path) as file:
            if file is None:
                return False
            header, head, _ = _read_header(file)
            at, cells = len(head), {}
            for name, size in header["columns"]:
                if name in ("ids", "agents", "projects"):
                    cells[name] = os.pread(file.fileno(), size, at)
                at += size
    except SnapshotRefused:
        return True
    ids, agents, projects = (_cells(cells.get(name, b"")) for name in ("ids", "agents", "projects"))
    none = bytes(ID_BYTES)
    return any(
        holds(memory, agent, b"" if project == none else project)
        for memory, agent, project in zip(ids, agents, projects, strict=True)
    )


def _cells(column: bytes) -> list[bytes]:
    return [column[at : at + ID_BYTES] for at in range(0, len(column), ID_BYTES)]


def _write_all(file: BinaryIO, part: Any, digest: Any) -> None:
    view = memoryview(part).cast("B") if len(part) else memoryview(b"")
    for start in range(0, len(view), CHUNK):
        piece = view[start : start + CHUNK]
        if digest is not None:
            digest.update(piece)
        while piece:
            piece = piece[file.write(piece) :]


def _read_all(file: BinaryIO, into: memoryview, digest: Any) -> None:
    left = into
    while left:
        count = file.readinto(left)  # type: ignore[attr-defined]
        if not count:
            raise SnapshotRefused("truncated")
        left = left[count:]
    digest.update(into)


def _kind(error: BaseException) -> str:
    if isinstance(error, OSError):
        return errno.errorcode.get(error.errno or 0, type(error).__name__)
    return str(error)
