"""A hundred bad clients at every door of one node, next to good ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
import trio

from ops.bench.crowd import CLIENTS, Crowd, Doors, habits
from tests.support.port import Port, port
from tests.support.services import Edge, edge, served

__all__ = ["edge", "port", "served"]

pytestmark = pytest.mark.postgres

HELD = ("01", "08")
"""Of TCP: established, and left by the other side alone."""
CONNECTED = "03"
TEXT = "the harbour opens at dawn"


def connections(doors: Doors) -> int:
    """How many the node holds, as the system sees them."""
    held = 0
    for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        _, local, _, state, *_ = line.split()
        held += int(local.rpartition(":")[2], 16) in (doors.tls, doors.http) and state in HELD
    for line in Path("/proc/net/unix").read_text(encoding="utf-8").splitlines()[1:]:
        held += line.endswith(f" {doors.path}") and line.split()[5] == CONNECTED
    return held


async def test_the_good_are_served_and_nothing_of_the_bad_stays(port: Port, served: Edge) -> None:
    await port.stop()
    served.configure(auth={"mode": "hybrid"}, network={"port": 0})
    port.settings = replace(port.settings, listen="127.0.0.1:0")
    await port.start()
    (tls,) = [one for one in port.places if one.startswith("tls:")]
    web = urlsplit(served.url).port
    doors = Doors(str(port.path), int(tls.rpartition(":")[2]), web or 0)
    wanted = {name for name, _, _ in habits(doors)}
    assert 2 * len(wanted) <= CLIENTS
    crowd = Crowd(doors, CLIENTS)
    async with port.client() as client:
        await client.remember(TEXT)
        body = {"query": TEXT, "fast": True}

        async def over_http() -> list[str]:
            async with httpx.AsyncClient(base_url=served.url, verify=False, timeout=60) as http:
                answer = await http.post("/api/memory/recall", json=body)
            return [hit["content"] for hit in answer.json()["results"]]

        assert await served.island.call(over_http) == [TEXT]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(crowd.run)
            while not wanted <= set(crowd.visits):
                assert [hit.content for hit in (await client.recall(TEXT)).hits] == [TEXT]
                assert await served.island.call(over_http) == [TEXT]
                await trio.sleep(0.02)
            nursery.cancel_scope.cancel()
        while connections(doors) > 1:
            assert await client.ping() < 30
            await trio.sleep(0.05)
        assert await served.island.call(over_http) == [TEXT]
