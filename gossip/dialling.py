"""Keeps a link to every member whose address is known, and to the configured addresses.

Dead members are dialled for ever, with back-off. An address from the configuration is dialled
until it is known who answers there; after that only while this node has no link.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import trio

from gossip.channel import PeerChannel
from gossip.limits import Standing
from gossip.mesh import Mesh
from gossip.transport import dial
from storage.errors import MnemeshError
from storage.model import NodeId

log = logging.getLogger(__name__)

DIAL_S = 1.0
DIAL_MAX_S = 60.0

Handler: TypeAlias = Callable[[PeerChannel], Awaitable[None]]


@dataclass(slots=True)
class Dialling:
    """Whom to dial and when. The key of a target is its node id, or an address without one."""

    mesh: Mesh
    busy: set[NodeId | str] = field(default_factory=set)
    behind: dict[str, NodeId] = field(default_factory=dict)
    backoff: dict[NodeId | str, tuple[float, float]] = field(default_factory=dict)

    def targets(self) -> list[tuple[NodeId | str, str, NodeId | None]]:
        """(key, address, node if known) of links that are missing and may be tried now."""
        mesh = self.mesh
        found: list[tuple[NodeId | str, str, NodeId | None]] = []
        known: set[str] = set()
        for node_id, entry in mesh.access.current.nodes().items():
            if not entry.addr:
                continue
            known.add(entry.addr)
            if node_id != mesh.node.node_id:
                found.append((node_id, entry.addr, node_id))
        if mesh.access.current.projects:
            own = {mesh.address(), *mesh.bound}
            found += [
                (address, address, self.behind.get(address))
                for address in mesh.settings.peers
                if address not in known and address not in own
            ]
        return [target for target in found if self._missing(*target)]

    def _missing(self, key: NodeId | str, _: str, peer: NodeId | None) -> bool:
        if key in self.busy or self.backoff.get(key, (0.0, 0.0))[0] > trio.current_time():
            return False
        if peer is None:
            return True
        return not self.mesh.links.live(peer) and (
            self.mesh.standing(peer) is not Standing.DISCONNECT
        )

    async def one(
        self, key: NodeId | str, address: str, peer: NodeId | None, handler: Handler
    ) -> None:
        """Dial and stay until the link ends; whatever happens ends here."""
        try:
            channel = await dial(address, self.mesh.links, peer)
            try:
                self.backoff.pop(key, None)
                if isinstance(key, str):
                    self.behind[key] = channel.peer_id
                await handler(channel)
            finally:
                await channel.aclose()
        except MnemeshError as error:
            self._later(key)
            log.info("a peer cannot be reached: %s", error.code)
        except OSError as error:
            self._later(key)
            log.info("a peer cannot be reached: %s", type(error).__name__)
        except Exception:
            self._later(key)
            log.exception("dialling a peer failed; the node goes on")
        finally:
            self.busy.discard(key)

    def _later(self, key: NodeId | str) -> None:
        wait = min(DIAL_MAX_S, self.backoff.get(key, (0.0, DIAL_S / 2))[1] * 2)
        jitter = self.mesh.rng.uniform(0.8, 1.2)
        self.backoff[key] = (trio.current_time() + wait * jitter, wait)
        if isinstance(key, str):
            self.behind.pop(key, None)


async def run(mesh: Mesh, handler: Handler) -> None:
    """Dial what is missing each second, and at once when members are new, until cancelled."""
    state = Dialling(mesh)
    async with trio.open_nursery() as nursery:
        while True:
            due = mesh.dial_due
            for key, address, peer in state.targets():
                state.busy.add(key)
                nursery.start_soon(state.one, key, address, peer, handler)
            with trio.move_on_after(DIAL_S):
                await due.wait()
