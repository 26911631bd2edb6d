"""Who shares a commit with whom."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import pytest
import trio
import trio.testing

from node.memory.commits import MOST, Entry, SharedCommits


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


async def share(
    shared: SharedCommits[int, str],
    items: Sequence[int],
    write: Callable[[Sequence[int]], Awaitable[list[str]]],
    followed: Callable[[list[str]], Awaitable[list[str]]] = follow,
    left: Sequence[int] = (),
) -> list[str | None]:
    entries = [Entry[int, str](item, lambda item=item: item in left) for item in items]
    await shared.share(entries, write, followed)
    return [str(entry.error) if entry.error else entry.result for entry in entries]


async def start(
    nursery: trio.Nursery, shared: SharedCommits[int, str], disk: Disk, items: Sequence[int]
) -> dict[int, str | None]:
    results: dict[int, str | None] = {}

    async def one(item: int) -> None:
        (results[item],) = await share(shared, [item], disk.write)

    for item in items:
        nursery.start_soon(one, item)
        await trio.testing.wait_all_tasks_blocked()
    return results


async def test_one_alone_waits_for_nobody() -> None:
    shared, disk = SharedCommits[int, str](), Disk()
    disk.gate.set()
    assert await share(shared, [1], disk.write) == ["stored 1"]
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
    results: dict[int, str | None] = {}
    scopes = [trio.CancelScope() for _ in range(4)]

    async def one(item: int) -> None:
        with scopes[item]:
            (results[item],) = await share(shared, [item], disk.write)

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
        await share(shared, [item], disk.write, slowly)

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


async def test_items_that_came_together_are_committed_together() -> None:
    shared, disk = SharedCommits[int, str](), Disk()
    disk.gate.set()
    assert await share(shared, [1, 2, 3], disk.write) == ["stored 1", "stored 2", "stored 3"]
    assert disk.seen == [[1, 2, 3]]


async def test_of_items_that_came_together_a_bad_one_fails_alone() -> None:
    shared, disk = SharedCommits[int, str](), Disk()
    disk.gate.set()
    assert await share(shared, [1, 13, 3], disk.write) == ["stored 1", "unlucky", "stored 3"]
    assert sorted(disk.seen[1:]) == [[1], [3], [13]]


async def test_what_is_not_wanted_when_its_commit_begins_is_left_out() -> None:
    shared, disk = SharedCommits[int, str](), Disk()
    left: list[int] = []
    results: list[str | None] = []

    async def several() -> None:
        results.extend(await share(shared, [1, 2, 3], disk.write, left=left))

    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            await start(nursery, shared, disk, [0])
            nursery.start_soon(several)
            await trio.testing.wait_all_tasks_blocked()
            left.append(2)
            disk.gate.set()
    assert disk.seen == [[0], [1, 3]]
    assert results == ["stored 1", None, "stored 3"]


async def test_without_anything_wanted_there_is_no_commit() -> None:
    shared, disk = SharedCommits[int, str](), Disk()
    disk.gate.set()
    assert await share(shared, [1, 2], disk.write, left=[1, 2]) == [None, None]
    assert disk.seen == []


async def test_a_fault_of_what_follows_is_told_and_the_next_commit_goes_on() -> None:
    shared, disk = SharedCommits[int, str](), Disk()
    disk.gate.set()

    async def fail(stored: list[str]) -> list[str]:
        raise ValueError("no room")

    assert await share(shared, [1], disk.write, fail) == ["no room"]
    assert await share(shared, [2], disk.write) == ["stored 2"]
