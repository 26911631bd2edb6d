"""Records and ids that every layer speaks of.

Ids are 16 raw bytes in memory and in tables, UUID text at the API, lower hex in documents.
The records are plain values: no IO, no clock, no randomness.
"""

from __future__ import annotations

import hmac
import uuid
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from hashlib import sha256
from typing import TypeAlias

import msgspec

from storage.errors import InvalidInput

MemoryId: TypeAlias = bytes
AgentId: TypeAlias = bytes
ProjectId: TypeAlias = bytes
NodeId: TypeAlias = bytes
Handle: TypeAlias = bytes
Hlc: TypeAlias = int
"""Hybrid logical clock stamp: milliseconds since 1970 << 16 | counter."""

ID_BYTES = 16
HANDLE_BYTES = 32


class MemoryKind(StrEnum):
    CELL = "cell"
    L1 = "l1"
    L2 = "l2"
    BEACON = "beacon"
    AGENT = "agent"


EXEMPT_KINDS = frozenset({MemoryKind.BEACON, MemoryKind.L2, MemoryKind.AGENT})
"""Kinds that eviction never takes out of the hot graph."""


class Visibility(StrEnum):
    GLOBAL = "global"
    PRIVATE = "private"
    ARCHIVED = "archived"


class ScopeKind(StrEnum):
    AGENT = "agent"
    PROJECT = "project"


@dataclass(frozen=True, slots=True)
class Scope:
    """Agent(id) or Project(id): what an erasure covers."""

    kind: ScopeKind
    id: bytes

    def handle(self, mesh_key: bytes) -> Handle:
        """The 32-byte pseudonym that documents and fences carry instead of the raw id.

        HMAC-SHA-256(mesh handle key, kind || 0x00 || id); every member of the mesh holds the
        key, so each can match an incoming diff.
        """
        return scope_handle(mesh_key, self.kind, self.id)


def scope_handle(mesh_key: bytes, kind: str, raw_id: bytes) -> Handle:
    """See `Scope.handle`; takes any id bytes so that published test vectors fit."""
    return hmac.new(mesh_key, kind.encode("ascii") + b"\x00" + raw_id, sha256).digest()


class ReadPolicy(StrEnum):
    ISOLATED = "isolated"
    SHARED = "shared"
    GROUP = "group"


@dataclass(frozen=True, slots=True)
class Memory:
    """One row of `memories`, without its vector."""

    id: MemoryId
    kind: MemoryKind
    agent_id: AgentId
    project_id: ProjectId | None
    content: str
    normalized_content: str
    content_hash: str | None
    created_at: datetime
    updated_at: datetime
    origin_node: NodeId
    agent_epoch: int
    project_epoch: int
    hlc: Hlc
    hash_version: int = 1
    scope_label: str | None = None
    type: str = "fact"
    tags: tuple[str, ...] = ()
    who: str | None = None
    importance: float = 0.5
    pinned: bool = False
    visibility: Visibility = Visibility.GLOBAL
    source_type: str | None = None
    source_id: str | None = None
    idempotency_key: str | None = None
    seen_count: int = 1
    superseded_by: MemoryId | None = None
    superseded_at: datetime | None = None
    expires_at: datetime | None = None
    deleted_at: datetime | None = None
    announced_at: datetime | None = None
    access_count: int = 0
    updated_by: str = "api"


class Resident(msgspec.Struct, frozen=True, gc=False):
    """What a recall needs of a memory that lives in the hot graph, so that it touches no row.

    A Struct, since a node holds a million: smaller than a dataclass, quicker to make, and nothing
    that the garbage collector must walk. Copies with changes are made by `msgspec.structs.replace`.
    """

    id: MemoryId
    kind: MemoryKind
    agent_id: AgentId
    project_id: ProjectId | None
    visibility: Visibility
    content: str
    created_ms: int
    scope_label: str | None = None
    type: str = "fact"
    tags: tuple[str, ...] = ()
    who: str | None = None
    importance: float = 0.5
    pinned: bool = False
    expires_ms: int | None = None
    superseded: bool = False
    foreign: bool = False


@dataclass(frozen=True, slots=True)
class Reader:
    """On whose behalf a read runs; `visible` decides by it.

    `projects` is the set of projects whose rows may be read; rows without a project need none.
    `group` holds the agents of the reader's policy group.
    """

    agent_id: AgentId
    policy: ReadPolicy = ReadPolicy.ISOLATED
    group: frozenset[AgentId] = frozenset()
    projects: frozenset[ProjectId] = frozenset()


@dataclass(frozen=True, slots=True)
class Holder:
    """A peer that has, or may have, a copy of a memory."""

    memory_id: MemoryId
    peer_id: NodeId
    state: str


@dataclass(frozen=True, slots=True)
class OutboxItem:
    """A durable frame for one peer: tombstone, fence, notice, document or tree head."""

    id: int
    topic: str
    peer: NodeId
    project_id: ProjectId | None
    subject: bytes
    body: bytes
    priority: int
    attempts: int


@dataclass(frozen=True, slots=True)
class AgentProfile:
    """A local agent as its node knows it."""

    id: AgentId
    name: str
    description: str = ""
    read_policy: ReadPolicy = ReadPolicy.ISOLATED
    policy_group: str | None = None
    project_id: ProjectId | None = None
    groups: frozenset[AgentId] = field(default_factory=frozenset)


def id_text(raw: bytes) -> str:
    """UUID text of a 16-byte id, the form of the API and the CLI."""
    return str(uuid.UUID(bytes=raw))


def parse_id(text: str, field_name: str) -> bytes:
    """16 bytes of a UUID written with or without dashes.

    Raises InvalidInput that names the field.
    """
    try:
        return uuid.UUID(text).bytes
    except (ValueError, AttributeError, TypeError) as error:
        raise InvalidInput(f"{field_name} is not an id") from error
