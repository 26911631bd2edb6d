"""A server that is not good enough is one clear line."""

from __future__ import annotations

import pytest

from storage.errors import StartRefused
from storage.server_check import ServerFacts, check_server


@pytest.mark.parametrize(
    "facts",
    [
        ServerFacts(150_000, "0.7.0"),
        ServerFacts(180_004, "0.8.5", "0.8.5", "public"),
        ServerFacts(160_014, "1.0"),
    ],
)
def test_a_good_server_passes(facts: ServerFacts) -> None:
    assert check_server(facts) is None


@pytest.mark.parametrize(
    "facts, line",
    [
        (
            ServerFacts(140_011, "0.8.0"),
            "PostgreSQL 15 or newer is needed, this server is version 14",
        ),
        (
            ServerFacts(150_010, None),
            "the extension pgvector is not available: install pgvector 0.7 or newer on the server",
        ),
        (ServerFacts(150_010, "0.6.2"), "pgvector 0.7 or newer is needed, this server has 0.6.2"),
        (
            ServerFacts(150_010, "0.8.0", "0.5.1", "public"),
            "pgvector 0.7 or newer is needed, this server has 0.5.1",
        ),
    ],
)
def test_a_bad_server_is_refused_in_one_line(facts: ServerFacts, line: str) -> None:
    with pytest.raises(StartRefused) as refused:
        check_server(facts)
    assert str(refused.value) == line
