"""The SQL function `memory_visible` and its Python twin give the same answer, whatever the row."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest

from storage import memories
from storage.model import (
    Memory,
    MemoryKind,
    Reader,
    ReadPolicy,
    Visibility,
)
from storage.pool import Tx
from storage.visibility import visible
from tests.support.memory import START, World

AGENTS = [bytes([number]) * 16 for number in range(1, 5)]
PROJECTS = [bytes([number]) * 16 for number in range(11, 14)]


def a_row(rng: random.Random, number: int, node_id: bytes) -> Memory:
    """Any live row; its times are around the moment of reading."""
    return Memory(
        id=number.to_bytes(16, "big"),
        kind=rng.choice(list(MemoryKind)),
        agent_id=rng.choice(AGENTS),
        project_id=rng.choice([None, *PROJECTS]),
        content=f"row {number}",
        normalized_content=f"row {number}",
        content_hash=None,
        created_at=START,
        updated_at=START,
        origin_node=node_id,
        agent_epoch=1,
        project_epoch=0,
        hlc=number,
        visibility=rng.choice(list(Visibility)),
        expires_at=rng.choice([None, START, *(START + timedelta(seconds=n) for n in (-1, 1))]),
    )


def a_reader(rng: random.Random) -> Reader:
    """Any reader, also one of a group that it does not belong to or without projects."""
    return Reader(
        agent_id=rng.choice([*AGENTS, bytes(16)]),
        policy=rng.choice(list(ReadPolicy)),
        group=frozenset(rng.sample(AGENTS, rng.randrange(len(AGENTS)))),
        projects=frozenset(rng.sample(PROJECTS, rng.randrange(len(PROJECTS) + 1))),
    )


@pytest.mark.parametrize("seed", range(3))
async def test_both_twins_agree_on_random_rows_and_readers(world: World, seed: int) -> None:
    rng = random.Random(seed)
    rows = [a_row(rng, number, world.node.node_id) for number in range(1, 301)]

    async def fill(tx: Tx) -> None:
        for row in rows:
            await memories.insert(tx, row)

    await world.db.transact(fill)
    await world.change("UPDATE memories SET superseded_by = id WHERE get_byte(id, 15) % 5 = 0")
    stored = await world.db.read(memories.by_ids, [row.id for row in rows])
    residents = [memories.resident(row, world.node.node_id) for row in stored]
    now_ms = int(START.timestamp() * 1000)
    seen_any = 0
    for _ in range(60):
        reader, superseded = a_reader(rng), rng.random() < 0.5
        by_sql = await world.db.read(
            memories.visible_by_ids,
            [row.id for row in rows],
            reader,
            START,
            superseded=superseded,
        )
        by_twin = {
            row.id for row in residents if visible(row, reader, now_ms, superseded=superseded)
        }
        assert {row.id for row in by_sql} == by_twin
        seen_any += len(by_twin)
    assert seen_any > 1_000
