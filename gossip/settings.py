"""Every knob of gossip with its default and bounds; frozen, checked when built.

`node/config.py` composes these from the configuration file. A bad value raises InvalidInput that
names the full key, so a reload can refuse a file before anything changes. What two nodes must
agree on (c0, c1, frame size, canonical form, fingerprint) is a protocol constant and not here.
Fields marked `hot` in their metadata may change while the node runs; the others need a restart.
"""

from __future__ import annotations

from dataclasses import Field, dataclass, field, fields
from typing import Any, ClassVar, Literal

from storage.errors import InvalidInput

PPM = 1_000_000
DAY_S = 86_400
MAX_ADDRESSES = 1_024


def _hot(
    default: Any, low: float | None = None, high: float | None = None, above: float | None = None
) -> Any:
    return field(default=default, metadata={"hot": True, "low": low, "high": high, "above": above})


def _cold(
    default: Any, low: float | None = None, high: float | None = None, above: float | None = None
) -> Any:
    return field(default=default, metadata={"hot": False, "low": low, "high": high, "above": above})


class _Checked:
    """Checks every number against the bounds in its field's metadata."""

    SECTION: ClassVar[str] = "gossip"

    def __post_init__(self) -> None:
        for each in fields(self):  # type: ignore[arg-type]
            self._check(each, getattr(self, each.name))

    def _check(self, each: Field[Any], value: object) -> None:
        key = f"{self.SECTION}.{each.name}"
        if each.type == "bool":
            if not isinstance(value, bool):
                raise InvalidInput(f"{key}: expected true or false")
            return
        whole = each.type == "int"
        if not whole and each.type != "float":
            return
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
            raise InvalidInput(f"{key}: expected {'a whole number' if whole else 'a number'}")
        low, high, above = (each.metadata[name] for name in ("low", "high", "above"))
        if low is not None and not value >= low:
            raise InvalidInput(f"{key}: must be at least {low:g}")
        if above is not None and not value > above:
            raise InvalidInput(f"{key}: must be above {above:g}")
        if high is not None and not value <= high:
            raise InvalidInput(f"{key}: must be at most {high:g}")


@dataclass(frozen=True, slots=True)
class ViewSettings(_Checked):
    SECTION: ClassVar[str] = "gossip.views"
    semantic: int = _hot(24, 1, 256)
    exchange_s: float = _hot(10.0, above=0, high=3_600)
    shuffle_s: float = _hot(30.0, above=0, high=3_600)
    random_active: int = _cold(8, 1, 256)
    random_passive: int = _cold(48, 1, 1_024)


@dataclass(frozen=True, slots=True)
class RepairSettings(_Checked):
    SECTION: ClassVar[str] = "gossip.repair"
    period_s: float = _hot(30.0, above=0, high=3_600)
    semantic_share: float = _hot(0.75, 0, 1)


@dataclass(frozen=True, slots=True)
class AckSettings(_Checked):
    SECTION: ClassVar[str] = "gossip.ack"
    timeout_s: float = _hot(2.0, above=0, high=60)
    retries: int = _hot(2, 0, 10)


@dataclass(frozen=True, slots=True)
class OutboxSettings(_Checked):
    SECTION: ClassVar[str] = "gossip.outbox"
    retry_min_s: float = _hot(0.5, above=0, high=300)
    retry_max_s: float = _hot(300.0, above=0, high=3_600)

    def __post_init__(self) -> None:
        _Checked.__post_init__(self)
        if self.retry_min_s > self.retry_max_s:
            raise InvalidInput(
                "gossip.outbox.retry_min_s: must be at most gossip.outbox.retry_max_s"
            )


@dataclass(frozen=True, slots=True)
class QuarantineSettings(_Checked):
    SECTION: ClassVar[str] = "gossip.quarantine"
    down_s: float = _hot(60.0, above=0, high=DAY_S)
    sync_s: float = _hot(300.0, above=0, high=DAY_S)
    jump_s: float = _hot(5.0, above=0, high=DAY_S)
    peers: int = _hot(3, 1, 64)


@dataclass(frozen=True, slots=True)
class AggregateSettings(_Checked):
    SECTION: ClassVar[str] = "gossip.aggregates"
    max: int = _hot(256, 0, 4_096)


@dataclass(frozen=True, slots=True)
class LimitSettings(_Checked):
    """Rates that a peer or an agent may use; energy in units per minute."""

    SECTION: ClassVar[str] = "gossip.limits"
    peer_diffs_per_s: int = _hot(50, 1, 100_000)
    peer_diffs_burst: int = _hot(200, 1, 1_000_000)
    peer_bytes_per_s: int = _hot(1 << 20, 1 << 16, 1 << 32)
    agent_diffs_per_s: int = _hot(5, 1, 100_000)
    agent_energy_per_min: int = _hot(20_000, 16, 1_000_000_000)
    profiles_per_min: int = _hot(1, 1, 60)
    repair_in: int = _hot(2, 1, 64)
    repair_out: int = _hot(2, 1, 64)
    repair_per_min: int = _hot(30, 1, 6_000)
    tombstones_per_s: int = _hot(200, 1, 100_000)
    parked: int = _hot(1_000, 0, 100_000)


@dataclass(frozen=True, slots=True)
class HlcSettings(_Checked):
    SECTION: ClassVar[str] = "gossip.hlc"
    drift_s: float = _cold(5.0, above=0, high=60)
    park_s: float = _cold(60.0, 0, 600)


@dataclass(frozen=True, slots=True)
class MembershipSettings(_Checked):
    """How fast a silent peer becomes suspect, then dead; see `membership_preset`."""

    SECTION: ClassVar[str] = "gossip.membership"
    preset: Literal["lan", "wan"] = _cold("lan")
    ping_s: float = _cold(1.0, above=0, high=60)
    suspect_s: float = _cold(3.0, above=0, high=600)
    dead_s: float = _cold(12.0, above=0, high=3_600)

    def __post_init__(self) -> None:
        _Checked.__post_init__(self)
        if self.preset not in ("lan", "wan"):
            raise InvalidInput("gossip.membership.preset: expected lan or wan")
        if not self.ping_s < self.suspect_s:
            raise InvalidInput(
                "gossip.membership.suspect_s: must be above gossip.membership.ping_s"
            )


def membership_preset(name: str) -> MembershipSettings:
    """The timing of `lan` or `wan`. Raises InvalidInput for another name."""
    if name == "lan":
        return MembershipSettings()
    if name == "wan":
        return MembershipSettings("wan", ping_s=5.0, suspect_s=15.0, dead_s=45.0)
    raise InvalidInput("gossip.membership.preset: expected lan or wan")


@dataclass(frozen=True, slots=True)
class RetentionSettings(_Checked):
    """How long gossip keeps its records; the section of the file is `retention`."""

    SECTION: ClassVar[str] = "retention"
    delivery_retention_d: int = _hot(30, 1)
    diff_grace_h: int = _hot(24, 1)
    tomb_min_retention_d: int = _hot(90, 7)


@dataclass(frozen=True, slots=True)
class GossipSettings(_Checked):
    """The section `gossip`. `tau` None means: measured from the local vectors."""

    SECTION: ClassVar[str] = "gossip"
    kappa: int = _hot(5, 1, 50)
    eps: float = _hot(0.12, 0, 0.5)
    eps_min: float = _hot(0.06, 0, 0.5)
    eps_max: float = _hot(0.25, 0, 0.5)
    fanout: int = _hot(6, 1, 24)
    fanout_cap: int = _hot(24, 1, 24)
    patience: int = _hot(2, 0, 16)
    skip: int = _hot(32, 0, 32)
    hop_max: int = _hot(12, 1, 64)
    ttl_s: int = _hot(3_600, 1, DAY_S)
    tomb_ttl_s: int = _hot(DAY_S, 1, DAY_S)
    tau: float | None = _hot(None)
    tau_floor: float = _hot(0.30, -1, 1)
    relay_cache_s: int = _hot(600, 0, DAY_S)
    relay_cache_mib: int = _hot(64, 0, 65_536)
    strict_reads: bool = _hot(False)
    listen: str | None = _cold(None)
    advertise: str | None = _cold(None)
    peers: tuple[str, ...] = _cold(())
    acl: str | None = _cold(None)
    views: ViewSettings = field(default_factory=ViewSettings, metadata={"hot": True})
    repair: RepairSettings = field(default_factory=RepairSettings, metadata={"hot": True})
    ack: AckSettings = field(default_factory=AckSettings, metadata={"hot": True})
    outbox: OutboxSettings = field(default_factory=OutboxSettings, metadata={"hot": True})
    quarantine: QuarantineSettings = field(
        default_factory=QuarantineSettings, metadata={"hot": True}
    )
    aggregates: AggregateSettings = field(default_factory=AggregateSettings, metadata={"hot": True})
    limits: LimitSettings = field(default_factory=LimitSettings, metadata={"hot": True})
    hlc: HlcSettings = field(default_factory=HlcSettings, metadata={"hot": False})
    membership: MembershipSettings = field(
        default_factory=MembershipSettings, metadata={"hot": False}
    )

    def __post_init__(self) -> None:
        _Checked.__post_init__(self)
        if self.eps_min > self.eps_max:
            raise InvalidInput("gossip.eps_min: must be at most gossip.eps_max")
        if not self.eps_min <= self.eps <= self.eps_max:
            raise InvalidInput("gossip.eps: must lie between gossip.eps_min and gossip.eps_max")
        if self.fanout > self.fanout_cap:
            raise InvalidInput("gossip.fanout: must be at most gossip.fanout_cap")
        if self.tau is not None and not (
            isinstance(self.tau, int | float)
            and not isinstance(self.tau, bool)
            and -1 <= self.tau <= 1
        ):
            raise InvalidInput("gossip.tau: expected auto or a number between -1 and 1")
        for name in ("listen", "advertise"):
            address = getattr(self, name)
            if address is not None:
                parse_address(address, f"gossip.{name}")
        if len(self.peers) > MAX_ADDRESSES:
            raise InvalidInput(f"gossip.peers: at most {MAX_ADDRESSES} addresses")
        for index, address in enumerate(self.peers):
            parse_address(address, f"gossip.peers[{index}]")

    @property
    def eps_ppm(self) -> int:
        """The share of exploration in ppm."""
        return round(self.eps * PPM)


def parse_address(text: str, key: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[v6]:port`. Raises InvalidInput that names the key."""
    if not isinstance(text, str):
        raise InvalidInput(f"{key}: expected host:port")
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise InvalidInput(f"{key}: an IPv6 host needs brackets")
    if not colon or not host or not (port.isascii() and port.isdigit() and int(port) <= 65_535):
        raise InvalidInput(f"{key}: expected host:port")
    return host, int(port)
