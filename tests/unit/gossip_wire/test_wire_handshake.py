from __future__ import annotations

import pytest

from gossip.wire.handshake import gates_tombstones, judge, may_pass, shared_projects
from gossip.wire.messages import (
    Accepted,
    Acl,
    Bye,
    Content,
    Copy,
    Fetch,
    Hop,
    Page,
    Ping,
    TombPull,
    Tombs,
)
from tests.unit.gossip_wire.wire_peers import PROJECT, hello_of

PEER = b"b" * 16
OWN = hello_of(b"a" * 16)(b"n" * 16)
NONCE = b"m" * 16


def judged(peer_id: bytes = PEER, admitted=(PEER,), allowed=(PROJECT,), **changed):
    hello = hello_of(PEER, **changed)(changed.pop("nonce", NONCE))
    return judge(hello, own=OWN, peer_id=peer_id, admitted=set(admitted), allowed=allowed)


def test_a_fitting_hello_is_accepted_by_its_nonce():
    assert judged() == Accepted(NONCE)


@pytest.mark.parametrize(
    "changed, reason",
    [
        ({"proto": 2}, "proto"),
        ({"mesh_id": "other"}, "mesh_id"),
        ({"node_id": b"c" * 16}, "node_id"),
        ({"nonce": OWN.nonce}, "self"),
        ({"admitted": ()}, "not_admitted"),
        ({"projects": ()}, "no_shared_project"),
        ({"projects": ((b"q" * 16, 1),)}, "no_shared_project"),
        ({"allowed": ()}, "no_shared_project"),
    ],
)
def test_a_hello_that_does_not_fit_gets_the_reason(changed, reason):
    assert judged(**changed) == Bye(reason)


def test_a_node_that_meets_itself_is_refused():
    hello = hello_of(OWN.node_id)(NONCE)
    own_id = OWN.node_id
    answer = judge(hello, own=OWN, peer_id=own_id, admitted={own_id}, allowed=[PROJECT])
    assert answer == Bye("self")


def test_shared_projects_need_both_hellos_and_the_acl():
    named = tuple((bytes([n]) * 16, 1) for n in range(4))
    own = hello_of(b"a" * 16, projects=named[:3])(NONCE)
    hello = hello_of(PEER, projects=named[1:])(NONCE)
    allowed = [named[0][0], named[1][0], named[3][0]]
    assert shared_projects(hello, own, allowed) == {named[1][0]}


def test_c_09_without_the_gate_a_peer_is_accepted_for_tombstones_alone():
    assert judged(features=()) == Accepted(NONCE)
    assert not gates_tombstones(hello_of(PEER, features=("other",))(NONCE))
    content = [
        Copy(b"x", bytes(64), Hop(0, 0, 0, 0, 0, ()), True),
        Content(bytes(32), 0, 0, b""),
        Page(PROJECT, (), b"", True),
        Fetch(()),
    ]
    assert [may_pass(message, gated=False) for message in content] == [False] * 4
    tombs = [Ping(1), Tombs((), 1), TombPull(PROJECT, 0), Acl(b"x")]
    assert [may_pass(message, gated=False) for message in tombs] == [True] * 4
    assert [may_pass(message, gated=True) for message in content + tombs] == [True] * 8
