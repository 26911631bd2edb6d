"""The links of one node: what opening one needs, which are open, and how they are cut.

Shared by the listener, by all dialling and by whoever changes the admitted set, so that a node
that leaves the set loses its links in the same step. Does no IO but closing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

from gossip.channel import LinkError, LinkLimits, Meter, PeerChannel
from gossip.tls import Admitted
from gossip.wire.messages import Hello
from storage.model import NodeId, ProjectId


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
