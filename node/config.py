"""`agent.yaml` and the environment to one frozen, fully checked configuration.

The only module that knows the file. Everything is optional; the environment wins over the file;
every problem names its key path and all problems of a file are reported together. Values never
appear in an error, because the file holds a DSN and password hashes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar, cast

from pydantic import BeforeValidator, Field, InstanceOf, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from gossip.settings import GossipSettings, membership_preset
from node.sections import (
    A2aSection,
    AgentPortSection,
    AgentSection,
    AgentsSection,
    AuthSection,
    ContentSection,
    DatabaseSection,
    EmbeddingSection,
    ErasureSection,
    EvictionSection,
    NetworkSection,
    RetentionSection,
    SearchSection,
    Section,
    is_loopback,
    keyed,
)
from node.yaml_file import YamlProblem, read_yaml_map
from storage.errors import InvalidInput, StartRefused

FILE_NAMES: Final = ("agent.yaml", "AGENT.yaml", "config.yaml")
ENVIRONMENT: Final = {
    "MNEMESH_PORT": ("network", "port"),
    "MNEMESH_HOST": ("network", "host"),
    "MNEMESH_BIND": ("network", "bind"),
    "MNEMESH_AGENT_ID": ("agent", "name"),
    "MNEMESH_DSN": ("database", "dsn"),
}
"""Variables that override a key; the other MNEMESH_ variables are read where they are used."""

T = TypeVar("T")


class ConfigError(StartRefused):
    """The configuration is not valid."""

    code = "config_invalid"

    def __init__(self, source: str, problems: tuple[str, ...]) -> None:
        super().__init__("; ".join(f"{source}: {problem}" for problem in problems))
        self.source = source
        self.problems = problems


def compose(settings: type[T], raw: object, path: str) -> T:
    """A frozen settings dataclass from the map at `path`, with nested dataclasses as sub-maps.

    The class checks its own values. Raises InvalidInput naming the key path for an unknown key,
    a map where none belongs, or whatever the class refuses.
    """
    if not isinstance(raw, dict):
        raise InvalidInput(f"{path}: expected a map")
    known = {each.name: each for each in fields(settings)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for key, value in raw.items():
        if key not in known:
            raise InvalidInput(f"{path}.{key}: unknown key")
        factory = known[key].default_factory
        if hasattr(factory, "__dataclass_fields__"):
            values[key] = compose(
                cast(type[Any], factory), {} if value is None else value, f"{path}.{key}"
            )
        elif isinstance(known[key].default, tuple):
            if not isinstance(value, list):
                raise InvalidInput(f"{path}.{key}: expected a list")
            values[key] = tuple(value)
        else:
            if known[key].default is not MISSING and isinstance(value, dict | list):
                raise InvalidInput(f"{path}.{key}: expected a single value")
            values[key] = value
    return settings(**values)


def _gossip(raw: object) -> GossipSettings:
    if isinstance(raw, GossipSettings):
        return raw
    try:
        section = dict(raw) if isinstance(raw, dict) else raw
        if isinstance(section, dict):
            if section.get("tau") == "auto":
                section["tau"] = None
            if not isinstance(section.get("acl"), str | None):
                raise InvalidInput("gossip.acl: expected a path")
            member = section.get("membership")
            if isinstance(member, dict) and isinstance(member.get("preset"), str):
                preset = membership_preset(member["preset"])
                timing = {name: getattr(preset, name) for name in ("ping_s", "suspect_s", "dead_s")}
                section["membership"] = timing | member
        return compose(GossipSettings, section, "gossip")
    except InvalidInput as error:
        raise keyed(error) from error


class Config(Section):
    """The whole configuration in force. Sections are frozen; `*_settings` feed the lower layers."""

    version: Literal[1] = 1
    schema_: Literal["mnemesh/v1"] = Field(default="mnemesh/v1", alias="schema")
    agent: AgentSection = AgentSection()
    network: NetworkSection = NetworkSection()
    agent_port: AgentPortSection = AgentPortSection()
    database: DatabaseSection = DatabaseSection()
    eviction: EvictionSection = EvictionSection()
    gossip: Annotated[InstanceOf[GossipSettings], BeforeValidator(_gossip)] = GossipSettings()
    erasure: ErasureSection = ErasureSection()
    auth: AuthSection = AuthSection()
    agents: AgentsSection = AgentsSection()
    content: ContentSection = ContentSection()
    embedding: EmbeddingSection = EmbeddingSection()
    search: SearchSection = SearchSection()
    retention: RetentionSection = RetentionSection()
    a2a: A2aSection = A2aSection()

    @model_validator(mode="before")
    @classmethod
    def _empty_sections(cls, data: object) -> object:
        """A section whose keys are all commented out is an empty section."""
        if not isinstance(data, dict):
            return data
        return {key: {} if value is None else value for key, value in data.items()}

    @model_validator(mode="after")
    def _no_open_door(self) -> Config:
        address = self.network.address
        if self.auth.mode == "local" and not is_loopback(address):
            raise PydanticCustomError(
                "keyed",
                "{text}",
                {"text": f"refusing to bind {address} with auth.mode local; set team or hybrid"},
            )
        if self.auth.mode == "local" and self.agent_port.reachable:
            raise PydanticCustomError(
                "keyed",
                "{text}",
                {"text": "agent_port.listen: auth.mode local opens it to all; set team or hybrid"},
            )
        return self


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A valid configuration, the file it came from (None: defaults), and what was adjusted."""

    config: Config
    source: Path | None
    warnings: tuple[str, ...] = ()


def load_config(folder: Path, environ: Mapping[str, str]) -> LoadedConfig:
    """Reads the first of `agent.yaml`, `AGENT.yaml`, `config.yaml` in `folder`; blocks on disk.

    No file means defaults. Raises ConfigError with every problem found.
    """
    source = next((folder / name for name in FILE_NAMES if (folder / name).exists()), None)
    try:
        raw = read_yaml_map(source) if source else {}
    except YamlProblem as problem:
        raise ConfigError(source.name if source else "", (str(problem),)) from problem
    return parse_config(raw, environ, source)


def parse_config(
    raw: Mapping[str, Any], environ: Mapping[str, str], source: Path | None = None
) -> LoadedConfig:
    """Checks the plain data of a file together with the environment. Raises ConfigError."""
    name = source.name if source else "configuration"
    warnings: list[str] = []
    merged = _with_environment(raw, environ, name)
    try:
        config = Config.model_validate(merged, context={"warnings": warnings})
    except ValidationError as error:
        problems = dict.fromkeys(_problem(each) for each in error.errors(include_url=False))
        raise ConfigError(name, tuple(problems)) from None
    return LoadedConfig(config, source, tuple(dict.fromkeys(warnings)))


def _with_environment(
    raw: Mapping[str, Any], environ: Mapping[str, str], name: str
) -> dict[str, Any]:
    merged = dict(raw)
    for variable, (section, key) in ENVIRONMENT.items():
        text = environ.get(variable, "")
        if not text:
            continue
        value: str | int = text
        if key == "port":
            if not (text.isascii() and text.isdigit() and len(text) <= 5 and int(text) <= 65_535):
                raise ConfigError(variable, ("expected a port number",))
            value = int(text)
        group = merged.get(section)
        if group is not None and not isinstance(group, dict):
            raise ConfigError(name, (f"{section}: expected a map",))
        merged[section] = {**(group or {}), key: value}
    return merged


_WORDING = {
    "extra_forbidden": "unknown key",
    "missing": "is required",
    "int_type": "expected a whole number",
    "int_from_float": "expected a whole number",
    "float_type": "expected a number",
    "finite_number": "expected a finite number",
    "bool_type": "expected true or false",
    "string_type": "expected text",
    "model_type": "expected a map",
    "dict_type": "expected a map",
    "tuple_type": "expected a list",
}


def _problem(error: ErrorDetails) -> str:
    if error["type"] == "keyed":
        return error["msg"]
    text = _WORDING.get(error["type"], error["msg"].removeprefix("Value error, "))
    return f"{_path(error['loc'])}: {text[:1].lower()}{text[1:]}"


def _path(parts: tuple[int | str, ...]) -> str:
    path = ""
    for part in parts:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    return path.removeprefix(".")[:200]
