"""What an erasure needs of the node around it, as one value.

The composition root builds it once. Nothing here opens a connection or starts a task, and
nothing in it belongs to a layer above: caches, queues and files of those come as tiers and
callables.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import trio

from erasure.parts import Software
from erasure.settings import ErasureSettings
from erasure.tiers import TierRegistry
from storage.access import LiveAccess
from storage.local import LocalNode
from storage.model import Scope
from storage.pool import Database


def _nothing() -> None:
    """For a node without a mesh: nobody waits for outgoing frames."""


def _nobody(scope: Scope) -> None:
    """For a node without caches above the database."""


async def _ungrouped() -> None:
    """For a node that routes no searches."""


def _unbroken(point: str) -> None:
    """Outside of tests nothing happens between two phases."""


@dataclass(slots=True)
class ErasureContext:
    """One node's erasures.

    `settings` may be replaced; a run keeps the values that it began with. `wake` tells the
    dispatcher of the outbox that frames are ready. `fenced` is called on the trio thread as soon
    as a scope's epoch is closed here and nothing newer of it stands; it must drop what the layers
    above cache of it, and must not block. `ledger_dir` holds the copy of the ledger outside
    PostgreSQL. `regrouped` is awaited when clusters with an erased input were computed again or
    dropped; it must drop older centroids from memory. `not_covered` adds what this node knows it
    cannot reach. `clock_uncertainty_ms` is what the certificate says of its times. `between` is
    called at each boundary of a run with the name of the state reached, and behind each batch of
    rows; tests break the run there.
    """

    node: LocalNode
    db: Database
    access: LiveAccess
    settings: ErasureSettings
    tiers: TierRegistry
    ledger_dir: Path
    software: Software
    wake: Callable[[], None] = _nothing
    fenced: Callable[[Scope], None] = _nobody
    regrouped: Callable[[], Awaitable[None]] = _ungrouped
    not_covered: tuple[str, ...] = ()
    clock_source: str = "unsynced"
    clock_uncertainty_ms: int = 5_000
    between: Callable[[str], None] = _unbroken
    work: trio.Event = field(default_factory=trio.Event)
    hidden: dict[str, frozenset[bytes]] = field(default_factory=dict)
    refusals: set[bytes] = field(default_factory=set)
    ledger_lock: trio.Lock = field(default_factory=trio.Lock)
    _runs: dict[str, trio.Lock] = field(default_factory=dict)

    def run_lock(self, erasure_id: str) -> trio.Lock:
        """Held by whoever drives this erasure: a second request joins by waiting for it."""
        return self._runs.setdefault(erasure_id, trio.Lock())

    def notify(self) -> None:
        """There is work for the service loop, or a frame for a peer."""
        self.work.set()
        self.wake()
