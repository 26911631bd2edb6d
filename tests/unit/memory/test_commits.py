"""Who shares a commit with whom."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
import trio.testing

from node.memory.commits import MOST, SharedCommits


class Disk:
    """Work that lasts until it is let go, and remembers what came together."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []
        self.gate = trio.Event()

    async def write(self, items: Sequence[int]) -> list[str]:
        self.seen.append(list(items))
        await self.gate.wait()
        if 13 in items:
            raise ValueError("unlucky")
        return [f"stored {item}" for item in items]


async def follow(stored: list[str]) -> list[str]:
    return stored


async def start(
    nursery: trio.Nursery, shared: SharedCommits[int, str], disk: Disk, items: Sequence[int]
) -> dict[int, str]:
    results: dict[int, str] = {}

    async def one(item: int) -> None:
        try:
            results[item] = await shared.share(item, disk.write, follow)
        except ValueError as error:
            results[item] = str(error)

    for item in items:
        nursery.start_soon(one, item)
        await trio.testing.wait_all_tasks_blocked()
    return results


async def test_one_alone_waits_for_nobody() -> None:
    shared, disk = SharedCommits[int, str](), Disk()
    disk.gate.set()
    assert await shared.share(1, disk.write, follow) == "stored 1"
    assert disk.seen == [[1]]


async def test_those_that_come_during_a_commit_share_the_next() -> None:
    shared, disk = SharedCommits[int, str](), Disk()
    async with trio.open_nursery() as nursery:
        results = await start(nursery, shared, disk, range(6))
        assert disk.seen == [[0]]
        disk.gate.set()
    assert disk.seen == [[0], [1, 2, 3, 4, 5]]
    assert results == {item: f"stored {item}" for item in range(6)}


async def test_a_shared_commit_that_fails_is_done_again_apart() -> None:
    shared, disk = SharedCommits[int, str](), Disk()
    async with trio.open_nursery() as nursery:
        results = await start(nursery, shared, disk, [1, 2, 13, 3])
        disk.gate.set()
    assert results == {1: "stored 1", 2: "stored 2", 13: "unlucky", 3: "stored 3"}


async def test_no_commit_takes_more_than_its_bound() -> None:
    shared, disk = SharedCommits[int, str](), Disk()
    async with trio.open_nursery() as nursery:
        results = await start(nursery, shared, disk, range(100, 102 + MOST))
        disk.gate.set()
    assert max(map(len, disk.seen)) == MOST
    assert len(results) == MOST + 2


@pytest.mark.parametrize("victim", [0, 1, 2])
async def test_a_cancelled_caller_takes_nobody_along(victim: int) -> None:
    shared, disk = SharedCommits[int, str](), Disk()
    results: dict[int, str] = {}
    scopes = [trio.CancelScope() for _ in range(4)]

    async def one(item: int) -> None:
        with scopes[item]:
            results[item] = await shared.share(item, disk.write, follow)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for item in range(4):
                nursery.start_soon(one, item)
                await trio.testing.wait_all_tasks_blocked()
            scopes[victim].cancel()
            await trio.testing.wait_all_tasks_blocked()
            disk.gate.set()
    assert set(results) == {0, 1, 2, 3} - {victim}


async def test_the_next_commit_begins_while_the_last_one_is_followed_up() -> None:
    shared, disk = SharedCommits[int, str](), Disk()
    disk.gate.set()
    begun, held = trio.Event(), trio.Event()
    followed: list[str] = []

    async def slowly(stored: list[str]) -> list[str]:
        begun.set()
        await held.wait()
        followed.extend(stored)
        return stored

    async def one(item: int) -> None:
        await shared.share(item, disk.write, slowly)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one, 1)
            await begun.wait()
            nursery.start_soon(one, 2)
            await trio.testing.wait_all_tasks_blocked()
            assert disk.seen == [[1], [2]]
            assert followed == []
            held.set()
    assert followed == ["stored 1", "stored 2"]
