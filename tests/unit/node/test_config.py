"""agent.yaml: units, limits of the file, every kind of wrong key, environment, example file."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from erasure.settings import ErasureSettings
from gossip.settings import GossipSettings
from gossip.settings import RetentionSettings as MeshRetention
from node.config import Config, ConfigError, load_config, parse_config
from node.embed.settings import EmbeddingSettings
from node.reload import flatten, is_hot
from node.sections import is_loopback
from node.units import MAX_MS, format_duration, parse_duration, parse_size
from node.yaml_file import MAX_FILE_BYTES, YamlProblem, parse_yaml_map
from storage.hot.settings import HotSettings
from storage.model import ReadPolicy

EXAMPLE = Path(__file__).parents[3] / "ops" / "agent.example.yaml"
DAY = 86_400_000


def config_of(raw: dict[str, Any], **environ: str) -> Config:
    return parse_config(raw, environ).config


def problems_of(raw: dict[str, Any], **environ: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        parse_config(raw, environ)
    return caught.value.problems


# units


@pytest.mark.parametrize(
    "text, ms",
    [
        ("30d", 30 * DAY),
        ("6h", 21_600_000),
        ("15m", 900_000),
        ("10s", 10_000),
        ("500ms", 500),
        ("6y", 6 * 365 * DAY),
        ("0d", 0),
        (1234, 1234),
    ],
)
def test_duration(text: object, ms: int) -> None:
    assert parse_duration(text) == ms


@pytest.mark.parametrize(
    "value",
    ["30", "", "d", "1.5h", "-1d", "3 d", "3w", "3D", "1h30m", "9999y", -1, 1.5, True, None, [1]],
)
def test_bad_duration_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="expected a duration"):
        parse_duration(value)


@given(st.integers(0, MAX_MS))
def test_always_a_formatted_duration_reads_back(ms: int) -> None:
    assert parse_duration(format_duration(ms)) == ms


@pytest.mark.parametrize("text, size", [("1MiB", 1 << 20), ("512KiB", 1 << 19), ("7B", 7), (9, 9)])
def test_size(text: object, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("value", ["1", "1MB", "1m", -1, 1.0, None, "9999TiB"])
def test_bad_size_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="expected a size"):
        parse_size(value)


# the file


@pytest.mark.parametrize(
    "data, problem",
    [
        (b"a: &x 1\nb: *x", "line 2, column 4: aliases are not allowed"),
        (b"a: 1\nb:\n  c: 1\n  c: 2", "line 4, column 3: key c appears twice"),
        (b"[" * 5000, "line 1, column 21: nested too deeply"),
        (b"1: 2", "line 1, column 1: a key must be text"),
        (b"<<: {a: 1}", "line 1, column 1: a key must be text"),
        (b"x: !!python/object/apply:os.system [a]", "line 1, column 4: is not valid YAML"),
        (b"a: b: c", "line 1, column 5: is not valid YAML"),
        (b"a: [1,", "line 1, column 7: is not valid YAML"),
        (b"a: " + b"9" * 5000, "is not valid YAML"),
        (b"a: \x00", "is not valid YAML"),
        (b"\xff", "is not UTF-8"),
        (b"- a", "must be a map at the top level"),
    ],
)
def test_unusable_file_is_refused_with_its_place(data: bytes, problem: str) -> None:
    with pytest.raises(YamlProblem) as caught:
        parse_yaml_map(data)
    assert str(caught.value) == problem


def test_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    with pytest.raises(ConfigError, match=r"^agent\.yaml: is larger than 262144 bytes$"):
        load_config(tmp_path, {})


def test_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").mkdir()
    with pytest.raises(ConfigError, match=r"^agent\.yaml: cannot be read"):
        load_config(tmp_path, {})


def test_no_file_means_defaults(tmp_path: Path) -> None:
    loaded = load_config(tmp_path, {})
    assert (loaded.config, loaded.source, loaded.warnings) == (Config(), None, ())


@pytest.mark.parametrize("name", ["agent.yaml", "AGENT.yaml", "config.yaml"])
def test_each_file_name_is_tried(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("network: {port: 4001}")
    assert load_config(tmp_path, {}).config.network.port == 4001


def test_the_first_file_name_wins(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("network: {port: 4001}")
    (tmp_path / "agent.yaml").write_text("network: {port: 4002}")
    assert load_config(tmp_path, {}).config.network.port == 4002


def test_an_empty_file_and_empty_sections_are_defaults() -> None:
    assert config_of({"network": None, "gossip": None, "eviction": {}}) == Config()


# keys, types, bounds


@pytest.mark.parametrize(
    "raw, problem",
    [
        ({"gosip": {}}, "gosip: unknown key"),
        ({"graph": {}}, "graph: unknown key"),
        ({"telemetry": {}}, "telemetry: unknown key"),
        ({"network": {"prot": 1}}, "network.prot: unknown key"),
        ({"gossip": {"kapa": 1}}, "gossip.kapa: unknown key"),
        ({"gossip": {"views": {"x": 1}}}, "gossip.views.x: unknown key"),
        ({"erasure": {"sealed": True}}, "erasure.sealed: unknown key"),
        ({"auth": {"rate_limits": {"fly": {}}}}, "auth.rate_limits.fly: unknown key"),
        ({"agents": {"roster": [{"name": "a", "x": 1}]}}, "agents.roster[0].x: unknown key"),
        ({"network": {"port": "3850"}}, "network.port: expected a whole number"),
        ({"network": {"port": True}}, "network.port: expected a whole number"),
        ({"network": {"port": 3850.5}}, "network.port: expected a whole number"),
        (
            {"network": {"port": 70_000}},
            "network.port: input should be less than or equal to 65535",
        ),
        ({"network": {"bind": ""}}, "network.bind: expected an IP address or a host name"),
        ({"network": {"bind": 7}}, "network.bind: expected text"),
        ({"network": []}, "network: expected a map"),
        ({"agent": {"name": ""}}, "agent.name: string should have at least 1 character"),
        ({"agent": {"name": "a\x00"}}, "agent.name: contains a character that cannot be stored"),
        ({"search": {"alpha": "0.5"}}, "search.alpha: expected a number"),
        ({"search": {"alpha": float("nan")}}, "search.alpha: expected a finite number"),
        ({"search": {"alpha": 1.5}}, "search.alpha: input should be less than or equal to 1"),
        (
            {"content": {"collapse_storage_whitespace": 1}},
            "content.collapse_storage_whitespace: expected true or false",
        ),
        (
            {"content": {"max_bytes": "1MB"}},
            "content.max_bytes: expected a size such as 512KiB, 1MiB or bytes",
        ),
        (
            {"eviction": {"idle": "7"}},
            "eviction.idle: expected a duration such as 30d, 6h, 15m, 10s, 500ms or milliseconds",
        ),
        (
            {"eviction": {"ceiling": 0}},
            "eviction.ceiling: input should be greater than or equal to 1",
        ),
        ({"retention": {"batch_limit": "5"}}, "retention.batch_limit: expected a whole number"),
        (
            {"retention": {"tomb_min_retention_d": 6}},
            "retention.tomb_min_retention_d: input should be greater than or equal to 7",
        ),
        (
            {"retention": {"delivery_retention_d": 0}},
            "retention.delivery_retention_d: input should be greater than or equal to 1",
        ),
        (
            {"retention": {"diff_grace_h": 0}},
            "retention.diff_grace_h: input should be greater than or equal to 1",
        ),
        ({"erasure": {"due": "91d"}}, "erasure.due: must be between 1d and 90d"),
        ({"erasure": {"k_min": 1}}, "erasure.k_min: must be between 2 and 100"),
        ({"erasure": {"batch_rows": 0}}, "erasure.batch_rows: must be between 1 and 10000"),
        (
            {"erasure": {"quiesce_timeout": "1ms"}},
            "erasure.quiesce_timeout: must be between 1s and 10m",
        ),
        ({"erasure": {"mode": "sealed"}}, "erasure.mode: input should be 'clear'"),
        ({"gossip": {"kappa": 1.5}}, "gossip.kappa: expected a whole number"),
        ({"gossip": {"ttl_s": 90_000}}, "gossip.ttl_s: must be at most 86400"),
        ({"gossip": {"eps_min": 0.3}}, "gossip.eps_min: must be at most gossip.eps_max"),
        ({"gossip": {"views": 3}}, "gossip.views: expected a map"),
        ({"gossip": {"views": []}}, "gossip.views: expected a map"),
        ({"gossip": {"peers": "a:1"}}, "gossip.peers: expected a list"),
        ({"gossip": {"peers": ["a"]}}, "gossip.peers[0]: expected host:port"),
        ({"gossip": {"acl": 3}}, "gossip.acl: expected a path"),
        ({"gossip": {"kappa": [5]}}, "gossip.kappa: expected a single value"),
        ({"gossip": []}, "gossip: expected a map"),
        (
            {"gossip": {"membership": {"preset": "moon"}}},
            "gossip.membership.preset: expected lan or wan",
        ),
        (
            {"auth": {"login": {"password": {"username": "a"}}}},
            "auth.login.password.password_hash: is required",
        ),
        ({"agents": {"roster": [{}]}}, "agents.roster[0].name: is required"),
        ({"agents": {"roster": "a"}}, "agents.roster: expected a list"),
        (
            {"agents": {"roster": [{"name": "a"}, {"name": "a"}]}},
            "agents.roster: two agents have one name",
        ),
        ({"schema": "other"}, "schema: input should be 'mnemesh/v1'"),
        ({"version": 2}, "version: input should be 1"),
    ],
)
def test_wrong_key_is_named(raw: dict[str, Any], problem: str) -> None:
    assert problems_of(raw) == (problem,)


def test_l_14_bad_ttl_rejects_the_file_and_names_the_key() -> None:
    raw = {
        "retention": {"soft_deleted_ttl": "x"},
        "auth": {"rate_limits": {"forget": {"max": 3}}},
    }
    (problem,) = problems_of(raw)
    assert problem.startswith("retention.soft_deleted_ttl: expected a duration")


def test_all_problems_are_reported_together() -> None:
    assert len(problems_of({"a": 1, "network": {"port": "x"}, "gossip": {"kappa": "x"}})) == 3


def test_a_problem_never_shows_the_value() -> None:
    text = "; ".join(
        problems_of(
            {
                "database": {"dsn": ["hunter2"]},
                "auth": {"mode": "hunter2", "login": {"password": "hunter2"}},
                "gossip": {"listen": "hunter2"},
                "embedding": {"base_url": {"hunter2": 1}},
            }
        )
    )
    assert "hunter2" not in text


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["network", "gossip", "views", "agents", "roster", "memory", "read_policy"]
                    + ["retention", "interval", "search", "alpha", "erasure", "due", "name", "port"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_always_valid_or_config_error(raw: object) -> None:
    if isinstance(raw, dict):
        with suppress(ConfigError):
            parse_config(raw, {})


# clamped values


def test_v4_6_retention_clamps_with_a_warning() -> None:
    loaded = parse_config(
        {"retention": {"batch_limit": 0, "interval": 10, "history_ttl": float("nan")}}, {}
    )
    retention = loaded.config.retention
    assert (retention.batch_limit, retention.interval, retention.history_ttl) == (
        1,
        60_000,
        180 * DAY,
    )
    assert set(loaded.warnings) == {
        "retention.batch_limit: out of range, 1 is used",
        "retention.interval: out of range, 1m is used",
        "retention.history_ttl: not a finite number, 180d is used",
    }


def test_fractions_of_retention_values_are_cut() -> None:
    assert config_of({"retention": {"batch_limit": 7.9}}).retention.batch_limit == 7


def test_task_retention_is_clamped() -> None:
    loaded = parse_config({"a2a": {"task_retention_days": 9999}}, {})
    assert loaded.config.a2a.task_retention_days == 3650
    assert loaded.warnings == ("a2a.task_retention_days: out of range, 3650 is used",)


# meaning


def test_defaults_equal_those_of_the_layers() -> None:
    config = Config()
    assert (
        config.eviction.settings(),
        config.gossip,
        config.erasure.settings(),
        config.embedding.settings(),
        config.retention.mesh(),
    ) == (
        HotSettings(),
        GossipSettings(),
        ErasureSettings(),
        EmbeddingSettings(),
        MeshRetention(),
    )


def test_wan_preset_brings_its_timing_and_keeps_what_is_given() -> None:
    member = config_of(
        {"gossip": {"membership": {"preset": "wan", "dead_s": 60}}}
    ).gossip.membership
    assert (member.ping_s, member.suspect_s, member.dead_s) == (5.0, 15.0, 60)


def test_search_floor_rises_when_only_the_weight_is_set() -> None:
    assert config_of({"search": {"alpha": 0.5}}).search.min_score == 0.3


def test_rate_limit_keeps_the_default_it_does_not_name() -> None:
    limits = config_of({"auth": {"rate_limits": {"forget": {"window": "5m"}}}}).auth.rate_limits
    assert (limits.forget.window, limits.forget.max, limits.modify.max) == (300_000, 30, 60)


def test_rate_limits_by_operation() -> None:
    limits = Config().auth.rate_limits.by_operation()
    assert {name: limit.max for name, limit in limits.items()} == {
        "forget": 30,
        "modify": 60,
        "batchForget": 5,
        "forceDelete": 3,
        "admin": 10,
        "login": 5,
        "recallLlm": 60,
    }


@pytest.mark.parametrize(
    "entry, policy, group",
    [
        ({}, ReadPolicy.ISOLATED, None),
        ({"memory": {"read_policy": "shared"}}, ReadPolicy.SHARED, None),
        ({"read_policy": "shared"}, ReadPolicy.SHARED, None),
        ({"read_policy": "group", "policy_group": "g"}, ReadPolicy.GROUP, "g"),
        ({"memory": {"read_policy": {"type": "group", "group": "g"}}}, ReadPolicy.GROUP, "g"),
    ],
)
def test_roster_policy(entry: dict[str, Any], policy: ReadPolicy, group: str | None) -> None:
    loaded = parse_config({"agents": {"roster": [{"name": "a"} | entry]}}, {})
    (agent,) = loaded.config.agents.roster
    assert (agent.read_policy, agent.policy_group, loaded.warnings) == (policy, group, ())


@pytest.mark.parametrize(
    "policy",
    [
        "everyone",
        3,
        ["shared"],
        "group",
        {"type": "group"},
        {"type": "group", "group": 7},
        {"x": 1},
    ],
)
def test_malformed_roster_policy_is_isolated_with_a_warning(policy: object) -> None:
    loaded = parse_config({"agents": {"roster": [{"name": "a", "read_policy": policy}]}}, {})
    assert loaded.config.agents.roster[0].read_policy == ReadPolicy.ISOLATED
    assert loaded.warnings == ("agents.roster: a malformed read policy, isolated is used",)


@pytest.mark.parametrize("name", ["team-a", "a:b", 'a"b'])
def test_v13_6_agent_names_may_hold_signs(name: str) -> None:
    assert config_of({"agents": {"roster": [{"name": name}]}}).agents.roster[0].name == name


# binding


@pytest.mark.parametrize(
    "address", ["0.0.0.0", "::", "10.0.0.5", "node.example", "::ffff:10.0.0.5"]
)
def test_l_50_open_bind_with_local_auth_is_refused(address: str) -> None:
    assert problems_of({"network": {"bind": address}}) == (
        f"refusing to bind {address} with auth.mode local; set team or hybrid",
    )


def test_tailscale_mode_with_local_auth_is_refused() -> None:
    assert problems_of({"network": {"mode": "tailscale"}}) == (
        "refusing to bind 0.0.0.0 with auth.mode local; set team or hybrid",
    )


@pytest.mark.parametrize("mode", ["team", "hybrid"])
def test_open_bind_with_real_auth_counts_as_tailscale(mode: str) -> None:
    config = config_of({"network": {"bind": "10.0.0.5"}, "auth": {"mode": mode}})
    assert config.network.effective_mode == "tailscale"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost", "::ffff:127.0.0.1"])
def test_loopback_addresses(host: str) -> None:
    assert is_loopback(host)


# environment


def test_environment_wins_over_the_file() -> None:
    config = config_of(
        {"network": {"port": 1, "host": "a"}, "agent": {"name": "x"}, "database": {"dsn": "d"}},
        MNEMESH_PORT="4000",
        MNEMESH_HOST="localhost",
        MNEMESH_BIND="127.0.0.2",
        MNEMESH_AGENT_ID="bob",
        MNEMESH_DSN="postgresql://x",
    )
    assert (
        config.network.port,
        config.network.host,
        config.network.bind,
        config.agent.name,
        config.database.dsn,
    ) == (4000, "localhost", "127.0.0.2", "bob", "postgresql://x")


@pytest.mark.parametrize("port", ["x", "-1", "70000", "4e3", "٤"])
def test_bad_port_variable_is_named(port: str) -> None:
    with pytest.raises(ConfigError, match=r"^MNEMESH_PORT: expected a port number$"):
        parse_config({}, {"MNEMESH_PORT": port})


def test_an_empty_variable_is_unset() -> None:
    assert config_of({}, MNEMESH_BIND="", MNEMESH_PORT="") == Config()


def test_open_bind_by_environment_is_refused_too() -> None:
    assert "refusing to bind 0.0.0.0" in problems_of({}, MNEMESH_BIND="0.0.0.0")[0]


# the example file


def test_example_equals_the_defaults() -> None:
    assert parse_config(parse_yaml_map(EXAMPLE.read_bytes()), {}).config == Config()


def test_example_names_every_key() -> None:
    def paths(value: object, path: str) -> set[str]:
        if not isinstance(value, dict) or not value:
            return {path}
        return {
            leaf
            for key, inner in value.items()
            for leaf in paths(inner, f"{path}.{key}" if path else key)
        }

    assert paths(parse_yaml_map(EXAMPLE.read_bytes()), "") == set(flatten(Config()))


def test_example_tags_every_key_as_the_code_does() -> None:
    stack: list[tuple[int, str, str | None]] = []
    tags: dict[str, str | None] = {}
    for line in EXAMPLE.read_text().splitlines():
        match = re.match(r"( *)([A-Za-z_0-9]+):", line)
        if match is None:
            continue
        indent = len(match[1])
        stack = [level for level in stack if level[0] < indent]
        tag = re.search(r"# \[(hot|cold)\]", line)
        inherited = stack[-1][2] if stack else None
        stack.append((indent, match[2], tag[1] if tag else inherited))
        tags[".".join(level[1] for level in stack)] = stack[-1][2]
    for key in flatten(Config()):
        expected = "hot" if is_hot(key) else "cold"
        known = tags.get(key, tags.get(key.rsplit(".", 1)[0]))
        assert (key, known) == (key, expected)
