"""An admitted node that says what it likes: nothing changes, the node lives, counters move."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gossip import profile
from gossip.channel import PeerChannel
from gossip.wire.messages import (
    Ack,
    AckStatus,
    Busy,
    Cards,
    Content,
    Copy,
    Deliver,
    Fetch,
    FetchDone,
    Hop,
    Message,
    ProfileMsg,
    Pull,
    Tombs,
    TombsAck,
    Topic,
    WantContent,
)
from storage import clock, records
from storage.keyring import public_bytes
from storage.model import AgentProfile, MemoryId, MemoryKind, ProjectId, Scope, ScopeKind
from tests.support.memory import lit
from tests.support.mesh import FAST, MeshNode, Town, until

WORDS = "the garden soil for roses is dry"
HOP = Hop(1_000, 1, 0, 0, 0, ())
SETTINGS = replace(FAST, repair=replace(FAST.repair, period_s=600.0))


@dataclass
class Siege:
    """`a` is honest and wants roses; `m` is admitted, does not gossip, and speaks by hand."""

    a: MeshNode
    m: MeshNode
    project: ProjectId
    gardener: AgentProfile
    liar: AgentProfile
    channel: PeerChannel

    async def body(self, text: str = WORDS, **changes: Any) -> records.DiffBody:
        """A diff of the liar's own, as it would be honest, with changes."""
        memory = await self.m.remember(self.liar, text)
        (found,) = await self.m.rows(f"SELECT body FROM diffs WHERE memory_id = {lit(memory.id)}")
        body = records.decode_diff(found["body"])
        made = {name: getattr(body, name) for name in body.__struct_fields__}
        return records.DiffBody(**{**made, **changes})

    async def copy(
        self, body: records.DiffBody | bytes, key: Ed25519PrivateKey | None = None
    ) -> Any:
        """Send a copy signed by the liar, or by another key; the answer."""
        raw = body if isinstance(body, bytes) else records.encode(body)
        key = key or self.m.local.keys.agent(self.liar.id)
        assert key is not None
        sig = records.sign(key, records.DOMAIN_DIFF, raw)
        await self.channel.send(Copy(raw, sig, HOP, False))
        return await self.heard(Ack)

    async def heard(self, kind: type[Message]) -> Any:
        """The next message of a kind."""
        while True:
            message = await self.channel.receive()
            if isinstance(message, kind):
                return message

    async def alive(self) -> None:
        """The honest node still takes an honest memory over this link."""
        body = await self.body(WORDS + " and this is honest")
        assert (await self.copy(body)).status is AckStatus.STORED
        assert await self.a.has(body.memory)


@pytest.fixture
async def siege(town: Town) -> AsyncIterator[Siege]:
    a, m = await town.node("a", settings=SETTINGS), await town.node("m", settings=SETTINGS)
    project = await town.join("p", a, m)
    gardener = await a.agent("gardener", "roses garden soil", project)
    liar = await m.agent("liar", "roses garden", project)
    await a.linked(m)
    await until(lambda: _card(a, project, liar), "the card is known")
    await m.stop()
    await m.start(gossiping=False)
    await until(lambda: _unlinked(a), "the link is gone")
    channel = await m.dial(a)
    yield Siege(a, m, project, gardener, liar, channel)
    await channel.aclose()


async def _card(node: MeshNode, project: ProjectId, agent: AgentProfile) -> bool:
    return agent.id in node.access.current.projects[project].cards


async def _unlinked(node: MeshNode) -> bool:
    return not node.mesh.links.live()


async def test_copies_that_break_a_rule_are_refused_by_name(siege: Siege) -> None:
    body = await siege.body()
    honest = records.encode(body)
    stranger = Ed25519PrivateKey.generate()

    async def reason(given: records.DiffBody | bytes, key: Any = None) -> str:
        ack = await siege.copy(given, key)
        assert ack.status is AckStatus.REFUSED
        return str(ack.reason)

    assert await reason(body, stranger) == "signature"
    assert await reason(await siege.body("b roses", project=bytes(16))) == "acl"
    assert await reason(await siege.body("c roses", origin=siege.a.id)) == "acl"
    assert await reason(await siege.body("d roses", agent=siege.gardener.id)) == "acl"
    assert await reason(await siege.body("e roses", model="another")) == "model"
    assert await reason(await siege.body("f roses", agent_epoch=0)) == "malformed"
    assert await reason(await siege.body("g roses", content="nul \x00 roses")) == "malformed"
    zero = bytes(len(body.emb))
    assert await reason(await siege.body("h roses", emb=zero)) == "malformed"
    late = clock.to_bytes(clock.from_millis(siege.a.wall_ms() + 86_400_000))
    assert await reason(await siege.body("i roses", hlc=late)) == "drift"
    padded = honest.replace(b"\xa1v\x01", b"\xa1v\xcc\x01", 1)
    assert padded != honest
    assert await reason(padded) == "noncanonical"
    assert await reason(b"\xc1garbage") in ("malformed", "noncanonical")
    assert await siege.a.live() == set()
    assert await siege.a.value("SELECT count(*) FROM seen") == 0
    assert siege.a.count("refused_total") == 11
    await siege.alive()


async def test_c_18_a_diff_under_a_closed_epoch_or_as_a_tombstone_changes_nothing(
    siege: Siege,
) -> None:
    a = siege.a
    body = await siege.body()
    handle = a.local.handle  # the scope of the liar was closed on a at epoch 1
    await a.change(
        "INSERT INTO fences (scope_kind, scope_handle, epoch_floor, hlc_floor, erasure_id, wire,"
        f" hlc, recv_seq) VALUES ('agent', {lit(handle(Scope(ScopeKind.AGENT, siege.liar.id)))},"
        " 1, 1, 'er_test', '\\x00', 1, nextval('recv_seq'))"
    )
    ack = await siege.copy(body)
    assert (ack.status, ack.reason) == (AckStatus.REFUSED, "fenced")
    raw = records.encode(body)
    key = siege.m.local.keys.agent(siege.liar.id)
    assert key is not None
    sealed = records.Sealed(b=raw, s=records.sign(key, records.DOMAIN_DIFF, raw))
    await siege.channel.send(Tombs((records.encode(sealed),), 0))
    answer = await siege.heard(TombsAck)
    assert len(answer.refused) == 1
    assert await a.live() == set()
    assert await a.value("SELECT count(*) FROM tombstones") == 0


async def test_es_29_a_tombstone_by_a_stranger_is_refused(siege: Siege) -> None:
    a = siege.a
    memory = await a.remember(siege.gardener, WORDS)

    def tombstone(key: Ed25519PrivateKey, **changes: Any) -> bytes:
        fields: dict[str, Any] = {
            "project": siege.project,
            "agent": siege.gardener.id,
            "origin": siege.m.id,
            "home": a.id,
            "agent_epoch": 1,
            "project_epoch": 1,
            "hlc": clock.to_bytes(siege.m.local.clock.now()),
            "nonce": bytes(16),
            "target": memory.id,
            "mkind": "cell",
            "cause": "forget",
        }
        return records.seal(
            key, records.DOMAIN_TOMBSTONE, records.TombstoneBody(**{**fields, **changes})
        )

    liars = siege.m.local.keys.agent(siege.liar.id)
    assert liars is not None
    wires = (
        tombstone(Ed25519PrivateKey.generate()),
        tombstone(liars),
        tombstone(liars, agent=siege.liar.id),
        tombstone(siege.m.local.identity.private_key),
        tombstone(liars, project=None),
        b"garbage",
        b"\x82\xa1b\xc4\x01\x00\xa1s\xc4\x01\x00",
    )
    await siege.channel.send(Tombs(wires, 0))
    answer = await siege.heard(TombsAck)
    assert (len(answer.ids), len(answer.refused)) == (0, len(wires))
    assert await a.has(memory.id)
    assert not await a.tombstoned(memory.id)
    await siege.alive()


async def test_acks_with_another_nonce_settle_nothing(siege: Siege) -> None:
    a, channel = siege.a, siege.channel
    await a.change(
        "INSERT INTO outbox (topic, peer, subject, body, priority, not_before, created_at)"
        f" VALUES ('gossip.tombstone', {lit(siege.m.id)}, {lit(bytes(16))}, '\\x00', 2,"
        " now(), now())"
    )
    a.mesh.wake_outbox()
    await siege.heard(Tombs)
    wrong = bytes(16)
    await channel.send(TombsAck(0, (records.record_id(b"", b"\x00"),), (), wrong))
    await channel.send(Ack(bytes(32), AckStatus.STORED, "", wrong))
    await siege.alive()
    assert await a.outbox(bytes(16)) == {siege.m.id: "sent"}
    assert a.count("refused_total", "nonce") == 1


async def test_documents_that_do_not_fit_together_are_dropped(siege: Siege) -> None:
    channel = siege.channel
    await channel.send(Deliver(Topic.NOTICE, b"x", 200, 100, bytes(100)))
    await channel.send(Deliver(Topic.NOTICE, b"y", 200, 0, bytes(100)))
    await channel.send(Deliver(Topic.NOTICE, b"y", 300, 100, bytes(100)))
    for n in range(60):
        await channel.send(Deliver(Topic.DOCUMENT, bytes([n]), 1 << 20, 0, bytes(48 * 1024)))
    await siege.alive()


async def test_questions_beyond_what_is_shared_are_not_answered(siege: Siege) -> None:
    a, channel = siege.a, siege.channel
    memory = await a.remember(siege.gardener, WORDS)
    (row,) = await a.rows(f"SELECT diff_id FROM diffs WHERE memory_id = {lit(memory.id)}")
    await channel.send(Pull(bytes(16), 0, b"", False))
    await siege.heard(Busy)
    await a.forget(siege.gardener, memory.id)
    await channel.send(Fetch((row["diff_id"],)))
    done = await siege.heard(FetchDone)
    assert (done.served, done.missing) == (0, (row["diff_id"],))
    await channel.send(Content(bytes(32), 10, 0, bytes(10)))
    await siege.alive()


async def test_profiles_and_cards_of_others_are_refused(siege: Siege) -> None:
    a, m, channel = siege.a, siege.m, siege.channel
    before = a.mesh.profiles.get(m.id)
    version = m.local.clock.now()
    q = (await m.embedder.embed(["roses"]))[0]
    entries = profile.select([profile.Interest(bytes(16), MemoryKind.AGENT, q)])
    key = m.local.identity.private_key
    for node_id in (a.id, bytes(16)):
        body = profile.encode(profile.Profile(node_id, entries, 0, a.embedder.model_id, version))
        await channel.send(ProfileMsg(body, profile.sign(key, body)))
    card = records.AgentCard(
        agent=siege.gardener.id,
        project=siege.project,
        home=m.id,
        public=public_bytes(Ed25519PrivateKey.generate()),
        hlc=clock.to_bytes(version),
    )
    stolen = records.seal(key, records.DOMAIN_CARD, card)
    forged = records.seal(
        key,
        records.DOMAIN_CARD,
        records.AgentCard(
            agent=siege.gardener.id,
            project=siege.project,
            home=a.id,
            public=card.public,
            hlc=card.hlc,
        ),
    )
    await channel.send(Cards((stolen, forged, b"garbage")))
    await siege.alive()
    assert a.mesh.profiles.get(m.id) == before
    kept = a.access.current.projects[siege.project].cards[siege.gardener.id]
    assert kept.home_node == a.id
    assert a.count("refused_total", "profile") == 2
    assert a.count("refused_total", "card") == 2


async def test_a_flood_of_copies_is_cut_and_a_tombstone_passes_in_it(siege: Siege) -> None:
    a, m = siege.a, siege.m
    victim = await siege.body(WORDS + " victim")
    assert (await siege.copy(victim)).status is AckStatus.STORED
    a.mesh.limits.of(m.id, 0)._diffs.burst = 20
    for n in range(80):
        await siege.channel.send(Copy(bytes([n, 1, 2]), bytes(64), HOP, False))
    await m.forget(siege.liar, victim.memory)
    wire = await m.value(f"SELECT wire FROM tombstones WHERE memory_id = {lit(victim.memory)}")
    await siege.channel.send(Tombs((wire,), 0))
    await until(lambda: a.tombstoned(victim.memory), "the tombstone passes", 20)
    await until(lambda: _untraced(a, victim.memory), "the content is gone")
    assert a.count("refused_total", "rate") > 0


async def test_copies_that_nobody_asked_for_do_not_pass_as_repair(siege: Siege) -> None:
    body = await siege.body()
    raw = records.encode(body)
    key = siege.m.local.keys.agent(siege.liar.id)
    assert key is not None
    sig = records.sign(key, records.DOMAIN_DIFF, raw)
    await siege.channel.send(Copy(raw, sig, HOP, True))
    await siege.alive()
    assert not await siege.a.has(body.memory)
    assert siege.a.count("refused_total", "unasked") == 1


async def test_a_content_that_does_not_fit_its_hash_is_not_stored(siege: Siege) -> None:
    text = WORDS + " roses" * 4_000
    body = await siege.body(text)
    assert body.content_ref is not None
    raw = records.encode(body)
    key = siege.m.local.keys.agent(siege.liar.id)
    assert key is not None
    sig = records.sign(key, records.DOMAIN_DIFF, raw)
    await siege.channel.send(Copy(raw, sig, HOP, False))
    ask = await siege.heard(WantContent)
    length = body.content_ref.length
    await siege.channel.send(Content(ask.digest, length, 0, b"x" * length))
    ack = await siege.heard(Ack)
    assert (ack.status, ack.reason) == (AckStatus.REFUSED, "malformed")
    assert not await siege.a.has(body.memory)
    await siege.alive()


async def test_a_peer_that_served_what_it_knew_was_forgotten_pays_for_it(siege: Siege) -> None:
    a, m = siege.a, siege.m
    body = await siege.body()
    assert (await siege.copy(body)).status is AckStatus.STORED
    await m.forget(siege.liar, body.memory)
    wire = await m.value(f"SELECT wire FROM tombstones WHERE memory_id = {lit(body.memory)}")
    await siege.channel.send(Tombs((wire,), 0))
    await siege.heard(TombsAck)
    again = await siege.body("other roses", memory=body.memory)
    ack = await siege.copy(again)
    assert (ack.status, ack.reason) == (AckStatus.REFUSED, "tombstoned")
    score = a.mesh.limits.of(m.id, 0).score(a.mesh.mono_ms())
    await a.change(
        "INSERT INTO outbox (topic, peer, subject, body, priority, not_before, created_at, state)"
        f" VALUES ('gossip.tombstone', {lit(m.id)}, {lit(body.memory)}, '\\x00', 2, now(), now(),"
        " 'done')"
    )
    third = await siege.body("third roses", memory=body.memory)
    ack = await siege.copy(third)
    assert (ack.status, ack.reason) == (AckStatus.REFUSED, "served_tombstoned")
    assert a.mesh.limits.of(m.id, 0).score(a.mesh.mono_ms()) == score - 20_000


async def _untraced(node: MeshNode, memory_id: MemoryId) -> bool:
    return await node.traces(memory_id) == 0
