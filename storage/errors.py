"""The root of every error that mnemesh raises on purpose.

`code` is stable and goes to the wire and to HTTP; the text is for people and never carries
memory content, query text or SQL parameters. `retryable` tells a caller whether the same call
may succeed later without a change.
"""

from __future__ import annotations

from typing import ClassVar


class MnemeshError(Exception):
    """Something went wrong in mnemesh."""

    code: ClassVar[str] = "internal"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip().splitlines()[0])


class InvalidInput(MnemeshError):
    """The request is not valid."""

    code = "invalid"


class ContentTooLarge(InvalidInput):
    """The content is larger than allowed."""

    code = "content_too_large"


class NotFound(MnemeshError):
    """Not found."""

    code = "not_found"


class Forbidden(MnemeshError):
    """Not allowed."""

    code = "forbidden"


class Conflict(MnemeshError):
    """The request conflicts with the present state."""

    code = "conflict"


class SaveFailed(MnemeshError):
    """Failed to save memory"""

    code = "save_failed"
    retryable = True


class ScopeErased(MnemeshError):
    """The scope was erased; only an authorised reopen lets it write again."""

    code = "scope_erased"


class Tombstoned(MnemeshError):
    """The memory was forgotten and its id never lives again."""

    code = "tombstoned"


class Unavailable(MnemeshError):
    """The service cannot answer now."""

    code = "unavailable"
    retryable = True


class StartRefused(MnemeshError):
    """The node refuses to start."""

    code = "start_refused"


class KeyStoreError(StartRefused):
    """A key file is missing, damaged, or readable by others."""

    code = "key_store"
