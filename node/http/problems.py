"""Every error as an HTTP answer: the one place that knows both.

Errors of our own carry a text for people and a stable code; anything else becomes a 500 with
nothing but the request's id, and is logged. No answer repeats what the caller stored or asked.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from node.embed.base import EmbeddingFailed
from node.memory.forget import StateConflict
from storage.database_errors import CommitUnknown
from storage.errors import (
    Conflict,
    ContentTooLarge,
    Forbidden,
    InvalidInput,
    MnemeshError,
    NotFound,
    SaveFailed,
    ScopeErased,
    Tombstoned,
    Unavailable,
)
from storage.model import id_text

log = logging.getLogger(__name__)

RETRY_AFTER_S = 1


class HttpProblem(MnemeshError):
    """A request that the edge itself refuses; `status` and `headers` go out as they are."""

    code = "refused"
    status = 400

    def __init__(
        self,
        message: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.headers = dict(headers or {})
        self.body = dict(body or {})


class Unauthenticated(HttpProblem):
    """No credential, or one that does not hold."""

    code = "unauthenticated"
    status = 401

    def __init__(self, message: str) -> None:
        super().__init__(message, headers={"WWW-Authenticate": "Bearer"})


class AccessDenied(HttpProblem):
    """The credential does not reach so far."""

    code = "forbidden"
    status = 403


class BodyTooLarge(HttpProblem):
    """The body is larger than the route takes."""

    code = "body_too_large"
    status = 413


class BodyTooSlow(HttpProblem):
    """The body did not arrive in time."""

    code = "body_timeout"
    status = 408


class WrongMediaType(HttpProblem):
    """The body is not of the type that the route takes."""

    code = "media_type"
    status = 415


class TooManyRequests(HttpProblem):
    """The actor's allowance for this operation is used up."""

    code = "rate_limited"
    status = 429

    def __init__(self, operation: str, until_ms: int, now_ms: int) -> None:
        wait = max(1, -(-(until_ms - now_ms) // 1000))
        super().__init__(
            "rate limit exceeded",
            headers={"Retry-After": str(wait)},
            body={"retryAfter": until_ms},
        )
        self.operation = operation


class NotServing(HttpProblem):
    """The node is starting or stopping."""

    code = "unavailable"
    status = 503
    retryable = True


_STATUS: tuple[tuple[type[MnemeshError], int], ...] = (
    (ContentTooLarge, 413),
    (InvalidInput, 400),
    (NotFound, 404),
    (Forbidden, 403),
    (Conflict, 409),
    (ScopeErased, 410),
    (Tombstoned, 410),
    (Unavailable, 503),
    (CommitUnknown, 503),
    (EmbeddingFailed, 502),
)


def status_of(error: MnemeshError) -> int:
    """The status of an error of ours; 500 for one that no caller can act upon."""
    if isinstance(error, HttpProblem):
        return error.status
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def body_of(error: MnemeshError) -> dict[str, Any]:
    """The JSON body of an error of ours, also as one result among those of a batch."""
    body: dict[str, Any] = {"error": str(error), "code": error.code}
    if isinstance(error, HttpProblem):
        body |= error.body
    elif isinstance(error, StateConflict):
        body["status"] = error.status
        if error.live_id is not None:
            body["id"] = id_text(error.live_id)
    return body


def answer(error: Exception, request_id: str) -> Response:
    """The response to any exception of a request."""
    status = status_of(error) if isinstance(error, MnemeshError) else 500
    if not isinstance(error, MnemeshError) or (status == 500 and not _told(error)):
        code = error.code if isinstance(error, MnemeshError) else "internal"
        log.error("request failed", exc_info=error, extra={"data": {"request_id": request_id}})
        return json_response(
            {"error": "internal error", "code": code, "requestId": request_id}, status=500
        )
    headers = dict(error.headers) if isinstance(error, HttpProblem) else {}
    if status == 503:
        headers.setdefault("Retry-After", str(RETRY_AFTER_S))
    return json_response(body_of(error), status=status, headers=headers)


def _told(error: MnemeshError) -> bool:
    """Whether a caller is told of an error that only another attempt may help."""
    return isinstance(error, SaveFailed)


def json_response(
    body: Any, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """JSON in UTF-8; what cannot be encoded is replaced, so that no text can break an answer."""
    return Response(
        encode(body), status_code=status, media_type="application/json", headers=headers
    )


def encode(body: Any) -> bytes:
    """Compact JSON bytes."""
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")
