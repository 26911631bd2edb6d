"""The developer's entry: it refuses clearly and never takes half an environment for a whole one."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[3] / "ops" / "dev"


@pytest.fixture
def dev(tmp_path: Path) -> ModuleType:
    """The script as a module whose repository is an empty project."""
    loader = importlib.machinery.SourceFileLoader("ops_dev", str(SCRIPT))
    spec = importlib.util.spec_from_loader("ops_dev", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    module.ROOT = tmp_path  # type: ignore[attr-defined]
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    (tmp_path / "constraints.txt").write_text("")
    return module


def make_quickly(dev: ModuleType, installer: str) -> Any:
    """An environment with an interpreter already in place, and a piece of Python as installer."""

    class Environment(dev.Environment):  # type: ignore[misc, name-defined]
        def _install_command(self) -> list[str]:
            return [sys.executable, "-c", installer]

        def _usable(self) -> bool:
            return bool(self.python.exists())

    environment: Any = Environment(".venv", ".")
    environment.python.parent.mkdir(parents=True)
    environment.python.symlink_to(sys.executable)
    return environment


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=90
    )


def test_help_names_every_verb() -> None:
    answer = run("--help")
    assert answer.returncode == 0
    assert all(f"  {verb}" in answer.stdout for verb in ("mesh", "test", "check", "bench", "fmt"))


@pytest.mark.parametrize("verb", ["mesh", "test", "check", "bench", "fmt"])
def test_each_verb_teaches(verb: str) -> None:
    answer = run("help", verb)
    assert answer.stdout.startswith(f"usage: ops/dev {verb}")


def test_a_misspelt_verb_gets_a_suggestion() -> None:
    answer = run("tets")
    assert answer.returncode == 2
    assert "did you mean test?" in answer.stderr


def test_bench_without_a_name_asks_for_one() -> None:
    answer = run("bench")
    assert answer.returncode == 2
    assert "which benchmark?" in answer.stderr


def test_an_environment_is_ready_after_the_installer_ended_well(dev: ModuleType) -> None:
    environment = make_quickly(dev, "print('Collecting thing')")
    assert environment.ready() is False
    environment.ensure()
    assert environment.ready() is True


@pytest.mark.parametrize("file", ["pyproject.toml", "constraints.txt"])
def test_a_changed_requirement_makes_the_environment_stale(dev: ModuleType, file: str) -> None:
    environment = make_quickly(dev, "")
    environment.ensure()
    (dev.ROOT / file).write_text("changed")
    assert environment.ready() is False


def test_a_failed_installation_is_not_accepted(dev: ModuleType) -> None:
    environment = make_quickly(dev, "raise SystemExit('no such package')")
    with pytest.raises(dev.Refusal, match="no such package"):
        environment.ensure()
    assert environment.ready() is False


def test_a_failure_shows_no_host(dev: ModuleType) -> None:
    text = "HTTPSConnectionPool(host='index.example', port=443) https://index.example/simple/x"
    environment = make_quickly(dev, f"raise SystemExit({text!r})")
    with pytest.raises(dev.Refusal) as caught:
        environment.ensure()
    assert "index.example" not in str(caught.value)
    assert "index.example" in environment.log.read_text()


def test_an_interrupted_installation_is_thrown_away(dev: ModuleType) -> None:
    environment = make_quickly(dev, "")
    (environment.folder / "setup.unfinished").touch()
    half = environment.folder / "lib" / "half.py"
    half.parent.mkdir()
    half.touch()
    environment._clear()
    left = sorted(entry.name for entry in environment.folder.iterdir())
    assert left == ["setup.unfinished"]


def test_a_killed_installer_leaves_the_mark_of_an_unfinished_one(dev: ModuleType) -> None:
    environment = make_quickly(dev, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(dev.Refusal):
        environment.ensure()
    assert (environment.folder / "setup.unfinished").exists()


def test_a_second_start_waits_and_installs_nothing(dev: ModuleType) -> None:
    counter = dev.ROOT / "runs"
    environment = make_quickly(
        dev, f"import time; open({str(counter)!r}, 'a').write('x'); time.sleep(0.2)"
    )
    threads = [threading.Thread(target=environment.ensure) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    assert counter.read_text() == "x"


def test_everything_the_machine_lacks_is_named_at_once(
    dev: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dev.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(dev.shutil, "which", lambda name: None)
    monkeypatch.setattr(dev.sysconfig, "get_paths", lambda: {"include": "/nonexistent"})
    told = " ".join(dev.missing_prerequisites())
    assert [name for name in ("python3-venv", "g++", "python3-dev") if name in told] == [
        "python3-venv",
        "g++",
        "python3-dev",
    ]


@pytest.mark.parametrize(
    ("line", "phase"),
    [
        ("Collecting trio>=0.29 (from mnemesh==0.1.0)", "looking at trio"),
        ("Installing collected packages: a, b, c", "installing 3 packages"),
        ("Building wheels for collected packages: hnswlib", "building what comes as source"),
        ("Requirement already satisfied: trio", ""),
    ],
)
def test_pip_is_put_into_words(dev: ModuleType, line: str, phase: str) -> None:
    assert dev.phase_of(line) == phase
