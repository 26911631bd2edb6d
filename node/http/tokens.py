"""Bearer tokens: claims in JSON, signed with the node's own secret.

A token is `b64url(claims) . b64url(HMAC-SHA256(secret, first part))`, unpadded. Whoever replaces
the secret file revokes every token at once. Nothing here knows routes or agents.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import logging
import math
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from node.http.problems import Unauthenticated

log = logging.getLogger(__name__)

SECRET_BYTES: Final = 32
MAX_TOKEN: Final = 8192
SCOPE_FIELDS: Final = ("project", "agent", "user")


class Permission(StrEnum):
    REMEMBER = "remember"
    RECALL = "recall"
    MODIFY = "modify"
    FORGET = "forget"
    RECOVER = "recover"
    ADMIN = "admin"
    DOCUMENTS = "documents"
    CONNECTORS = "connectors"
    DIAGNOSTICS = "diagnostics"
    ANALYTICS = "analytics"
    ERASE = "erase"
    AUDIT = "audit"
    HOLD = "hold"


_OFFICER = frozenset({Permission.ERASE, Permission.AUDIT, Permission.HOLD})

ROLES: Final[Mapping[str, frozenset[Permission]]] = {
    "admin": frozenset(Permission),
    "operator": frozenset(Permission) - _OFFICER - {Permission.ADMIN},
    "agent": frozenset(
        {
            Permission.REMEMBER,
            Permission.RECALL,
            Permission.MODIFY,
            Permission.FORGET,
            Permission.RECOVER,
            Permission.DOCUMENTS,
        }
    ),
    "readonly": frozenset({Permission.RECALL}),
    "officer": _OFFICER,
}
"""What each role may do. Only the officer and the admin touch erasures, their proofs and holds."""


@dataclass(frozen=True, slots=True)
class Claims:
    """The content of a token; times are whole seconds since 1970."""

    sub: str
    role: str
    scope: Mapping[str, str]
    iat: int
    exp: int
    permissions: frozenset[str] | None = None

    def as_dict(self) -> dict[str, Any]:
        """The claims in the order in which they are written."""
        claims: dict[str, Any] = {
            "sub": self.sub,
            "scope": dict(self.scope),
            "role": self.role,
            "iat": self.iat,
            "exp": self.exp,
        }
        if self.permissions is not None:
            claims["permissions"] = sorted(self.permissions)
        return claims


def load_secret(path: Path) -> bytes:
    """The 32 bytes that sign tokens, made on first use.

    A file of another length is replaced with a warning: its tokens are worth nothing. The file
    is opened without following links and has mode 0600. Blocking.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return _new_secret(path)
    with os.fdopen(descriptor, "rb") as file:
        secret = file.read(SECRET_BYTES + 1)
    if len(secret) == SECRET_BYTES:
        return secret
    log.warning("the secret of tokens had the wrong length and was replaced")
    return _new_secret(path)


def _new_secret(path: Path) -> bytes:
    secret = secrets.token_bytes(SECRET_BYTES)
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(secret)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    return secret


def sign(claims: Claims, secret: bytes) -> str:
    """The token of these claims."""
    text = json.dumps(claims.as_dict(), separators=(",", ":"), ensure_ascii=False)
    first = _b64(text.encode("utf-8"))
    return f"{first}.{_mac(first, secret)}"


def read(token: str, secret: bytes, now: float) -> Claims:
    """The claims of a token that holds at `now` (seconds since 1970).

    The signature is judged before anything in the token is parsed. Raises Unauthenticated with
    the reason.
    """
    first, dot, second = token.partition(".")
    if len(token) > MAX_TOKEN or not (first and dot and second) or not token.isascii():
        raise Unauthenticated("malformed token")
    wanted = hashlib.sha256(_mac(first, secret).encode("ascii")).digest()
    given = hashlib.sha256(second.encode("ascii")).digest()
    if not hmac.compare_digest(wanted, given):
        raise Unauthenticated("invalid signature")
    claims = _claims(first)
    if now >= claims.exp:
        raise Unauthenticated("token expired")
    return claims


def _claims(part: str) -> Claims:
    try:
        raw: Any = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (binascii.Error, ValueError, RecursionError) as error:
        raise Unauthenticated("malformed payload") from error
    if not isinstance(raw, dict):
        raise Unauthenticated("malformed payload")
    sub, role, scope = raw.get("sub"), raw.get("role"), raw.get("scope", {})
    if not isinstance(sub, str) or not sub:
        raise Unauthenticated("invalid sub")
    if not isinstance(role, str) or role not in ROLES:
        raise Unauthenticated("invalid role")
    if not isinstance(scope, dict) or not all(
        key in SCOPE_FIELDS and isinstance(value, str) and value for key, value in scope.items()
    ):
        raise Unauthenticated("invalid scope")
    if not all(_is_time(raw.get(key)) for key in ("iat", "exp")):
        raise Unauthenticated("missing timestamps")
    permissions = raw.get("permissions")
    if permissions is not None and not (
        isinstance(permissions, list) and all(isinstance(one, str) for one in permissions)
    ):
        raise Unauthenticated("malformed payload")
    return Claims(
        sub=sub,
        role=role,
        scope=scope,
        iat=raw["iat"],
        exp=raw["exp"],
        permissions=None if permissions is None else frozenset(permissions),
    )


def _is_time(value: object) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value)  # type: ignore[arg-type]


def _mac(first: str, secret: bytes) -> str:
    return _b64(hmac.new(secret, first.encode("ascii"), hashlib.sha256).digest())


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")
