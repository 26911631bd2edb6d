"""Errors of a client of the agent port that no other part of mnemesh raises."""

from __future__ import annotations

from storage.errors import MnemeshError


class Closed(MnemeshError):
    """The client is closed."""

    code = "closed"


class Refused(MnemeshError):
    """The node refused; `code` and `retryable` are the node's own."""

    code: str  # type: ignore[misc]
    retryable: bool  # type: ignore[misc]

    def __init__(self, code: str, text: str, retryable: bool = False) -> None:
        super().__init__(text)
        self.code = code
        self.retryable = retryable
