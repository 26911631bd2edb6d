"""One message of every type with fixed values; the golden vectors are their bytes."""

from __future__ import annotations

from gossip.wire.messages import (
    Accepted,
    Ack,
    AckStatus,
    Acl,
    Busy,
    Bye,
    Cards,
    Content,
    Copy,
    Deliver,
    Delivered,
    DeliveredStatus,
    Fetch,
    FetchDone,
    Hello,
    Hop,
    Message,
    Page,
    Ping,
    Pong,
    ProfileMsg,
    Pull,
    TombPull,
    Tombs,
    TombsAck,
    TombSynced,
    Topic,
    WantContent,
)

NODE = bytes(range(16))
PROJECT = bytes(range(16, 32))
MEMORY = bytes(range(32, 48))
NONCE = bytes(range(48, 64))
DIGEST = bytes(range(64, 96))
OTHER = bytes(range(96, 128))
SIGNATURE = bytes(range(128, 192))

EXAMPLES: dict[str, Message] = {
    "hello": Hello(
        1, ("tomb-gate",), NODE, "mesh", NONCE, ((PROJECT, 3),), ("m2v",), 7, 1 << 40, False, "h:1"
    ),
    "accepted": Accepted(NONCE),
    "bye": Bye("mesh_id"),
    "busy": Busy(250),
    "ping": Ping(1),
    "pong": Pong(1),
    "copy": Copy(b"body", SIGNATURE, Hop(15_000, 1, 20, 0, 640_000, (b"abcd",)), False),
    "copy_repair": Copy(b"body", SIGNATURE, Hop(0, 0, 0, 0, -1, ()), True),
    "ack": Ack(DIGEST, AckStatus.REFUSED, "signature", NONCE),
    "want_content": WantContent(MEMORY, DIGEST, 49_152),
    "content": Content(DIGEST, 9, 4, b"chunk"),
    "content_not_held": Content(DIGEST, 0, 0, b""),
    "tombs": Tombs((b"record one", b"record two"), 12),
    "tombs_ack": TombsAck(12, (DIGEST,), ((OTHER, "signature"),), NONCE),
    "tomb_pull": TombPull(PROJECT, 4),
    "tomb_synced": TombSynced(PROJECT, 12, 2, DIGEST),
    "deliver": Deliver(Topic.DOCUMENT, MEMORY, 8, 0, b"document"),
    "delivered": Delivered(Topic.DOCUMENT, MEMORY, DeliveredStatus.STORED, "", NONCE),
    "profile": ProfileMsg(b"profile", SIGNATURE),
    "cards": Cards((b"card",)),
    "acl": Acl(b"acl"),
    "pull": Pull(PROJECT, 7, b"", False),
    "page": Page(PROJECT, (DIGEST, OTHER), b"next", False),
    "fetch": Fetch((DIGEST, OTHER)),
    "fetch_done": FetchDone(1, (OTHER,)),
}
