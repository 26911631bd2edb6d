"""Refuses to run with somebody else's packages of the same name.

The four packages have plain names; another distribution, or a folder in the working directory,
could shadow one of them and half a node would run. Called first by every entry point, so it
imports nothing of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Final

PACKAGES: Final = ("node", "gossip", "erasure", "storage")


class ForeignPackage(ImportError):
    """One of the four packages is missing or belongs to another distribution."""


def check_imports(find: Callable[[str], ModuleSpec | None] = find_spec) -> Path:
    """The one folder that holds all four packages.

    Raises ForeignPackage naming the package that is missing, has no `__init__.py`, is spread
    over several folders, or lies elsewhere than this module.
    """
    home = Path(__file__).resolve().parents[1]
    for name in PACKAGES:
        spec = find(name)
        if spec is None:
            raise ForeignPackage(f"the package {name} is missing; install mnemesh again")
        places = _places(spec.submodule_search_locations)
        if spec.origin is None or places != [home / name]:
            where = ", ".join(map(str, places)) or spec.origin or "an unknown place"
            raise ForeignPackage(
                f"the package {name} is not mnemesh's: it comes from {where}, expected"
                f" {home / name}; use an own virtual environment"
            )
    return home


def _places(locations: Iterable[str] | None) -> list[Path]:
    return [Path(place).resolve() for place in locations or ()]
