"""Erasing an agent on one node: what goes, what stays, and what the certificate says."""

from __future__ import annotations

import pytest
import trio

from erasure import requests
from erasure.scope import InvalidScope, parse_scope
from storage.errors import NotFound, ScopeErased
from storage.model import MemoryKind
from tests.support.erasure_nodes import (
    ErasureNode,
    add_agent,
    agent,
    counts,
    join,
    predicate,
    remember,
    request,
)

LIMIT = 60


async def test_everything_of_an_agent_goes_and_the_certificate_counts_it(
    origin: ErasureNode,
) -> None:
    with trio.fail_after(LIMIT):
        a1 = await add_agent(origin, "a1")
        for number in range(3):
            await remember(origin, a1, f"a1 keeps note {number}", seed=number)

        done = await requests.erase(origin.ctx, request(agent(a1)))

        assert done.state == "closed"
        assert counts(done.certificate) == {
            "file.agent": 1,
            "hnsw.slot": 3,
            "mem.vector": 3,
            "pg.agents": 1,
            "pg.embeddings": 3,
            "pg.memories": 3,
            "pg.memory_history": 3,
        }
        assert done.removed_now == 17
        assert await origin.one("SELECT count(*) FROM memories") == 0
        assert len(origin.graph) == 0
        assert origin.ctx.node.keys.agent(a1) is None
