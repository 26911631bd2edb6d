"""Many tasks on one connection: `python -m ops.examples.crowd [WORKSPACE]`.

Each task asks by itself; what is asked at the same time is searched together.
"""

from __future__ import annotations

import sys

import trio

from node.client import open_client

CITIES = {"Oslo": "fjord", "Cairo": "Nile", "Lima": "Pacific", "Bern": "Aare"}


async def main(place: str | None = None) -> dict[str, str]:
    """Store a fact for each city in one commit, then ask about all of them at once."""
    found: dict[str, str] = {}
    async with open_client(place) as client:
        await client.remember_batch(
            [f"{city} lies at the {water}" for city, water in CITIES.items()]
        )

        async def ask(city: str) -> None:
            answer = await client.recall(f"where does {city} lie?", limit=1)
            found[city] = answer.hits[0].content

        async with trio.open_nursery() as nursery:
            for city in CITIES:
                nursery.start_soon(ask, city)
    return found


if __name__ == "__main__":
    for text in trio.run(main, sys.argv[1] if len(sys.argv) > 1 else None).values():
        print(text)
