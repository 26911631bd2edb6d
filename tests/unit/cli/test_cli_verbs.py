"""Verbs without a node: usage, exit codes, init, and what goes on a terminal."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from node.cli.main import cli
from node.cli.show import age, safe

FIXTURES = Path(__file__).resolve().parents[1] / "erasure"


def run(*args: str, **options: str) -> Result:
    return CliRunner().invoke(cli, list(args), **options)  # type: ignore[arg-type]


def every_verb(group: click.Group, way: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for name, verb in group.commands.items():
        found.append((*way, name))
        if isinstance(verb, click.Group):
            found += every_verb(verb, (*way, name))
    return found


@pytest.mark.parametrize("way", every_verb(cli), ids=" ".join)
def test_every_verb_explains_itself(way: tuple[str, ...]) -> None:
    result = run(*way, "--help")
    assert result.exit_code == 0
    assert result.output.count("\n") > 3


@pytest.mark.parametrize(
    "args", [("recall",), ("recall", "x", "--limit", "0"), ("nonsense",), ("recall", "x", "--no")]
)
def test_wrong_usage_ends_with_1(args: tuple[str, ...]) -> None:
    result = run(*args)
    assert result.exit_code == 1
    assert "Error" in result.stderr


@pytest.mark.parametrize(
    "args",
    [
        ("erase", "agent"),
        ("erasure", "status"),
        ("verify", "x.json"),
        ("certificate", "er_1"),
        ("erase", "agent", "bob", "--basis", "because"),
        ("erase", "agent", "bob"),
    ],
)
def test_wrong_usage_of_an_erasure_verb_ends_with_4(args: tuple[str, ...]) -> None:
    assert run(*args).exit_code == 4


def test_no_node_ends_with_2_and_says_what_to_do() -> None:
    result = run("recall", "x", "--url", "http://127.0.0.1:9")
    assert result.exit_code == 2
    assert "no node answers at http://127.0.0.1:9" in result.stderr
    assert "mnemesh up" in result.stderr


def test_a_named_workspace_never_leads_to_another_node(tmp_path: Path) -> None:
    result = run("recall", "x", "--path", str(tmp_path))
    assert result.exit_code == 2
    assert result.stderr == (
        f"Error: the node of {tmp_path} is not running; start it with `mnemesh up`\n"
    )


def test_no_node_ends_with_7_for_erasures() -> None:
    assert run("erasure", "list", "--url", "http://127.0.0.1:9").exit_code == 7
    assert run("erase", "agent", "bob", "--yes", "--url", "http://127.0.0.1:9").exit_code == 7


@pytest.mark.parametrize("url", ["http://[", "127.0.0.1:99999", "http://a b"])
def test_an_unusable_url_is_told(url: str) -> None:
    result = run("recall", "x", "--url", url)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_v_11_2_a_group_policy_needs_its_group() -> None:
    result = run("agent", "add", "x", "--memory", "group", "--url", "http://127.0.0.1:9")
    assert (result.exit_code, result.stderr) == (
        1,
        "Error: --group is required for group memory\n",
    )


def test_init_makes_a_workspace_and_keeps_one_that_is_there(tmp_path: Path) -> None:
    place = str(tmp_path / "ws")
    first = json.loads(run("init", "--path", place, "--json").stdout)
    config = Path(first["config"])
    config.write_text("version: 1\n")
    again = json.loads(run("init", "--path", place, "--json").stdout)
    assert again["node_id"] == first["node_id"]
    assert config.read_text() == "version: 1\n"
    assert Path(first["certificate"]).exists()
    assert (Path(place) / "keys").stat().st_mode & 0o777 == 0o700


def test_the_fresh_configuration_is_valid(tmp_path: Path) -> None:
    from node.config import load_config

    run("init", "--path", str(tmp_path / "ws"), "--port", "3999")
    assert load_config(tmp_path / "ws", {}).config.network.port == 3999


def test_the_certificate_is_printed_without_a_node(tmp_path: Path) -> None:
    place = str(tmp_path / "ws")
    missing = run("node", "certificate", "--path", place)
    assert missing.exit_code == 1
    assert "run `mnemesh init` first" in missing.stderr
    run("init", "--path", place)
    assert run("node", "certificate", "--path", place).stdout.startswith("-----BEGIN CERT")


def test_an_invitation_that_is_none_is_told(tmp_path: Path) -> None:
    file = tmp_path / "invitation.json"
    file.write_text("{}")
    result = run("init", "--path", str(tmp_path / "ws"), "--join", str(file))
    assert result.exit_code == 1
    assert result.stderr == "Error: not an invitation of this version\n"


def test_the_owner_of_a_workspace_signs_tokens_without_a_node(tmp_path: Path) -> None:
    from node.http.tokens import load_secret, read

    place = tmp_path / "ws"
    result = run("token", "create", "--role", "admin", "--offline", "--path", str(place), "--json")
    assert result.exit_code == 0, result.output
    secret = load_secret(place / ".daemon" / "auth-secret")
    claims = read(json.loads(result.stdout)["token"], secret, 0)
    assert (claims.role, claims.sub) == ("admin", "token:admin")
    assert claims.exp - claims.iat == 7 * 86_400


def test_up_without_a_workspace_says_what_to_do(tmp_path: Path) -> None:
    result = run("up", "--path", str(tmp_path / "none"))
    assert result.exit_code == 1
    assert "mnemesh init" in result.stderr


def test_retention_show_tells_every_category(tmp_path: Path) -> None:
    rows = json.loads(run("retention", "show", "--path", str(tmp_path), "--json").stdout)
    kept = {row["category"]: row["kept"] for row in rows}
    assert kept["deleted memories"] == "30d"
    assert kept["backups"] == "not stated"


def test_verify_works_anywhere_and_ends_with_the_verifiers_code(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text("{}")
    (tmp_path / "t.json").write_text("{}")
    result = run("verify", str(tmp_path / "c.json"), "--trust", str(tmp_path / "t.json"))
    assert result.exit_code == 4
    told = run("erasure", "verify", str(tmp_path / "c.json"), "--trust", "missing", "--json")
    assert told.exit_code == 4
    assert json.loads(told.stdout)["result"] == "malformed"


def test_nothing_that_a_memory_holds_steers_the_terminal() -> None:
    assert safe("a\x1b[2Jb\r\nc\x07") == "a\ufffd[2Jb\ufffd\nc\ufffd"


@pytest.mark.parametrize(
    ("ago", "text"),
    [(5, "5s"), (65, "1m"), (7_300, "2h"), (86_400 * 3, "3d"), (86_400 * 800, "2y"), (-9, "0s")],
)
def test_an_age_is_short(ago: int, text: str) -> None:
    now = datetime(2026, 8, 1, tzinfo=UTC)
    assert age((now - timedelta(seconds=ago)).isoformat(), now) == text
