"""Listening and dialling over TCP.

A stranger costs one slot of a small pool for at most the handshake deadline. A link that fails
ends alone; the listener goes on. What flows over a link is the business of the handler; frames
and types are that of `gossip/wire`, the opening that of `gossip/greeting.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator

import trio

from gossip.channel import LinkError, PeerChannel
from gossip.greeting import Greeting, address_text
from gossip.links import Links, PeerRefused, PeerUnreachable
from gossip.wire.codec import WireError
from storage.errors import InvalidInput, MnemeshError, StartRefused
from storage.model import NodeId

log = logging.getLogger(__name__)


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
        task_status.started(tuple(address_text(one.socket.getsockname()) for one in listeners))


async def dial(address: str, links: Links, peer_id: NodeId | None = None) -> PeerChannel:
    """Open a link to `address`; `peer_id` None takes any admitted node that answers there.

    The caller closes it. Raises PeerUnreachable (try later), PeerRefused with the peer's reason
    (`certificate_not_admitted` when the peer hung up instead of answering the hello),
    PeerUntrusted with this side's reason, WireError when the peer broke the rules, InvalidInput
    for what is no address.
    """
    host, port = parse_address(address)
    if not host:
        raise InvalidInput(f"an address to dial needs a host: {address!r}")
    limits = links.limits
    try:
        with trio.fail_after(limits.connect_s):
            tcp = await trio.open_tcp_stream(host, port)
    except (OSError, ValueError, trio.TooSlowError) as error:
        raise PeerUnreachable("connect") from error
    stream = trio.SSLStream(tcp, links.admitted.client, https_compatible=False)
    kept = False
    try:
        with trio.fail_after(limits.handshake_s):
            greeting = Greeting(links, tcp, stream, outbound=True)
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
    except* MnemeshError as group:
        log.info("a link ended: %s", next(_codes(group)))
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
                    return await Greeting(links, tcp, stream, outbound=False).answer()
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


def _codes(group: BaseExceptionGroup[MnemeshError]) -> Iterator[str]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _codes(error)
        else:
            yield error.code
