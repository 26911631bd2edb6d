"""What the HTTP edge asks of a mesh, answered by the stand-in and by a real one alike."""

from __future__ import annotations

import json

import pytest

from gossip.mesh import MemberView, Mesh
from tests.support.mesh import Town
from tests.support.services import FakeMesh

pytestmark = pytest.mark.postgres


@pytest.fixture(params=["stand-in", "real"])
async def mesh(request: pytest.FixtureRequest, town: Town) -> Mesh | FakeMesh:
    if request.param == "stand-in":
        return FakeMesh()
    return (await town.node("a")).mesh


async def test_a_node_alone_has_no_members(mesh: Mesh | FakeMesh) -> None:
    assert mesh.members() == []


async def test_the_status_counts_members_and_is_plain_data(mesh: Mesh | FakeMesh) -> None:
    status = mesh.status()
    assert status["members"] == 0
    assert json.loads(json.dumps(dict(status))) == dict(status)


async def test_members_are_views(town: Town) -> None:
    a, b = [await town.node(name) for name in "ab"]
    await town.join("p", a, b)
    (member,) = a.mesh.members()
    assert isinstance(member, MemberView)
    assert member.node_id == b.id
