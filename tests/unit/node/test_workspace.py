"""The workspace: where it is, modes, and one process at a time."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from node.workspace import LOCATION_FILE, Workspace, WorkspaceInUse, resolve_workspace
from storage.errors import StartRefused

REPO = Path(__file__).parents[3]
HOLD = (
    "import sys, pathlib; from node.workspace import Workspace;"
    "workspace = Workspace(pathlib.Path(sys.argv[1]));"
    "lock = workspace.lock(); lock.__enter__(); workspace.write_pid();"
    "print('held', flush=True); sys.stdin.read()"
)


def write_location(home: Path, text: str) -> None:
    (home / LOCATION_FILE).parent.mkdir(parents=True)
    (home / LOCATION_FILE).write_text(text)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    made = Workspace(tmp_path / "ws")
    made.prepare()
    return made


# where


def test_path_option_wins(tmp_path: Path) -> None:
    write_location(tmp_path, json.dumps({"workspace": "/c"}))
    assert resolve_workspace(Path("/a"), {"MNEMESH_WORKSPACE": "/b"}, tmp_path) == Path("/a")


def test_variable_wins_over_the_location_file(tmp_path: Path) -> None:
    write_location(tmp_path, json.dumps({"workspace": "/c"}))
    assert resolve_workspace(None, {"MNEMESH_WORKSPACE": "/b"}, tmp_path) == Path("/b")


def test_location_file_wins_over_the_default(tmp_path: Path) -> None:
    write_location(tmp_path, json.dumps({"workspace": "~/c"}))
    assert resolve_workspace(None, {}, tmp_path) == tmp_path / "c"


def test_default_is_in_the_home_folder(tmp_path: Path) -> None:
    assert resolve_workspace(None, {"MNEMESH_WORKSPACE": ""}, tmp_path) == tmp_path / ".mnemesh"


def test_relative_path_counts_from_the_working_directory(tmp_path: Path) -> None:
    assert resolve_workspace(Path("a"), {}, tmp_path) == Path.cwd() / "a"


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"workspace": 3}', "[" * 5000])
def test_malformed_location_file_is_named(tmp_path: Path, text: str) -> None:
    write_location(tmp_path, text)
    with pytest.raises(StartRefused, match=r"location\.json"):
        resolve_workspace(None, {}, tmp_path)


def test_blank_variable_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartRefused, match=r"^MNEMESH_WORKSPACE: no usable path$"):
        resolve_workspace(None, {"MNEMESH_WORKSPACE": "  "}, tmp_path)


# what


def test_prepare_makes_the_layout_with_modes(workspace: Workspace) -> None:
    private = (
        workspace.keys,
        workspace.ledger,
        workspace.secrets,
        workspace.daemon,
        workspace.logs,
        workspace.hot,
        workspace.scripts,
        workspace.agents,
        workspace.skills,
    )
    assert {folder.name: mode(folder) for folder in private} == {
        folder.name: 0o700 for folder in private
    }


def test_the_way_to_the_database_opens_for_root_only(workspace: Workspace) -> None:
    expected = 0o711 if os.geteuid() == 0 else 0o700
    assert (mode(workspace.root), mode(workspace.pg.parent)) == (expected, expected)
    assert not workspace.pg.exists()


def test_prepare_is_idempotent(workspace: Workspace) -> None:
    (workspace.keys / "node.key").write_text("x")
    workspace.prepare()
    assert (workspace.keys / "node.key").read_text() == "x"


@pytest.mark.parametrize("name", ["keys", "ledger", ".secrets", ".daemon"])
def test_private_folder_open_to_others_is_refused(workspace: Workspace, name: str) -> None:
    (workspace.root / name).chmod(0o750)
    with pytest.raises(StartRefused, match=rf"{name} lets others in; run chmod 700"):
        workspace.prepare()


def test_linked_private_folder_is_refused(workspace: Workspace, tmp_path: Path) -> None:
    workspace.keys.rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    workspace.keys.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StartRefused, match="not a link"):
        workspace.prepare()


def test_foreign_private_folder_is_refused(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = workspace.keys.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(StartRefused, match="keys belongs to another user"):
        workspace.prepare()


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "ws").write_text("")
    with pytest.raises(StartRefused, match="ws"):
        Workspace(tmp_path / "ws").prepare()


# who


def test_second_process_is_told_the_pid(workspace: Workspace) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(workspace.root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPO,
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert workspace.running_pid() == holder.pid
        assert workspace.pid_file.read_text() == f"{holder.pid}\n"
        with (
            pytest.raises(WorkspaceInUse, match=rf"^workspace is in use by pid {holder.pid}: "),
            workspace.lock(),
        ):
            pytest.fail("it locked")
        holder.stdin.close()
        holder.wait(10)


def test_killed_process_leaves_no_lock_and_its_pid_file_goes(workspace: Workspace) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(workspace.root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPO,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        holder.kill()
        holder.wait(10)
    assert workspace.pid_file.exists()
    assert workspace.running_pid() is None
    assert not workspace.pid_file.exists()
    with workspace.lock():
        assert workspace.running_pid() == os.getpid()


def test_pid_file_lives_until_the_lock_ends(workspace: Workspace) -> None:
    with workspace.lock():
        assert not workspace.pid_file.exists()
        workspace.write_pid()
        assert workspace.pid_file.read_text() == f"{os.getpid()}\n"
    assert not workspace.pid_file.exists()


def test_lock_removes_a_stale_pid_file(workspace: Workspace) -> None:
    workspace.pid_file.write_text("999999\n")
    with workspace.lock():
        assert not workspace.pid_file.exists()


def test_lock_can_be_taken_again(workspace: Workspace) -> None:
    for _ in range(2):
        with workspace.lock(), pytest.raises(WorkspaceInUse), workspace.lock():
            pytest.fail("two locks on one workspace")


def test_no_workspace_has_no_process(tmp_path: Path) -> None:
    assert Workspace(tmp_path).running_pid() is None


def test_lock_without_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartRefused, match="cannot be opened"), Workspace(tmp_path / "x").lock():
        pytest.fail("it locked")
