"""Collectors: one registry, one set, names that dashboards rely on."""

from __future__ import annotations

import dataclasses

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from node.telemetry.metrics import Metrics, build_metrics

FORBIDDEN = {"agent", "agent_id", "memory", "memory_id", "content", "query", "path"}


def test_two_nodes_in_one_process_do_not_meet() -> None:
    first, second = build_metrics(), build_metrics()
    first.gossip.energy_spent_total.inc(5)
    name = "mnemesh_gossip_energy_spent_total"
    assert (
        first.registry.get_sample_value(name),
        second.registry.get_sample_value(name),
    ) == (5.0, 0.0)


def test_one_registry_takes_one_set() -> None:
    registry = CollectorRegistry()
    build_metrics(registry)
    with pytest.raises(ValueError, match="Duplicated"):
        build_metrics(registry)


def test_gossip_names_are_the_documented_ones() -> None:
    names = {each.name for each in dataclasses.fields(build_metrics().gossip)}
    assert names >= {
        "copies_total",
        "refused_total",
        "walk_stop_total",
        "energy_spent_total",
        "deliveries_total",
        "holders_rows",
        "tomb_pending",
        "repair_sessions_total",
        "members",
        "quarantined",
        "outbox_rows",
    }


def test_labelled_values_are_rendered() -> None:
    metrics = build_metrics()
    metrics.gossip.copies_total.labels(dir="in", status="stored").inc()
    metrics.memory.seconds.labels(operation="recall").observe(0.003)
    text = generate_latest(metrics.registry).decode()
    assert 'mnemesh_gossip_copies_total{dir="in",status="stored"} 1.0' in text
    assert 'mnemesh_memory_seconds_bucket{le="0.005",operation="recall"} 1.0' in text


def test_no_label_names_a_person_or_a_text() -> None:
    metrics = build_metrics()
    labels = {
        label
        for part in dataclasses.fields(Metrics)
        if part.name != "registry"
        for each in dataclasses.fields(getattr(metrics, part.name))
        for label in getattr(getattr(metrics, part.name), each.name)._labelnames
    }
    assert labels & FORBIDDEN == set()
