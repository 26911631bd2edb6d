"""Every event that gossip counts has a collector that takes its labels."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from node.telemetry.metrics import GossipMetrics, build_metrics

GOSSIP = Path(__file__).resolve().parents[3] / "gossip"
COUNTED = re.compile(r'(?:count|_count|Metric)\(\s*"(?P<name>[a-z0-9_]+)"(?P<more>\s*,\s*[^\s)])?')


def counted() -> dict[str, bool]:
    """Names in gossip's source, and whether a label follows."""
    found: dict[str, bool] = {}
    for path in sorted(GOSSIP.glob("*.py")):
        for match in COUNTED.finditer(path.read_text("utf-8")):
            more = match["more"] is not None and not match.string.startswith(
                '""', match.end("more") - 1
            )
            found[match["name"]] = found.get(match["name"], False) or more
    return found


@pytest.mark.parametrize(("name", "labelled"), sorted(counted().items()))
def test_a_counted_name_has_a_collector(name: str, labelled: bool) -> None:
    collector = getattr(build_metrics().gossip, name)
    assert bool(collector._labelnames) == labelled


def test_names_were_found_at_all() -> None:
    names = {field.name for field in dataclasses.fields(GossipMetrics)}
    assert len(counted()) >= 15
    assert set(counted()) <= names
