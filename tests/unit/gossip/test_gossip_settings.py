import math
from dataclasses import fields

import pytest

from gossip.settings import (
    AckSettings,
    GossipSettings,
    HlcSettings,
    LimitSettings,
    MembershipSettings,
    OutboxSettings,
    QuarantineSettings,
    RepairSettings,
    RetentionSettings,
    ViewSettings,
    membership_preset,
    parse_address,
)
from storage.errors import InvalidInput


def test_the_defaults_are_those_of_the_design():
    settings = GossipSettings()
    assert settings.kappa == 5
    assert (settings.eps_min, settings.eps, settings.eps_max) == (0.06, 0.12, 0.25)
    assert (settings.fanout, settings.fanout_cap, settings.patience, settings.skip) == (
        6,
        24,
        2,
        32,
    )
    assert (settings.hop_max, settings.ttl_s, settings.tomb_ttl_s) == (12, 3_600, 86_400)
    assert (settings.ack.timeout_s, settings.ack.retries) == (2.0, 2)
    assert settings.eps_ppm == 120_000


@pytest.mark.parametrize(
    "build, key",
    [
        (lambda: GossipSettings(kappa=0), "gossip.kappa"),
        (lambda: GossipSettings(kappa=2.5), "gossip.kappa"),
        (lambda: GossipSettings(fanout=True), "gossip.fanout"),
        (lambda: GossipSettings(fanout_cap=25), "gossip.fanout_cap"),
        (lambda: GossipSettings(fanout=6, fanout_cap=5), "gossip.fanout"),
        (lambda: GossipSettings(ttl_s=86_401), "gossip.ttl_s"),
        (lambda: GossipSettings(tomb_ttl_s=86_401), "gossip.tomb_ttl_s"),
        (lambda: GossipSettings(eps_min=0.3, eps=0.3), "gossip.eps_min"),
        (lambda: GossipSettings(eps=0.26), "gossip.eps"),
        (lambda: GossipSettings(eps=math.nan), "gossip.eps"),
        (lambda: GossipSettings(tau=1.5), "gossip.tau"),
        (lambda: GossipSettings(tau="high"), "gossip.tau"),
        (lambda: GossipSettings(strict_reads=1), "gossip.strict_reads"),
        (lambda: GossipSettings(listen="7700"), "gossip.listen"),
        (lambda: GossipSettings(peers=("a:1", "::1:2")), "gossip.peers[1]"),
        (lambda: ViewSettings(semantic=0), "gossip.views.semantic"),
        (lambda: RepairSettings(semantic_share=1.1), "gossip.repair.semantic_share"),
        (lambda: AckSettings(timeout_s=0), "gossip.ack.timeout_s"),
        (lambda: OutboxSettings(retry_min_s=9, retry_max_s=1), "gossip.outbox.retry_min_s"),
        (lambda: QuarantineSettings(down_s=0), "gossip.quarantine.down_s"),
        (lambda: LimitSettings(peer_diffs_per_s=0), "gossip.limits.peer_diffs_per_s"),
        (lambda: HlcSettings(drift_s=-1), "gossip.hlc.drift_s"),
        (lambda: MembershipSettings(suspect_s=0.5), "gossip.membership.suspect_s"),
        (lambda: membership_preset("moon"), "gossip.membership.preset"),
        (lambda: RetentionSettings(tomb_min_retention_d=6), "retention.tomb_min_retention_d"),
        (lambda: RetentionSettings(delivery_retention_d=0), "retention.delivery_retention_d"),
        (lambda: RetentionSettings(diff_grace_h=0), "retention.diff_grace_h"),
    ],
)
def test_a_bad_value_is_refused_by_its_key(build, key):
    with pytest.raises(InvalidInput) as caught:
        build()
    assert str(caught.value).startswith(f"{key}:")


def test_every_field_says_whether_it_reloads():
    assert all("hot" in each.metadata for each in fields(GossipSettings))


def test_the_wan_preset_is_slower():
    assert membership_preset("wan").dead_s > membership_preset("lan").dead_s


@pytest.mark.parametrize(
    "text, expected", [("host:1", ("host", 1)), ("[::1]:65535", ("::1", 65_535))]
)
def test_addresses_are_split(text, expected):
    assert parse_address(text, "key") == expected


@pytest.mark.parametrize("text", ["", ":1", "host", "host:", "host:65536", "host:-1", "::1:1"])
def test_a_malformed_address_is_refused(text):
    with pytest.raises(InvalidInput):
        parse_address(text, "key")
