"""Each bad file is refused with its own exit code and nothing raises."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.erasure import defects
from tests.unit.erasure.defects import BAD
from tests.unit.erasure.files import Folder

INDEX = json.loads((BAD / "index.json").read_bytes())


@pytest.mark.parametrize("beside", sorted({tuple(one["beside"]) for one in INDEX.values()}))
def test_good_files_alone_have_no_cause(beside: tuple[str, ...], tmp_path: Path) -> None:
    assert Folder(tmp_path).keep(*beside).verify().causes == []


@pytest.mark.parametrize("name", INDEX)
def test_bad_file_ends_with_its_exit_code(name: str, tmp_path: Path) -> None:
    folder = Folder(tmp_path).keep(*INDEX[name]["beside"])
    folder.files[INDEX[name]["place"]] = (BAD / f"{name}.json").read_bytes()
    report = folder.verify()
    assert report.exit_code == INDEX[name]["exit"], report.lines()


def test_committed_bad_files_are_those_that_the_generator_writes() -> None:
    found = defects.defects()
    assert (BAD / "index.json").read_bytes() == defects.index(found)
    assert {path.name: path.read_bytes() for path in BAD.glob("*.json")} == {
        f"{one.name}.json": one.data for one in found
    } | {"index.json": defects.index(found)}
