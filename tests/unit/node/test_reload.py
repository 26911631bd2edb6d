"""SIGHUP: what a reload plans, applies, refuses and reports."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import trio

from erasure import settings as erasure_settings
from gossip.settings import GossipSettings
from node.config import Config, load_config, parse_config
from node.reload import HOT_KEYS, Reloader, flatten, is_hot, plan
from storage.errors import Conflict

DAY = 86_400_000


def config_of(raw: dict[str, Any]) -> Config:
    return parse_config(raw, {}).config


def keys(changes: Any) -> list[str]:
    return [change.key for change in changes]


def reloader_on(folder: Path) -> Reloader:
    def load() -> Any:
        return load_config(folder, {})

    return Reloader(load().config, load)


def test_every_hot_key_exists() -> None:
    known = flatten(Config())
    for hot in HOT_KEYS:
        assert any(key == hot or key.startswith(hot + ".") for key in known), hot


def test_hot_keys_of_gossip_are_those_its_settings_mark() -> None:
    def marked(settings: Any, path: str) -> set[str]:
        found = set()
        for each in dataclasses.fields(settings):
            value = getattr(settings, each.name)
            key = f"{path}.{each.name}"
            if dataclasses.is_dataclass(value):
                found |= marked(value, key)
            elif each.metadata["hot"]:
                found.add(key)
        return found

    hot = {key for key in flatten(Config()) if key.startswith("gossip.") and is_hot(key)}
    assert hot == marked(GossipSettings(), "gossip")


def test_hot_keys_of_erasure_are_those_its_settings_name() -> None:
    hot = {key for key in flatten(Config()) if key.startswith("erasure.") and is_hot(key)}
    assert hot == {f"erasure.{name.removesuffix('_ms')}" for name in erasure_settings.RELOADABLE}


@pytest.mark.parametrize(
    "key", ["database.dsn", "network.port", "auth.mode", "gossip.listen", "embedding.model"]
)
def test_keys_that_need_a_restart(key: str) -> None:
    assert not is_hot(key)


def test_equal_configurations_plan_nothing() -> None:
    planned = plan(Config(), Config())
    assert (planned.hot, planned.cold, planned.config) == ((), (), Config())


def test_plan_splits_hot_and_cold_changes() -> None:
    new = config_of({"eviction": {"idle": "1d"}, "network": {"port": 4000}})
    planned = plan(Config(), new)
    assert (keys(planned.hot), keys(planned.cold)) == (["eviction.idle"], ["network.port"])


def test_planned_configuration_keeps_cold_values() -> None:
    new = config_of(
        {
            "eviction": {"idle": "1d"},
            "network": {"port": 4000},
            "gossip": {"views": {"semantic": 30, "random_active": 9}},
            "auth": {"session_token_ttl": "1h", "rate_limits": {"forget": {"max": 3}}},
            "agents": {"roster": [{"name": "a"}]},
        }
    )
    config = plan(Config(), new).config
    assert (config.eviction.idle, config.network.port) == (DAY, 3850)
    assert (config.gossip.views.semantic, config.gossip.views.random_active) == (30, 8)
    assert (config.auth.session_token_ttl, config.auth.rate_limits.forget.max) == (DAY, 3)
    assert [entry.name for entry in config.agents.roster] == ["a"]


def test_v4_12_a_new_ttl_is_hot() -> None:
    new = config_of({"retention": {"soft_deleted_ttl": "7d"}})
    planned = plan(Config(), new)
    assert keys(planned.hot) == ["retention.soft_deleted_ttl"]
    assert planned.config.retention.soft_deleted_ttl == 7 * DAY


async def test_reload_applies_hot_and_names_cold(tmp_path: Path) -> None:
    reloader = reloader_on(tmp_path)
    seen: list[Config] = []
    reloader.on_change(seen.append)
    (tmp_path / "agent.yaml").write_text("eviction: {ceiling: 7}\ndatabase: {dsn: hunter2}\n")
    with trio.fail_after(60):
        result = await reloader.reload()
    assert result.as_dict() == {
        "status": "applied",
        "changed": ["eviction.ceiling"],
        "restart": ["database.dsn"],
        "problems": [],
        "warnings": [],
    }
    assert seen == [reloader.current]
    assert (reloader.current.eviction.ceiling, reloader.current.database.dsn) == (7, None)
    assert "hunter2" not in result.text()


async def test_text_has_one_fact_per_line(tmp_path: Path) -> None:
    reloader = reloader_on(tmp_path)
    (tmp_path / "agent.yaml").write_text("retention: {batch_limit: 0}\nnetwork: {port: 1}\n")
    with trio.fail_after(60):
        result = await reloader.reload()
    assert result.text().splitlines() == [
        "configuration applied",
        "  changed: retention.batch_limit",
        "  needs a restart: network.port",
        "  warning: retention.batch_limit: out of range, 1 is used",
    ]


async def test_cold_change_is_named_every_time(tmp_path: Path) -> None:
    reloader = reloader_on(tmp_path)
    (tmp_path / "agent.yaml").write_text("network: {port: 4000}")
    with trio.fail_after(60):
        results = [await reloader.reload() for _ in range(2)]
    assert [(result.status, result.restart) for result in results] == [
        ("unchanged", ("network.port",))
    ] * 2


@pytest.mark.parametrize(
    "text, problem",
    [
        (
            "retention: {soft_deleted_ttl: x}\nauth: {rate_limits: {forget: {max: 9}}}",
            "retention.s",
        ),
        ("eviction: {ceiling: 5}\nunknown: 1", "unknown: unknown key"),
        ("eviction: {ceiling: 5}\nsearch: {alpha: [", "line 2"),
        ("eviction: {ceiling: 5}\nretention: {tomb_min_retention_d: 1}", "retention.tomb_min"),
        ("eviction: {ceiling: 5, idle: '7'}", "eviction.idle"),
        ("eviction: {ceiling: 5}\ngossip: {eps_min: 0.4}", "gossip.eps_min"),
        ("eviction: {ceiling: 5}\nnetwork: {bind: 0.0.0.0}", "refusing to bind"),
        ("#" * 300_000, "is larger than"),
    ],
)
async def test_l_14_an_invalid_file_changes_nothing(
    tmp_path: Path, text: str, problem: str
) -> None:
    reloader = reloader_on(tmp_path)
    seen: list[Config] = []
    reloader.on_change(seen.append)
    (tmp_path / "agent.yaml").write_text(text)
    with trio.fail_after(60):
        result = await reloader.reload()
    assert result.status == "rejected"
    assert result.problems[0].startswith(problem)
    assert (reloader.current, seen) == (Config(), [])


async def test_a_removed_file_returns_to_defaults(tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text("eviction: {ceiling: 5}")
    reloader = reloader_on(tmp_path)
    (tmp_path / "agent.yaml").unlink()
    with trio.fail_after(60):
        result = await reloader.reload()
    assert (result.changed, reloader.current) == (("eviction.ceiling",), Config())


async def test_a_refusing_part_gets_the_others_rolled_back(tmp_path: Path) -> None:
    reloader = reloader_on(tmp_path)
    ceilings: list[int] = []

    def refuse(_: Config) -> None:
        raise Conflict("eviction.ceiling: below the exempt residents")

    reloader.on_change(lambda config: ceilings.append(config.eviction.ceiling))
    reloader.on_change(refuse)
    (tmp_path / "agent.yaml").write_text("eviction: {ceiling: 5}")
    with trio.fail_after(60):
        result = await reloader.reload()
    assert (result.status, result.problems) == (
        "rejected",
        ("eviction.ceiling: below the exempt residents",),
    )
    assert (ceilings, reloader.current) == ([5, 1_000_000], Config())


async def test_a_failing_check_rejects_before_anything_changes(tmp_path: Path) -> None:
    reloader = reloader_on(tmp_path)
    seen: list[Config] = []
    reloader.on_change(seen.append)

    async def no_lowering(old: Config, new: Config) -> list[str]:
        await trio.lowlevel.checkpoint()
        lower = new.retention.tomb_min_retention_d < old.retention.tomb_min_retention_d
        return ["retention.tomb_min_retention_d: a tombstone is younger"] if lower else []

    reloader.check_first(no_lowering)
    (tmp_path / "agent.yaml").write_text("retention: {tomb_min_retention_d: 10}")
    with trio.fail_after(60):
        result = await reloader.reload()
    assert result.problems == ("retention.tomb_min_retention_d: a tombstone is younger",)
    assert seen == []


async def test_many_reloads_at_once_apply_once(tmp_path: Path) -> None:
    reloader = reloader_on(tmp_path)
    seen: list[Config] = []
    reloader.on_change(seen.append)
    (tmp_path / "agent.yaml").write_text("eviction: {ceiling: 5}")
    statuses: list[str] = []

    async def one() -> None:
        statuses.append((await reloader.reload()).status)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(one)
    assert (len(seen), statuses.count("applied"), statuses.count("unchanged")) == (1, 1, 19)
