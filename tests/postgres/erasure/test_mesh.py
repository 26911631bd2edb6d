"""An erasure across nodes: fence, notice, receipt, closure, and what an outsider can verify."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from erasure import apply, journal, leaves, receipts, requests
from erasure.certificates import Notice, seal
from erasure.envelope import HEAD_PAYLOAD, Envelope, sign
from erasure.forget import NoSigningKey
from erasure.ledger import LedgerKind, head_payload, log_id
from erasure.parts import ScopeRef
from erasure.report import PendingKind, Verdict
from erasure.states import HoldInForce
from erasure.verify import verify_files
from storage import clock, outbox, records
from storage.errors import ScopeErased
from storage.outbox import Topic
from tests.support.erasure_nodes import (
    ErasureNode,
    add_agent,
    agent,
    carry,
    copy_to,
    counts,
    deliver,
    join,
    predicate,
    project,
    remember,
    request,
)

LIMIT = 60


async def spread(origin: ErasureNode, peer: ErasureNode) -> tuple[bytes, bytes]:
    """Agent a1 of a common project with two memories on both nodes; (project, agent)."""
    p1 = await join([origin, peer])
    a1 = await add_agent(origin, "a1", p1, [peer])
    for number in range(2):
        memory = await remember(
            origin, a1, f"shared note {number}", p1, seed=number, holders=[peer]
        )
        await copy_to(peer, memory, seed=number)
    return p1, a1


async def settle_all(ctx_node: ErasureNode) -> None:
    """What the service loop does when it is woken."""
    for erasure_id in [
        row["erasure_id"] for row in await ctx_node.sql("SELECT erasure_id FROM erasures")
    ]:
        await apply.drive(ctx_node.ctx, erasure_id)


def write_files(folder: Path, documents: dict[str, Any]) -> dict[str, Path | None]:
    """The files of an offline verification."""
    receipts_dir, addenda_dir = folder / "receipts", folder / "addenda"
    receipts_dir.mkdir(parents=True)
    addenda_dir.mkdir()
    for name, data in documents["receipts"].items():
        (receipts_dir / f"{name}.json").write_bytes(data)
    for number, data in enumerate(documents["notices"]):
        (receipts_dir / f"notice-{number}.json").write_bytes(data)
    for number, data in enumerate(documents["addenda"]):
        (addenda_dir / f"{number}.json").write_bytes(data)
    made: dict[str, Path | None] = {"receipts": receipts_dir, "addenda": addenda_dir}
    for name in ("certificate", "closure", "proof", "head", "trust"):
        if documents[name] is None:
            made[name] = None
            continue
        made[name] = folder / f"{name}.json"
        (folder / f"{name}.json").write_bytes(documents[name])
    return made


def verified(folder: Path, documents: dict[str, Any]) -> Any:
    """The report of the offline verifier over these documents."""
    files = write_files(folder, documents)
    certificate, trust = files["certificate"], files["trust"]
    assert certificate is not None
    assert trust is not None
    return verify_files(
        certificate,
        trust,
        receipts=files["receipts"],
        closure=files["closure"],
        addenda=files["addenda"],
        proof=files["proof"],
        head=files["head"],
    )


async def test_a_full_run_over_two_nodes_closes_and_verifies_offline(
    origin: ErasureNode, peer: ErasureNode, tmp_path: Path
) -> None:
    with trio.fail_after(LIMIT):
        _, a1 = await spread(origin, peer)

        done = await requests.erase(origin.ctx, request(agent(a1)))
        assert (done.state, done.receipts_have, done.receipts_of) == ("certified", 0, 1)
        told = await carry(origin, peer)
        assert told[:3] == [
            ("gossip.fence", "applied"),
            ("erasure.notice", "applied"),
            ("erasure.notice", "already"),
        ]
        assert len(peer.graph) == 0
        await settle_all(peer)
        assert await carry(peer, origin, Topic.DOCUMENT) == [("erasure.document", "accepted")]

        closed = await requests.status(origin.ctx, done.erasure_id or "")
        assert (closed.state, closed.receipts_have) == ("closed", 1)
        assert closed.certificate == done.certificate
        documents = await requests.documents(origin.ctx, done.erasure_id or "")
        receipt = documents["receipts"][peer.id.hex()]
        assert counts(receipt)["pg.memories"] == 2
        assert predicate(receipt)["status"] == "applied"
        report = verified(tmp_path / "files", documents)
        assert (report.causes, report.verdict) == ([], Verdict.PENDING)
        assert {item.kind for item in report.pending} == {
            PendingKind.PHYSICAL,
            PendingKind.BACKUP,
            PendingKind.WITNESS,
        }
        for node in (origin, peer):
            assert await node.one("SELECT count(*) FROM memories") == 0
            assert await node.one("SELECT count(*) FROM agent_cards") == 0
        assert {verdict for _, verdict in await carry(origin, peer)} == {"accepted"}
        assert {verdict for _, verdict in await carry(peer, origin)} == {"accepted"}
        documents = await requests.documents(origin.ctx, done.erasure_id or "")
        report = verified(tmp_path / "witnessed", documents)
        assert (report.causes, {item.kind for item in report.pending}) == (
            [],
            {PendingKind.PHYSICAL, PendingKind.BACKUP},
        )


async def test_es_25_a_witness_refuses_a_smaller_head_and_a_second_root(
    origin: ErasureNode, peer: ErasureNode
) -> None:
    with trio.fail_after(LIMIT):
        await join([origin, peer])
        for number in range(3):
            await origin.db.transact(
                journal.append,
                origin.ctx.node,
                LedgerKind.OPENED,
                origin.wall(),
                {"erasure_id": f"er_{number}"},
            )
        heads = [row["head"] for row in await origin.sql("SELECT head FROM ledger ORDER BY seq")]
        key = origin.ctx.node.keys.ledger_key()
        payload = head_payload(log_id(key), 4, bytes(32), origin.wall())
        rival = Envelope(payload, HEAD_PAYLOAD, (sign(HEAD_PAYLOAD, payload, key),))

        said = [
            await receipts.record_head(peer.ctx, origin.id, data)
            for data in (heads[3], heads[3], heads[2], rival.to_bytes(), b"{}")
        ]

        assert said == [
            "accepted",
            "duplicate",
            "refused:smaller_head",
            "refused:second_root",
            "refused:malformed",
        ]
        assert await peer.one("SELECT size FROM witnessed_heads") == 4
        assert await carry(peer, origin) == [("ledger.head", "accepted")]
        assert await receipts.record_head(origin.ctx, peer.id, heads[3]) == "refused:bad_signature"


async def test_a_peer_that_never_had_anything_says_so(
    origin: ErasureNode, peer: ErasureNode
) -> None:
    with trio.fail_after(LIMIT):
        p1 = await join([origin, peer])
        a1 = await add_agent(origin, "a1", p1)
        await remember(origin, a1, "never left", p1)

        done = await requests.erase(origin.ctx, request(agent(a1)))
        await carry(origin, peer)
        await settle_all(peer)
        await carry(peer, origin)

        closed = await requests.status(origin.ctx, done.erasure_id or "")
        assert closed.recipients == ((peer.id, "never_had"),)
        assert closed.state == "closed"


async def test_a_home_without_the_project_key_signs_with_the_key_of_the_agent(
    origin: ErasureNode, peer: ErasureNode
) -> None:
    with trio.fail_after(LIMIT):
        p1 = await join([origin, peer])
        a1 = await add_agent(peer, "a1", p1, [origin])
        memory = await remember(peer, a1, "at home on the second node", p1, holders=[origin])
        await copy_to(origin, memory)

        done = await requests.erase(peer.ctx, request(agent(a1)))
        await carry(peer, origin)
        await settle_all(origin)
        await carry(origin, peer)

        assert (await requests.status(peer.ctx, done.erasure_id or "")).state == "closed"
        assert await origin.one("SELECT count(*) FROM memories") == 0


async def test_a_node_without_an_entitled_key_is_refused_and_changes_nothing(
    origin: ErasureNode, peer: ErasureNode
) -> None:
    with trio.fail_after(LIMIT):
        _, a1 = await spread(origin, peer)
        with pytest.raises(NoSigningKey):
            await requests.erase(peer.ctx, request(agent(a1)))
        assert await peer.one("SELECT count(*) FROM live_rows") == 2
        assert await peer.one("SELECT count(*) FROM erasures") == 0


async def test_the_same_notice_again_brings_the_same_receipt(
    origin: ErasureNode, peer: ErasureNode
) -> None:
    with trio.fail_after(LIMIT):
        _, a1 = await spread(origin, peer)
        await requests.erase(origin.ctx, request(agent(a1)))
        await carry(origin, peer, settle=False)
        await settle_all(peer)
        first = await peer.one("SELECT body FROM outbox WHERE topic = 'erasure.document'")

        again = await carry(origin, peer, Topic.FENCE, Topic.NOTICE, settle=False)

        assert {verdict for _, verdict in again} == {"already"}
        rows = await peer.sql("SELECT body FROM outbox WHERE topic = 'erasure.document'")
        assert [row["body"] for row in rows] == [first]


async def test_es_05_a_notice_that_comes_after_a_reopen_removes_the_old_epoch_only(
    origin: ErasureNode, peer: ErasureNode
) -> None:
    with trio.fail_after(LIMIT):
        p1, a1 = await spread(origin, peer)
        await requests.erase(origin.ctx, request(agent(a1)))
        await requests.reopen(origin.ctx, agent(a1))
        fresh = await remember(origin, a1, "written after the reopen", p1, seed=9)
        origin.wall.pass_(seconds=30)
        await copy_to(peer, fresh, seed=9)

        await carry(origin, peer)
        await settle_all(peer)
        await carry(peer, origin)

        assert [row["id"] for row in await peer.sql("SELECT id FROM memories")] == [fresh.id]
        assert await peer.one("SELECT count(*) FROM embeddings") == 1
        assert [one.id for one in peer.graph.residents()] == [fresh.id]
        assert await origin.one("SELECT state FROM erasures") == "closed"


async def test_an_erased_epoch_refuses_a_late_copy(origin: ErasureNode, peer: ErasureNode) -> None:
    with trio.fail_after(LIMIT):
        p1 = await join([origin, peer])
        a1 = await add_agent(origin, "a1", p1, [peer])
        memory = await remember(origin, a1, "on its way", p1)
        await requests.erase(origin.ctx, request(agent(a1)))
        await carry(origin, peer, Topic.FENCE)
        with pytest.raises(ScopeErased):
            await copy_to(peer, memory)
        assert await peer.one("SELECT count(*) FROM memories") == 0


async def test_es_40_at_the_due_day_a_silent_peer_is_unreachable_and_may_answer_late(
    origin: ErasureNode, peer: ErasureNode, tmp_path: Path
) -> None:
    with trio.fail_after(LIMIT):
        _, a1 = await spread(origin, peer)
        done = await requests.erase(origin.ctx, request(agent(a1)))
        assert (await requests.status(origin.ctx, done.erasure_id or "")).recipients == (
            (peer.id, "pending"),
        )
        origin.wall.pass_(days=31)
        await apply.drive(origin.ctx, done.erasure_id or "")
        closed = await requests.status(origin.ctx, done.erasure_id or "")
        assert (closed.state, closed.recipients) == ("closed", ((peer.id, "unreachable"),))

        await carry(origin, peer)
        await settle_all(peer)
        await carry(peer, origin)

        late = await requests.status(origin.ctx, done.erasure_id or "")
        assert late.closure == closed.closure
        assert predicate(late.addenda[0])["kind"] == "late_receipt"
        documents = await requests.documents(origin.ctx, done.erasure_id or "")
        report = verified(tmp_path / "files", documents)
        assert report.causes == []
        assert PendingKind.RECIPIENT not in {item.kind for item in report.pending}


async def test_es_32_a_hold_at_a_peer_pauses_its_run_until_the_release(
    origin: ErasureNode, peer: ErasureNode
) -> None:
    with trio.fail_after(LIMIT):
        _, a1 = await spread(origin, peer)
        held = await peer.one("SELECT id FROM memories LIMIT 1")
        await peer.sql(
            "INSERT INTO erasure_holds (memory_id, ground, placed_by, placed_at, review_at, seq) "
            "VALUES ($1, 'legal', 'officer', now(), now(), 1)",
            held,
        )
        done = await requests.erase(origin.ctx, request(agent(a1)))
        await carry(origin, peer)
        with pytest.raises(HoldInForce):
            await settle_all(peer)
        assert await peer.one("SELECT count(*) FROM memories") == 2
        assert await peer.one("SELECT count(*) FROM live_rows") == 0
        assert len(peer.graph) == 0

        await peer.sql("UPDATE erasure_holds SET released_at = now()")
        await apply.resume(peer.ctx)
        await carry(peer, origin)

        assert await peer.one("SELECT count(*) FROM memories") == 0
        assert (await requests.status(origin.ctx, done.erasure_id or "")).state == "closed"


async def test_a_released_recipient_lets_the_erasure_close(
    origin: ErasureNode, peer: ErasureNode
) -> None:
    with trio.fail_after(LIMIT):
        _, a1 = await spread(origin, peer)
        done = await requests.erase(origin.ctx, request(agent(a1)))

        released = await receipts.release_recipient(origin.ctx, peer.id, decommissioned=True)

        assert released == 1
        closed = await requests.status(origin.ctx, done.erasure_id or "")
        assert (closed.state, closed.recipients) == ("closed", ((peer.id, "expelled"),))
        assert await receipts.release_recipient(origin.ctx, peer.id, decommissioned=True) == 0


async def test_two_origins_answer_each_other_with_receipts(
    origin: ErasureNode, peer: ErasureNode, tmp_path: Path
) -> None:
    with trio.fail_after(LIMIT):
        p1, _ = await spread(origin, peer)
        key = origin.ctx.node.keys.folder / "projects" / f"{p1.hex()}.key"
        copied = peer.ctx.node.keys.folder / "projects" / f"{p1.hex()}.key"
        copied.write_bytes(key.read_bytes())
        copied.chmod(0o600)

        ours = await requests.erase(origin.ctx, request(project(p1)))
        theirs = await requests.erase(peer.ctx, request(project(p1)))
        assert ours.erasure_id == theirs.erasure_id
        for _ in range(2):
            await carry(origin, peer)
            await carry(peer, origin)

        for number, node in enumerate((origin, peer)):
            told = await requests.status(node.ctx, ours.erasure_id or "")
            assert told.state == "closed"
            documents = await requests.documents(node.ctx, ours.erasure_id or "")
            own = {
                name: data for name, data in documents["receipts"].items() if name != node.id.hex()
            }
            assert len(own) == 1
            files = {
                **documents,
                "receipts": own,
                "notices": [
                    one
                    for one in documents["notices"]
                    if predicate(one)["node_id"] == node.id.hex()
                ],
            }
            assert verified(tmp_path / str(number), files).causes == []


async def test_es_29_a_member_of_another_project_changes_nothing(
    origin: ErasureNode, peer: ErasureNode
) -> None:
    """The peer belongs to p1 and tries to end p2, whose key it does not have."""
    with trio.fail_after(LIMIT):
        await join([origin, peer], "p1")
        p2 = await join([origin], "p2")
        a1 = await add_agent(origin, "a1", p2)
        await remember(origin, a1, "of p2", p2)
        forged = await _forge(origin, peer, p2)
        size = await origin.one("SELECT count(*) FROM ledger")

        said = [
            await deliver(origin, topic, body, peer.id) for topic, body in forged for _ in range(2)
        ]

        assert said == [
            "refused:bad_signature",
            "refused:bad_signature",
            "refused:unknown_fence",
            "refused:unknown_fence",
        ]
        assert await origin.one("SELECT count(*) FROM live_rows") == 1
        assert await origin.one("SELECT count(*) FROM erasures") == 0
        assert await origin.one("SELECT count(*) FROM outbox") == 0
        entries = await origin.sql("SELECT kind, payload FROM ledger WHERE seq > $1", size)
        assert [row["kind"] for row in entries] == ["log_opened", "refused"]
        told = json.loads(entries[1]["payload"])
        assert (told["node_id"], told["what"]) == (peer.id.hex(), "fence")


async def test_a_forged_notice_behind_a_good_fence_is_refused(
    origin: ErasureNode, peer: ErasureNode
) -> None:
    with trio.fail_after(LIMIT):
        _, a1 = await spread(origin, peer)
        await requests.erase(origin.ctx, request(agent(a1)))
        notice = await origin.one("SELECT body FROM outbox WHERE topic = 'erasure.notice' LIMIT 1")
        await carry(origin, peer, Topic.FENCE)
        told = json.loads(notice)
        sig = told["signatures"][0]["sig"]
        told["signatures"][0]["sig"] = ("B" if sig[0] != "B" else "C") + sig[1:]
        forged = json.dumps(told).encode()

        assert await deliver(peer, Topic.NOTICE, forged, origin.id) == "refused:bad_signature"
        assert await deliver(peer, Topic.NOTICE, b"{}", origin.id) == "refused:malformed"
        assert await peer.one("SELECT count(*) FROM erasures") == 0
        kinds = [row["kind"] for row in await peer.sql("SELECT kind FROM ledger ORDER BY seq")]
        assert kinds == ["log_opened", "refused", "refused"]


async def test_a_receipt_settles_its_node_once(origin: ErasureNode, peer: ErasureNode) -> None:
    with trio.fail_after(LIMIT):
        _, a1 = await spread(origin, peer)
        done = await requests.erase(origin.ctx, request(agent(a1)))
        await carry(origin, peer)
        await settle_all(peer)
        receipt = await peer.one("SELECT body FROM outbox WHERE topic = 'erasure.document'")

        first = await receipts.record_document(origin.ctx, peer.id, receipt)
        second = await receipts.record_document(origin.ctx, peer.id, receipt)

        assert (first, second) == ("accepted", "duplicate")
        assert await origin.one("SELECT count(*) FROM ledger WHERE kind = 'receipt'") == 1
        assert (await requests.status(origin.ctx, done.erasure_id or "")).state == "closed"


async def test_i16_no_document_or_entry_holds_the_raw_id_of_the_agent(
    origin: ErasureNode, peer: ErasureNode
) -> None:
    with trio.fail_after(LIMIT):
        _, a1 = await spread(origin, peer)
        await requests.erase(origin.ctx, request(agent(a1)))
        await carry(origin, peer)
        await settle_all(peer)
        await carry(peer, origin)
        await carry(origin, peer)
        for node in (origin, peer):
            kept = [row["payload"] for row in await node.sql("SELECT payload FROM ledger")]
            kept += [
                Envelope.from_bytes(row["envelope"]).payload
                for row in await node.sql("SELECT envelope FROM erasure_documents")
            ]
            kept.append((node.ctx.ledger_dir / "ledger.jsonl").read_bytes())
            assert len(kept) > 5
            for data in kept:
                assert a1 not in data
                assert a1.hex().encode() not in data
            assert await node.one("SELECT count(*) FROM erasure_items WHERE rid IS NOT NULL") == 0
            assert await node.one("SELECT count(*) FROM scopes WHERE ext_id = $1", a1) == 0


async def _forge(origin: ErasureNode, peer: ErasureNode, p2: bytes) -> list[tuple[Topic, bytes]]:
    """Fence and notice for p2 with the peer's own keys."""
    node = peer.ctx.node
    handle = node.handle(project(p2))
    about = leaves.erasure_id(node.mesh_id, handle, 1)
    stamp = node.clock.now()
    fence = records.seal(
        node.keys.operator_key(),
        records.DOMAIN_FENCE,
        records.FenceBody(
            scope_kind="project",
            scope_handle=handle,
            epoch_floor=1,
            hlc_floor=clock.to_bytes(stamp),
            hlc=clock.to_bytes(stamp),
            origin=node.node_id,
            nonce=bytes(16),
            erasure_id=about,
        ),
    )
    notice = seal(
        Notice(
            mesh_id=node.mesh_id,
            node_id=node.node_id,
            scope=ScopeRef(project(p2).kind, handle, 1),
            hlc_floor=stamp,
            ids_n=0,
            ids_root=leaves.id_set_root([]),
            certificate_sha256=None,
            issued_at=peer.wall(),
        ),
        node.keys.erasure_key(),
    )
    return [(Topic.FENCE, fence), (Topic.NOTICE, notice.to_bytes())]


async def test_frames_leave_in_the_order_fence_notice_document_head(
    origin: ErasureNode, peer: ErasureNode
) -> None:
    with trio.fail_after(LIMIT):
        _, a1 = await spread(origin, peer)
        await requests.erase(origin.ctx, request(agent(a1)))
        frames = await origin.db.read(outbox.ready, peer.id, origin.wall(), 100)
        assert [frame.topic for frame in frames] == [
            "gossip.fence",
            "erasure.notice",
            "erasure.notice",
            "erasure.document",
            "ledger.head",
        ]
        assert all(len(frame.subject) <= 64 for frame in frames)
