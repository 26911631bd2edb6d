"""The messages that two peers exchange, and the ceiling of every field.

A frame is one message: an array whose first item is the integer tag. Tags are append-only and
a published message never changes its fields; a different layout is a new message with a new tag.
Signed bodies, certificates of erasure and ACL documents are opaque bytes here, opened elsewhere.
Sizes are bytes for `bytes` and code points for `str`. Nothing in this module does IO.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, TypeAlias

from msgspec import Meta, Struct

KIB = 1024
MAX_FRAME = 64 * KIB
MAX_BODY = 40 * KIB
MAX_CHUNK = 48 * KIB
MAX_OBJECT = 1024 * KIB
MAX_TOMB = 4 * KIB
TOMBS_PER_PAGE = 256
IDS_PER_PAGE = 1024
IDS_PER_FETCH = 64

Id16: TypeAlias = Annotated[bytes, Meta(min_length=16, max_length=16)]
Digest: TypeAlias = Annotated[bytes, Meta(min_length=32, max_length=32)]
Signature: TypeAlias = Annotated[bytes, Meta(min_length=64, max_length=64)]
Prefix: TypeAlias = Annotated[bytes, Meta(min_length=4, max_length=4)]
Cursor: TypeAlias = Annotated[bytes, Meta(max_length=40)]
Chunk: TypeAlias = Annotated[bytes, Meta(max_length=MAX_CHUNK)]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Size: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_OBJECT)]
Millis: TypeAlias = Annotated[int, Meta(ge=0, le=2**47 - 1)]
Ppm: TypeAlias = Annotated[int, Meta(ge=-1_000_000, le=1_000_000)]
Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"\A[ -~]+\Z")]
Reason: TypeAlias = Annotated[str, Meta(max_length=64, pattern=r"\A[ -~]*\Z")]
ShortReason: TypeAlias = Annotated[str, Meta(max_length=48, pattern=r"\A[ -~]*\Z")]
Address: TypeAlias = Annotated[str, Meta(max_length=255, pattern=r"\A[ -~]*\Z")]
MeshId: TypeAlias = Annotated[str, Meta(min_length=1, max_length=64)]


class _Fields(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Positional fields; `repr` names the message and never shows a value."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


class AckStatus(StrEnum):
    STORED = "stored"
    RELAYED = "relayed"
    DUP = "dup"
    REFUSED = "refused"


class DeliveredStatus(StrEnum):
    STORED = "stored"
    DUP = "dup"
    REFUSED = "refused"


class Topic(StrEnum):
    """What a `Deliver` carries; the erasure layer reads it, gossip does not."""

    FENCE = "gossip.fence"
    NOTICE = "erasure.notice"
    DOCUMENT = "erasure.document"
    LEDGER_HEAD = "ledger.head"


class Hello(_Fields, frozen=True, tag=1):
    """Who speaks. First frame of the dialler; the listener's follows its `Accepted`."""

    proto: Count
    features: Annotated[tuple[Name, ...], Meta(max_length=32)]
    node_id: Id16
    mesh_id: MeshId
    nonce: Id16
    projects: Annotated[tuple[tuple[Id16, Count], ...], Meta(max_length=64)]
    models: Annotated[tuple[Name, ...], Meta(max_length=16)]
    profile_version: Count
    hlc: Count
    quarantined: bool
    listen: Address


class Accepted(_Fields, frozen=True, tag=2):
    """The hello that carried this nonce is accepted."""

    nonce: Id16


class Bye(_Fields, frozen=True, tag=3):
    """The sender closes the link, or refuses to open it."""

    reason: Reason


class Busy(_Fields, frozen=True, tag=4):
    """Not now; ask again after `retry_ms`."""

    retry_ms: Millis


class Ping(_Fields, frozen=True, tag=5):
    seq: Count


class Pong(_Fields, frozen=True, tag=6):
    seq: Count


class Hop(_Fields, frozen=True):
    """The unsigned part of a copy, rewritten by every node and clamped by the signed body."""

    energy_milli: Count
    hop: Annotated[int, Meta(ge=0, le=255)]
    age_ms: Millis
    explore: Annotated[int, Meta(ge=0, le=255)]
    best_ppm: Ppm
    skip: Annotated[tuple[Prefix, ...], Meta(max_length=32)]


class Copy(_Fields, frozen=True, tag=10):
    """A diff: signed body, and its hop header. `repair` marks an answer to `Fetch`."""

    body: Annotated[bytes, Meta(min_length=1, max_length=MAX_BODY)]
    sig: Signature
    hop: Hop
    repair: bool


class Ack(_Fields, frozen=True, tag=11):
    """Answer to `Copy`; `nonce` is the one of the hello of the node that is answered."""

    diff_id: Digest
    status: AckStatus
    reason: ShortReason
    nonce: Id16


class WantContent(_Fields, frozen=True, tag=12):
    """Asks for the content that a diff names by digest, from `offset` on."""

    memory: Id16
    digest: Digest
    offset: Size


class Content(_Fields, frozen=True, tag=13):
    """A piece of the content. `total` 0 with an empty chunk says that it is not held here."""

    digest: Digest
    total: Size
    offset: Size
    chunk: Chunk

    def __post_init__(self) -> None:
        _check_piece(self.total, self.offset, self.chunk, empty_allowed=True)


class Tombs(_Fields, frozen=True, tag=20):
    """Tombstone and fence records, and the sender's sequence up to which they reach."""

    records: Annotated[
        tuple[Annotated[bytes, Meta(min_length=1, max_length=MAX_TOMB)], ...],
        Meta(max_length=TOMBS_PER_PAGE),
    ]
    upto_seq: Count


class TombsAck(_Fields, frozen=True, tag=21):
    """What became of the records of a `Tombs`; an id is BLAKE2b-256 of the record bytes."""

    upto_seq: Count
    ids: Annotated[tuple[Digest, ...], Meta(max_length=TOMBS_PER_PAGE)]
    refused: Annotated[tuple[tuple[Digest, ShortReason], ...], Meta(max_length=TOMBS_PER_PAGE)]
    nonce: Id16


class TombPull(_Fields, frozen=True, tag=22):
    """Asks for a project's tombstones after a sequence; answered by pages of `Tombs`."""

    project: Id16
    after_seq: Count


class TombSynced(_Fields, frozen=True, tag=23):
    """Ends a pull: how many records there were, and the digest both sides must agree on."""

    project: Id16
    upto_seq: Count
    count: Count
    digest: Digest


class Deliver(_Fields, frozen=True, tag=30):
    """A piece of an opaque document for another layer of the peer."""

    topic: Topic
    subject: Annotated[bytes, Meta(max_length=64)]
    total: Size
    offset: Size
    chunk: Chunk

    def __post_init__(self) -> None:
        _check_piece(self.total, self.offset, self.chunk, empty_allowed=False)


class Delivered(_Fields, frozen=True, tag=31):
    """What became of a whole document."""

    topic: Topic
    subject: Annotated[bytes, Meta(max_length=64)]
    status: DeliveredStatus
    reason: ShortReason
    nonce: Id16


class ProfileMsg(_Fields, frozen=True, tag=40):
    """A signed profile: what a node cares about."""

    body: Annotated[bytes, Meta(min_length=1, max_length=16 * KIB)]
    sig: Signature


class Cards(_Fields, frozen=True, tag=41):
    """Agent cards, each signed by the agent's home node."""

    cards: Annotated[
        tuple[Annotated[bytes, Meta(min_length=1, max_length=2 * KIB)], ...], Meta(max_length=64)
    ]


class Acl(_Fields, frozen=True, tag=42):
    """A project's ACL document, signed by the project key."""

    document: Annotated[bytes, Meta(min_length=1, max_length=60 * KIB)]


class Pull(_Fields, frozen=True, tag=50):
    """Asks which diffs the peer has that the named version of our profile wants."""

    project: Id16
    profile_version: Count
    after: Cursor
    full: bool


class Page(_Fields, frozen=True, tag=51):
    """Diff ids in answer to `Pull`; `next` continues it unless `last`."""

    project: Id16
    ids: Annotated[tuple[Digest, ...], Meta(max_length=IDS_PER_PAGE)]
    next: Cursor
    last: bool


class Fetch(_Fields, frozen=True, tag=52):
    """Asks for diffs by id; each comes as a `Copy` with `repair` set."""

    ids: Annotated[tuple[Digest, ...], Meta(max_length=IDS_PER_FETCH)]


class FetchDone(_Fields, frozen=True, tag=53):
    """Ends the answer to one `Fetch`."""

    served: Count
    missing: Annotated[tuple[Digest, ...], Meta(max_length=IDS_PER_FETCH)]


Message: TypeAlias = (
    Hello
    | Accepted
    | Bye
    | Busy
    | Ping
    | Pong
    | Copy
    | Ack
    | WantContent
    | Content
    | Tombs
    | TombsAck
    | TombPull
    | TombSynced
    | Deliver
    | Delivered
    | ProfileMsg
    | Cards
    | Acl
    | Pull
    | Page
    | Fetch
    | FetchDone
)


def _check_piece(total: int, offset: int, chunk: bytes, *, empty_allowed: bool) -> None:
    if not chunk and not (empty_allowed and total == 0 and offset == 0):
        raise ValueError("an empty chunk")
    if offset + len(chunk) > total:
        raise ValueError("a chunk that passes the end")
