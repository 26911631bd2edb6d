"""Judging a hello: who may open a link, and what may flow over it.

Pure checks, made by both sides on the other's hello before anything else is said. The link's
certificate has been checked by then; here the hello must fit that certificate, the mesh and a
shared project. A peer that does not gate on tombstones is let in, but for tombstones alone.
"""

from __future__ import annotations

from collections.abc import Collection

from gossip.wire.messages import (
    Accepted,
    Acl,
    Busy,
    Bye,
    Cards,
    Deliver,
    Delivered,
    Hello,
    Message,
    Ping,
    Pong,
    TombPull,
    Tombs,
    TombsAck,
    TombSynced,
)
from storage.model import NodeId, ProjectId

PROTO = 1
TOMB_GATE = "tomb-gate"

UNGATED_TYPES: tuple[type[Message], ...] = (
    *(Bye, Busy, Ping, Pong),
    *(Tombs, TombsAck, TombPull, TombSynced, Deliver, Delivered, Acl, Cards),
)
"""Cards are among them: without the key of an agent its tombstones could not be verified."""


def judge(
    hello: Hello,
    *,
    own: Hello,
    peer_id: NodeId,
    admitted: Collection[NodeId],
    allowed: Collection[ProjectId],
) -> Accepted | Bye:
    """The answer to a hello that came over the link of `peer_id`.

    `peer_id` derives from the certificate of the link, `own` is this side's hello, `allowed`
    the projects whose ACL lists the peer. The reasons: proto, mesh_id, node_id, self,
    not_admitted, no_shared_project.
    """
    checks = (
        ("proto", hello.proto == own.proto),
        ("mesh_id", hello.mesh_id == own.mesh_id),
        ("node_id", hello.node_id == peer_id),
        ("self", hello.node_id != own.node_id and hello.nonce != own.nonce),
        ("not_admitted", hello.node_id in admitted),
        ("no_shared_project", bool(shared_projects(hello, own, allowed))),
    )
    for reason, holds in checks:
        if not holds:
            return Bye(reason)
    return Accepted(hello.nonce)


def shared_projects(
    hello: Hello, own: Hello, allowed: Collection[ProjectId]
) -> frozenset[ProjectId]:
    """Projects that both hellos name and whose ACL lists the peer."""
    theirs = {project for project, _ in hello.projects}
    return frozenset(project for project, _ in own.projects if project in theirs) & set(allowed)


def gates_tombstones(hello: Hello) -> bool:
    """True when the peer promises to check every copy against tombstones and fences."""
    return TOMB_GATE in hello.features


def may_pass(message: Message, *, gated: bool) -> bool:
    """Whether a message may go over a link, either way, given the peer's promise.

    Without it only link control, tombstones, fences and erasure documents pass: no content.
    """
    return gated or isinstance(message, UNGATED_TYPES)
