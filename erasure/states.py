"""The states of one erasure, in their order, and what can stop it on the way.

A state is durable before the work of the next begins, so a run that a crash cut goes on from the
last one. The database refuses every step back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from storage.erasures import ErasureRow
from storage.errors import Conflict, Forbidden, MnemeshError
from storage.model import MemoryId, Scope
from storage.tiers import Bounds


class State(StrEnum):
    """How far an erasure is."""

    REQUESTED = "requested"
    INTENDED = "intended"
    QUIESCED = "quiesced"
    SEALED = "sealed"
    TOMBSTONED = "tombstoned"
    REMOVED = "removed"
    PURGED = "purged"
    AGGREGATED = "aggregated"
    SNAPSHOTTED = "snapshotted"
    VERIFIED = "verified"
    CERTIFIED = "certified"
    CLOSED = "closed"


_RANK = {state: rank for rank, state in enumerate(State)}


def reached(state: str, wanted: State) -> bool:
    """True when `state` is `wanted` or behind it."""
    return _RANK[State(state)] >= _RANK[wanted]


class Role(StrEnum):
    """Whether this node began the erasure or follows another's notice."""

    ORIGIN = "origin"
    PEER = "peer"


class ResidueFound(MnemeshError):
    """A copy is still there after its removal; nothing is certified."""

    code = "residue_found"
    retryable = True


class HoldInForce(Conflict):
    """A hold is in force on the scope or on a memory of it."""

    code = "hold_in_force"


class RequestIdConflict(Conflict):
    """This request id stands for the erasure of another scope."""

    code = "request_id_conflict"


class StillRunning(Conflict):
    """The scope's erasure is not certified yet."""

    code = "erasure_running"


class NotEntitled(Forbidden):
    """This node may not decide about the scope."""

    code = "forbidden"


@dataclass(frozen=True, slots=True)
class Sample:
    """A record of the plan, kept in memory for the probes of the verification only."""

    memory_id: MemoryId
    text: str
    vector: NDArray[np.float32] | None


@dataclass(slots=True)
class Run:
    """One drive of one erasure through its states.

    `scope` is None on a node that knows the scope by its handle alone and so never had any of it.
    `newest` is False when newer, live records of the scope stand here: then only what carries
    the erased epoch, or hangs on a memory that does, is touched and counted.
    """

    row: ErasureRow
    newest: bool
    kcert: bytes = field(repr=False)
    scope: Scope | None
    bounds: Bounds
    samples: tuple[Sample, ...] = ()

    @property
    def id(self) -> str:
        """The erasure's id."""
        return self.row.erasure_id

    @property
    def batch_rows(self) -> int:
        """Rows that one transaction may touch."""
        return int(self.row.config["batch_rows"])
