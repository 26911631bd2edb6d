"""DSSE envelopes with Ed25519 signatures around the documents of an erasure.

The signature covers the exact payload bytes together with their type, so a payload is never
written again before it is checked, and a signature made for one type says nothing about
another. Part of the offline verifier: keys come in as values, nothing is read from disk.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from dataclasses import dataclass
from hashlib import sha256

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from erasure import canonical
from erasure.canonical import Json, Malformed

STATEMENT_PAYLOAD = "application/vnd.in-toto+json"
HEAD_PAYLOAD = "application/vnd.mnemesh.tree-head+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"

SIGNATURE_BYTES = 64
PUBLIC_BYTES = 32
MAX_SIGNATURES = 16


@dataclass(frozen=True, slots=True)
class Signature:
    """One signature and the id of the key that claims to have made it."""

    keyid: str
    sig: bytes


@dataclass(frozen=True, slots=True)
class Envelope:
    """A payload, its type and its signatures; `sha256` of the payload is its name elsewhere."""

    payload: bytes
    payload_type: str
    signatures: tuple[Signature, ...]

    @property
    def sha256(self) -> bytes:
        return sha256(self.payload).digest()

    def to_bytes(self) -> bytes:
        """The bytes of the file and of the HTTP answer, in canonical form."""
        return canonical.encode(self.as_json())

    def as_json(self) -> dict[str, Json]:
        return {
            "payload": b64encode(self.payload).decode("ascii"),
            "payloadType": self.payload_type,
            "signatures": [
                {"keyid": one.keyid, "sig": b64encode(one.sig).decode("ascii")}
                for one in self.signatures
            ],
        }

    @classmethod
    def from_bytes(cls, data: bytes) -> Envelope:
        """Read a file or a message. Raises Malformed; says nothing about the signatures."""
        return cls.from_json(canonical.read(data))

    @classmethod
    def from_json(cls, value: Json) -> Envelope:
        """As `from_bytes`, of JSON that is already read."""
        fields = _exactly(value, {"payload", "payloadType", "signatures"}, "envelope")
        payload_type, signatures = fields["payloadType"], fields["signatures"]
        if not isinstance(payload_type, str):
            raise Malformed("envelope: payloadType is not text")
        if not isinstance(signatures, list) or not 0 < len(signatures) <= MAX_SIGNATURES:
            raise Malformed(f"envelope: needs 1 to {MAX_SIGNATURES} signatures")
        return cls(
            _base64(fields["payload"], "payload"),
            payload_type,
            tuple(_signature(one) for one in signatures),
        )


def pae(payload_type: str, payload: bytes) -> bytes:
    """Pre-authentication encoding of DSSE version 1: what the signature is made over."""
    kind = payload_type.encode("utf-8")
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def keyid(public: bytes) -> str:
    """Id of a raw 32-byte public key: its SHA-256 in lower hex."""
    return sha256(public).hexdigest()


def public_bytes(key: Ed25519PrivateKey) -> bytes:
    """Raw public part of a signing key, 32 bytes."""
    return key.public_key().public_bytes_raw()


def sign(payload_type: str, payload: bytes, key: Ed25519PrivateKey) -> Signature:
    """Deterministic: the same key and bytes give the same signature."""
    return Signature(keyid(public_bytes(key)), key.sign(pae(payload_type, payload)))


def seal(statement: dict[str, Json], key: Ed25519PrivateKey) -> Envelope:
    """The signed envelope of an in-toto statement. Raises Malformed."""
    payload = canonical.encode(statement)
    return Envelope(payload, STATEMENT_PAYLOAD, (sign(STATEMENT_PAYLOAD, payload, key),))


def verify(public: bytes, payload_type: str, payload: bytes, sig: bytes) -> bool:
    """Whether `sig` is this key's signature over the payload; False for a key that is none."""
    if len(public) != PUBLIC_BYTES or len(sig) != SIGNATURE_BYTES:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(sig, pae(payload_type, payload))
    except (InvalidSignature, ValueError):
        return False
    return True


def statement(predicate_type: str, subject: str, digest: bytes, predicate: Json) -> dict[str, Json]:
    """An in-toto statement about one subject."""
    return {
        "_type": STATEMENT_TYPE,
        "predicateType": predicate_type,
        "subject": [{"digest": {"sha256": digest.hex()}, "name": subject}],
        "predicate": predicate,
    }


def signature_from_text(text: str) -> bytes:
    """The 64 bytes of a base64 signature. Raises Malformed."""
    sig = _base64(text, "sig")
    if len(sig) != SIGNATURE_BYTES:
        raise Malformed("envelope: a signature has 64 bytes")
    return sig


def _signature(value: Json) -> Signature:
    fields = _exactly(value, {"keyid", "sig"}, "signature")
    key, sig = fields["keyid"], fields["sig"]
    if not isinstance(key, str) or not isinstance(sig, str):
        raise Malformed("envelope: a signature is not text")
    return Signature(key, signature_from_text(sig))


def _exactly(value: Json, names: set[str], what: str) -> dict[str, Json]:
    if not isinstance(value, dict) or set(value) != names:
        raise Malformed(f"{what}: has not exactly the fields {', '.join(sorted(names))}")
    return value


def _base64(value: Json, what: str) -> bytes:
    if not isinstance(value, str):
        raise Malformed(f"envelope: {what} is not text")
    try:
        data = b64decode(value, validate=True)
    except (Base64Error, ValueError) as error:
        raise Malformed(f"envelope: {what} is not base64") from error
    if b64encode(data).decode("ascii") != value:
        raise Malformed(f"envelope: {what} has more than one base64 form")
    return data
