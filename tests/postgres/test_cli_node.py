"""Verbs against a running node."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner, Result

from node.cli.client import Node
from node.cli.group import Failure
from node.cli.main import cli
from node.memory import forget as ending
from tests.support.services import Edge, edge, served

__all__ = ["edge", "served"]

pytestmark = pytest.mark.postgres


async def run(edge: Edge, *args: str, stdin: str | None = None) -> Result:
    """One verb in a thread, with the node's address and no other environment."""
    environment = {
        "MNEMESH_URL": edge.url,
        "MNEMESH_TOKEN": "",
        "MNEMESH_WORKSPACE": "",
        "XDG_STATE_HOME": str(edge.services.workspace.root.parent / "state"),
    }

    def invoke() -> Result:
        return CliRunner(env=environment).invoke(cli, list(args), input=stdin)

    return await trio.to_thread.run_sync(invoke)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def done(edge: Edge, *args: str, stdin: str | None = None) -> Any:
    """A verb with --json that ends well; what it printed."""
    result = await run(edge, *args, "--json", stdin=stdin)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


async def test_a_remembered_text_is_recalled(served: Edge) -> None:
    told = await run(served, "remember", "Alice likes green tea", "--tag", "people")
    found = await run(served, "recall", "what does Alice like?")
    assert (told.exit_code, found.exit_code) == (0, 0), told.output + found.output
    assert told.stdout.startswith("remembered  ")
    assert "Alice likes green tea" in found.stdout
    assert "default" in found.stdout
    assert "hot" in found.stdout


async def test_standard_input_is_remembered(served: Edge) -> None:
    row = await done(served, "remember", "-", stdin="piped text\n")
    assert row["content"] == "piped text"
    page = await done(served, "list")
    assert [one["content"] for one in page["memories"]] == ["piped text"]


async def test_json_is_the_body_unchanged(served: Edge) -> None:
    row = await done(served, "remember", "x", "--type", "decision", "--ttl", "60")
    assert (
        await done(served, "get", row["id"])
        == (await served.get(f"/api/memory/{row['id']}")).json()
    )


async def test_an_explanation_shows_the_parts_and_the_id(served: Edge) -> None:
    row = await done(served, "remember", "the garden plan")
    text = (await run(served, "recall", "garden", "--explain")).stdout
    assert "cosine" in text
    assert row["id"] in text


async def test_a_refusal_is_told_with_its_field(served: Edge) -> None:
    result = await run(served, "remember", "x", "--agent", "nobody")
    assert (result.exit_code, result.stderr) == (1, "Error: agent not found: nobody\n")
    missing = await run(served, "get", "0" * 32)
    assert (missing.exit_code, missing.stderr) == (1, "Error: memory not found\n")


async def test_delete_recover_forget_and_history(served: Edge) -> None:
    row = await done(served, "remember", "on its way out")
    assert (await done(served, "delete", row["id"]))["deleted"] == [row["id"]]
    assert (await done(served, "recover", row["id"]))["id"] == row["id"]
    forgotten = await run(served, "forget", row["id"])
    assert forgotten.stdout == f"forgotten  {row['id']}\n"
    told = await run(served, "history", row["id"])
    assert "recovered" in told.stdout
    assert "on its way out" not in told.stdout


async def test_by_a_text_only_candidates_are_shown(served: Edge) -> None:
    row = await done(served, "remember", "the garden plan")
    for verb in ("forget", "delete"):
        assert row["id"] in (await run(served, verb, "--like", "garden")).stdout
        assert (await run(served, verb)).exit_code == 1
        assert (await run(served, verb, row["id"], "--like", "garden")).exit_code == 1
    assert (await done(served, "get", row["id"]))["content"] == "the garden plan"


async def test_a_memory_is_modified(served: Edge) -> None:
    row = await done(served, "remember", "deploys on fridays", "--tag", "ops")
    told = await run(served, "modify", row["id"], "-", "--pinned", stdin="deploys on mondays\n")
    assert (told.exit_code, told.stdout) == (0, f"modified  {row['id']}\n"), told.output
    changed = await done(served, "modify", row["id"], "--no-tags", "--importance", "0.25")
    assert (changed["content"], changed["tags"]) == ("deploys on mondays", [])
    assert (changed["pinned"], changed["importance"]) == (True, 0.25)
    nothing = await run(served, "modify", row["id"])
    assert (nothing.exit_code, nothing.stderr) == (1, "Error: nothing to change is given\n")
    assert (await run(served, "modify", row["id"], "--tag", "a", "--no-tags")).exit_code == 1
    events = (await run(served, "history", row["id"], "--limit", "1")).stdout
    assert f"more: mnemesh history {row['id']} --cursor" in events


async def test_all_that_match_are_counted_and_then_ended(served: Edge) -> None:
    for number in range(3):
        await done(served, "remember", f"scratch {number}", "--tag", "scratch")
    await done(served, "remember", "kept")
    counted = await run(served, "forget", "--tag", "scratch", "--dry-run")
    assert counted.stdout == "would forget 3\n"
    asked = await run(served, "forget", "--tag", "scratch")
    assert (asked.exit_code, "--yes is needed" in asked.stderr) == (1, True)
    gone = await run(served, "forget", "--tag", "scratch", "--yes")
    assert gone.stdout == "forgotten  3\n"
    listed = await done(served, "list", "--offset", "0")
    assert [row["content"] for row in listed["memories"]] == ["kept"]
    for wrong in (("--yes",), ("--tag", "x", "--like", "y"), ("0" * 32, "--dry-run")):
        assert (await run(served, "delete", *wrong)).exit_code == 1


async def test_agents_are_shown_removed_and_purged(served: Edge) -> None:
    for name in ("bob", "eve"):
        await done(served, "agent", "add", name)
        await done(served, "remember", f"of {name}", "--agent", name)
    assert (await done(served, "agent", "info", "bob"))["name"] == "bob"
    assert (await done(served, "agent", "remove", "bob"))["archived"] == 1
    refused = await run(served, "agent", "purge", "eve")
    assert (refused.exit_code, "--force is required" in refused.stderr) == (1, True)
    purged = await run(served, "agent", "purge", "eve", "--force")
    assert purged.stdout.startswith("removed  eve  ")
    assert "(0 archived, 1 forgotten)" in purged.stdout
    kept = await run(served, "agent", "remove", "default")
    assert (kept.exit_code, kept.stderr) == (1, "Error: the node's own agent cannot be removed\n")


async def test_the_node_of_a_workspace_is_found(served: Edge) -> None:
    result = await run(served, "status", "--path", str(served.services.workspace.root), "--json")
    assert json.loads(result.stdout)["node_id"] == served.world.node.node_id.hex()
    assert "resident" in (await run(served, "status")).stdout


async def test_an_import_is_repeated_without_harm(served: Edge, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "a.md").write_text("# Tea\nGreen.\n\n# Coffee\nBlack.\n")
    (notes / "b.jsonl").write_text('{"content": "water"}\n{"content": ""}\n')
    first = await run(served, "import", str(notes), "--json")
    again = await run(served, "import", str(notes), "--json")
    assert (first.exit_code, again.exit_code) == (1, 1)
    told = json.loads(first.stdout)
    assert (told["read"], told["stored"], told["failed"]) == (4, 3, 1)
    assert told["failures"] == [{"place": "b.jsonl:2", "error": "content is required"}]
    repeated = json.loads(again.stdout)
    assert (repeated["stored"], repeated["deduped"]) == (0, 3)


async def test_a_chat_becomes_turns_with_speakers_and_times(served: Edge, tmp_path: Path) -> None:
    file = tmp_path / "talk.chat"
    file.write_text("[2026-07-01T10:00:00+02:00] ann: when is the deploy\nbob: on friday\n")
    told = await done(served, "import", str(file))
    assert (told["stored"], told["failed"]) == (2, 0)
    rows = (await done(served, "list"))["memories"]
    assert {(row["who"], row["content"], row["type"]) for row in rows} == {
        ("ann", "when is the deploy", "turn"),
        ("bob", "on friday", "turn"),
    }
    assert "2026-07-01T08:00:00.000Z" in {row["created_at"] for row in rows}


async def test_an_import_goes_on_where_it_broke_off(
    served: Edge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("\n\n".join(f"note number {number}" for number in range(250)))
    posted: list[int] = []
    post = Node.patiently

    def breaks(node: Node, path: str, body: dict[str, Any]) -> Any:
        if len(posted) == 2:
            raise Failure("the line went dead", 2)
        posted.append(len(body["memories"]))
        return post(node, path, body)

    monkeypatch.setattr(Node, "patiently", breaks)
    broken = await run(served, "import", str(file))
    assert broken.exit_code == 2
    assert "stopped behind 200 of 250; the same command goes on there" in broken.stderr
    monkeypatch.setattr(Node, "patiently", post)
    rest = await run(served, "import", str(file), "--json")
    assert "going on behind the first 200 of 250" in rest.stderr
    told = json.loads(rest.stdout)
    assert {name: told[name] for name in ("read", "stored", "deduped", "failed", "resumed")} == {
        "read": 250,
        "stored": 250,
        "deduped": 0,
        "failed": 0,
        "resumed": 200,
    }
    assert await memories(served) == (250, 250)
    again = await done(served, "import", str(file))
    assert (again["stored"], again["deduped"], again["resumed"]) == (0, 250, 0)


@pytest.mark.parametrize("change", ["the file", "the node", "asked to"])
async def test_an_import_begins_anew_when_what_it_did_no_longer_holds(
    served: Edge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("\n\n".join(f"note number {number}" for number in range(120)))
    post = Node.patiently

    def once(node: Node, path: str, body: dict[str, Any]) -> Any:
        done = post(node, path, body)
        monkeypatch.setattr(Node, "patiently", breaks)
        return done

    def breaks(node: Node, path: str, body: dict[str, Any]) -> Any:
        raise Failure("the line went dead", 2)

    monkeypatch.setattr(Node, "patiently", once)
    assert (await run(served, "import", str(file))).exit_code == 2
    monkeypatch.setattr(Node, "patiently", post)
    if change == "the file":
        file.write_text(f"a new note\n\n{file.read_text()}")
    elif change == "the node":
        rows = await served.world.rows("SELECT id FROM memories WHERE kind = 'cell'")
        default = served.world.context.agents.resolve(None)
        await ending.forget(served.world.context, default, [bytes(row[0]) for row in rows])
    told = await done(served, "import", str(file), *["--restart"] * (change == "asked to"))
    wanted = {"the file": (21, 100), "the node": (120, 0), "asked to": (20, 100)}[change]
    assert (told["stored"], told["deduped"], told["resumed"]) == (*wanted, 0)


async def memories(edge: Edge) -> tuple[int, int]:
    """How many there are, and how often they were seen altogether."""
    (row,) = await edge.world.rows(
        "SELECT count(*), sum(seen_count) FROM memories WHERE kind = 'cell'"
    )
    return int(row[0]), int(row[1])


async def test_an_export_goes_back_in(served: Edge, tmp_path: Path) -> None:
    for number in range(3):
        await done(served, "remember", f"row {number}", "--tag", "t")
    file = tmp_path / "all.jsonl"
    exported = await run(served, "export", "-o", str(file))
    assert exported.exit_code == 0, exported.output
    assert [name for name in names(tmp_path) if "jsonl" in name] == ["all.jsonl"]
    await done(served, "agent", "add", "twin")
    told = await done(served, "import", str(file), "--agent", "twin")
    assert (told["stored"], told["failed"]) == (3, 0)


async def test_agents_projects_members_and_tokens(served: Edge) -> None:
    await served.world.project("team")
    made = await done(served, "agent", "add", "bob", "--description", "billing")
    assert made["read_policy"] == "isolated"
    assert "bob" in (await run(served, "agent", "list")).stdout
    assert "team" in (await run(served, "project", "list")).stdout
    assert (await run(served, "members")).stdout == "none\n"
    token = await run(served, "token", "create", "--role", "agent", "--agent", "bob")
    assert token.stdout.count(".") == 1
    unbound = await run(served, "token", "create", "--role", "agent")
    assert unbound.exit_code == 1
    assert (await done(served, "retention", "run")) == {"removed": 0}
    assert (await done(served, "node", "show"))["mesh_id"] == "test-mesh"


async def test_a_missing_token_is_told_with_the_way_to_one(served: Edge) -> None:
    served.configure(auth={"mode": "team"}, network={"port": 0})
    result = await run(served, "list")
    assert result.exit_code == 1
    assert "mnemesh token create" in result.stderr


async def test_erase_prove_and_verify(served: Edge, tmp_path: Path) -> None:
    await done(served, "agent", "add", "bob")
    await done(served, "remember", "bob likes tea", "--agent", "bob")
    planned = await run(served, "erase", "agent", "bob", "--dry-run", "--json")
    assert json.loads(planned.stdout)["state"] == "planned"
    assert "would go from" in (await run(served, "erase", "agent", "bob", "--dry-run")).stdout
    told = await run(served, "erase", "agent", "bob", "--yes", "--json", "--wait", "closed")
    assert told.exit_code == 0, told.output
    erasure_id = json.loads(told.stdout)["erasure_id"]
    assert erasure_id in (await run(served, "erasure", "list")).stdout
    told = await run(served, "erasure", "status", erasure_id)
    assert told.exit_code == 0
    assert "unreachable now" in told.stdout
    folder = tmp_path / "proof"
    everything = "receipts,closure,addenda,proof,head,trust"
    wrote = await run(served, "certificate", erasure_id, "-o", str(folder), "--with", everything)
    assert wrote.exit_code == 0, wrote.output
    assert names(folder) == [
        "certificate.json",
        "closure.json",
        "head.json",
        "proof.json",
        "receipts",
        "trust.json",
    ]
    checked = await run(
        served,
        "verify",
        str(folder / "certificate.json"),
        *("--trust", str(folder / "trust.json"), "--closure", str(folder / "closure.json")),
        *("--receipts", str(folder / "receipts")),
        *("--proof", str(folder / "proof.json"), "--head", str(folder / "head.json")),
    )
    assert checked.exit_code in (0, 2), checked.output
    assert "result: valid" in checked.stdout


async def test_an_unknown_scope_or_erasure_ends_with_6(served: Edge) -> None:
    unknown = await run(served, "erase", "agent", "1" * 32, "--yes")
    assert (unknown.exit_code, unknown.stderr) == (6, "Error: scope not found\n")
    assert (await run(served, "erasure", "status", "er_1")).exit_code == 6
    assert (await run(served, "erase", "agent", "*", "--yes")).exit_code == 4
