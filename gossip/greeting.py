"""The opening of a link: TLS, the checks that TLS does not make, and the exchange of hellos.

A TLS 1.3 client that is refused still sees its own handshake succeed, hence nothing counts
before the peer's Accepted. Used by `gossip/transport.py`, which sets the deadline and closes
the connection when the opening fails.
"""

from __future__ import annotations

import secrets
import ssl
from contextlib import suppress
from typing import NoReturn

import trio

from gossip.channel import OutOfTurn, PeerChannel
from gossip.links import Links, PeerRefused, PeerUnreachable, PeerUntrusted
from gossip.tls import validity_fault
from gossip.wire.codec import WireError, decode, encode
from gossip.wire.frames import FrameReader, FrameTimeout, StreamEnded, write_frame
from gossip.wire.handshake import judge
from gossip.wire.messages import Accepted, Bye, Hello, Message
from storage.model import NodeId


class Greeting:
    """One new connection, from its first byte to an open channel.

    The dialler says Hello; the listener answers Bye, or Accepted and its own Hello; the dialler
    answers that with Accepted or Bye.
    """

    def __init__(
        self,
        links: Links,
        tcp: trio.SocketStream,
        stream: trio.SSLStream[trio.SocketStream],
        *,
        outbound: bool,
    ) -> None:
        self.links = links
        self.tcp = tcp
        self.stream = stream
        self.outbound = outbound
        self.reader = FrameReader(stream)
        self.own = links.hello(secrets.token_bytes(16))

    async def ask(self, expected: NodeId | None) -> PeerChannel:
        """The dialling side."""
        peer_id = await self._prove(expected)
        try:
            await self._say(self.own)
            answer = await self._hear()
        except StreamEnded:
            raise PeerRefused("certificate_not_admitted") from None
        self._check_answer(answer)
        try:
            hello = await self._hear()
            if not isinstance(hello, Hello):
                raise OutOfTurn()
            await self._judge(hello, peer_id)
        except StreamEnded:
            raise PeerUnreachable("ended") from None
        return self._channel(peer_id, hello)

    async def answer(self) -> PeerChannel:
        """The listening side."""
        peer_id = await self._prove(None)
        try:
            hello = await self._hear()
            if isinstance(hello, Bye):
                raise PeerRefused(hello.reason)
            if not isinstance(hello, Hello):
                raise OutOfTurn()
        except WireError as error:
            await self._say_if_heard(Bye(error.code))
            raise
        if len(self.links.live(peer_id)) >= self.links.limits.per_peer:
            await self._refuse("too_many_links")
        await self._judge(hello, peer_id)
        await self._say(self.own)
        self._check_answer(await self._hear())
        return self._channel(peer_id, hello)

    async def _prove(self, expected: NodeId | None) -> NodeId:
        """Handshake, then the checks of the certificate that TLS alone does not make."""
        try:
            await self.stream.do_handshake()
        except trio.BrokenResourceError as error:
            if isinstance(error.__cause__, ssl.SSLCertVerificationError):
                raise PeerUntrusted("certificate_not_admitted") from None
            raise PeerUnreachable("tls") from None
        certificate: bytes | None = self.stream.getpeercert(binary_form=True)
        peer_id = self.links.admitted.peer(certificate)
        if certificate is None or peer_id is None:
            await self._refuse_unheard("certificate_not_admitted")
        fault = validity_fault(certificate, self.links.wall())
        if fault is not None:
            await self._refuse_unheard(fault)
        if expected is not None and peer_id != expected:
            await self._refuse_unheard("another_node")
        return peer_id

    async def _refuse_unheard(self, reason: str) -> NoReturn:
        """Refuse before the peer's words count: what it sent is read away, never decoded."""
        if not self.outbound:
            await self.reader.read(
                timeout=self.links.limits.handshake_s, idle=self.links.limits.handshake_s
            )
        await self._refuse(reason)

    async def _refuse(self, reason: str) -> NoReturn:
        await self._say_if_heard(Bye(reason))
        raise PeerUntrusted(reason)

    async def _say_if_heard(self, bye: Bye) -> None:
        with suppress(StreamEnded, FrameTimeout):
            await self._say(bye)

    async def _judge(self, hello: Hello, peer_id: NodeId) -> None:
        verdict = judge(
            hello,
            own=self.own,
            peer_id=peer_id,
            admitted=self.links.admitted.nodes,
            allowed=self.links.projects_of(peer_id),
        )
        if isinstance(verdict, Bye):
            await self._refuse(verdict.reason)
        await self._say(verdict)

    def _check_answer(self, answer: Message) -> None:
        if isinstance(answer, Bye):
            raise PeerRefused(answer.reason)
        if not isinstance(answer, Accepted) or answer.nonce != self.own.nonce:
            raise OutOfTurn()

    def _channel(self, peer_id: NodeId, hello: Hello) -> PeerChannel:
        """The open link; the pin is looked at again, it may have gone during the hellos."""
        links = self.links
        if links.admitted.peer(self.stream.getpeercert(binary_form=True)) != peer_id:
            raise PeerUntrusted("not_admitted")
        channel = PeerChannel(
            self.stream,
            self.reader,
            peer_id=peer_id,
            hello=hello,
            own=self.own,
            outbound=self.outbound,
            address=address_text(self.tcp.socket.getpeername()),
            allowed=lambda: links.projects_of(peer_id),
            limits=links.limits,
            meter=links.meter,
            sever=self.tcp.socket.close,
            ended=links.ended,
        )
        links.opened(channel)
        return channel

    async def _say(self, message: Message) -> None:
        frame = encode(message)
        await write_frame(self.stream, frame, self.links.limits.handshake_s)
        self.links.meter("out", type(message).__name__, len(frame))

    async def _hear(self) -> Message:
        limit = self.links.limits.handshake_s
        frame = await self.reader.read(timeout=limit, idle=limit)
        message = decode(frame)
        self.links.meter("in", type(message).__name__, len(frame))
        return message


def address_text(address: tuple[str, int] | tuple[str, int, int, int]) -> str:
    """`host:port` of a socket address, IPv6 in brackets."""
    host, port = address[0], address[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
