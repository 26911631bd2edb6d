"""Which migrations are left, and which databases do not fit the files."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.errors import StartRefused
from storage.migrate import Applied, Migration, discover, plan

ONE = Migration(1, "0001_pre_one", "SELECT 1", b"1")
TWO = Migration(2, "0002_post_two", "SELECT 2", b"2")


def applied(migration: Migration, compat: int = 1) -> Applied:
    return Applied(migration.version, migration.name, migration.checksum, compat)


def test_an_empty_database_needs_all() -> None:
    assert plan([ONE, TWO], []) == (ONE, TWO)


def test_what_was_applied_is_not_left() -> None:
    assert plan([ONE, TWO], [applied(ONE)]) == (TWO,)


def test_a_changed_file_is_refused() -> None:
    changed = Applied(1, ONE.name, b"other", 1)
    with pytest.raises(StartRefused, match="0001_pre_one was changed after it was applied"):
        plan([ONE], [changed])


def test_a_newer_database_that_old_code_may_use_is_accepted() -> None:
    assert plan([ONE], [applied(ONE), applied(TWO, compat=1)]) == ()


def test_a_newer_database_that_needs_newer_code_is_refused() -> None:
    with pytest.raises(StartRefused, match="schema 2, this mnemesh knows 1"):
        plan([ONE], [applied(ONE), applied(TWO, compat=2)])


def test_a_skipped_migration_is_refused() -> None:
    with pytest.raises(StartRefused, match="0001_pre_one was skipped"):
        plan([ONE, TWO], [applied(TWO)])


@pytest.mark.parametrize(
    "names, complaint",
    [
        (["0001_initial.sql"], "0001_initial.sql: the name must be"),
        (["0002_pre_two.sql"], "number 0001 was expected"),
        (["0001_pre_one.sql", "0003_pre_three.sql"], "number 0002 was expected"),
        (["0001_pre_one.sql", "0001_pre_uno.sql"], "number 0002 was expected"),
    ],
)
def test_misnamed_files_are_refused(tmp_path: Path, names: list[str], complaint: str) -> None:
    for name in names:
        (tmp_path / name).write_text("SELECT 1")
    with pytest.raises(StartRefused, match=complaint):
        discover(tmp_path)


def test_files_come_in_order_with_their_sums(tmp_path: Path) -> None:
    (tmp_path / "0002_post_b.sql").write_text("SELECT 2")
    (tmp_path / "0001_pre_a.sql").write_text("SELECT 1")
    (tmp_path / "schema.sql").write_text("not a migration")
    found = discover(tmp_path)
    assert [m.name for m in found] == ["0001_pre_a", "0002_post_b"]
    assert len({m.checksum for m in found}) == 2


def test_the_shipped_migrations_are_well_named() -> None:
    assert discover()[0].version == 1
