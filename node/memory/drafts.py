"""Drafts of memories: what a client may send, and the forms in which it is stored.

Texts are normalised, vectors are made or brought to length 1, and whatever is not fit to be stored
is refused with a word that names the field. Nothing here touches the database.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from gossip.announcing import WIRE_DTYPE
from node.memory.context import MemoryContext
from storage.content import NormalContent, check_text, normalize
from storage.errors import InvalidInput
from storage.model import AgentId, ProjectId, Visibility

MAX_TAGS = 32
MAX_TAG = 128
MAX_LABEL = 256
SHORTEST = 1e-6
"""A vector that is not longer than this has no direction."""


@dataclass(frozen=True, slots=True)
class Draft:
    """What an agent wants remembered. `vector` is given by clients that embed themselves."""

    content: str
    agent_id: AgentId
    project_id: ProjectId | None = None
    type: str = "fact"
    tags: tuple[str, ...] = ()
    who: str | None = None
    importance: float = 0.5
    pinned: bool = False
    visibility: Visibility = Visibility.GLOBAL
    scope_label: str | None = None
    source_type: str | None = None
    source_id: str | None = None
    idempotency_key: str | None = None
    expires_at: datetime | None = None
    created_at: datetime | None = None
    vector: NDArray[np.float32] | None = None
    actor: str = "api"


@dataclass(frozen=True, slots=True)
class Ready:
    """A draft that can be stored, in its stored forms: float32 vector of length 1, shape (dim,)."""

    draft: Draft
    content: NormalContent
    vector: NDArray[np.float32]


async def prepare(
    context: MemoryContext, drafts: Sequence[Draft]
) -> tuple[dict[int, Ready], dict[int, InvalidInput]]:
    """Drafts by position, in order: what can be stored, and why the others cannot.

    Raises what the embedder raises.
    """
    refused: dict[int, InvalidInput] = {}
    contents: dict[int, NormalContent] = {}
    for position, draft in enumerate(drafts):
        try:
            contents[position] = _check(context, draft)
        except InvalidInput as error:
            refused[position] = error
    texts = [position for position in contents if drafts[position].vector is None]
    made = await context.embedder.embed([contents[position].storage for position in texts])
    vectors = dict(zip(texts, made, strict=True))
    given = {position: drafts[position] for position in contents if position not in vectors}
    vectors |= _units(context, given, refused)
    if not vectors:
        return {}, refused
    # Half precision everywhere: rows, graph and wire hold the same numbers.
    rounded = np.stack(list(vectors.values())).astype(WIRE_DTYPE).astype(np.float32)
    ready = {
        position: Ready(drafts[position], contents[position], vector)
        for position, vector in zip(vectors, rounded, strict=True)
    }
    return dict(sorted(ready.items())), refused


def _check(context: MemoryContext, draft: Draft) -> NormalContent:
    content = normalize(
        draft.content,
        collapse=context.settings.collapse_storage_whitespace,
        max_bytes=context.settings.max_bytes,
    )
    for field in ("type", "who", "scope_label", "source_type", "source_id", "idempotency_key"):
        value = getattr(draft, field)
        if value is not None and len(check_text(value, field)) > MAX_LABEL:
            raise InvalidInput(f"{field} is longer than {MAX_LABEL} characters")
    check_marks(draft.type, draft.tags, draft.importance)
    for field in ("expires_at", "created_at"):
        moment = getattr(draft, field)
        if moment is not None and moment.tzinfo is None:
            raise InvalidInput(f"{field} must carry a time zone")
    if draft.visibility is Visibility.ARCHIVED:
        raise InvalidInput("visibility is invalid")
    if draft.project_id is not None and draft.project_id not in context.access.current.projects:
        raise InvalidInput("project is not one of this node's projects")
    return content


def check_marks(type: str, tags: Sequence[str], importance: float) -> None:
    """What a memory says of itself beside its text. Raises InvalidInput."""
    if not type or len(check_text(type, "type")) > 64:
        raise InvalidInput("type must have 1 to 64 characters")
    if len(tags) > MAX_TAGS or any(
        not tag or len(check_text(tag, "tags")) > MAX_TAG for tag in tags
    ):
        raise InvalidInput(f"tags: at most {MAX_TAGS}, each of 1 to {MAX_TAG} characters")
    if not math.isfinite(importance) or not 0 <= importance <= 1:
        raise InvalidInput("importance must be between 0 and 1")


def _units(
    context: MemoryContext, drafts: Mapping[int, Draft], refused: dict[int, InvalidInput]
) -> dict[int, NDArray[np.float32]]:
    """The vectors that clients gave, brought to length 1; a bad one is an error in its place."""
    model, dimension = context.embedder.model_id, context.embedder.dimension
    given: dict[int, NDArray[np.float32]] = {}
    for position, draft in drafts.items():
        vector = np.asarray(draft.vector, dtype=np.float32)
        if vector.shape == (dimension,):
            given[position] = vector
        else:
            refused[position] = InvalidInput(
                f"vector has {vector.size} numbers, model {model} has {dimension}"
            )
    if not given:
        return {}
    rows = np.stack(list(given.values()))
    lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows))  # infinite or no number for a bad row
    usable = np.isfinite(lengths) & (lengths >= SHORTEST)
    for position, good in zip(list(given), usable.tolist(), strict=True):
        if not good:
            refused[position] = InvalidInput("vector must be finite and not zero")
            del given[position]
    return dict(zip(given, rows[usable] / lengths[usable, np.newaxis], strict=True))
