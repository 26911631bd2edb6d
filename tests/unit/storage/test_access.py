"""Whose signature counts: access lists, agent cards, tombstones and fences."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from storage import records
from storage.access import Access, open_acl, picture
from storage.canonical import NonCanonical
from storage.keyring import KeyStore, NodeIdentity, public_bytes
from storage.model import ScopeKind, scope_handle
from storage.peers import Card
from storage.principals import Project
from storage.records import (
    AclBody,
    AclNode,
    AgentCard,
    BadSignature,
    FenceBody,
    InvalidRecord,
    TombstoneBody,
)

MESH_KEY = bytes(range(32))
PROJECT, OTHER_PROJECT = bytes([1]) * 16, bytes([2]) * 16
ALICE, BOB, NOBODY = bytes([3]) * 16, bytes([4]) * 16, bytes([5]) * 16


def key(number: int) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32)


PROJECT_KEY, OTHER_KEY, OPERATOR, ALICE_KEY, BOB_KEY = (key(number) for number in range(1, 6))


@dataclass
class Mesh:
    """Two member nodes of a project, one stranger, and the picture of it all."""

    node: NodeIdentity
    peer: NodeIdentity
    stranger: NodeIdentity
    cards: list[Card] = field(default_factory=list)

    def acl(self, **changes: Any) -> AclBody:
        fields: dict[str, Any] = {
            "mesh": "mesh",
            "project": PROJECT,
            "name": "p1",
            "version": 1,
            "nodes": tuple(
                AclNode(certificate=each.certificate_der) for each in (self.node, self.peer)
            ),
            "operators": (public_bytes(OPERATOR),),
        }
        return AclBody(**{**fields, **changes})

    def project(self, **changes: Any) -> Project:
        wire = records.seal(PROJECT_KEY, records.DOMAIN_ACL, self.acl(**changes))
        return Project(PROJECT, "p1", public_bytes(PROJECT_KEY), wire, 1)

    def other(self) -> Project:
        acl = self.acl(project=OTHER_PROJECT, name="p2", operators=())
        wire = records.seal(OTHER_KEY, records.DOMAIN_ACL, acl)
        return Project(OTHER_PROJECT, "p2", public_bytes(OTHER_KEY), wire, 1)

    def picture(self, **changes: Any) -> Access:
        return picture([self.project(**changes), self.other()], self.cards)

    def admit(self, agent: bytes, agent_key: Ed25519PrivateKey, project: bytes = PROJECT) -> None:
        wire = card(self.peer, agent, agent_key, project)
        self.cards.append(self.picture().check_card(wire))


@pytest.fixture
def mesh(tmp_path: Path) -> Mesh:
    identities = []
    for name in ("node", "peer", "stranger"):
        store = KeyStore(tmp_path / name)
        store.prepare()
        identities.append(store.node())
    made = Mesh(identities[0], identities[1], identities[2])
    made.admit(ALICE, ALICE_KEY)
    made.admit(BOB, BOB_KEY, OTHER_PROJECT)
    return made


def card(
    home: NodeIdentity,
    agent: bytes,
    agent_key: Ed25519PrivateKey,
    project: bytes = PROJECT,
    signer: NodeIdentity | None = None,
) -> bytes:
    body = AgentCard(
        agent=agent,
        project=project,
        home=home.node_id,
        public=public_bytes(agent_key),
        hlc=bytes(8),
    )
    return records.seal((signer or home).private_key, records.DOMAIN_CARD, body)


def test_a_list_counts_only_with_the_projects_signature(mesh: Mesh) -> None:
    wire = mesh.project().acl
    assert open_acl(wire, public_bytes(PROJECT_KEY)).name == "p1"
    with pytest.raises(BadSignature):
        open_acl(wire, public_bytes(OTHER_KEY))
    sealed = records.open_sealed(wire)
    forged = records.encode(mesh.acl(version=2))
    with pytest.raises(BadSignature):
        open_acl(records.encode(records.Sealed(b=forged, s=sealed.s)), public_bytes(PROJECT_KEY))


def test_a_list_with_an_unusable_certificate_is_refused(mesh: Mesh) -> None:
    broken = mesh.project(nodes=(AclNode(certificate=bytes(64)),)).acl
    with pytest.raises(InvalidRecord, match="unusable certificate"):
        open_acl(broken, public_bytes(PROJECT_KEY))


def test_the_picture_names_members_by_the_id_of_their_key(mesh: Mesh) -> None:
    seen = mesh.picture()
    assert set(seen.projects[PROJECT].nodes) == {mesh.node.node_id, mesh.peer.node_id}
    entry = seen.nodes()[mesh.peer.node_id]
    assert entry.fingerprint == mesh.peer.fingerprint
    assert entry.public_key == public_bytes(mesh.peer.private_key)
    assert [each.name for each in seen.shared_with(mesh.peer.node_id)] == ["p1", "p2"]
    assert seen.shared_with(mesh.stranger.node_id) == []


def test_a_retired_node_is_no_member(mesh: Mesh) -> None:
    seen = mesh.picture(retired=(mesh.peer.node_id,))
    assert set(seen.projects[PROJECT].nodes) == {mesh.node.node_id}
    with pytest.raises(InvalidRecord, match="no member"):
        seen.check_card(card(mesh.peer, NOBODY, key(9)))


def test_a_member_vouches_for_its_agent(mesh: Mesh) -> None:
    checked = mesh.picture().check_card(card(mesh.peer, NOBODY, key(9)))
    assert (checked.agent_id, checked.home_node) == (NOBODY, mesh.peer.node_id)
    assert checked.public_key == public_bytes(key(9))


def test_a_card_by_a_stranger_is_refused(mesh: Mesh) -> None:
    seen = mesh.picture()
    with pytest.raises(InvalidRecord, match="no member"):
        seen.check_card(card(mesh.stranger, NOBODY, key(9)))
    with pytest.raises(InvalidRecord, match="no member"):
        seen.check_card(card(mesh.peer, NOBODY, key(9), project=bytes(16)))
    with pytest.raises(BadSignature):
        seen.check_card(card(mesh.peer, NOBODY, key(9), signer=mesh.stranger))
    with pytest.raises(BadSignature):
        seen.check_card(card(mesh.peer, NOBODY, key(9), signer=mesh.node))


def tombstone(signer: Ed25519PrivateKey, agent: bytes, project: bytes | None = PROJECT) -> bytes:
    body = TombstoneBody(
        project=project,
        agent=agent,
        origin=bytes(16),
        home=bytes(16),
        agent_epoch=1,
        project_epoch=1,
        hlc=bytes(8),
        nonce=bytes(16),
        target=bytes(16),
        mkind="cell",
        cause="forget",
    )
    return records.seal(signer, records.DOMAIN_TOMBSTONE, body)


@pytest.mark.parametrize("signer", [ALICE_KEY, PROJECT_KEY, OPERATOR])
def test_a_tombstone_by_an_entitled_key_counts(mesh: Mesh, signer: Ed25519PrivateKey) -> None:
    assert mesh.picture().check_tombstone(tombstone(signer, ALICE)).agent == ALICE


@pytest.mark.parametrize("signer", [BOB_KEY, OTHER_KEY, key(9)])
def test_a_tombstone_by_another_key_does_not(mesh: Mesh, signer: Ed25519PrivateKey) -> None:
    with pytest.raises(BadSignature):
        mesh.picture().check_tombstone(tombstone(signer, ALICE))


def test_a_node_key_signs_no_tombstone(mesh: Mesh) -> None:
    with pytest.raises(BadSignature):
        mesh.picture().check_tombstone(tombstone(mesh.peer.private_key, ALICE))


@pytest.mark.parametrize("project", [None, bytes(16)])
def test_a_tombstone_of_no_common_project_is_refused(mesh: Mesh, project: bytes | None) -> None:
    with pytest.raises(InvalidRecord, match="of no project"):
        mesh.picture().check_tombstone(tombstone(PROJECT_KEY, ALICE, project))


def fence(signer: Ed25519PrivateKey, kind: ScopeKind, raw_id: bytes) -> bytes:
    body = FenceBody(
        scope_kind="agent" if kind is ScopeKind.AGENT else "project",
        scope_handle=scope_handle(MESH_KEY, kind, raw_id),
        epoch_floor=1,
        hlc_floor=bytes(8),
        hlc=bytes(8),
        origin=bytes(16),
        nonce=bytes(16),
        erasure_id="er_1",
    )
    return records.seal(signer, records.DOMAIN_FENCE, body)


@pytest.mark.parametrize(
    ("signer", "kind", "raw_id"),
    [
        (ALICE_KEY, ScopeKind.AGENT, ALICE),
        (PROJECT_KEY, ScopeKind.AGENT, ALICE),
        (OPERATOR, ScopeKind.AGENT, ALICE),
        (OTHER_KEY, ScopeKind.AGENT, BOB),
        (PROJECT_KEY, ScopeKind.PROJECT, PROJECT),
        (OPERATOR, ScopeKind.PROJECT, PROJECT),
        (OTHER_KEY, ScopeKind.PROJECT, OTHER_PROJECT),
    ],
)
def test_a_fence_by_an_entitled_key_counts(
    mesh: Mesh, signer: Ed25519PrivateKey, kind: ScopeKind, raw_id: bytes
) -> None:
    assert mesh.picture().check_fence(fence(signer, kind, raw_id), MESH_KEY).erasure_id == "er_1"


@pytest.mark.parametrize(
    ("signer", "kind", "raw_id"),
    [
        (BOB_KEY, ScopeKind.AGENT, ALICE),
        (OTHER_KEY, ScopeKind.AGENT, ALICE),
        (OPERATOR, ScopeKind.AGENT, BOB),
        (ALICE_KEY, ScopeKind.PROJECT, PROJECT),
        (OPERATOR, ScopeKind.PROJECT, OTHER_PROJECT),
        (PROJECT_KEY, ScopeKind.PROJECT, OTHER_PROJECT),
        (PROJECT_KEY, ScopeKind.PROJECT, bytes(16)),
        (ALICE_KEY, ScopeKind.AGENT, NOBODY),
        (key(9), ScopeKind.AGENT, NOBODY),
    ],
)
def test_a_fence_by_another_key_does_not(
    mesh: Mesh, signer: Ed25519PrivateKey, kind: ScopeKind, raw_id: bytes
) -> None:
    with pytest.raises(BadSignature):
        mesh.picture().check_fence(fence(signer, kind, raw_id), MESH_KEY)


def test_an_agent_never_met_is_fenced_by_who_could_have_admitted_it(mesh: Mesh) -> None:
    wire = fence(PROJECT_KEY, ScopeKind.AGENT, NOBODY)
    assert mesh.picture().check_fence(wire, MESH_KEY).scope_kind == "agent"


def test_oversized_records_are_refused_before_they_are_parsed(mesh: Mesh) -> None:
    seen = mesh.picture()
    for check, size in ((seen.check_card, 2048), (seen.check_tombstone, 4096)):
        with pytest.raises(NonCanonical, match=f"more than {size} bytes"):
            check(bytes(size + 1))
    with pytest.raises(NonCanonical, match="more than 4096 bytes"):
        seen.check_fence(bytes(4097), MESH_KEY)
