"""Fixtures for every test: the session's island and PostgreSQL, and databases made from it.

They cost nothing to a test that does not ask for them. The root of the repository goes on the
path, so that tests run against the sources without an installation.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = str(Path(__file__).resolve().parent.parent)
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

pytest_plugins = ["tests.support.island", "tests.support.postgres", "tests.support.memory"]
