"""What agents and their node say to each other on the agent port.

Every message is a tagged, strictly typed struct with bounded fields; a number once given to a
message stays its own, and fields are only added at the end. Ids are 16 raw bytes, times are
milliseconds since 1970, vectors are little-endian float32. The client hands some of these structs
out as its results, so they carry readable properties. Nothing here does IO.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Annotated, Any, Final, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta

VERSION: Final = 1
MAX_FRAME: Final = 2 << 20
MAX_HELLO: Final = 16 << 10
"""Bytes of a frame before the caller is known."""
MAX_BATCH: Final = 500
MAX_CREDIT: Final = 1_000

RequestId: TypeAlias = Annotated[int, Meta(ge=1, le=(1 << 32) - 1)]
RawId: TypeAlias = Annotated[bytes, Meta(min_length=16, max_length=16)]
Vector: TypeAlias = Annotated[bytes, Meta(min_length=4, max_length=4 * 8192)]
Text: TypeAlias = Annotated[str, Meta(max_length=1 << 20)]
Label: TypeAlias = Annotated[str, Meta(max_length=512)]
Labels: TypeAlias = Annotated[tuple[Label, ...], Meta(max_length=64)]
Milliseconds: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 47)]
Sequence: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Ids: TypeAlias = Annotated[tuple[RawId, ...], Meta(min_length=1, max_length=MAX_BATCH)]


class Part(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A group of fields inside a message."""


class Message(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag_field="t"
):
    """A message; the first element of its array is its number."""


# --- from the agent ---------------------------------------------------------------------------


class Hello(Message, tag=1, frozen=True):
    """The first frame: who calls. Without a token only the node's own user is heard.

    Frames above 16 KiB must wait for the welcome.
    """

    version: Annotated[int, Meta(ge=1, le=1 << 16)]
    agent: Label | None = None
    token: Annotated[str, Meta(max_length=8192)] | None = None


class Draft(Part, frozen=True):
    """A memory to store; see `POST /api/memory/remember` for the fields."""

    content: Text
    project: Label | None = None
    type: Label = "fact"
    tags: Labels = ()
    who: Label | None = None
    importance: float = 0.5
    pinned: bool = False
    visibility: Label = "global"
    scope: Label | None = None
    source_type: Label | None = None
    source_id: Label | None = None
    idempotency_key: Label | None = None
    ttl_ms: Annotated[int, Meta(ge=1, le=1 << 42)] | None = None
    created_ms: Milliseconds | None = None
    vector: Vector | None = None


class Filters(Part, frozen=True):
    """What hits must be like; see `storage/filters.py` for their meaning."""

    agent: Labels = ()
    project: Labels = ()
    kind: Labels = ()
    type: Labels = ()
    tags: Labels = ()
    who: Labels = ()
    since_ms: Milliseconds | None = None
    until_ms: Milliseconds | None = None
    importance_min: float | None = None
    pinned: bool | None = None
    visibility: Label | None = None
    scope: Label | None = None


class Remember(Message, tag=2, frozen=True):
    """Store one memory."""

    id: RequestId
    draft: Draft


class RememberBatch(Message, tag=3, frozen=True):
    """Store several in one commit; each has its own outcome."""

    id: RequestId
    drafts: Annotated[tuple[Draft, ...], Meta(min_length=1, max_length=MAX_BATCH)]


class Recall(Message, tag=4, frozen=True):
    """A question, by text or by a vector of the node's model."""

    id: RequestId
    query: Annotated[str, Meta(max_length=16 << 10)] = ""
    vector: Vector | None = None
    limit: Annotated[int, Meta(ge=1, le=50)] = 10
    fast: bool = False
    superseded: bool = False
    filters: Filters | None = None
    deadline_ms: Annotated[int, Meta(ge=1, le=60_000)] | None = None


class Get(Message, tag=5, frozen=True):
    """One memory."""

    id: RequestId
    memory: RawId


class Forget(Message, tag=6, frozen=True):
    """Remove memories for good, here and at every peer."""

    id: RequestId
    memories: Ids
    reason: Annotated[str, Meta(max_length=1024)] | None = None


class History(Message, tag=7, frozen=True):
    """What happened to a memory."""

    id: RequestId
    memory: RawId


class Ping(Message, tag=8, frozen=True):
    """Is somebody there; also keeps a silent connection open."""

    id: RequestId


class Watch(Message, tag=9, frozen=True):
    """Subscribe to what the node hands to this agent behind a number.

    `after` None starts with what is handed over from now on; a number that was never given is
    refused as `unnumbered`. The node sends at most `credit` memories before more is granted.
    """

    id: RequestId
    after: Sequence | None = None
    credit: Annotated[int, Meta(ge=1, le=MAX_CREDIT)] = 64


class Credit(Message, tag=10, frozen=True):
    """Grant a subscription so many more memories."""

    id: RequestId
    more: Annotated[int, Meta(ge=1, le=MAX_CREDIT)]


class Cancel(Message, tag=11, frozen=True):
    """Give up a request or a subscription; no more is sent about it."""

    id: RequestId


Asked: TypeAlias = (
    Remember | RememberBatch | Recall | Get | Forget | History | Ping | Watch | Credit
)
Request: TypeAlias = Hello | Cancel | Asked


# --- from the node ----------------------------------------------------------------------------


class Welcome(Message, tag=1, frozen=True):
    """The caller is known: as whom, and which vectors the node understands."""

    version: int
    node: RawId
    agent: str
    model: str
    dimension: int
    now_ms: int


class Memory(Part, frozen=True):
    """A stored memory. `agent` and `project` are names where the node knows one, else UUIDs."""

    raw_id: bytes
    kind: str
    agent: str
    content: str
    type: str
    tags: tuple[str, ...]
    importance: float
    pinned: bool
    visibility: str
    created_ms: int
    updated_ms: int
    project: str | None = None
    scope: str | None = None
    who: str | None = None
    source_type: str | None = None
    source_id: str | None = None
    idempotency_key: str | None = None
    expires_ms: int | None = None
    seen_count: int = 1
    superseded_by: bytes | None = None
    foreign: bool = False

    @property
    def id(self) -> str:
        """The id as UUID text, as everywhere else at the API."""
        return str(uuid.UUID(bytes=self.raw_id))

    @property
    def created_at(self) -> datetime:
        """When it was made, aware, UTC."""
        return datetime.fromtimestamp(self.created_ms / 1000, UTC)


class Hit(Part, frozen=True):
    """A memory and why it is an answer: `cosine` and `words` are the parts of `score`."""

    score: float
    source: str
    tier: str
    cosine: float
    words: float
    raw_id: bytes
    content: str
    kind: str
    agent: str
    type: str
    tags: tuple[str, ...]
    importance: float
    pinned: bool
    foreign: bool
    created_ms: int
    project: str | None = None
    scope: str | None = None
    who: str | None = None
    expires_ms: int | None = None

    @property
    def id(self) -> str:
        """The id as UUID text."""
        return str(uuid.UUID(bytes=self.raw_id))

    @property
    def created_at(self) -> datetime:
        """When it was made, aware, UTC."""
        return datetime.fromtimestamp(self.created_ms / 1000, UTC)


class Event(Part, frozen=True):
    """One event of a memory's history; texts are None once it was forgotten or purged."""

    event: str
    at_ms: int
    changed_by: str
    old_content: str | None = None
    new_content: str | None = None
    reason: str | None = None

    @property
    def at(self) -> datetime:
        """When it happened, aware, UTC."""
        return datetime.fromtimestamp(self.at_ms / 1000, UTC)


class Fault(Part, frozen=True):
    """Why one item of a batch was not stored."""

    code: str
    text: str
    retryable: bool = False


class Outcome(Part, frozen=True):
    """What became of one draft of a batch: the id of the memory that stands for it, or a fault."""

    raw_id: bytes | None = None
    deduped: bool = False
    fault: Fault | None = None

    @property
    def id(self) -> str | None:
        """The id as UUID text."""
        return None if self.raw_id is None else str(uuid.UUID(bytes=self.raw_id))


class Remembered(Message, tag=2, frozen=True):
    """The memory that now stands for the draft; `deduped` when it stood already."""

    id: int
    memory: Memory
    deduped: bool


class BatchRemembered(Message, tag=3, frozen=True):
    id: int
    outcomes: tuple[Outcome, ...]


class Answer(Message, tag=4, frozen=True):
    """Hits, best first. `degraded` names searches that failed or were late, or `size`."""

    id: int
    hits: tuple[Hit, ...]
    degraded: tuple[str, ...] = ()

    @property
    def partial(self) -> bool:
        """Whether something that was asked did not answer."""
        return bool(self.degraded)


class Found(Message, tag=5, frozen=True):
    id: int
    memory: Memory


class Forgotten(Message, tag=6, frozen=True):
    """Ids forgotten by this request, and those that were gone already."""

    id: int
    forgotten: tuple[bytes, ...]
    already: tuple[bytes, ...]


class Events(Message, tag=7, frozen=True):
    id: int
    events: tuple[Event, ...]


class Pong(Message, tag=8, frozen=True):
    id: int


class Watching(Message, tag=9, frozen=True):
    """The subscription stands; what follows has numbers above `after`."""

    id: int
    after: int


class Delivery(Message, tag=10, frozen=True):
    """A memory that the node handed to this agent. Resume behind `seq`."""

    id: int
    seq: int
    memory: Memory


class Failed(Message, tag=11, frozen=True):
    """A request was refused; `id` is 0 when the connection ends for it."""

    id: int
    code: str
    text: str
    retryable: bool = False


Reply: TypeAlias = (
    Welcome
    | Remembered
    | BatchRemembered
    | Answer
    | Found
    | Forgotten
    | Events
    | Pong
    | Watching
    | Delivery
    | Failed
)


def moment_ms(moment: datetime | None) -> int | None:
    """Milliseconds since 1970 of an aware time. Raises ValueError for a naive one."""
    if moment is None:
        return None
    if moment.tzinfo is None:
        raise ValueError("a time must carry a time zone")
    return int(moment.timestamp() * 1000)


def vector_bytes(values: Any) -> bytes | None:
    """The wire form of a vector: an array, or any sequence of numbers."""
    if values is None:
        return None
    if isinstance(values, bytes):
        return values
    return np.ascontiguousarray(values, dtype="<f4").tobytes()
