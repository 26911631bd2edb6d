"""The sections of `agent.yaml` that belong to the node itself, as strict frozen models.

One class per section, one field per key; unknown keys, other types and values out of bounds are
refused with the key's path. Sections of lower layers are only mapped here onto the settings
classes of those layers, which hold the defaults.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Mapping
from datetime import date
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from erasure.settings import ErasureSettings
from gossip.settings import RetentionSettings as MeshRetention
from gossip.transport import parse_address
from node.embed.settings import EmbeddingSettings, Provider
from node.port.settings import PortSettings
from node.units import format_duration, parse_duration, parse_size
from storage.content import MAX_BYTES, check_text
from storage.errors import InvalidInput
from storage.hot.settings import HotSettings
from storage.model import ReadPolicy

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS


class Section(BaseModel):
    """A closed, frozen, strictly typed group of keys."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
        populate_by_name=True,
    )


def _storable(value: str) -> str:
    try:
        return check_text(value, "it")
    except InvalidInput as error:
        raise ValueError("contains a character that cannot be stored") from error


def _iso(value: object) -> object:
    return value.isoformat() if isinstance(value, date) else value


Text: TypeAlias = Annotated[str, Field(max_length=4096), AfterValidator(_storable)]
Name: TypeAlias = Annotated[str, Field(min_length=1, max_length=128), AfterValidator(_storable)]
When: TypeAlias = Annotated[Text | None, BeforeValidator(_iso)]
Duration: TypeAlias = Annotated[int, BeforeValidator(parse_duration)]
LongEnough: TypeAlias = Annotated[int, BeforeValidator(parse_duration), Field(ge=1)]
Size: TypeAlias = Annotated[int, BeforeValidator(parse_size)]


def _clamp(
    section: str, default: int, low: int, high: int, *, duration: bool = True
) -> BeforeValidator:
    """Moves a number into `low`..`high`; one that is not finite becomes `default`.

    Fractions are cut. What was changed is noted in the list `warnings` of the context.
    """
    show = format_duration if duration else str

    def clamp(value: object, info: ValidationInfo) -> int:
        key = f"{section}.{info.field_name}"
        notes = _notes(info)
        if isinstance(value, float) and not math.isfinite(value):
            notes.append(f"{key}: not a finite number, {show(default)} is used")
            return default
        if isinstance(value, int | float) and not isinstance(value, bool):
            number = int(value)
        elif duration:
            number = parse_duration(value)
        else:
            raise ValueError("expected a whole number")
        nearest = min(max(number, low), high)
        if nearest != number:
            notes.append(f"{key}: out of range, {show(nearest)} is used")
        return nearest

    return BeforeValidator(clamp)


def _notes(info: ValidationInfo) -> list[str]:
    context: dict[str, list[str]] = info.context or {}
    return context.setdefault("warnings", [])


def keyed(error: InvalidInput) -> PydanticCustomError:
    """An error whose text already starts with the full key path."""
    return PydanticCustomError("keyed", "{text}", {"text": str(error)})


class AgentSection(Section):
    """Who the node's own agent is; `name` is the agent of local callers that give none."""

    name: Name = "default"
    description: Text = ""
    created: When = None
    updated: When = None


def _host(value: str) -> str:
    if not value or any(sign.isspace() or sign in "/[]@" for sign in value):
        raise ValueError("expected an IP address or a host name")
    return value


Host: TypeAlias = Annotated[str, Field(max_length=253), AfterValidator(_host)]


class NetworkSection(Section):
    """Where the HTTP side listens (`bind`, `port`; 0 lets the system choose) and is reached."""

    mode: Literal["localhost", "tailscale"] = "localhost"
    host: Host = "127.0.0.1"
    bind: Host | None = None
    port: Annotated[int, Field(ge=0, le=65_535)] = 3850

    @property
    def address(self) -> str:
        """The address to bind: the given one, else what the mode says."""
        if self.bind is not None:
            return self.bind
        return "0.0.0.0" if self.mode == "tailscale" else "127.0.0.1"

    @property
    def effective_mode(self) -> Literal["localhost", "tailscale"]:
        """`tailscale` for every address that others can reach."""
        return "localhost" if is_loopback(self.address) else "tailscale"


@lru_cache(64)
def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`; any name but localhost counts as reachable."""
    if host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


class AgentPortSection(Section):
    """Where agents reach the node beside its unix socket: `listen` is `host:port`, over TLS."""

    listen: Text | None = None
    connections: Annotated[int, Field(ge=1, le=4096)] = 256

    @field_validator("listen")
    @classmethod
    def _address(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                parse_address(value)
            except InvalidInput as error:
                raise ValueError("expected host:port") from error
        return value

    @property
    def reachable(self) -> bool:
        """Whether others than this machine can connect."""
        return self.listen is not None and not is_loopback(parse_address(self.listen)[0])

    def settings(self) -> PortSettings:
        """For the agent port."""
        return PortSettings(listen=self.listen, connections=self.connections)


class DatabaseSection(Section):
    """`dsn` of an external PostgreSQL; none means the embedded server."""

    dsn: Text | None = None


class EvictionSection(Section):
    """How many memories stay in the hot graph, and how long an idle one does."""

    ceiling: Annotated[int, Field(ge=1, le=100_000_000)] = 1_000_000
    idle: LongEnough = 7 * DAY_MS

    def settings(self) -> HotSettings:
        """For the hot graph."""
        return HotSettings(ceiling=self.ceiling, idle_ms=self.idle)


class ErasureSection(Section):
    """Maps onto ErasureSettings, which knows the bounds."""

    batch_rows: int = 500
    quiesce_timeout: Duration = 30_000
    graph: Literal["rebuild", "overwrite"] = "rebuild"
    k_min: int = 5
    backup_window: Duration | None = None
    max_offline: Duration = 30 * DAY_MS
    due: Duration = 30 * DAY_MS
    audit_until: Duration = 6 * 365 * DAY_MS
    mode: Literal["clear"] = "clear"

    def settings(self) -> ErasureSettings:
        """For the erasure layer."""
        return ErasureSettings(
            batch_rows=self.batch_rows,
            quiesce_timeout_ms=self.quiesce_timeout,
            graph=self.graph,
            k_min=self.k_min,
            backup_window_ms=self.backup_window,
            max_offline_ms=self.max_offline,
            due_ms=self.due,
            audit_until_ms=self.audit_until,
            mode=self.mode,
        )

    @model_validator(mode="after")
    def _bounds(self) -> ErasureSection:
        try:
            self.settings()
        except InvalidInput as error:
            raise keyed(error) from error
        return self


class RateLimit(Section):
    """At most `max` calls of one actor in a fixed window."""

    window: LongEnough = MINUTE_MS
    max: Annotated[int, Field(ge=1, le=1_000_000)]


class RateLimits(Section):
    """Limits by operation; the keys are the operations' names at the API."""

    forget: RateLimit = RateLimit(max=30)
    modify: RateLimit = RateLimit(max=60)
    batchForget: RateLimit = RateLimit(max=5)
    forceDelete: RateLimit = RateLimit(max=3)
    admin: RateLimit = RateLimit(max=10)
    login: RateLimit = RateLimit(max=5)
    recallLlm: RateLimit = RateLimit(max=60)

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, data: object) -> object:
        """A limit that gives only its window keeps the default maximum."""
        if not isinstance(data, dict):
            return data
        defaults = {name: field.default.max for name, field in cls.model_fields.items()}
        return {
            name: {"max": defaults[name]} | limit
            if name in defaults and isinstance(limit, dict)
            else limit
            for name, limit in data.items()
        }

    def by_operation(self) -> Mapping[str, RateLimit]:
        """Operation name to limit."""
        return {name: getattr(self, name) for name in type(self).model_fields}


class PasswordLogin(Section):
    """Dashboard login; `password_hash` has the form `scrypt:<salt>:<hash>`."""

    username: Name
    password_hash: Name


class LoginSection(Section):
    """Ways to log in beside tokens."""

    password: PasswordLogin | None = None


class AuthSection(Section):
    """Who may call: everybody on this machine (`local`), or bearers of tokens."""

    mode: Literal["local", "team", "hybrid"] = "local"
    default_token_ttl: LongEnough = 7 * DAY_MS
    session_token_ttl: LongEnough = DAY_MS
    rate_limits: RateLimits = RateLimits()
    login: LoginSection = LoginSection()


class RosterEntry(Section):
    """An agent of this node. What it may read is isolated unless the file says otherwise."""

    name: Name
    description: Text = ""
    read_policy: ReadPolicy = ReadPolicy.ISOLATED
    policy_group: Name | None = None

    @model_validator(mode="before")
    @classmethod
    def _policy(cls, data: object, info: ValidationInfo) -> object:
        if not isinstance(data, dict):
            return data
        entry = dict(data)
        memory = entry.pop("memory", None)
        if memory is not None:
            if not isinstance(memory, dict) or set(memory) - {"read_policy", "policy_group"}:
                raise ValueError("memory: expected read_policy and policy_group only")
            entry = {**memory, **entry}
        policy: Any = entry.get("read_policy", "isolated")
        group: Any = entry.get("policy_group")
        if isinstance(policy, dict) and set(policy) <= {"type", "group"}:
            policy, group = policy.get("type"), policy.get("group", group)
        known = isinstance(policy, str) and policy in tuple(ReadPolicy)
        named = isinstance(group, str) and 0 < len(group) <= 128
        if not known or (policy == "group" and not named) or not (group is None or named):
            _notes(info).append("agents.roster: a malformed read policy, isolated is used")
            policy, group = "isolated", None
        return entry | {
            "read_policy": ReadPolicy(policy),
            "policy_group": group if policy == "group" else None,
        }


def _tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


class AgentsSection(Section):
    """The agents that this node seeds at start and on reload."""

    roster: Annotated[tuple[RosterEntry, ...], BeforeValidator(_tuple)] = ()

    @field_validator("roster")
    @classmethod
    def _unique(cls, roster: tuple[RosterEntry, ...]) -> tuple[RosterEntry, ...]:
        if len({entry.name for entry in roster}) != len(roster):
            raise ValueError("two agents have one name")
        return roster


class ContentSection(Section):
    """How contents are stored; neither key changes a hash."""

    collapse_storage_whitespace: bool = True
    max_bytes: Annotated[Size, Field(ge=1, le=MAX_BYTES)] = MAX_BYTES


class EmbeddingSection(Section):
    """Maps onto EmbeddingSettings; what a provider needs is checked when it is opened."""

    provider: Provider = "bundled"
    model: Name | None = None
    dimensions: Annotated[int, Field(ge=1, le=4000)] | None = None
    base_url: Text | None = None
    api_key_env: Name | None = None
    batch_size: Annotated[int, Field(ge=1, le=1024)] = 64
    timeout: Annotated[LongEnough, Field(le=10 * MINUTE_MS)] = 30_000

    def settings(self) -> EmbeddingSettings:
        """For `open_embedder`."""
        return EmbeddingSettings(
            provider=self.provider,
            model=self.model,
            dimensions=self.dimensions,
            base_url=self.base_url,
            api_key_env=self.api_key_env,
            batch_size=self.batch_size,
            timeout_ms=self.timeout,
        )


class SearchSection(Section):
    """Recall: weight of the vector part, hits, and the lowest score that counts."""

    alpha: Annotated[float, Field(ge=0, le=1)] = 0.7
    top_k: Annotated[int, Field(ge=1, le=1000)] = 20
    min_score: Annotated[float, Field(ge=0, le=1)] = 0.1

    @model_validator(mode="before")
    @classmethod
    def _own_weight(cls, data: object) -> object:
        """Whoever sets the weight alone gets a stricter floor."""
        if isinstance(data, dict) and "alpha" in data and "min_score" not in data:
            return data | {"min_score": 0.3}
        return data


def _interval(default: int) -> BeforeValidator:
    return _clamp("retention", default, MINUTE_MS, 7 * DAY_MS)


def _ttl(default: int) -> BeforeValidator:
    return _clamp("retention", default, 0, 3650 * DAY_MS)


class RetentionSection(Section):
    """When the retention worker runs and what it removes; the last three bound the mesh's rows."""

    interval: Annotated[int, _interval(HOUR_MS)] = HOUR_MS
    lifecycle_interval: Annotated[int, _interval(6 * HOUR_MS)] = 6 * HOUR_MS
    soft_deleted_ttl: Annotated[int, _ttl(30 * DAY_MS)] = 30 * DAY_MS
    history_ttl: Annotated[int, _ttl(180 * DAY_MS)] = 180 * DAY_MS
    completed_job_ttl: Annotated[int, _ttl(14 * DAY_MS)] = 14 * DAY_MS
    dead_job_ttl: Annotated[int, _ttl(30 * DAY_MS)] = 30 * DAY_MS
    batch_limit: Annotated[int, _clamp("retention", 500, 1, 10_000, duration=False)] = 500
    diff_grace_h: Annotated[int, Field(ge=1, le=87_600)] = 24
    delivery_retention_d: Annotated[int, Field(ge=1, le=3_650)] = 30
    tomb_min_retention_d: Annotated[int, Field(ge=7, le=3_650)] = 90

    def mesh(self) -> MeshRetention:
        """For gossip, which owns the rows of the last three keys."""
        return MeshRetention(
            delivery_retention_d=self.delivery_retention_d,
            diff_grace_h=self.diff_grace_h,
            tomb_min_retention_d=self.tomb_min_retention_d,
        )


class A2aSection(Section):
    """How long a finished task of another agent protocol is remembered."""

    task_retention_days: Annotated[int, _clamp("a2a", 30, 1, 3650, duration=False)] = 30
