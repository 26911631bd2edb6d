"""What every embedder promises, asked of the stand-in of the tests and of real ones alike."""

from __future__ import annotations

import numpy as np
import pytest

from node.embed.base import Embedder
from node.embed.bundled import load_bundled
from tests.support.memory import FakeEmbedder

TEXTS = ("the deploy runs on friday", "ada likes tea", "東京の会議", "x")


@pytest.fixture(params=["stand-in", "bundled"])
def embedder(request: pytest.FixtureRequest) -> Embedder:
    return FakeEmbedder() if request.param == "stand-in" else load_bundled()


async def test_each_text_becomes_one_unit_vector_of_the_dimension(embedder: Embedder) -> None:
    vectors = await embedder.embed(TEXTS)
    assert vectors.dtype == np.float32
    assert vectors.shape == (len(TEXTS), embedder.dimension)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)


async def test_the_same_text_gives_the_same_vector_alone_and_in_a_batch(embedder: Embedder) -> None:
    together = await embedder.embed(TEXTS)
    alone = np.concatenate([await embedder.embed([text]) for text in TEXTS])
    np.testing.assert_allclose(alone, together, atol=1e-6)


async def test_texts_with_common_words_are_nearer_than_texts_without(embedder: Embedder) -> None:
    asked, near, far = await embedder.embed(
        ["when does the deploy run", "the deploy runs on friday", "ada likes tea"]
    )
    assert asked @ near > asked @ far


async def test_no_texts_give_no_vectors(embedder: Embedder) -> None:
    assert (await embedder.embed([])).shape == (0, embedder.dimension)


async def test_the_model_id_names_the_dimension(embedder: Embedder) -> None:
    name, _, rest = embedder.model_id.partition("@")
    dimension, _, digest = rest.partition("#")
    assert name
    assert int(dimension) == embedder.dimension
    assert digest
