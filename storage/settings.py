"""Settings of the database: plain frozen values with their bounds.

Times are seconds. Only `node/config.py` knows the file that they come from.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from storage.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class EmbeddedSettings:
    """How the node runs a PostgreSQL of its own."""

    shared_buffers_mb: int = 64
    max_wal_mb: int = 256
    """Log after which a checkpoint begins. The first change of a page behind one logs the whole
    page: with 64 MB a checkpoint came every second of a busy node, and a new memory wrote 18 to
    46 kB of log instead of 4 to 5. With more a recovery takes longer."""
    max_connections: int = 20
    durable: bool = True
    """False turns fsync off: for tests only, a power loss then destroys the data."""
    run_as: str | None = None
    """User that the server runs as when the node is root; `mnemesh`, else `nobody`."""
    start_timeout: float = 60.0
    """Covers crash recovery."""
    stop_timeout: float = 20.0

    def __post_init__(self) -> None:
        if not 1 <= self.shared_buffers_mb <= 65_536:
            raise InvalidInput("database.embedded.shared_buffers_mb must be 1 to 65536")
        if not 64 <= self.max_wal_mb <= 65_536:
            raise InvalidInput("database.embedded.max_wal_mb must be 64 to 65536")
        if not 5 <= self.max_connections <= 1_000:
            raise InvalidInput("database.embedded.max_connections must be 5 to 1000")


@dataclass(frozen=True, slots=True)
class DatabaseSettings:
    """Pool, patience and limits; `dsn` None means the embedded server."""

    dsn: str | None = field(default=None, repr=False)
    pool_min: int = 1
    pool_max: int = 8
    connect_timeout: float = 5.0
    connect_patience: float = 10.0
    """How long the start waits for a server that is not up yet."""
    acquire_timeout: float = 5.0
    statement_timeout: float = 30.0
    lock_timeout: float = 5.0
    idle_in_transaction_timeout: float = 60.0
    conflict_retries: int = 3
    """Further attempts of a whole unit after a serialization failure or a deadlock."""
    close_grace: float = 0.3
    data_dir: Path | None = None
    """Folder of the embedded server's data; None is a folder of the workspace."""
    embedded: EmbeddedSettings = field(default_factory=EmbeddedSettings)

    def __post_init__(self) -> None:
        if not 1 <= self.pool_max <= 500:
            raise InvalidInput("database.pool_max must be 1 to 500")
        if not 0 <= self.pool_min <= self.pool_max:
            raise InvalidInput("database.pool_min must be 0 to pool_max")
        if not 0 <= self.conflict_retries <= 10:
            raise InvalidInput("database.conflict_retries must be 0 to 10")
        for name in (
            "connect_timeout",
            "acquire_timeout",
            "statement_timeout",
            "lock_timeout",
            "idle_in_transaction_timeout",
        ):
            if not 0 < getattr(self, name) <= 86_400:
                raise InvalidInput(f"database.{name} must be above 0 and at most a day")
