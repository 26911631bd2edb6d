"""What links bring of agents that were erased, and who still has to hear of it."""

from __future__ import annotations

from erasure import apply, requests
from erasure.requests import EraseRequest
from gossip import introductions
from gossip.wire.messages import Cards
from storage import peers
from storage.model import AgentProfile, Scope, ScopeKind
from tests.support.mesh import MeshNode, Town, until

ROSES = "roses garden soil"


async def _erase(node: MeshNode, agent: AgentProfile) -> str:
    request = EraseRequest(
        scope=Scope(ScopeKind.AGENT, agent.id), basis="contract", request_id="r-1", requester=None
    )
    return (await requests.erase(node.mesh.erasure, request)).erasure_id


async def test_the_card_of_an_erased_agent_does_not_come_back(town: Town) -> None:
    a, b = [await town.node(name) for name in "ab"]
    project = await town.join("p", a, b)
    writer = await a.agent("writer", ROSES, project)
    await a.linked(b)
    card = await a.mesh.db.read(peers.card, writer.id, project)
    assert card is not None
    await _erase(a, writer)
    assert await a.mesh.db.read(peers.card, writer.id, project) is None

    await introductions.cards_in(a.mesh, a.mesh.links.live(b.id)[0], Cards((card.wire,)))

    assert await a.mesh.db.read(peers.card, writer.id, project) is None


async def test_an_erasure_closes_when_the_node_it_waited_for_is_revoked(town: Town) -> None:
    a, b, c = [await town.node(name) for name in "abc"]
    project = await town.join("p", a, b, c)
    writer = await a.agent("writer", ROSES, project)
    await a.linked(b, c)
    await c.stop()
    await town.nursery.start(apply.run, b.mesh.erasure)
    erasure_id = await _erase(a, writer)

    async def waiting_for() -> list[str]:
        told = (await requests.status(a.mesh.erasure, erasure_id)).as_json()
        return [each["node_id"] for each in told["recipients"] if each["status"] == "pending"]

    async def only_c() -> bool:
        return await waiting_for() == [c.id.hex()]

    await until(only_c, "b has answered")
    await a.desk.revoke("p", c.id.hex())
    told = (await requests.status(a.mesh.erasure, erasure_id)).as_json()
    assert told["state"] == "closed"
    assert await waiting_for() == []
