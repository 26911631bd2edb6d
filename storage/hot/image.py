"""The whole state of a hot graph as plain columns, and the residents in and out of them.

An image is taken in a forked child or of a graph that nobody else uses, and restored into an
empty graph. It holds no vector of a memory that left: dead slots of the index are zeroed in it.
Pure values; no file and no lock.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from storage.errors import MnemeshError
from storage.hot.rows import ROW_BITS, ROW_MASK
from storage.hot.settings import HotSettings
from storage.model import EXEMPT_KINDS, MemoryKind, Resident, Visibility

ID_BYTES: Final = 16
INDEX_COLUMNS: Final[dict[str, np.dtype[Any]]] = {
    "label_lookup_external": np.dtype("<u8"),
    "label_lookup_internal": np.dtype("<u4"),
    "element_levels": np.dtype("<i4"),
    "data_level0": np.dtype("i1"),
    "link_lists": np.dtype("i1"),
}
_TEXTS: Final = ("content", "scope_label", "type", "who")
_DERIVED: Final = "mult"
_DELETED: Final = 1
_FLAG_BYTE: Final = 2
_ABSENT: Final = 0xFFFFFFFF
_PROJECT, _PINNED, _SUPERSEDED, _FOREIGN, _EXPIRES = (1 << bit for bit in range(5))
_KINDS: Final = tuple(MemoryKind)
_VISIBILITIES: Final = tuple(Visibility)
GATHER_ROWS: Final = 2_048

Column = NDArray[Any]


class BadImage(MnemeshError):
    """Columns that do not make up a graph."""

    code = "snapshot_refused"


@dataclass(slots=True)
class Image:
    """A graph in columns, one entry per resident, and the state of its index.

    `index` is the serialised state of hnswlib: scalars by name, its arrays under INDEX_COLUMNS.
    """

    residents: list[Resident]
    labels: NDArray[np.int64]
    heat: NDArray[np.float64]
    last_ms: NDArray[np.int64]
    next_serial: int
    index: dict[str, Any]

    def check(self, dim: int, settings: HotSettings, limit: int) -> None:
        """Raises BadImage unless a graph of this dimension and these settings can serve it.

        `limit` is the most slots that the graph may have.
        """
        state, count = self.index, len(self.residents)
        if state["dim"] != dim or state["space"] != "ip":
            raise BadImage("the image is of another vector space")
        if (state["M"], state["ef_construction"]) != (settings.m, settings.ef_construction):
            raise BadImage("the parameters of the index have changed")
        if count > settings.ceiling or state["max_elements"] > limit:
            raise BadImage("the image is larger than the ceiling")
        if sum(each.kind in EXEMPT_KINDS for each in self.residents) > settings.ceiling // 2:
            raise BadImage("more exempt memories than half of the ceiling")
        if dead_in(state) + count != state["cur_element_count"]:
            raise BadImage("slots and residents differ in number")
        if len({each.id for each in self.residents}) != count:
            raise BadImage("a memory is there twice")
        if count and int(self.labels.max()) >> ROW_BITS >= self.next_serial:
            raise BadImage("labels were given that are still to come")
        rows = self.labels & ROW_MASK
        if len(np.unique(rows)) != count or (count and int(rows.max()) >= state["max_elements"]):
            raise BadImage("labels name a row twice, or one that there is not")
        if count and int(self.labels.min()) >> ROW_BITS < 1:
            raise BadImage("a label has no serial number")


def live_index(state: dict[str, Any]) -> dict[str, Any]:
    """The state of an index with the bytes of every dead slot made zero, in place."""
    elements, _ = _elements(state["data_level0"], state)
    dead = (elements[:, _FLAG_BYTE] & _DELETED) == 1
    elements[dead, _vector_part(state)] = 0
    return state


def dead_in(state: dict[str, Any]) -> int:
    """How many slots of an index are dead."""
    elements, _ = _elements(state["data_level0"], state)
    return int(((elements[:, _FLAG_BYTE] & _DELETED) == 1).sum())


def vectors_of(
    state: dict[str, Any], labels: NDArray[np.int64]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """These labels and their vectors, block by block.

    Raises BadImage before the first block when one of them has none.
    """
    internal = _slots(state, labels)
    elements, _ = _elements(state["data_level0"], state)
    vectors = elements[:, _vector_part(state)].view("<f4")
    return (
        (labels[start : start + GATHER_ROWS], vectors[internal[start : start + GATHER_ROWS]])
        for start in range(0, len(labels), GATHER_ROWS)
    )


def _slots(state: dict[str, Any], labels: NDArray[np.int64]) -> Column:
    external = state["label_lookup_external"].astype(np.int64)
    order = np.argsort(external, kind="stable")
    place = np.searchsorted(external, labels, sorter=order)
    if len(labels) and (not len(order) or int(place.max()) >= len(order)):
        raise BadImage("a label is not in the index")
    found = order[place]
    if not np.array_equal(external[found], labels):
        raise BadImage("a label is not in the index")
    internal = state["label_lookup_internal"][found]
    elements, _ = _elements(state["data_level0"], state)
    if len(internal) and int(internal.max()) >= len(elements):
        raise BadImage("a label leads out of the index")
    if (elements[internal, _FLAG_BYTE] & _DELETED).any():
        raise BadImage("the slot of a resident is dead")
    slots: Column = internal
    return slots


def index_scalars(state: dict[str, Any]) -> dict[str, Any]:
    """The scalars of an index's state, without what follows from the others."""
    return {k: v for k, v in state.items() if k not in INDEX_COLUMNS and k != _DERIVED}


def whole_index(scalars: dict[str, Any], columns: dict[str, Column]) -> dict[str, Any]:
    """The state of an index from its scalars and arrays. Raises BadImage for sizes that differ."""
    try:
        count, slots = scalars["cur_element_count"], scalars["max_elements"]
        wanted = {
            "label_lookup_external": count,
            "label_lookup_internal": count,
            "element_levels": slots,
            "data_level0": count * scalars["size_data_per_element"],
            "link_lists": int(np.maximum(columns["element_levels"], 0).sum())
            * scalars["size_links_per_element"],
        }
        sizes = {name: len(columns[name]) for name in INDEX_COLUMNS}
        mult = 1 / math.log(scalars["M"])
    except (KeyError, TypeError, ZeroDivisionError) as error:
        raise BadImage("the state of the index is incomplete") from error
    if sizes != wanted:
        raise BadImage("the arrays of the index have other sizes than it says")
    return {**scalars, **columns, _DERIVED: mult}


def columns_of(residents: Sequence[Resident]) -> dict[str, Column]:
    """Residents as columns."""
    columns: dict[str, Column] = {
        "ids": _ids(r.id for r in residents),
        "agents": _ids(r.agent_id for r in residents),
        "projects": _ids(r.project_id or bytes(ID_BYTES) for r in residents),
        "kinds": np.array([_KINDS.index(r.kind) for r in residents], np.uint8),
        "visibilities": np.array([_VISIBILITIES.index(r.visibility) for r in residents], np.uint8),
        "flags": np.array([_flags(r) for r in residents], np.uint8),
        "created": np.array([r.created_ms for r in residents], "<i8"),
        "expires": np.array([r.expires_ms or 0 for r in residents], "<i8"),
        "importance": np.array([r.importance for r in residents], "<f8"),
        "tag_counts": np.array([len(r.tags) for r in residents], "<u4"),
    }
    for name in _TEXTS:
        columns |= _texts(name, [getattr(r, name) for r in residents])
    columns |= _texts("tags", [tag for r in residents for tag in r.tags])
    return columns


def residents_of(columns: dict[str, Column]) -> list[Resident]:
    """The residents of columns; equal short values are one object. Raises BadImage."""
    try:
        return _residents(columns)
    except (KeyError, IndexError, ValueError, TypeError) as error:
        raise BadImage("the columns of the residents do not fit together") from error


COLUMN_TYPES: Final[dict[str, np.dtype[Any]]] = {
    "ids": np.dtype("u1"),
    "agents": np.dtype("u1"),
    "projects": np.dtype("u1"),
    "kinds": np.dtype("u1"),
    "visibilities": np.dtype("u1"),
    "flags": np.dtype("u1"),
    "created": np.dtype("<i8"),
    "expires": np.dtype("<i8"),
    "importance": np.dtype("<f8"),
    "tag_counts": np.dtype("<u4"),
    **{
        f"{name}_{part}": np.dtype(kind)
        for name in (*_TEXTS, "tags")
        for part, kind in (("sizes", "<u4"), ("text", "u1"))
    },
}


def _elements(data: Column, state: dict[str, Any]) -> tuple[NDArray[np.uint8], Column]:
    size = state["size_data_per_element"]
    return data.view(np.uint8).reshape(-1, size), data


def _vector_part(state: dict[str, Any]) -> slice:
    return slice(state["offset_data"], state["offset_data"] + 4 * state["dim"])


def _ids(ids: Iterable[bytes]) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(ids), np.uint8)


def _flags(resident: Resident) -> int:
    return (
        _PROJECT * (resident.project_id is not None)
        | _PINNED * resident.pinned
        | _SUPERSEDED * resident.superseded
        | _FOREIGN * resident.foreign
        | _EXPIRES * (resident.expires_ms is not None)
    )


def _texts(name: str, texts: Sequence[str | None]) -> dict[str, Column]:
    """Sizes in characters, so that the whole text is decoded once and cut afterwards."""
    sizes = np.array([_ABSENT if text is None else len(text) for text in texts], "<u4")
    whole = "".join(text for text in texts if text is not None).encode("utf-8")
    return {f"{name}_sizes": sizes, f"{name}_text": np.frombuffer(whole, np.uint8)}


def _cut(columns: dict[str, Column], name: str) -> list[str | None]:
    whole = columns[f"{name}_text"].tobytes().decode("utf-8")
    texts: list[str | None] = []
    at = 0
    for size in columns[f"{name}_sizes"].tolist():
        if size == _ABSENT:
            texts.append(None)
            continue
        texts.append(whole[at : at + size])
        at += size
    if at != len(whole):
        raise ValueError(name)
    return texts


def _residents(columns: dict[str, Column]) -> list[Resident]:
    count = len(columns["kinds"])
    known: dict[bytes, bytes] = {}

    def cut_ids(name: str) -> list[bytes]:
        whole = columns[name].tobytes()
        if len(whole) != count * ID_BYTES:
            raise ValueError(name)
        return [whole[at : at + ID_BYTES] for at in range(0, len(whole), ID_BYTES)]

    texts = {name: _cut(columns, name) for name in _TEXTS}
    tags = [sys.intern(tag) for tag in _cut(columns, "tags") if tag is not None]
    ids, agents, projects = (cut_ids(name) for name in ("ids", "agents", "projects"))
    kinds, visibilities = columns["kinds"].tolist(), columns["visibilities"].tolist()
    created, expires = columns["created"].tolist(), columns["expires"].tolist()
    importance, tag_counts = columns["importance"].tolist(), columns["tag_counts"].tolist()
    residents = []
    tag_at = 0
    for n, flags in enumerate(columns["flags"].tolist()):
        content, kind = texts["content"][n], texts["type"][n]
        if content is None or kind is None:
            raise ValueError("content")
        who, label = texts["who"][n], texts["scope_label"][n]
        end = tag_at + tag_counts[n]
        residents.append(
            Resident(
                id=ids[n],
                kind=_KINDS[kinds[n]],
                agent_id=known.setdefault(agents[n], agents[n]),
                project_id=known.setdefault(projects[n], projects[n]) if flags & _PROJECT else None,
                visibility=_VISIBILITIES[visibilities[n]],
                content=content,
                created_ms=created[n],
                scope_label=label and sys.intern(label),
                type=sys.intern(kind),
                tags=tuple(tags[tag_at:end]),
                who=who and sys.intern(who),
                importance=importance[n],
                pinned=bool(flags & _PINNED),
                expires_ms=expires[n] if flags & _EXPIRES else None,
                superseded=bool(flags & _SUPERSEDED),
                foreign=bool(flags & _FOREIGN),
            )
        )
        tag_at = end
    if tag_at != len(tags):
        raise ValueError("tags")
    return residents
