"""A PostgreSQL server for the peers: the node's own binaries, but theirs alone.

The node's server admits few connections, and a peer with a pool of 16 should not have to share
them, its small buffers, or its short log: a graph of vectors fits into the buffers, and the log may
grow as PostgreSQL itself would let it. Durable like the node's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from storage.embedded import run_embedded
from storage.settings import EmbeddedSettings

SETTINGS = EmbeddedSettings(shared_buffers_mb=256, max_wal_mb=1024, max_connections=48)


@contextmanager
def peer_server(folder: Path) -> Iterator[Path]:
    """The folder of a running server's socket."""
    place = folder / "peer"
    with run_embedded(place / "pg", place / "postgresql.log", SETTINGS) as server:
        yield Path(server.connect_kwargs["host"])
