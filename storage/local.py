"""This node, as every layer needs it: who it is, its keys, its clock, its gate."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from storage.clock import HybridClock
from storage.gate import Gate
from storage.keyring import KeyStore, NodeIdentity
from storage.model import Handle, NodeId, Scope


@dataclass(frozen=True, slots=True)
class LocalNode:
    """Values that never change while the process runs.

    `wall` gives an aware UTC time and `random_bytes` the randomness of ids and nonces; tests
    pass their own.
    """

    identity: NodeIdentity
    keys: KeyStore
    clock: HybridClock
    gate: Gate
    mesh_id: str
    wall: Callable[[], datetime]
    random_bytes: Callable[[int], bytes] = secrets.token_bytes

    @property
    def node_id(self) -> NodeId:
        """16 bytes, bound to the node's key."""
        return self.identity.node_id

    def handle(self, scope: Scope) -> Handle:
        """The scope's pseudonym in this mesh."""
        return scope.handle(self.gate.handle_key)

    def new_id(self) -> bytes:
        """16 random bytes for a memory, an agent or a project, marked as a UUID of version 4."""
        return uuid.UUID(bytes=self.random_bytes(16), version=4).bytes
