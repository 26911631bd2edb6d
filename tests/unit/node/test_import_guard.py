"""The four packages come from one place, or the node refuses to run."""

from __future__ import annotations

from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

import pytest

from node.import_guard import ForeignPackage, check_imports


def test_our_packages_pass() -> None:
    assert check_imports() == Path(__file__).parents[3]


def test_missing_package_is_named() -> None:
    with pytest.raises(ForeignPackage, match="the package erasure is missing"):
        check_imports(lambda name: None if name == "erasure" else find_spec(name))


def test_foreign_package_is_named_with_its_place(tmp_path: Path) -> None:
    foreign = ModuleSpec("storage", None, origin=str(tmp_path / "__init__.py"), is_package=True)
    foreign.submodule_search_locations = [str(tmp_path)]
    with pytest.raises(ForeignPackage, match=f"storage is not mnemesh's: it comes from {tmp_path}"):
        check_imports(lambda name: foreign if name == "storage" else find_spec(name))


def test_namespace_package_is_refused() -> None:
    def find(name: str) -> ModuleSpec | None:
        found = find_spec(name)
        if name != "gossip" or found is None:
            return found
        namespace = ModuleSpec(name, None, is_package=True)
        namespace.submodule_search_locations = found.submodule_search_locations
        return namespace

    with pytest.raises(ForeignPackage, match="gossip is not mnemesh's"):
        check_imports(find)
