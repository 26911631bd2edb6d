"""The Python of the README runs as it is printed."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest
import trio

from tests.support.port import Port, port
from tests.support.services import Edge, edge, served
from tests.support.watching import SEA, announce, sailors

__all__ = ["edge", "port", "served"]

pytestmark = pytest.mark.postgres

README = Path(__file__).parents[2] / "README.md"


def program(first_line: str) -> str:
    """The indented block that begins with this line, up to the next text at the margin."""
    found = re.search(
        rf"^    {re.escape(first_line)}\n(?:(?:    .*)?\n)*", README.read_text("utf-8"), re.M
    )
    assert found is not None, first_line
    return textwrap.dedent(found[0])


async def test_http_in_ten_lines(served: Edge, capsys: pytest.CaptureFixture[str]) -> None:
    source = program("import httpx")
    assert len(source.strip().splitlines()) <= 10
    there = source.replace("http://127.0.0.1:3850", served.url)
    await trio.to_thread.run_sync(exec, there, {})
    score, tier, text = capsys.readouterr().out.strip().split(" ", 2)
    assert 0 < float(score) <= 1
    assert (tier, text) == ("hot", "Deploys run on Friday at noon")


async def test_the_client_in_ten_lines(
    port: Port, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MNEMESH_WORKSPACE", str(port.edge.services.workspace.root))
    world = port.edge.world
    project, (ada, _) = await sailors(world, "ada", "bob")
    await announce(world, ada, project, SEA)
    source = program("from node.client import BlockingClient")
    assert len(source.strip().splitlines()) <= 10
    await trio.to_thread.run_sync(exec, source, {})
    hit, *_, delivery = capsys.readouterr().out.splitlines()
    assert hit.split(" ", 1)[1] == "hot Deploys run on Friday at noon"
    assert delivery.split(" ", 1)[1] == SEA
