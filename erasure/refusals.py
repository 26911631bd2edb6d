"""Attempts without a right leave a trace: one ledger entry each, and a count.

The same bytes from the same peer are noted once, so that a stranger cannot fill the ledger by
repeating itself.
"""

from __future__ import annotations

import hashlib
import logging
import re

from erasure import journal
from erasure.context import ErasureContext
from erasure.ledger import LedgerKind
from storage.model import NodeId

LOG = logging.getLogger("mnemesh.erasure")
REMEMBERED = 4_096
_WHY = re.compile(r"[a-z_]{1,64}\Z")


async def note(ctx: ErasureContext, peer: NodeId, what: str, data: bytes, why: str) -> None:
    """Write `refused` to the ledger; `why` is a code, never a text of the peer."""
    reason = why if _WHY.match(why) else "malformed"
    LOG.warning("refused", extra={"peer": peer.hex(), "what": what, "why": reason})
    mark = hashlib.sha256(peer + data).digest()
    if mark in ctx.refusals or len(ctx.refusals) >= REMEMBERED:
        return
    ctx.refusals.add(mark)
    await ctx.db.transact(
        journal.append,
        ctx.node,
        LedgerKind.REFUSED,
        ctx.node.wall(),
        {"node_id": peer, "what": what, "why": reason},
    )
    await journal.copy(ctx)
