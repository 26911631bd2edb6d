"""Signed bodies that travel: diffs, tombstones, fences, cards and access lists.

Each is one canonical map. Its id is a hash over its bytes under a domain label, its signature is
over that id, and the original bytes are what is stored, hashed, verified and forwarded. This
module builds and checks; who may sign what is decided by its callers.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import msgspec
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import Meta
from numpy.typing import NDArray

from storage import canonical
from storage.errors import InvalidInput
from storage.keyring import verify

Id16: TypeAlias = Annotated[bytes, Meta(min_length=16, max_length=16)]
Digest32: TypeAlias = Annotated[bytes, Meta(min_length=32, max_length=32)]
Stamp8: TypeAlias = Annotated[bytes, Meta(min_length=8, max_length=8)]
Epoch: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Millis: TypeAlias = Annotated[int, Meta(ge=0, le=2**47)]

DiffKind: TypeAlias = Literal["add", "update", "promote"]

INLINE_BYTES = 16 * 1024
CONTENT_BYTES = 1 << 20
DOMAIN_DIFF = b"mnemesh/diff/v1"
DOMAIN_TOMBSTONE = b"mnemesh/tombstone/v1"
DOMAIN_FENCE = b"mnemesh/fence/v1"
DOMAIN_CARD = b"mnemesh/card/v1"
DOMAIN_ACL = b"mnemesh/acl/v1"


class InvalidRecord(InvalidInput):
    """A signed record is malformed."""

    code = "malformed"


class BadSignature(InvalidInput):
    """A signed record's signature does not verify."""

    code = "bad_signature"


class DiffMeta(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a peer needs beside the text; at most 2 KiB encoded."""

    type: Annotated[str, Meta(max_length=64)] = "fact"
    tags: Annotated[tuple[Annotated[str, Meta(max_length=128)], ...], Meta(max_length=32)] = ()
    who: Annotated[str, Meta(max_length=256)] | None = None
    importance_ppm: Annotated[int, Meta(ge=0, le=1_000_000)] = 500_000
    pinned: bool = False
    created_ms: Millis
    expires_ms: Millis | None = None
    scope_label: Annotated[str, Meta(max_length=256)] | None = None


class ContentRef(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Content above the inline limit: fetched by those who want it, checked by hash."""

    digest: Digest32
    length: Annotated[int, Meta(gt=0, le=CONTENT_BYTES)]


class DiffBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The announcement of a memory, or of its new version."""

    v: Literal[1] = 1
    kind: DiffKind
    project: Id16
    agent: Id16
    origin: Id16
    agent_epoch: Epoch
    project_epoch: Epoch
    hlc: Stamp8
    nonce: Id16
    memory: Id16
    mkind: Literal["cell", "l1", "l2", "beacon", "agent"]
    model: Annotated[str, Meta(min_length=1, max_length=200)]
    emb: Annotated[bytes, Meta(min_length=2, max_length=4 * 4096)]
    emb_dtype: Literal["f16", "f32"] = "f16"
    content: Annotated[str, Meta(max_length=INLINE_BYTES)] | None = None
    content_ref: ContentRef | None = None
    meta: DiffMeta
    enc: Literal[0] = 0
    parents: Annotated[tuple[Id16, ...], Meta(max_length=64)] = ()
    e0_milli: Annotated[int, Meta(ge=0, le=10**9)]
    ttl_ms: Annotated[int, Meta(gt=0, le=86_400_000)]
    hop_max: Annotated[int, Meta(ge=1, le=64)]


class TombstoneBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One memory is gone. Ids only: a vector or a text here would spread what it deletes."""

    v: Literal[1] = 1
    kind: Literal["tombstone"] = "tombstone"
    project: Id16 | None
    agent: Id16
    origin: Id16
    home: Id16
    agent_epoch: Epoch
    project_epoch: Epoch
    hlc: Stamp8
    nonce: Id16
    target: Id16
    mkind: Literal["cell", "l1", "l2", "beacon", "agent"]
    cause: Literal["forget", "supersede"]
    route_ref: Id16 | None = None


class FenceBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An epoch of a scope is closed for ever; names the handle, never the raw id."""

    v: Literal[1] = 1
    kind: Literal["fence"] = "fence"
    scope_kind: Literal["agent", "project"]
    scope_handle: Digest32
    epoch_floor: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    hlc_floor: Stamp8
    hlc: Stamp8
    origin: Id16
    nonce: Id16
    erasure_id: Annotated[str, Meta(min_length=4, max_length=64)]


class AgentCard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A member node vouches for the key of an agent that is at home there."""

    v: Literal[1] = 1
    kind: Literal["agent"] = "agent"
    agent: Id16
    project: Id16
    home: Id16
    public: Digest32
    hlc: Stamp8


class NodeCard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A node states the keys that sign its erasure documents and its tree heads."""

    v: Literal[1] = 1
    kind: Literal["node"] = "node"
    node: Id16
    erasure: Digest32
    ledger: Digest32
    hlc: Stamp8


class AclNode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A member: its pinned certificate, where to dial it, who operates it."""

    certificate: Annotated[bytes, Meta(min_length=64, max_length=4096)]
    addr: Annotated[str, Meta(max_length=255)] = ""
    domain: Annotated[str, Meta(max_length=255)] = ""


class AclBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who belongs to a project, signed by the project key; the highest version wins."""

    v: Literal[1] = 1
    kind: Literal["acl"] = "acl"
    mesh: Annotated[str, Meta(min_length=1, max_length=64)]
    project: Id16
    name: Annotated[str, Meta(min_length=1, max_length=64)]
    version: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    nodes: Annotated[tuple[AclNode, ...], Meta(max_length=1000)]
    operators: Annotated[tuple[Digest32, ...], Meta(max_length=64)] = ()
    retired: Annotated[tuple[Id16, ...], Meta(max_length=1000)] = ()


class Sealed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A signed record as it travels: the body's original bytes and the signature."""

    b: Annotated[bytes, Meta(max_length=canonical.MAX_BYTES)]
    s: Annotated[bytes, Meta(min_length=64, max_length=64)]


R = TypeVar("R", bound=msgspec.Struct)


def encode(record: msgspec.Struct) -> bytes:
    """Canonical bytes of a record; absent optional fields are written as nil."""
    value: Any = msgspec.to_builtins(record, builtin_types=(bytes,))
    return canonical.encode(_lists(value))


def decode(data: bytes, kind: type[R], *, max_bytes: int = canonical.MAX_BYTES) -> R:
    """The record of canonical bytes.

    Raises InvalidRecord, or NonCanonical when another byte form of the same value exists.
    """
    value = canonical.decode_map(data, max_bytes=max_bytes)
    try:
        record = msgspec.convert(value, kind, builtin_types=(bytes,), strict=True)
    except (msgspec.ValidationError, RecursionError) as error:
        raise InvalidRecord(f"not a {kind.__name__}") from error
    if encode(record) != data:
        raise canonical.NonCanonical()
    return record


def decode_diff(body: bytes) -> DiffBody:
    """A diff body whose parts fit one another: one form of content, a vector of whole numbers.

    Raises InvalidRecord.
    """
    diff = decode(body, DiffBody, max_bytes=48 * 1024)
    if (diff.content is None) == (diff.content_ref is None):
        raise InvalidRecord("a diff has either content or a content reference")
    if diff.content is not None and len(diff.content.encode("utf-8")) > INLINE_BYTES:
        raise InvalidRecord(f"inline content above {INLINE_BYTES} bytes")
    if len(diff.emb) % (2 if diff.emb_dtype == "f16" else 4):
        raise InvalidRecord("the embedding is cut")
    vector(diff)
    return diff


def vector(diff: DiffBody) -> NDArray[np.float32]:
    """The diff's embedding as float32 of shape (dim,).

    Raises InvalidRecord for numbers that are not finite and for the zero vector.
    """
    dtype = "<f2" if diff.emb_dtype == "f16" else "<f4"
    values = np.frombuffer(diff.emb, dtype=dtype).astype(np.float32)
    if not bool(np.isfinite(values).all()) or not bool(values.any()):
        raise InvalidRecord("the embedding is not a usable vector")
    return values


def content_digest(content: bytes) -> bytes:
    """BLAKE2b-256 of a content in UTF-8: how a reference names it."""
    return hashlib.blake2b(content, digest_size=32).digest()


def record_id(domain: bytes, body: bytes) -> bytes:
    """BLAKE2b-256 of the domain label and the body bytes: 32 bytes."""
    return hashlib.blake2b(domain + body, digest_size=32).digest()


def sign(key: Ed25519PrivateKey, domain: bytes, body: bytes) -> bytes:
    """64-byte signature over the label and the record id."""
    return key.sign(domain + record_id(domain, body))


def verified(public: bytes, domain: bytes, body: bytes, signature: bytes) -> bool:
    """True when the owner of `public` signed this body for this purpose."""
    return verify(public, signature, domain + record_id(domain, body))


def seal(key: Ed25519PrivateKey, domain: bytes, record: msgspec.Struct) -> bytes:
    """Sign a record and wrap it for the way."""
    body = encode(record)
    return encode(Sealed(b=body, s=sign(key, domain, body)))


def open_sealed(wire: bytes, *, max_bytes: int = canonical.MAX_BYTES) -> Sealed:
    """Body and signature of a wrapped record, not yet verified."""
    return decode(wire, Sealed, max_bytes=max_bytes)


def unseal(wire: bytes, kind: type[R], domain: bytes, public: bytes) -> R:
    """The record of a wrapper that the owner of `public` signed.

    Raises BadSignature, InvalidRecord or NonCanonical.
    """
    sealed = open_sealed(wire)
    if not verified(public, domain, sealed.b, sealed.s):
        raise BadSignature()
    return decode(sealed.b, kind)


def _lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _lists(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_lists(item) for item in value]
    return value
