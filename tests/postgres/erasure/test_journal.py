"""The ledger and its file: a file that is behind is caught up, a database that is behind stops."""

from __future__ import annotations

import json

import pytest
import trio

from erasure import apply, journal, requests
from erasure.ledger import LedgerKind, replay
from storage import ledger
from tests.support.erasure_nodes import ErasureNode, add_agent, agent, request

LIMIT = 60


async def entries(node: ErasureNode, count: int) -> None:
    """Append some entries without copying them."""
    for number in range(count):
        await node.db.transact(
            journal.append,
            node.ctx.node,
            LedgerKind.OPENED,
            node.wall(),
            {"erasure_id": f"er_{number}"},
        )


def lines(node: ErasureNode) -> list[dict[str, object]]:
    """The file copy."""
    data = (node.ctx.ledger_dir / journal.COPY).read_bytes()
    return [json.loads(line) for line in data.splitlines()]


async def test_the_first_append_opens_the_log_and_entries_follow_one_another(
    origin: ErasureNode,
) -> None:
    with trio.fail_after(LIMIT):
        await entries(origin, 3)
        rows = await origin.db.read(ledger.page, 0, 10)
        assert [row.kind for row in rows] == ["log_opened", "opened", "opened", "opened"]
        end = await origin.db.read(ledger.head)
        state = replay([row.payload for row in rows])
        assert end is not None
        assert (end.size, end.root, end.frontier) == (4, state.root, state.frontier.peaks)


async def test_concurrent_appends_leave_no_gap(origin: ErasureNode) -> None:
    with trio.fail_after(LIMIT):
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(entries, origin, 5)
        rows = await origin.db.read(ledger.page, 0, 100)
        assert replay([row.payload for row in rows]).size == 21


async def test_a_file_that_is_behind_is_caught_up(origin: ErasureNode) -> None:
    with trio.fail_after(LIMIT):
        await entries(origin, 2)
        await journal.copy(origin.ctx)
        await entries(origin, 2)
        assert len(lines(origin)) == 3
        await apply.resume(origin.ctx)
        assert [json.loads(str(line["entry"]))["seq"] for line in lines(origin)] == [1, 2, 3, 4, 5]


async def test_a_line_that_a_crash_cut_is_written_again(origin: ErasureNode) -> None:
    with trio.fail_after(LIMIT):
        await entries(origin, 3)
        await journal.copy(origin.ctx)
        path = origin.ctx.ledger_dir / journal.COPY
        whole = path.read_bytes()
        path.write_bytes(whole[:-10])
        await apply.resume(origin.ctx)
        assert path.read_bytes() == whole


async def test_es_06_es_25_a_database_behind_its_file_does_not_start(
    origin: ErasureNode,
) -> None:
    with trio.fail_after(LIMIT):
        a1 = await add_agent(origin, "a1")
        await requests.erase(origin.ctx, request(agent(a1)))
        await origin.sql("ALTER TABLE ledger DISABLE TRIGGER ALL")
        await origin.sql("DELETE FROM ledger WHERE seq = (SELECT max(seq) FROM ledger)")

        with pytest.raises(journal.RestoredDatabase, match="restore-check"):
            await apply.resume(origin.ctx)


async def test_a_database_with_another_history_does_not_start(origin: ErasureNode) -> None:
    with trio.fail_after(LIMIT):
        await entries(origin, 2)
        await journal.copy(origin.ctx)
        await origin.sql("ALTER TABLE ledger DISABLE TRIGGER ALL")
        await origin.sql("UPDATE ledger SET leaf = decode(repeat('ab', 32), 'hex') WHERE seq = 3")
        with pytest.raises(journal.RestoredDatabase):
            await apply.resume(origin.ctx)


async def test_the_file_is_readable_by_its_owner_alone(origin: ErasureNode) -> None:
    with trio.fail_after(LIMIT):
        await entries(origin, 1)
        await journal.copy(origin.ctx)
        assert (origin.ctx.ledger_dir / journal.COPY).stat().st_mode & 0o777 == 0o600
        assert origin.ctx.ledger_dir.stat().st_mode & 0o777 == 0o700
