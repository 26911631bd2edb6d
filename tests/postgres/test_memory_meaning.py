"""Recall by meaning with the bundled model, hot and cold."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.embed.bundled import BundledEmbedder, load_bundled
from node.memory.residency import Residency
from storage.hot.graph import HotGraph
from storage.hot.settings import HotSettings
from storage.pool import Database
from tests.support.memory import FakeEmbedder, World, make_world

NOTES = (
    "The invoice for the office rent is due on the first of each month.",
    "Our cat sleeps on the warm radiator all winter.",
    "The database backup runs every night at two o'clock.",
    "Maria prefers tea without sugar in the morning.",
    "The train to Hamburg leaves from platform nine.",
)
QUESTIONS = (
    ("when do we have to pay the rent", 0),
    ("kitten on the heater", 1),
    ("nightly copies of the database", 2),
    ("what does Maria drink", 3),
    ("railway departure", 4),
)


@pytest.fixture(scope="module")
def bundled() -> BundledEmbedder:
    return load_bundled()


@pytest.mark.parametrize("tier", ["hot", "cold"])
async def test_the_nearest_in_meaning_comes_first(
    db: Database, tmp_path: Path, bundled: BundledEmbedder, tier: str
) -> None:
    world = await make_world(db, tmp_path, embedder=bundled)
    agent = await world.agent("a1")
    ids = [(await world.store(agent, note)).id for note in NOTES]
    for question, expected in QUESTIONS:
        if tier == "cold":
            world.context.residency.evict(ids)
        hits = (await world.recall(agent, question)).hits
        assert hits[0].memory.content == NOTES[expected]
        assert hits[0].tier == tier


async def test_vectors_of_another_model_are_never_compared(
    db: Database, tmp_path: Path, bundled: BundledEmbedder
) -> None:
    old: World = await make_world(db, tmp_path, embedder=FakeEmbedder())
    agent = await old.agent("a1")
    await old.store(agent, NOTES[0])
    old.context.embedder = bundled
    graph = HotGraph(bundled.dimension, HotSettings(ceiling=100), old.ms)
    old.context.residency = Residency(graph, old.node, bundled.model_id)
    await old.context.residency.load(db)
    assert len(graph) == 0
    (hit,) = (await old.recall(agent, "office rent")).hits
    assert (hit.cosine, hit.words) == (0.0, 1.0)
