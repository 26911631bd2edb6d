"""What SIGHUP does: read the file again, then change everything that may change, or nothing.

`plan` is pure and says which keys differ and which of them a running node can take over.
`Reloader` reads, checks and hands the new configuration to the parts that registered for it; if
one of them refuses, those that had it already get the old one back. A changed key that is not in
HOT_KEYS keeps its old value until a restart and is reported every time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

import trio
from pydantic import BaseModel

from node.config import Config, ConfigError, LoadedConfig
from storage.errors import MnemeshError

HOT_KEYS: Final = frozenset(
    {
        "a2a.task_retention_days",
        "agents.roster",
        "auth.rate_limits",
        "erasure.audit_until",
        "erasure.backup_window",
        "erasure.batch_rows",
        "erasure.due",
        "erasure.graph",
        "erasure.k_min",
        "erasure.max_offline",
        "erasure.quiesce_timeout",
        "eviction",
        "gossip.ack",
        "gossip.aggregates",
        "gossip.eps",
        "gossip.eps_max",
        "gossip.eps_min",
        "gossip.fanout",
        "gossip.fanout_cap",
        "gossip.hop_max",
        "gossip.kappa",
        "gossip.limits",
        "gossip.outbox",
        "gossip.patience",
        "gossip.quarantine",
        "gossip.relay_cache_mib",
        "gossip.relay_cache_s",
        "gossip.repair",
        "gossip.skip",
        "gossip.strict_reads",
        "gossip.tau",
        "gossip.tau_floor",
        "gossip.tomb_ttl_s",
        "gossip.ttl_s",
        "gossip.views.exchange_s",
        "gossip.views.semantic",
        "gossip.views.shuffle_s",
        "retention",
        "search",
    }
)
"""Keys, or whole sections, that a running node takes over."""

Setter: TypeAlias = Callable[[Config], None]
Check: TypeAlias = Callable[[Config, Config], Awaitable[list[str]]]
Status: TypeAlias = Literal["applied", "unchanged", "rejected"]


@dataclass(frozen=True, slots=True)
class Change:
    """One key whose value differs; the values are for code, not for logs."""

    key: str
    old: object
    new: object


@dataclass(frozen=True, slots=True)
class ReloadPlan:
    """`config` is what will be in force: the old one with the hot changes in it."""

    hot: tuple[Change, ...]
    cold: tuple[Change, ...]
    config: Config


@dataclass(frozen=True, slots=True)
class ReloadResult:
    """What a reload did; carries keys and problems, never values."""

    status: Status
    changed: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """For the admin API."""
        return {
            each.name: list(value) if isinstance(value, tuple) else value
            for each in dataclasses.fields(self)
            for value in (getattr(self, each.name),)
        }

    def text(self) -> str:
        """For the command line, one fact per line."""
        heads = {
            "applied": "configuration applied",
            "unchanged": "configuration unchanged",
            "rejected": "configuration rejected, the old one stays in force",
        }
        lines = [heads[self.status]]
        lines += [f"  changed: {key}" for key in self.changed]
        lines += [f"  needs a restart: {key}" for key in self.restart]
        lines += [f"  warning: {text}" for text in self.warnings]
        lines += [f"  problem: {text}" for text in self.problems]
        return "\n".join(lines)


def is_hot(key: str) -> bool:
    """Whether `key` or a section above it is in HOT_KEYS."""
    parts = key.split(".")
    return any(".".join(parts[:end]) in HOT_KEYS for end in range(1, len(parts) + 1))


def flatten(config: Config) -> dict[str, object]:
    """Key path to value for every key of the file; a list is one value."""
    return dict(_leaves(config, ""))


def plan(old: Config, new: Config) -> ReloadPlan:
    """Which keys differ between two valid configurations, and what to put in force."""
    before, after = flatten(old), flatten(new)
    changes = [
        Change(key, before.get(key), after.get(key))
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    ]
    return ReloadPlan(
        hot=tuple(change for change in changes if is_hot(change.key)),
        cold=tuple(change for change in changes if not is_hot(change.key)),
        config=_overlay(old, new, ""),
    )


@dataclass(slots=True)
class Reloader:
    """Holds the configuration in force and changes it.

    `load` reads and validates the file; it may block and runs in a thread. Reloads run one after
    the other. `current` changes only when a reload is applied.
    """

    current: Config
    load: Callable[[], LoadedConfig]
    _setters: list[Setter] = field(default_factory=list)
    _checks: list[Check] = field(default_factory=list)
    _lock: trio.Lock = field(default_factory=trio.Lock)

    def on_change(self, setter: Setter) -> None:
        """`setter` gets the whole new configuration whenever a hot key changed.

        It must be quick, keep nothing of the old one, and raise a MnemeshError to refuse.
        """
        self._setters.append(setter)

    def check_first(self, check: Check) -> None:
        """`check(old, new)` may look at data and returns problems that reject the file."""
        self._checks.append(check)

    async def reload(self) -> ReloadResult:
        """Takes the file over, all or nothing. Never raises for a bad file."""
        async with self._lock:
            try:
                loaded = await trio.to_thread.run_sync(self.load)
            except ConfigError as error:
                return ReloadResult("rejected", problems=error.problems)
            planned = plan(self.current, loaded.config)
            restart = tuple(change.key for change in planned.cold)
            if not planned.hot:
                return ReloadResult("unchanged", restart=restart, warnings=loaded.warnings)
            problems = [
                problem
                for check in self._checks
                for problem in await check(self.current, planned.config)
            ]
            problems = problems or self._apply(planned.config)
            if problems:
                return ReloadResult("rejected", problems=tuple(problems))
            changed = tuple(change.key for change in planned.hot)
            return ReloadResult("applied", changed, restart, warnings=loaded.warnings)

    def _apply(self, config: Config) -> list[str]:
        for done, setter in enumerate(self._setters):
            try:
                setter(config)
            except MnemeshError as error:
                for earlier in reversed(self._setters[:done]):
                    earlier(self.current)
                return [str(error)]
        self.current = config
        return []


def _leaves(value: Any, path: str) -> list[tuple[str, object]]:
    parts = _parts(value)
    if parts is None:
        return [(path, value)]
    return [
        leaf
        for name, part in parts.items()
        for leaf in _leaves(part, f"{path}.{name}" if path else name)
    ]


def _overlay(old: Any, new: Any, path: str) -> Any:
    if path and is_hot(path):
        return new
    parts = _parts(old)
    if parts is None:
        return old
    fresh = _parts(new) or {}
    update = {
        name: _overlay(part, fresh.get(name, part), f"{path}.{name}" if path else name)
        for name, part in parts.items()
    }
    if isinstance(old, BaseModel):
        names = {spec.alias or name: name for name, spec in type(old).model_fields.items()}
        return old.model_copy(update={names[name]: part for name, part in update.items()})
    return dataclasses.replace(old, **update)


def _parts(value: Any) -> Mapping[str, Any] | None:
    if isinstance(value, BaseModel):
        fields = type(value).model_fields
        return {spec.alias or name: getattr(value, name) for name, spec in fields.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    return None
