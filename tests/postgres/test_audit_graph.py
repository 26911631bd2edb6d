"""An audit finds each kind of drift that is planted, names it, and a repair mends it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
import numpy as np
import pytest

from node.memory import audit
from node.memory.audit import audit_graph
from storage import tombstones
from storage.model import Memory, Visibility
from storage.tombstones import Tombstone
from tests.support.memory import World, lit
from tests.support.services import Edge, edge

__all__ = ["edge"]

pytestmark = pytest.mark.postgres

Plant = Callable[[World, Memory], Awaitable[None]]


async def drop_row(world: World, memory: Memory) -> None:
    await world.change(f"DELETE FROM embeddings WHERE memory_id = {lit(memory.id)}")
    await world.change(f"DELETE FROM memories WHERE id = {lit(memory.id)}")


async def delete_softly(world: World, memory: Memory) -> None:
    await world.change(f"UPDATE memories SET deleted_at = now() WHERE id = {lit(memory.id)}")


async def bury(world: World, memory: Memory) -> None:
    await world.db.transact(
        tombstones.insert,
        Tombstone(
            memory_id=memory.id,
            kind="cell",
            project_id=None,
            agent_handle=bytes(32),
            project_handle=None,
            epoch=1,
            hlc=world.node.clock.now(),
            origin_node=world.node.node_id,
            home_node=world.node.node_id,
            cause="forget",
            created_at=world.context.now(),
        ),
    )


async def close_epoch(world: World, memory: Memory) -> None:
    await world.change(
        "UPDATE scopes SET closed_epoch = closed_epoch + 1, open_epoch = NULL"
        f" WHERE kind = 'agent' AND ext_id = {lit(memory.agent_id)}"
    )


async def drop_vector(world: World, memory: Memory) -> None:
    await world.change(f"DELETE FROM embeddings WHERE memory_id = {lit(memory.id)}")


async def change_text(world: World, memory: Memory) -> None:
    await world.change(f"UPDATE memories SET content = 'other' WHERE id = {lit(memory.id)}")


async def change_visibility(world: World, memory: Memory) -> None:
    resident = world.graph.get(memory.id)
    assert resident is not None
    other = msgspec.structs.replace(resident, visibility=Visibility.PRIVATE, tags=("x",))
    world.graph.replace_record(other)


async def supersede(world: World, memory: Memory) -> None:
    resident = world.graph.get(memory.id)
    assert resident is not None
    world.graph.replace_record(msgspec.structs.replace(resident, superseded=True))


async def change_vector(world: World, memory: Memory) -> None:
    resident = world.graph.get(memory.id)
    assert resident is not None
    world.graph.insert([resident], np.ones((1, world.context.embedder.dimension), np.float32))


async def change_index(world: World, memory: Memory) -> None:
    entry = world.graph._residents.get(memory.id)
    assert entry is not None
    world.graph._index._overwrite([entry.label])


async def double_label(world: World, memory: Memory) -> None:
    vector = world.graph.vector(memory.id)
    assert vector is not None
    world.graph._index.add([10**9], vector[np.newaxis, :])
    world.graph._index.live -= 1


async def orphan_vector(world: World, memory: Memory) -> None:
    await world.change(
        "INSERT INTO embeddings (memory_id, agent_id, project_id, model, dims, vector)"
        f" SELECT {lit(b'o' * 16)}, agent_id, project_id, model, dims, vector FROM embeddings"
        f" WHERE memory_id = {lit(memory.id)}"
    )


async def misfile_vector(world: World, memory: Memory) -> None:
    await world.change(
        f"UPDATE embeddings SET agent_id = {lit(b'z' * 16)} WHERE memory_id = {lit(memory.id)}"
    )


async def deny_cold(world: World, memory: Memory) -> None:
    world.graph.evict([memory.id])
    world.context.residency.has_cold = False


async def claim_cold(world: World, memory: Memory) -> None:
    world.context.residency.has_cold = True


PLANTED: dict[str, tuple[Plant, str]] = {
    "row gone": (drop_row, audit.NO_ROW),
    "row deleted": (delete_softly, audit.DELETED),
    "tombstone": (bury, audit.TOMBSTONED),
    "closed epoch": (close_epoch, audit.FENCED),
    "row changed": (change_text, audit.OLD_TEXT),
    "metadata": (change_visibility, audit.METADATA),
    "superseded": (supersede, audit.SUPERSEDED),
    "vector of the resident": (change_vector, audit.VECTOR),
    "vector of the index": (change_index, audit.INDEX),
    "label twice": (double_label, audit.GHOST),
    "vector row gone": (drop_vector, audit.UNEMBEDDED),
    "resident keeps the vector": (drop_vector, audit.NO_LONGER),
    "orphan vector": (orphan_vector, audit.ORPHAN),
    "misfiled vector": (misfile_vector, audit.MISFILED),
    "cold denied": (deny_cold, audit.COLD),
    "cold claimed": (claim_cold, audit.COLD),
}


async def filled(world: World, count: int = 12) -> list[Memory]:
    agent = await world.agent("audited")
    return [await world.store(agent, f"memory {n} about topic {n % 4}") for n in range(count)]


async def test_a_healthy_node_has_no_drift(world: World) -> None:
    stored = await filled(world)
    report = await audit_graph(world.context)
    assert report.drift == {}
    assert (report.residents, report.cold) == (report.rows, 0)
    assert report.rows >= len(stored)


async def test_cold_rows_are_no_drift(world: World) -> None:
    stored = await filled(world)
    world.context.residency.evict([memory.id for memory in stored[:5]])
    report = await audit_graph(world.context)
    assert (report.drift, report.cold) == ({}, 5)


@pytest.mark.parametrize("name", PLANTED)
async def test_planted_drift_is_found_named_and_repaired(world: World, name: str) -> None:
    plant, kind = PLANTED[name]
    stored = await filled(world)
    await plant(world, stored[3])
    report = await audit_graph(world.context)
    assert kind in report.drift
    assert report.repaired == {}
    assert report.left > 0
    mended = await audit_graph(world.context, repair=True)
    assert mended.drift == mended.repaired
    assert mended.left == 0
    again = await audit_graph(world.context)
    assert again.drift == {}


def test_every_kind_of_drift_is_planted() -> None:
    assert {kind for _, kind in PLANTED.values()} == set(audit.KINDS)


async def test_a_repair_never_changes_a_row(world: World) -> None:
    stored = await filled(world)
    for memory, plant in zip(stored, (change_text, change_visibility, drop_vector), strict=False):
        await plant(world, memory)
    digest = "SELECT md5(string_agg(m::text, '|' ORDER BY id)) FROM memories m"
    before = await world.value(digest)
    await audit_graph(world.context, repair=True)
    assert await world.value(digest) == before


async def test_a_row_without_a_vector_is_found_by_meaning_after_the_repair(world: World) -> None:
    stored = await filled(world)
    agent = await world.agent("audited")
    await drop_vector(world, stored[2])
    await audit_graph(world.context, repair=True)
    world.context.residency.graph.evict([stored[2].id])
    world.context.residency.has_cold = True
    assert stored[2].id in await world.found(agent, stored[2].content)


async def test_an_administrator_audits_over_http(edge: Edge) -> None:
    stored = await filled(edge.world)
    await change_text(edge.world, stored[0])
    answer = await edge.post("/api/audit/graph", {"repair": True}, token=edge.token("admin"))
    assert answer.status_code == 200
    assert answer.json()["repaired"] == {audit.OLD_TEXT: 1}
    assert answer.json()["left"] == 0
