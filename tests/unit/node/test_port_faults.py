"""What the client says of a request that the node would not read."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
import trio

from node.client import Client, Draft, InvalidInput, filters
from node.port import messages
from node.port.link import Link
from node.port.place import Place

MADE = datetime(2026, 8, 1)


async def refusal(method: str, *given: Any, **options: Any) -> str:
    """The text of the InvalidInput that a call gets before anything is sent."""
    client = Client(Link(Place(path="/nowhere"), messages.Hello(messages.VERSION), 1.0))
    with trio.fail_after(60), pytest.raises(InvalidInput) as error:
        await getattr(client, method)(*given, **options)
    return str(error.value)


@pytest.mark.parametrize(
    ("method", "given", "options", "text"),
    [
        ("remember", [5], {}, "content: Expected `str`, got `int`"),
        ("remember", ["x"], {"ttl_s": 0}, "ttl_ms: Expected `int` >= 1"),
        ("remember", ["x"], {"importance": "high"}, "importance: Expected `float`, got `str`"),
        ("remember", ["x"], {"tags": ["a", 1]}, "tags.1: Expected `str`, got `int`"),
        ("remember", ["x"], {"created_at": MADE}, "created_at: a time must carry a time zone"),
        ("remember", ["x"], {"vector": "abc"}, "vector: a sequence of numbers is expected"),
        ("remember", ["\ud800"], {}, "a text contains a character that cannot be stored"),
        ("remember_batch", [["x", Draft("y", type=1)]], {}, "drafts.1.type: Expected `str`, got"),  # type: ignore[arg-type]
        ("remember_batch", ["text"], {}, "drafts: a list is expected, not a lone text"),
        ("remember_batch", [[]], {}, "drafts: Expected `array` of length >= 1"),
        ("recall", ["x"], {"limit": 51}, "limit: Expected `int` <= 50"),
        ("recall", ["x"], {"filters": {"tags": "a"}}, "filters: Expected `array | null`, got"),
        ("get", ["abc"], {}, "a memory's id is no UUID"),
        ("get", [None], {}, "a memory's id is no UUID"),
        ("forget", [b"abc"], {}, "memories.0: Expected `bytes` of length >= 16"),
    ],
)
async def test_a_wrong_value_is_told_by_the_name_of_its_field(
    method: str, given: list[Any], options: dict[str, Any], text: str
) -> None:
    assert (await refusal(method, *given, **options)).startswith(text)


async def test_a_credit_out_of_bounds_is_refused() -> None:
    client = Client(Link(Place(path="/nowhere"), messages.Hello(messages.VERSION), 1.0))
    for credit in (0, 1_001):
        with pytest.raises(InvalidInput, match="from 1 to 1000"):
            async with client.watch(credit=credit):
                pass


def test_filters_take_one_or_many_or_nothing() -> None:
    when = datetime(2026, 8, 1, tzinfo=UTC)
    made = filters(tags="ops", who=["ann", "bob"], project=None, since=when)
    assert (made.tags, made.who, made.project) == (("ops",), ("ann", "bob"), ())
    assert made.since_ms == int(when.timestamp() * 1000)
    with pytest.raises(InvalidInput, match="until: a time must carry a time zone"):
        filters(until=MADE)
