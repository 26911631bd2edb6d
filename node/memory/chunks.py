"""A long text in parts: all of them are stored, or none.

Each part is a memory of its own with its own vector, so that a recall finds the place and not the
book. Saving the same parts under the same idempotency key again changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from node.memory.context import MemoryContext
from node.memory.drafts import Draft
from node.memory.remember import MAX_BATCH, Met, remember_whole
from storage import chunks
from storage.chunks import CHUNK
from storage.content import normalize
from storage.errors import Conflict, InvalidInput
from storage.model import Memory, id_text
from storage.pool import Tx


@dataclass(frozen=True, slots=True)
class Chunked:
    """The parts in their order; `deduped` when they stood already."""

    group_id: str
    parts: tuple[Memory, ...]
    deduped: bool


async def remember_chunks(context: MemoryContext, draft: Draft, texts: Sequence[str]) -> Chunked:
    """Store a text in parts; `draft` says what all of them have in common, its content is not used.

    Raises InvalidInput and ContentTooLarge as `remember` does, and Conflict when a part stands
    already or when the idempotency key stands for something else; nothing is stored then.
    """
    if not 1 <= len(texts) <= MAX_BATCH:
        raise InvalidInput(f"chunks must have 1 to {MAX_BATCH} items")
    if draft.source_type is not None or draft.source_id is not None:
        raise InvalidInput("chunks have sources of their own")
    if draft.vector is not None:
        raise InvalidInput("vector and chunks exclude each other")
    group = id_text(context.node.new_id())
    drafts = [
        replace(
            draft,
            content=text,
            source_type=CHUNK,
            source_id=chunks.part_id(group, number),
            idempotency_key=None if number else draft.idempotency_key,
        )
        for number, text in enumerate(texts)
    ]

    async def guard(tx: Tx) -> None:
        standing = await _standing(tx, context, draft, texts)
        if standing is not None:
            raise _Standing(standing)

    try:
        rows = await remember_whole(context, drafts, guard)
    except _Standing as there:
        return there.chunked
    except Met:
        # Whoever saved the same parts at the same moment may have been faster.
        met = await context.db.read(_standing, context, draft, texts)
        if met is None:
            raise Conflict("chunk content already exists for this agent and scope") from None
        return met
    return Chunked(group, tuple(rows), deduped=False)


class _Standing(Conflict):
    """The same parts stand already."""

    def __init__(self, chunked: Chunked) -> None:
        super().__init__()
        self.chunked = chunked


async def _standing(
    tx: Tx, context: MemoryContext, draft: Draft, texts: Sequence[str]
) -> Chunked | None:
    """The same parts under the same key. Raises Conflict when the key stands for something else."""
    key = draft.idempotency_key
    if key is None:
        return None
    first = await chunks.by_key(tx, draft.agent_id, draft.project_id, draft.scope_label, key)
    if first is None or (first.expires_at is not None and first.expires_at <= context.now()):
        return None
    if first.source_type != CHUNK:
        raise Conflict("idempotency_key stands for single content")
    parts = await chunks.of_group(tx, first)
    settings = context.settings
    wanted = [
        normalize(
            text, collapse=settings.collapse_storage_whitespace, max_bytes=settings.max_bytes
        ).content_hash
        for text in texts
    ]
    if [part.content_hash for part in parts] != wanted:
        raise Conflict("idempotency_key stands for other chunked content")
    return Chunked(chunks.group_of(first), tuple(parts), deduped=True)
