"""Remember and recall from a plain program: `python -m ops.examples.notes [WORKSPACE]`."""

from __future__ import annotations

import sys

from node.client import BlockingClient, filters


def main(place: str | None = None) -> list[str]:
    """Store three notes, ask two questions; the texts that answered them."""
    with BlockingClient(place) as client:
        client.remember("The deploy runs on Fridays at noon", tags=["ops"], importance=0.8)
        client.remember("Alice prefers tea to coffee", tags=["people"])
        client.remember("The staging database is restored every night", tags=["ops"])
        deploy = client.recall("when do we deploy?", limit=1)
        nightly = client.recall("what happens at night?", limit=1, filters=filters(tags="ops"))
        return [deploy.hits[0].content, nightly.hits[0].content]


if __name__ == "__main__":
    print(*main(sys.argv[1] if len(sys.argv) > 1 else None), sep="\n")
