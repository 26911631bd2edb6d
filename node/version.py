"""Which mnemesh this is, as documents and the status page state it."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version

UNKNOWN_COMMIT = "0" * 40


def _installed() -> str:
    try:
        return version("mnemesh")
    except PackageNotFoundError:
        return "0.0.0"


VERSION = _installed()
COMMIT = os.environ.get("MNEMESH_COMMIT", UNKNOWN_COMMIT)
"""Set by whoever builds an image; the source tree itself does not know it."""
