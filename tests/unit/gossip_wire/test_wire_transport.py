"""Links over real loopback sockets: who gets in, who is cut, and what the other side learns."""

from __future__ import annotations

import ssl
import tracemalloc
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta

import pytest
import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import gossip.tls
from gossip.channel import LinkBusy, LinkClosed, LinkGated, LinkLimits, OutOfTurn
from gossip.links import PeerRefused, PeerUnreachable, PeerUntrusted
from gossip.tls import client_context
from gossip.transport import dial, parse_address, serve
from gossip.wire.codec import FrameTooLarge, Malformed, UnknownMessage, encode
from gossip.wire.frames import FrameTimeout, StreamIdle
from gossip.wire.messages import Bye, Content, Copy, Fetch, Hop, Ping, Tombs
from storage.errors import InvalidInput, StartRefused
from tests.unit.gossip_wire.wire_peers import (
    PROJECT,
    answer_pings,
    certificate,
    connect,
    hello_of,
    identity,
    identity_of,
    key_name,
    links,
    listening,
    served,
    until,
)

A, B, C = identity(), identity(), identity()


def pair(**changed):
    """Links of a listener A and a dialler B that admit each other."""
    ours = links(A, [B.certificate_der], **changed)
    return ours, links(B, [A.certificate_der])


async def raw_tls(address: str, own, *pins: bytes) -> trio.SSLStream:
    host, port = parse_address(address)
    tcp = await trio.open_tcp_stream(host, port)
    return trio.SSLStream(tcp, client_context(own, pins), https_compatible=False)


async def said(stream: trio.SSLStream, data: bytes) -> bytes:
    """What the other side answers to raw bytes before it hangs up."""
    await stream.send_all(data)
    heard = bytearray()
    with suppress(trio.BrokenResourceError):
        while chunk := await stream.receive_some(1000):
            heard += chunk
    await trio.aclose_forcefully(stream)
    return bytes(heard)


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


async def refusal_of(address, on, peer=A.node_id) -> str:
    with pytest.raises(PeerRefused) as caught:
        await connect(address, on, peer)
    return caught.value.reason


async def test_an_admitted_peer_is_accepted_and_both_sides_know_each_other():
    ours, theirs = pair()
    async with listening(ours) as address:
        channel = await connect(address, theirs, A.node_id)
        assert await served(channel)
        (other,) = ours.live(B.node_id)
        assert (channel.peer_id, other.peer_id) == (A.node_id, B.node_id)
        assert (channel.outbound, other.outbound) == (True, False)
        assert (channel.own_nonce, channel.peer_nonce) == (other.peer_nonce, other.own_nonce)
        assert channel.own_nonce != channel.peer_nonce
        assert channel.shared_projects == other.shared_projects == {PROJECT}
        await channel.aclose("done")
        assert theirs.live() == ()


async def test_the_listener_forgets_a_link_whose_peer_said_bye():
    ours, theirs = pair()
    reasons = []

    async def handler(channel):
        with pytest.raises(LinkClosed) as caught:
            await channel.receive()
        reasons.append(caught.value.reason)

    async with listening(ours, handler) as address:
        channel = await connect(address, theirs, A.node_id)
        await channel.aclose("done")
        await until(lambda: not ours.live())
        assert reasons == ["done"]


async def test_a_handler_that_returns_closes_the_link_with_a_bye():
    ours, theirs = pair()

    async def handler(channel):
        await channel.receive()

    async with listening(ours, handler) as address:
        channel = await connect(address, theirs, A.node_id)
        await channel.send(Ping(1))
        with pytest.raises(LinkClosed, match="closing"):
            await channel.receive()


async def test_a_handler_that_crashes_ends_its_own_link_alone(caplog):
    ours, theirs = pair()

    async def handler(channel):
        message = await channel.receive()
        if message == Ping(13):
            raise RuntimeError("a bug")
        await answer_pings(channel)

    async with listening(ours, handler) as address:
        good = await connect(address, theirs, A.node_id)
        await good.send(Ping(0))
        bad = await connect(address, theirs, A.node_id)
        await bad.send(Ping(13))
        with pytest.raises(LinkClosed):
            await bad.receive()
        assert await served(good)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    caplog.clear()


async def test_a_link_that_ends_inside_nurseries_is_no_error_of_the_node(caplog):
    ours, theirs = pair()

    async def handler(channel):
        async with trio.open_nursery() as outer, trio.open_nursery() as inner:
            inner.start_soon(answer_pings, channel)
            outer.start_soon(trio.sleep_forever)

    with caplog.at_level("INFO", "gossip.transport"):
        async with listening(ours, handler) as address:
            channel = await connect(address, theirs, A.node_id)
            await channel.aclose()
            await until(lambda: not ours.live())
    assert [(one.levelname, one.getMessage()) for one in caplog.records] == [
        ("INFO", "a link ended: link_closed")
    ]


async def test_an_unknown_certificate_is_refused_and_the_client_learns_it():
    ours, theirs = pair()
    stranger = links(C, [A.certificate_der])
    async with listening(ours) as address:
        assert await refusal_of(address, stranger) == "certificate_not_admitted"
        assert await served(await connect(address, theirs, A.node_id))


async def test_a_server_that_is_not_pinned_is_not_trusted():
    ours, _ = pair()
    async with listening(ours) as address:
        with pytest.raises(PeerUntrusted, match="certificate_not_admitted"):
            await connect(address, links(B, [C.certificate_der]))


async def test_another_admitted_node_than_the_dialled_one_is_not_trusted():
    ours, _ = pair()
    theirs = links(B, [A.certificate_der, C.certificate_der])
    async with listening(ours) as address:
        with pytest.raises(PeerUntrusted, match="another_node"):
            await connect(address, theirs, C.node_id)
        channel = await connect(address, theirs)
        assert channel.peer_id == A.node_id


@pytest.mark.parametrize(
    "changed, reason",
    [
        ({"node_id": C.node_id}, "node_id"),
        ({"mesh_id": "other"}, "mesh_id"),
        ({"proto": 9}, "proto"),
        ({"projects": ((b"q" * 16, 1),)}, "no_shared_project"),
    ],
)
async def test_a_hello_that_does_not_fit_the_link_is_refused_with_the_reason(changed, reason):
    ours, _ = pair()
    async with listening(ours) as address:
        theirs = links(B, [A.certificate_der], **changed)
        assert await refusal_of(address, theirs) == reason
        assert ours.live() == ()


async def test_the_dialler_judges_the_listener_too():
    ours = links(A, [B.certificate_der], node_id=C.node_id)
    async with listening(ours) as address:
        with pytest.raises(PeerUntrusted, match="node_id"):
            await connect(address, links(B, [A.certificate_der]), A.node_id)
        await until(lambda: not ours.live())


async def test_a_leaf_minted_by_an_admitted_authority_is_refused(monkeypatch):
    """TLS takes it; the check of the fingerprint does not."""
    root_key, leaf_key = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    root = certificate(root_key, ca=True, cert_sign=True)
    leaf = certificate(leaf_key, signer=root_key, issuer=key_name(root_key))
    monkeypatch.setattr(gossip.tls, "check_admissible", gossip.tls.node_id_of)
    ours = links(A, [root])
    rogue = links(identity_of(leaf_key, leaf), [A.certificate_der])
    async with listening(ours) as address:
        stream = await raw_tls(address, rogue.admitted.identity, A.certificate_der)
        answer = await said(
            stream, framed(encode(hello_of(rogue.admitted.identity.node_id)(b"n" * 16)))
        )
        assert answer == framed(encode(Bye("certificate_not_admitted")))
        assert await refusal_of(address, rogue) == "certificate_not_admitted"
        assert ours.live() == ()


async def test_a_node_that_leaves_the_admitted_set_is_cut_and_does_not_come_back():
    counted: dict[tuple[str, str], int] = {}
    ours = links(A, [B.certificate_der, C.certificate_der], counted=counted)
    theirs, third = links(B, [A.certificate_der]), links(C, [A.certificate_der])
    async with listening(ours) as address:
        cut = await connect(address, theirs, A.node_id)
        kept = await connect(address, third, A.node_id)
        assert await served(cut)
        assert await served(kept)
        assert ours.admit([C.certificate_der]) == {B.node_id}
        with pytest.raises(LinkClosed):
            await cut.receive()
        assert ours.live(B.node_id) == ()
        assert await refusal_of(address, theirs) == "certificate_not_admitted"
        assert await served(kept)
        ours.admit([B.certificate_der, C.certificate_der])
        assert await served(await connect(address, theirs, A.node_id))


async def test_whoever_reads_a_link_that_is_cut_learns_the_reason():
    ours, theirs = pair()
    async with listening(ours) as address, trio.open_nursery() as nursery:
        channel = await connect(address, theirs, A.node_id)

        async def read():
            with pytest.raises(LinkClosed, match="not_admitted"):
                await channel.receive()

        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        theirs.admit([])
        with pytest.raises(LinkClosed, match="not_admitted"):
            await channel.send(Ping(1))


async def test_an_expired_certificate_is_refused_with_its_reason_and_a_skewed_clock_is_borne():
    start = datetime.now(UTC) - timedelta(days=30)
    expired, skewed = identity(start=start, days=20), identity(start=start, days=30)
    ours = links(A, [expired.certificate_der, skewed.certificate_der])
    async with listening(ours) as address:
        old = links(expired, [A.certificate_der])
        assert await refusal_of(address, old) == "certificate_expired"
        channel = await connect(address, links(skewed, [A.certificate_der]), A.node_id)
        assert await served(channel)


async def test_an_expired_listener_is_not_trusted():
    start = datetime.now(UTC) - timedelta(days=30)
    expired = identity(start=start, days=20)
    ours = links(expired, [B.certificate_der])
    async with listening(ours) as address:
        with pytest.raises(PeerUntrusted, match="certificate_expired"):
            await connect(address, links(B, [expired.certificate_der]))


async def test_tls_12_is_refused():
    ours, theirs = pair()
    async with listening(ours) as address:
        host, port = parse_address(address)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        stream = trio.SSLStream(await trio.open_tcp_stream(host, port), context)
        with pytest.raises(trio.BrokenResourceError):
            await stream.do_handshake()
        await trio.aclose_forcefully(stream)
        assert await served(await connect(address, theirs, A.node_id))


async def test_a_client_without_a_certificate_gets_nothing():
    ours, theirs = pair()
    async with listening(ours) as address:
        host, port = parse_address(address)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        stream = trio.SSLStream(
            await trio.open_tcp_stream(host, port), context, https_compatible=False
        )
        assert await said(stream, framed(encode(Ping(1)))) == b""
        assert await served(await connect(address, theirs, A.node_id))


async def test_plain_garbage_does_not_hurt_the_listener():
    ours, theirs = pair()
    async with listening(ours) as address:
        host, port = parse_address(address)
        for garbage in (b"GET / HTTP/1.1\r\n\r\n", bytes(1000), b"\xff" * 1000):
            tcp = await trio.open_tcp_stream(host, port)
            await tcp.send_all(garbage)
            await tcp.aclose()
        assert await served(await connect(address, theirs, A.node_id))


FIRST_FRAMES = {
    "garbage": (b"\x00\x00\x00\x05\xc1\xff\x00\x01\x02", "malformed"),
    "unknown message": (framed(b"\x91\xcd\x27\x0f"), "unknown_message"),
    "nesting bomb": (framed(b"\x91" * 60_000), "malformed"),
    "nothing": (bytes(4), "frame_empty"),
    "not a hello": (framed(encode(Ping(1))), "out_of_turn"),
}


@pytest.mark.parametrize("sent, code", FIRST_FRAMES.values(), ids=FIRST_FRAMES.keys())
async def test_a_bad_first_frame_is_answered_by_bye(sent, code):
    ours, theirs = pair()
    async with listening(ours) as address:
        stream = await raw_tls(address, B, A.certificate_der)
        assert await said(stream, sent) == framed(encode(Bye(code)))
        assert ours.live() == ()
        assert await served(await connect(address, theirs, A.node_id))


async def test_a_header_of_four_gigabytes_is_refused_at_once_with_flat_memory():
    ours, _ = pair()
    async with listening(ours) as address:
        stream = await raw_tls(address, B, A.certificate_der)
        await stream.do_handshake()
        tracemalloc.start()
        try:
            answer = await said(stream, b"\xff\xff\xff\xff")
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert answer == framed(encode(Bye("frame_too_large")))
        assert peak < 512 * 1024


@pytest.mark.parametrize(
    "sent, error",
    [
        (b"\xff\xff\xff\xff", FrameTooLarge),
        (framed(b"\x91" * 60_000), Malformed),
        (framed(b"\x91\xcd\x27\x0f"), UnknownMessage),
        (framed(encode(hello_of(B.node_id)(b"n" * 16))), OutOfTurn),
    ],
    ids=["oversized", "cut", "unknown", "second hello"],
)
async def test_a_broken_rule_on_an_open_link_closes_it_and_the_peer_is_told(sent, error):
    ours, theirs = pair()
    caught = []

    async def handler(channel):
        try:
            await channel.receive()
        except error as seen:
            caught.append(seen)

    async with listening(ours, handler) as address:
        channel = await connect(address, theirs, A.node_id)
        await channel._stream.send_all(sent)
        with pytest.raises(LinkClosed, match=error.code):
            await channel.receive()
    assert [type(seen) for seen in caught] == [error]


async def test_a_stalled_half_frame_hits_its_deadline_while_another_peer_is_served():
    ours = links(
        A, [B.certificate_der, C.certificate_der], limits=LinkLimits(frame_s=0.3, idle_s=10)
    )
    ended = []

    async def handler(channel):
        try:
            await answer_pings(channel)
        except FrameTimeout:
            ended.append(channel.peer_id)

    async with listening(ours, handler) as address:
        slow = await connect(address, links(B, [A.certificate_der]), A.node_id)
        await slow._stream.send_all(b"\x00\x00\x01\x00half")
        other = await connect(address, links(C, [A.certificate_der]), A.node_id)
        assert await served(other)
        with pytest.raises(LinkClosed, match="frame_timeout"):
            await slow.receive()
        assert await served(other)
    assert ended == [B.node_id]


async def test_a_silent_link_ends_at_the_idle_deadline():
    ours, _ = pair()
    theirs = links(B, [A.certificate_der], limits=LinkLimits(idle_s=0.2))
    async with listening(ours) as address:
        channel = await connect(address, theirs, A.node_id)
        with pytest.raises(StreamIdle):
            await channel.receive()
        assert channel.closed


async def test_stalled_handshakes_fill_only_their_pool_and_leave_it_at_the_deadline():
    counted: dict[tuple[str, str], int] = {}
    limits = LinkLimits(handshake_s=0.5, half_open=3)
    ours = links(A, [B.certificate_der], limits=limits, counted=counted)
    theirs = links(B, [A.certificate_der])
    async with listening(ours) as address:
        early = await connect(address, theirs, A.node_id)
        host, port = parse_address(address)
        stalled = [await trio.open_tcp_stream(host, port) for _ in range(3)]
        await trio.testing.wait_all_tasks_blocked(0.05)
        with pytest.raises(PeerUnreachable):
            await connect(address, theirs, A.node_id)
        assert await served(early)
        await until(lambda: counted.get(("refused", "handshake_timeout")) == 3)
        assert counted["refused", "half_open"] == 1
        assert await served(await connect(address, theirs, A.node_id))
        for stream in stalled:
            await stream.aclose()


async def test_one_source_gets_only_its_share_of_the_pool():
    ours, _ = pair(limits=LinkLimits(half_open=10, half_open_per_source=2))
    with ExitStack() as slots:
        taken = [slots.enter_context(ours.half_open(source)) for source in "aaab"]
        assert taken == [True, True, False, True]
    with ours.half_open("a") as again:
        assert again


async def test_a_peer_gets_a_bounded_number_of_links():
    ours, theirs = pair(limits=LinkLimits(per_peer=2))
    async with listening(ours) as address:
        open_links = [await connect(address, theirs, A.node_id) for _ in range(2)]
        assert [await served(channel) for channel in open_links] == [True, True]
        assert await refusal_of(address, theirs) == "too_many_links"


async def test_a_send_to_a_peer_that_does_not_read_ends_the_link_in_time():
    ours, _ = pair()
    theirs = links(B, [A.certificate_der], limits=LinkLimits(send_s=0.3))

    async def handler(channel):
        await trio.sleep_forever()

    async with listening(ours, handler) as address:
        channel = await connect(address, theirs, A.node_id)

        async def flood():
            while True:
                await channel.send(Content(bytes(32), 49_152, 0, bytes(49_152)))

        with pytest.raises(LinkClosed):
            await flood()
        assert channel.closed
        assert theirs.live() == ()


async def test_the_number_of_waiting_senders_is_bounded():
    ours, _ = pair()
    theirs = links(B, [A.certificate_der], limits=LinkLimits(waiting_senders=1))
    async with listening(ours) as address, trio.open_nursery() as nursery:
        channel = await connect(address, theirs, A.node_id)
        async with channel._writing:
            nursery.start_soon(channel.send, Ping(1))
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(LinkBusy):
                await channel.send(Ping(2))
        assert not channel.closed


async def test_a_send_cancelled_before_its_turn_leaves_the_link_whole():
    ours, theirs = pair()
    async with listening(ours) as address:
        channel = await connect(address, theirs, A.node_id)
        async with channel._writing, trio.open_nursery() as nursery:
            nursery.start_soon(channel.send, Ping(7))
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert await served(channel, 8)


async def test_frames_of_many_senders_do_not_mix():
    ours, theirs = pair()
    async with listening(ours) as address, trio.open_nursery() as nursery:
        channel = await connect(address, theirs, A.node_id)
        for seq in range(50):
            nursery.start_soon(channel.send, Ping(seq))
        answers = {(await channel.receive()).seq for _ in range(50)}
        assert answers == set(range(50))


async def test_c_09_no_content_passes_a_link_without_the_tombstone_gate():
    counted: dict[tuple[str, str], int] = {}
    ours = links(A, [B.certificate_der], counted=counted)
    theirs = links(B, [A.certificate_der], features=())
    received = []
    copy = Copy(b"deleted long ago", bytes(64), Hop(0, 0, 0, 0, 0, ()), False)

    async def handler(channel):
        assert channel.tombstones_only
        with pytest.raises(LinkGated):
            await channel.send(copy)
        with pytest.raises(LinkGated):
            await channel.send(Fetch((bytes(32),)))
        await channel.send(Tombs((b"record",), 1))
        received.append(await channel.receive())
        await channel.receive()

    async with listening(ours, handler) as address:
        channel = await connect(address, theirs, A.node_id)
        assert await channel.receive() == Tombs((b"record",), 1)
        for _ in range(24):
            await channel.send(copy)
        await channel.send(Ping(1))
        await channel.aclose()
        await until(lambda: not ours.live())
    assert received == [Ping(1)]
    assert counted["gated", "Copy"] == 24


async def test_frames_and_refusals_are_counted():
    counted: dict[tuple[str, str], int] = {}
    ours = links(A, [B.certificate_der], counted=counted)
    async with listening(ours) as address:
        assert await served(await connect(address, links(B, [A.certificate_der]), A.node_id))
        await refusal_of(address, links(C, [A.certificate_der]))
        await refusal_of(address, links(B, [A.certificate_der], proto=7))
        await until(lambda: ("refused", "proto") in counted)
    assert counted["in", "Ping"] == counted["out", "Pong"] == 1
    assert counted["refused", "certificate_not_admitted"] == 1


async def test_nobody_at_the_address_is_unreachable():
    listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    port = listener.socket.getsockname()[1]
    await listener.aclose()
    with trio.fail_after(60), pytest.raises(PeerUnreachable, match="connect"):
        await dial(f"127.0.0.1:{port}", links(B, [A.certificate_der]))


@pytest.mark.parametrize("host", ["a..b", "nul\0byte", "x" * 300, "-"])
async def test_a_host_that_cannot_exist_is_unreachable(host):
    with trio.fail_after(60), pytest.raises(PeerUnreachable, match="connect"):
        await dial(f"{host}:3851", links(B, [A.certificate_der]))


async def test_an_address_without_a_host_is_not_dialled():
    with trio.fail_after(60), pytest.raises(InvalidInput, match="host"):
        await dial(":3851", links(B, [A.certificate_der]))


async def test_a_listener_that_never_answers_is_unreachable_at_the_deadline():
    listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    port = listener.socket.getsockname()[1]
    theirs = links(B, [A.certificate_der], limits=LinkLimits(handshake_s=0.2))
    with trio.fail_after(60), pytest.raises(PeerUnreachable, match="handshake_timeout"):
        await dial(f"127.0.0.1:{port}", theirs)
    await listener.aclose()


async def test_an_address_in_use_refuses_the_start():
    ours, _ = pair()
    async with listening(ours) as address:
        with pytest.raises(StartRefused, match=r"gossip\.listen"):
            await serve(address, ours, answer_pings)


async def test_stopping_the_listener_says_bye():
    ours, theirs = pair()
    async with listening(ours) as address:
        channel = await dial(address, theirs, A.node_id)
        assert await served(channel)
    with trio.fail_after(60), pytest.raises(LinkClosed, match="closing"):
        await channel.receive()
    assert ours.live() == theirs.live() == ()


@pytest.mark.parametrize("text", ["", "host", "host:", "host:x", "host:70000", "::1:80", "h:-1"])
def test_an_address_of_another_form_is_refused(text):
    with pytest.raises(InvalidInput, match="address"):
        parse_address(text)


@pytest.mark.parametrize(
    "text, address",
    [("h:1", ("h", 1)), ("[::1]:3851", ("::1", 3851)), (":0", ("", 0))],
)
def test_addresses_are_parsed(text, address):
    assert parse_address(text) == address
