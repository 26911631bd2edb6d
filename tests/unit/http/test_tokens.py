"""Tokens: the published vector and every way in which one does not hold."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from node.http.problems import Unauthenticated
from node.http.tokens import ROLES, Claims, Permission, load_secret, read, sign

SECRET = bytes(range(32))
ISSUED, EXPIRES = 1700000000, 1700604800
VECTOR = (
    "eyJzdWIiOiJ0b2tlbjphZ2VudCIsInNjb3BlIjp7ImFnZW50IjoiYWxpY2UifSwicm9sZSI6ImFnZW50Iiwi"
    "aWF0IjoxNzAwMDAwMDAwLCJleHAiOjE3MDA2MDQ4MDB9.gaGxzCQJ7CMQx1EqiZnDWbNQ72MWskZQAmpbeUKYlxc"
)
ALICE = Claims("token:agent", "agent", {"agent": "alice"}, ISSUED, EXPIRES)


def forged(payload: bytes) -> str:
    """A payload signed with the right secret."""
    import hashlib
    import hmac

    first = base64.urlsafe_b64encode(payload).rstrip(b"=")
    mac = base64.urlsafe_b64encode(hmac.new(SECRET, first, hashlib.sha256).digest())
    return f"{first.decode()}.{mac.rstrip(b'=').decode()}"


def refusal(token: str, now: float = ISSUED + 1) -> str:
    with pytest.raises(Unauthenticated) as refused:
        read(token, SECRET, now)
    return str(refused.value)


def test_v_5_1_the_published_token_is_made() -> None:
    assert sign(ALICE, SECRET) == VECTOR


def test_v_5_1_the_published_token_is_read() -> None:
    assert read(VECTOR, SECRET, ISSUED) == ALICE


def test_a_token_expires_at_its_second() -> None:
    assert read(VECTOR, SECRET, EXPIRES - 0.001) == ALICE
    assert refusal(VECTOR, EXPIRES) == "token expired"


@pytest.mark.parametrize("token", ["", "a", "a.", ".b", "é.b", "a" * 9000 + ".b"])
def test_text_that_is_no_token_is_malformed(token: str) -> None:
    assert refusal(token) == "malformed token"


def test_another_secret_does_not_hold() -> None:
    assert refusal(sign(ALICE, bytes(32))) == "invalid signature"


@pytest.mark.parametrize("position", [0, 40, len(VECTOR) - 1])
def test_a_changed_character_breaks_the_signature(position: int) -> None:
    changed = "A" if VECTOR[position] != "A" else "B"
    assert refusal(VECTOR[:position] + changed + VECTOR[position + 1 :]) == "invalid signature"


@pytest.mark.parametrize("payload", [b"", b"x", b"[]", b"\xff", b"[" * 5000])
def test_a_signed_payload_that_is_no_object_is_malformed(payload: bytes) -> None:
    told = refusal(forged(payload))
    assert told == ("malformed payload" if payload else "malformed token")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sub": 1}, "invalid sub"),
        ({"sub": ""}, "invalid sub"),
        ({"role": "root"}, "invalid role"),
        ({"role": ["admin"]}, "invalid role"),
        ({"scope": "alice"}, "invalid scope"),
        ({"scope": {"agent": ""}}, "invalid scope"),
        ({"scope": {"planet": "earth"}}, "invalid scope"),
        ({"exp": None}, "missing timestamps"),
        ({"iat": "1"}, "missing timestamps"),
        ({"exp": True}, "missing timestamps"),
        ({"permissions": "recall"}, "malformed payload"),
    ],
)
def test_a_signed_claim_of_the_wrong_kind_is_named(change: dict[str, Any], reason: str) -> None:
    claims = ALICE.as_dict() | change
    assert refusal(forged(json.dumps(claims).encode())) == reason


def test_roles_hold_what_the_design_says() -> None:
    assert len(ROLES["admin"]) == 13
    assert len(ROLES["operator"]) == 9
    assert Permission.ADMIN not in ROLES["operator"]
    assert ROLES["readonly"] == {Permission.RECALL}
    assert ROLES["officer"] == {Permission.ERASE, Permission.AUDIT, Permission.HOLD}


def test_the_secret_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "auth-secret"
    made = load_secret(path)
    assert len(made) == 32
    assert path.stat().st_mode & 0o777 == 0o600
    assert load_secret(path) == made


def test_a_secret_of_the_wrong_length_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "auth-secret"
    path.write_bytes(b"short")
    assert len(load_secret(path)) == 32
    assert load_secret(path) == path.read_bytes()
