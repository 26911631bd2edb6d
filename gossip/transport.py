"""Listening and dialling: TCP, TLS, hellos, and the set of links that are open.

A stranger costs one slot of a small pool for at most the handshake deadline. A TLS 1.3 client
that is refused still sees its own handshake succeed, hence nothing counts before the peer's
Accepted. A link that fails ends alone; the listener goes on. What flows over a link is the
business of the handler; frames and types are that of `gossip/wire`.
"""

from __future__ import annotations

import logging
import secrets
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NoReturn

import trio

from gossip.channel import LinkError, LinkLimits, Meter, OutOfTurn, PeerChannel
from gossip.tls import Admitted, validity_fault
from gossip.wire.codec import WireError, decode, encode
from gossip.wire.frames import FrameReader, FrameTimeout, StreamEnded, write_frame
from gossip.wire.handshake import judge
from gossip.wire.messages import Accepted, Bye, Hello, Message
from storage.errors import InvalidInput, StartRefused
from storage.model import NodeId, ProjectId

log = logging.getLogger(__name__)


class PeerUnreachable(LinkError):
    """No link came about."""

    code = "peer_unreachable"


class PeerRefused(LinkError):
    """The peer refused this node."""

    code = "peer_refused"
    retryable = False


class PeerUntrusted(LinkError):
    """This node refused the peer."""

    code = "peer_untrusted"
    retryable = False


def _unmetered(event: str, label: str, amount: int) -> None:
    return None


def _wall() -> datetime:
    return datetime.now(UTC)


@dataclass(slots=True)
class Links:
    """What the listener and all dialling of a node share, and the links that are open.

    `hello(nonce)` makes this node's hello; `projects_of(node)` names the projects whose ACL
    lists that node, asked at each use. Belongs to one trio run.
    """

    admitted: Admitted
    hello: Callable[[bytes], Hello]
    projects_of: Callable[[NodeId], Collection[ProjectId]]
    limits: LinkLimits = field(default_factory=LinkLimits)
    meter: Meter = _unmetered
    wall: Callable[[], datetime] = _wall
    _live: dict[NodeId, list[PeerChannel]] = field(default_factory=dict)
    _half_open: Counter[str] = field(default_factory=Counter)

    def admit(self, certificates: Iterable[bytes]) -> frozenset[NodeId]:
        """Admit exactly these certificates and cut the links of nodes that are out now.

        Returns those nodes. Raises CertificateRefused, and changes nothing then.
        """
        removed = self.admitted.replace(certificates)
        self.cut(removed, "not_admitted")
        return removed

    def cut(self, nodes: Iterable[NodeId], reason: str) -> int:
        """Close every link of these nodes at once; returns how many there were."""
        links = [channel for node in set(nodes) for channel in self._live.get(node, ())]
        for channel in links:
            channel.cut(reason)
        return len(links)

    def live(self, node: NodeId | None = None) -> tuple[PeerChannel, ...]:
        """The open links, of one node or of all."""
        if node is not None:
            return tuple(self._live.get(node, ()))
        return tuple(channel for channels in self._live.values() for channel in channels)

    @contextmanager
    def half_open(self, source: str) -> Iterator[bool]:
        """Takes one of the slots for links without a hello; yields False when none is free."""
        free = (
            self._half_open.total() < self.limits.half_open
            and self._half_open[source] < self.limits.half_open_per_source
        )
        self._half_open[source] += free
        try:
            yield free
        finally:
            self._half_open[source] -= free
            if not self._half_open[source]:
                del self._half_open[source]

    def opened(self, channel: PeerChannel) -> None:
        self._live.setdefault(channel.peer_id, []).append(channel)

    def ended(self, channel: PeerChannel) -> None:
        """Forget a link; one that was never noted is no error."""
        channels = self._live.get(channel.peer_id, [])
        if channel in channels:
            channels.remove(channel)
        if not channels:
            self._live.pop(channel.peer_id, None)


async def serve(
    listen: str,
    links: Links,
    handler: Callable[[PeerChannel], Awaitable[None]],
    *,
    task_status: trio.TaskStatus[tuple[str, ...]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Accept peers on `listen` (`host:port`) until cancelled; started with the bound addresses.

    `handler` runs once per accepted link, in a task of its own; the link is closed when it
    returns or raises. Raises StartRefused when the address cannot be bound.
    """
    host, port = parse_address(listen)
    try:
        listeners = await trio.open_tcp_listeners(port, host=host or None)
    except OSError as error:
        raise StartRefused(f"gossip.listen: cannot listen on {listen}: {error.strerror}") from error

    async def arrive(stream: trio.SocketStream) -> None:
        await _serve_one(stream, links, handler)

    async with trio.open_nursery() as nursery:
        await nursery.start(trio.serve_listeners, arrive, listeners)
        task_status.started(tuple(_name(one.socket.getsockname()) for one in listeners))


async def dial(address: str, links: Links, peer_id: NodeId | None = None) -> PeerChannel:
    """Open a link to `address`; `peer_id` None takes any admitted node that answers there.

    The caller closes it. Raises PeerUnreachable (try later), PeerRefused with the peer's reason
    (`certificate_not_admitted` when the peer hung up instead of answering the hello),
    PeerUntrusted with this side's reason, WireError when the peer broke the rules.
    """
    host, port = parse_address(address)
    limits = links.limits
    try:
        with trio.fail_after(limits.connect_s):
            tcp = await trio.open_tcp_stream(host, port)
    except (OSError, trio.TooSlowError) as error:
        raise PeerUnreachable("connect") from error
    stream = trio.SSLStream(tcp, links.admitted.client, https_compatible=False)
    kept = False
    try:
        with trio.fail_after(limits.handshake_s):
            greeting = _Greeting(links, tcp, stream, outbound=True)
            channel = await greeting.ask(peer_id)
        kept = True
        return channel
    except trio.TooSlowError:
        raise PeerUnreachable("handshake_timeout") from None
    finally:
        if not kept:
            tcp.socket.close()


def parse_address(text: str) -> tuple[str, int]:
    """`host:port` or `[v6]:port`. Raises InvalidInput."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise InvalidInput(f"not an address of the form host:port: {text!r}")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise InvalidInput(f"an IPv6 address needs brackets: {text!r}")
    return host, int(port)


async def _serve_one(
    tcp: trio.SocketStream,
    links: Links,
    handler: Callable[[PeerChannel], Awaitable[None]],
) -> None:
    """One incoming connection from its first byte to its end; raises nothing but Cancelled."""
    try:
        channel = await _welcome(tcp, links)
        if channel is not None:
            try:
                await handler(channel)
            finally:
                await channel.aclose()
    except* (LinkError, WireError) as group:
        log.debug("a link ended: %s", group.exceptions[0])
    except* Exception:
        log.exception("the task of a link failed; the listener goes on")
    finally:
        tcp.socket.close()


async def _welcome(tcp: trio.SocketStream, links: Links) -> PeerChannel | None:
    """The accepted channel of an incoming connection, None when it was refused."""
    try:
        source = str(tcp.socket.getpeername()[0])
    except OSError:
        return None
    reason = "half_open"
    with links.half_open(source) as free:
        if free:
            stream = trio.SSLStream(
                tcp, links.admitted.server, server_side=True, https_compatible=False
            )
            try:
                with trio.fail_after(links.limits.handshake_s):
                    return await _Greeting(links, tcp, stream, outbound=False).answer()
            except trio.TooSlowError:
                reason = "handshake_timeout"
            except PeerRefused:
                reason = "peer_refused"
            except LinkError as error:
                reason = error.reason
            except WireError as error:
                reason = error.code
    links.meter("refused", reason, 1)
    return None


class _Greeting:
    """TLS and the exchange of hellos on one new connection, up to the channel.

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
            address=_name(self.tcp.socket.getpeername()),
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


def _name(address: tuple[str, int] | tuple[str, int, int, int]) -> str:
    host, port = address[0], address[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
