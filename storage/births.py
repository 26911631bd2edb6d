"""New memories with all that is stored in the same commit, in one statement for any number.

A round trip to the server and the start of a statement cost about as much as a row, and a single
remember would otherwise pay five of each. What a birth meets is not told here: it is left out, and
the caller looks for what stands in its way.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from storage.content import bigrams, full_text_part
from storage.diffs import Diff
from storage.gate import Expected
from storage.model import Memory, MemoryId
from storage.pool import Database, Tx
from storage.queries import load

SQL = load("births")


@dataclass(frozen=True, slots=True, eq=False)
class Birth:
    """A memory with a new id, its vector, float32 of shape (dim,), and its announcement, if any.

    A cluster that is gone meanwhile counts as none. The first event is by `memory.updated_by`.
    """

    memory: Memory
    vector: NDArray[np.float32]
    cluster_id: int | None = None
    diff: Diff | None = None


async def insert(tx: Tx, model: str, births: Sequence[Birth]) -> set[MemoryId]:
    """Add those that meet no equal live text, source id or idempotency key; their ids.

    The caller has passed the gate for their scopes. Of two that meet each other the first is added.
    """
    rows = await tx.fetch(SQL.insert_births, **_arguments(model, births, ()))
    return {row["id"] for row in rows}


async def insert_at_once(
    db: Database, model: str, births: Sequence[Birth], expected: Collection[Expected]
) -> set[MemoryId]:
    """`insert` as a transaction of its own, durable when this returns; called from trio.

    Nothing is added when a scope is not as expected. Raises as `Database.at_once`.
    """
    rows = await db.at_once(SQL.insert_births, **_arguments(model, births, expected))
    return {row["id"] for row in rows}


def _arguments(
    model: str, births: Sequence[Birth], expected: Collection[Expected]
) -> dict[str, Any]:
    return {
        "births": [_columns(birth, model) for birth in births],
        "kinds": [each.kind for each in expected],
        "handles": [each.handle for each in expected],
        "epochs": [each.epoch for each in expected],
    }


def _columns(birth: Birth, model: str) -> tuple[Any, ...]:
    """The fields of the SQL type `memory_birth`, in its order."""
    memory = birth.memory
    diff = birth.diff
    return (
        memory.id,
        memory.kind.value,
        memory.agent_id,
        memory.project_id,
        memory.scope_label,
        memory.content,
        memory.normalized_content,
        memory.content_hash,
        memory.hash_version,
        memory.type,
        memory.tags,
        memory.who,
        memory.importance,
        memory.pinned,
        memory.visibility.value,
        memory.source_type,
        memory.source_id,
        memory.idempotency_key,
        memory.expires_at,
        memory.announced_at,
        memory.created_at,
        memory.updated_at,
        memory.updated_by,
        memory.origin_node,
        memory.agent_epoch,
        memory.project_epoch,
        memory.hlc,
        bigrams(memory.content),
        len(full_text_part(memory.content)),
        model,
        birth.vector,
        birth.cluster_id,
        *(
            (None,) * 7
            if diff is None
            else (
                diff.diff_id,
                diff.kind,
                diff.q8,
                diff.body,
                diff.sig,
                diff.expires_at,
                diff.drop_after,
            )
        ),
    )
