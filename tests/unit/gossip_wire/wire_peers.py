"""Identities, certificates of any shape, and a running listener for the tests of links."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import trio
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import NameOID

from gossip.channel import LinkLimits, PeerChannel
from gossip.links import Links
from gossip.tls import Admitted
from gossip.transport import dial, serve
from gossip.wire.messages import Hello, Ping, Pong
from storage.keyring import NodeIdentity, fingerprint_of, node_id_of

MESH = "test-mesh"
PROJECT = b"p" * 16


def name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def key_name(key: Ed25519PrivateKey) -> str:
    return hashlib.sha256(key.public_key().public_bytes_raw()).hexdigest()[:32]


def certificate(
    key: Ed25519PrivateKey,
    *,
    ca: bool | None = False,
    cert_sign: bool = False,
    usage: bool = True,
    signer: Ed25519PrivateKey | None = None,
    issuer: str | None = None,
    start: datetime | None = None,
    days: int = 3650,
) -> bytes:
    begin = start or datetime.now(UTC) - timedelta(days=1)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name(key_name(key)))
        .issuer_name(name(issuer or key_name(key)))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    if ca is not None:
        builder = builder.add_extension(x509.BasicConstraints(ca=ca, path_length=None), True)
    if usage:
        builder = builder.add_extension(
            x509.KeyUsage(True, False, False, False, False, cert_sign, False, False, False), True
        )
    return builder.sign(signer or key, None).public_bytes(serialization.Encoding.DER)


def identity(**shape: Any) -> NodeIdentity:
    key = Ed25519PrivateKey.generate()
    return identity_of(key, certificate(key, **shape))


def identity_of(key: Ed25519PrivateKey, der: bytes) -> NodeIdentity:
    return NodeIdentity(node_id_of(der), key, der, fingerprint_of(der))


def hello_of(peer: bytes, /, **changed: Any) -> Callable[[bytes], Hello]:
    def make(nonce: bytes) -> Hello:
        fields: dict[str, Any] = {
            "proto": 1,
            "features": ("tomb-gate",),
            "node_id": peer,
            "mesh_id": MESH,
            "nonce": nonce,
            "projects": ((PROJECT, 1),),
            "models": ("m2v",),
            "profile_version": 0,
            "hlc": 0,
            "quarantined": False,
            "listen": "",
        }
        return Hello(**{**fields, **changed})

    return make


def links(
    own: NodeIdentity,
    admitted: Iterable[bytes],
    *,
    limits: LinkLimits | None = None,
    counted: dict[tuple[str, str], int] | None = None,
    **changed: Any,
) -> Links:
    def meter(event: str, label: str, amount: int) -> None:
        if counted is not None:
            counted[event, label] = counted.get((event, label), 0) + 1

    return Links(
        Admitted(own, admitted),
        hello_of(own.node_id, **changed),
        lambda node: {PROJECT},
        limits=limits or LinkLimits(),
        meter=meter,
    )


async def answer_pings(channel: PeerChannel) -> None:
    while True:
        message = await channel.receive()
        if isinstance(message, Ping):
            await channel.send(Pong(message.seq))


@asynccontextmanager
async def listening(
    on: Links, handler: Callable[[PeerChannel], Awaitable[None]] = answer_pings
) -> AsyncIterator[str]:
    """The address of a listener that runs for the block, at most 20 seconds."""
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            addresses = await nursery.start(serve, "127.0.0.1:0", on, handler)
            try:
                yield addresses[0]
            finally:
                while _connected:
                    _connected.pop().cut("the test is over")
            nursery.cancel_scope.cancel()


_connected: list[PeerChannel] = []


async def connect(address: str, on: Links, peer_id: bytes | None = None) -> PeerChannel:
    """`dial`, closed with the listener's block."""
    channel = await dial(address, on, peer_id)
    _connected.append(channel)
    return channel


async def served(channel: PeerChannel, seq: int = 1) -> bool:
    """True when the other side answers a ping."""
    await channel.send(Ping(seq))
    return await channel.receive() == Pong(seq)


async def until(holds: Callable[[], bool]) -> None:
    """Waits for the other side's task; the caller's deadline bounds it."""
    while not holds():  # noqa: ASYNC110 - no event exists for the inside of another task
        await trio.sleep(0.005)
