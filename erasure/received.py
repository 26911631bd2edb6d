"""Documents that come from elsewhere: read, judged and compared with a key, never trusted as is.

Bytes meet the limits of the canonical reader before anything else. What passes here is well
formed and adds up; whether it fits this node's erasures is for the caller.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from erasure import canonical, envelope
from erasure.documents import examine
from erasure.envelope import STATEMENT_PAYLOAD, Envelope
from erasure.forms import Doc
from storage.errors import InvalidInput


class Refused(InvalidInput):
    """The document is not accepted; the text is a short reason without content."""

    code = "refused"


@dataclass(frozen=True, slots=True)
class Received:
    """A document whose form and sums hold."""

    envelope: Envelope
    doc: Doc
    predicate: dict[str, Any]

    @property
    def sha256(self) -> bytes:
        """SHA-256 of the payload: the document's name elsewhere."""
        return self.envelope.sha256

    @property
    def node_id(self) -> bytes:
        """The node that the document is by."""
        return bytes.fromhex(self.predicate["node_id"])

    @property
    def erasure_id(self) -> str:
        """The erasure that it belongs to."""
        return str(self.predicate["erasure_id"])

    def digest(self, name: str) -> bytes | None:
        """A digest field, which may be null."""
        value = self.predicate[name]
        return None if value is None else bytes.fromhex(value)

    def signed_by(self, public: bytes | None) -> bool:
        """True when one of the signatures is by this key and holds."""
        if public is None:
            return False
        wanted = envelope.keyid(public)
        return any(
            one.keyid == wanted
            and envelope.verify(public, STATEMENT_PAYLOAD, self.envelope.payload, one.sig)
            for one in self.envelope.signatures
        )


def read(data: bytes) -> Received:
    """The document in an envelope. Raises Refused; says nothing about the signatures."""
    try:
        signed = Envelope.from_bytes(data)
        if signed.payload_type != STATEMENT_PAYLOAD:
            raise Refused("unknown_payload_type")
        statement = canonical.decode(signed.payload)
    except canonical.Malformed as error:
        raise Refused("malformed") from error
    judged = examine(statement)
    if judged.doc is None or judged.malformed:
        raise Refused("malformed")
    if judged.wrong:
        raise Refused("contradictory")
    return Received(signed, judged.doc, judged.predicate)
