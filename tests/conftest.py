"""Fixtures for every test: the session's island and PostgreSQL, and databases made from it.

They cost nothing to a test that does not ask for them. The root of the repository goes on the
path, so that tests run against the sources without an installation. No example of a property
has a time limit: a busy machine must not turn a test red.
"""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import settings

ROOT = str(Path(__file__).resolve().parent.parent)
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

settings.register_profile("mnemesh", deadline=None)
settings.load_profile("mnemesh")

pytest_plugins = ["tests.support.island", "tests.support.postgres", "tests.support.memory"]
