"""What a user installs: four packages with all their data, one command, and nothing else."""

from __future__ import annotations

import configparser
import email
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("node", "gossip", "erasure", "storage")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    built = subprocess.run(
        [*command, str(ROOT)], capture_output=True, text=True, timeout=120, check=False
    )
    assert built.returncode == 0, built.stdout[-2000:] + built.stderr[-2000:]
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def metadata_file(wheel: zipfile.ZipFile, name: str) -> str:
    (found,) = (entry for entry in wheel.namelist() if entry.endswith(f".dist-info/{name}"))
    return wheel.read(found).decode("utf-8")


def test_only_the_four_packages_are_at_the_top(wheel: zipfile.ZipFile) -> None:
    top = {name.split("/")[0] for name in wheel.namelist()}
    assert {name for name in top if not name.endswith(".dist-info")} == set(PACKAGES)


def test_every_file_of_the_packages_is_inside(wheel: zipfile.ZipFile) -> None:
    wanted = {
        str(file.relative_to(ROOT))
        for package in PACKAGES
        for file in (ROOT / package).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert packed == wanted


@pytest.mark.parametrize("folder", ["storage/sql/", "storage/migrations/"])
def test_statements_and_migrations_travel_along(wheel: zipfile.ZipFile, folder: str) -> None:
    assert [name for name in wheel.namelist() if name.startswith(folder) and name.endswith(".sql")]


def test_the_command_is_mnemesh(wheel: zipfile.ZipFile) -> None:
    points = configparser.ConfigParser()
    points.read_string(metadata_file(wheel, "entry_points.txt"))
    assert dict(points["console_scripts"]) == {"mnemesh": "node.cli.main:main"}


def test_the_metadata_carries_name_version_and_python(wheel: zipfile.ZipFile) -> None:
    metadata = email.message_from_string(metadata_file(wheel, "METADATA"))
    assert (metadata["Name"], metadata["Version"], metadata["Requires-Python"]) == (
        "mnemesh",
        PROJECT["version"],
        PROJECT["requires-python"],
    )


def test_the_licence_travels_along(wheel: zipfile.ZipFile) -> None:
    assert "Apache License" in metadata_file(wheel, "licenses/LICENSE")
