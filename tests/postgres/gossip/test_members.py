"""Links and members: one link for each pair, who leaves is out, who is new becomes known."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import trio

from gossip import repair, session
from gossip.channel import LinkError, PeerChannel
from gossip.liveness import Life
from gossip.spreading import Spreading
from gossip.wire.codec import WireError
from gossip.wire.messages import Message
from storage.database_errors import DatabaseUnavailable
from storage.errors import MnemeshError
from storage.model import NodeId, ProjectId
from tests.support.memory import lit
from tests.support.mesh import FAST, MeshNode, Town, until

ROSES = "roses garden soil"
WORDS = "the garden soil for roses is dry"


async def test_two_nodes_keep_one_link_and_dial_again_when_it_is_cut(town: Town) -> None:
    a, b = [await town.node(name) for name in "ab"]
    await town.join("p", a, b)
    await a.linked(b)
    (first,) = a.mesh.links.live(b.id)
    doubled = await a.dial(b)
    town.nursery.start_soon(session.handle, a.mesh, Spreading(a.mesh), doubled)
    await until(lambda: _one_link(a, b), "one of two stays")
    await a.linked(b)
    for channel in a.mesh.links.live(b.id):
        channel.cut("test")
    await until(lambda: _one_link(a, b), "the link is back")
    assert first not in a.mesh.links.live(b.id)


async def test_an_address_of_the_configuration_is_dialled_once(town: Town) -> None:
    a = await town.node("a")
    port = a.mesh.bound[0].rpartition(":")[2]
    b = await town.node("b", settings=replace(FAST, peers=(f"localhost:{port}",), listen=None))
    await town.join("p", a, b)
    await a.linked(b)
    await trio.sleep(2.5)
    assert len(a.mesh.links.live(b.id)) == 1
    # b may have found the address twice before it knew who answers there, but not every second
    assert a.count("links_ended_total") <= 1


async def test_c_03_a_revoked_node_is_cut_and_nothing_waits_for_it(town: Town) -> None:
    a, b, c = [await town.node(name) for name in "abc"]
    project = await town.join("p", a, b, c)
    writer = await a.agent("writer", "anything at all", project)
    await b.agent("gardener", ROSES, project)
    await c.agent("florist", ROSES, project)
    await a.linked(b, c)
    await b.linked(c)
    memory = await a.remember(writer, WORDS)
    await until(lambda: _all_have(memory.id, b, c), "both hold it")

    await a.desk.revoke("p", c.id.hex())
    await until(lambda: _out(a, b, c.id), "c is out at both")
    with pytest.raises(MnemeshError):
        await c.dial(a)
    await a.forget(writer, memory.id)
    await until(lambda: _outbox(a, memory.id, {b.id: "done", c.id: "released"}), "a is settled")
    await until(lambda: b.tombstoned(memory.id), "b has it")
    assert await c.has(memory.id)
    status = await a.value(f"SELECT status FROM members WHERE node_id = {lit(c.id)}")
    assert status == "decommissioned"
    await b.stop()
    await b.start()
    await a.linked(b)
    with pytest.raises(MnemeshError):
        await c.dial(b)


async def test_a_new_agent_and_a_later_project_become_known(town: Town) -> None:
    a, b = [await town.node(name) for name in "ab"]
    first = await town.join("p", a, b)
    await a.linked(b)
    late = await a.agent("late", "anything", first)
    await until(lambda: _card(b, first, late.id), "the card reaches b")

    second = await town.join("q", b, a)
    await until(lambda: _shares(a, b, {first, second}), "the later project is shared")
    writer = await b.agent("writer", "anything at all", second)
    await a.agent("gardener", ROSES, second)
    memory = await b.remember(writer, WORDS)
    await until(lambda: _all_have(memory.id, a), "it is used")


async def test_a_newer_access_list_reaches_members_through_others(town: Town) -> None:
    a, b, c = [await town.node(name) for name in "abc"]
    project = await town.join("p", a, b)
    await a.linked(b)
    await town.admit("p", a, c)
    newest = a.access.current.projects[project].acl.version
    await until(lambda: _version(b, project, newest), "b follows")
    await b.linked(c)


async def test_c_09_a_peer_without_the_gate_gets_tombstones_alone(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gossip.answers.ANSWER_S", 0.5)
    a, b = await town.node("a"), await town.node("b", features=())
    project = await town.join("p", a, b)
    writer = await a.agent("writer", "anything at all", project)
    await until(lambda: _one_link(a, b), "linked")
    await b.agent("gardener", ROSES, project)
    memory = await a.remember(writer, WORDS)
    await until(lambda: _walked(a), "the walk had its time")
    await a.forget(writer, memory.id)
    await until(lambda: b.tombstoned(memory.id), "the tombstone comes by repair")
    assert await a.holders(memory.id) == {}
    assert await b.live() == set()
    assert a.count("session_failed_total") == 0
    assert a.count("old_peer_refused_total", b.id.hex()) >= 1


async def test_rows_follow_who_lives_and_a_silent_link_is_cut(town: Town) -> None:
    quick = replace(FAST, membership=replace(FAST.membership, suspect_s=0.5, dead_s=0.5))
    a, b = await town.node("a", settings=quick), await town.node("b")
    await town.join("p", a, b)
    await a.linked(b)
    await until(lambda: _status(a, b, "alive"), "alive")
    await b.stop()
    await until(lambda: _status(a, b, "dead"), "dead")
    await b.start(gossiping=False)
    channel = await b.dial(a)
    await until(lambda: _status(a, b, "alive"), "alive by its link")
    await until(lambda: _status(a, b, "dead"), "dead by its silence")
    with pytest.raises((LinkError, WireError)):
        await _drained(channel)
    await a.stop()
    await a.start()
    assert a.mesh.liveness.life(b.id) is Life.DEAD


async def test_a_jump_of_the_clock_holds_content_back_until_the_next_sync(town: Town) -> None:
    a, b = [await town.node(name) for name in "ab"]
    await town.join("p", a, b)
    await a.linked(b)
    a.skew = timedelta(minutes=10)
    await until(lambda: _entered(a), "a noticed and freed itself by a sync")
    await until(lambda: _free(a), "a is free")


@pytest.mark.parametrize("fault", [DatabaseUnavailable(), RuntimeError("a bug")])
async def test_a_fault_in_a_session_ends_that_link_alone(
    town: Town,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fault: Exception,
) -> None:
    a, b = [await town.node(name) for name in "ab"]
    project = await town.join("p", a, b)
    await a.linked(b)
    serve = repair.serve_tombstones

    async def broken(*given: Any) -> None:
        monkeypatch.setattr("gossip.repair.serve_tombstones", serve)
        raise fault

    monkeypatch.setattr("gossip.repair.serve_tombstones", broken)
    await until(lambda: _failed(a, b), "a link ended by the fault")
    await a.linked(b)
    writer = await a.agent("writer", "anything at all", project)
    await b.agent("gardener", ROSES, project)
    memory = await a.remember(writer, WORDS)
    await until(lambda: _all_have(memory.id, b), "the mesh goes on")
    assert "a link" in caplog.text


async def test_a_peer_whose_link_is_stuck_delays_no_other(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, m = [await town.node(name) for name in "abm"]
    project = await town.join("p", a, b, m)
    writer = await a.agent("writer", "anything at all", project)
    await b.agent("gardener", ROSES, project)
    await m.agent("sleeper", ROSES, project)
    await a.linked(b, m)
    (stuck,) = a.mesh.links.live(m.id)

    async def never(message: Message) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(stuck, "send", never)
    with trio.fail_after(60):
        for n in range(5):
            memory = await a.remember(writer, f"{WORDS} {n}")
            await until(lambda i=memory.id: _all_have(i, b), "b has it")  # type: ignore[misc]
            assert len(await a.holders(memory.id)) == 2


async def _drained(channel: PeerChannel) -> None:
    while True:
        await channel.receive()


async def _failed(*nodes: MeshNode) -> bool:
    return sum(node.count("session_failed_total") for node in nodes) >= 1


async def _one_link(a: MeshNode, b: MeshNode) -> bool:
    return len(a.mesh.links.live(b.id)) == 1


async def _all_have(memory_id: bytes, *nodes: MeshNode) -> bool:
    return all([await node.has(memory_id) for node in nodes])


async def _out(a: MeshNode, b: MeshNode, gone: NodeId) -> bool:
    return all(
        gone not in node.access.current.nodes() and not node.mesh.links.live(gone)
        for node in (a, b)
    )


async def _outbox(node: MeshNode, memory_id: bytes, wanted: dict[NodeId, str]) -> bool:
    return await node.outbox(memory_id) == wanted


async def _card(node: MeshNode, project: ProjectId, agent_id: bytes) -> bool:
    return agent_id in node.access.current.projects[project].cards


async def _shares(a: MeshNode, b: MeshNode, projects: set[ProjectId]) -> bool:
    live = a.mesh.links.live(b.id)
    return len(live) == 1 and live[0].shared_projects == projects


async def _version(node: MeshNode, project: ProjectId, version: int) -> bool:
    return node.access.current.projects[project].acl.version == version


async def _walked(node: MeshNode) -> bool:
    return bool(await node.value("SELECT count(*) FROM seen"))


async def _status(node: MeshNode, peer: MeshNode, status: str) -> bool:
    rows = await node.rows(f"SELECT status FROM members WHERE node_id = {lit(peer.id)}")
    return [row["status"] for row in rows] == [status]


async def _entered(node: MeshNode) -> bool:
    kept = await node.rows("SELECT value FROM node_state WHERE key LIKE 'quarantine:%'")
    return bool(kept)


async def _free(node: MeshNode) -> bool:
    return not node.mesh.quarantined()
