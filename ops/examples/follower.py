"""Follow what the node hands to an agent: `python -m ops.examples.follower AGENT [WORKSPACE]`.

The number of the last memory that was dealt with is kept in a file, so that the program may end
at any point and gets every memory once.
"""

from __future__ import annotations

import sys
from pathlib import Path

import trio

from node.client import open_client


async def main(agent: str, kept: Path, place: str | None = None, count: int | None = None) -> None:
    """Print memories as they come, for ever or until there were `count`."""
    path = trio.Path(kept)
    after = int(await path.read_text()) if await path.exists() else 0
    async with (
        open_client(place, agent=agent) as client,
        client.watch(after=after) as deliveries,
    ):
        async for delivery in deliveries:
            print(f"{delivery.memory.agent}: {delivery.memory.content}")
            await path.write_text(str(delivery.seq))
            count = None if count is None else count - 1
            if count == 0:
                return


if __name__ == "__main__":
    workspace = sys.argv[2] if len(sys.argv) > 2 else None
    trio.run(main, sys.argv[1], Path("follower.seq"), workspace)
