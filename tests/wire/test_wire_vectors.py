"""The bytes of every message, as published. A change here is a change of the protocol."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gossip.wire.codec import MESSAGE_TYPES, decode, encode
from tests.wire.wire_examples import EXAMPLES

VECTORS = Path(__file__).parent / "vectors" / "messages.json"


@pytest.fixture(scope="module")
def vectors() -> dict[str, str]:
    if os.environ.get("MNEMESH_WRITE_VECTORS"):
        made = {name: encode(message).hex() for name, message in EXAMPLES.items()}
        VECTORS.write_text(json.dumps(made, indent=1) + "\n")
    return json.loads(VECTORS.read_text())


def test_every_vector_has_an_example_and_every_type_a_vector(vectors):
    assert set(vectors) == set(EXAMPLES)
    assert {type(message) for message in EXAMPLES.values()} == set(MESSAGE_TYPES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_message_encodes_to_its_published_bytes(name, vectors):
    assert encode(EXAMPLES[name]).hex() == vectors[name]


@pytest.mark.parametrize("name", EXAMPLES)
def test_published_bytes_decode_to_the_message(name, vectors):
    assert decode(bytes.fromhex(vectors[name])) == EXAMPLES[name]


def test_tags_are_unique_and_published():
    tags = {kind.__name__: kind.__struct_config__.tag for kind in MESSAGE_TYPES}
    assert tags == {
        "Hello": 1,
        "Accepted": 2,
        "Bye": 3,
        "Busy": 4,
        "Ping": 5,
        "Pong": 6,
        "Copy": 10,
        "Ack": 11,
        "WantContent": 12,
        "Content": 13,
        "Tombs": 20,
        "TombsAck": 21,
        "TombPull": 22,
        "TombSynced": 23,
        "Deliver": 30,
        "Delivered": 31,
        "ProfileMsg": 40,
        "Cards": 41,
        "Acl": 42,
        "Pull": 50,
        "Page": 51,
        "Fetch": 52,
        "FetchDone": 53,
    }
