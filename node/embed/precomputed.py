"""For nodes whose clients bring their own vectors.

The node then compares vectors but cannot make one; every path that would need one for a bare
text gets a clear refusal instead of a wrong vector.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from node.embed.base import Vectors, make_model_id
from storage.errors import InvalidInput


class PrecomputedEmbedder:
    """Fixes model name and dimension; the vectors come with the requests (`check_vector`)."""

    def __init__(self, name: str, dimension: int) -> None:
        self.dimension = dimension
        self.model_id = make_model_id(name, dimension, "precomputed")

    async def embed(self, texts: Sequence[str]) -> Vectors:
        """Raises InvalidInput for any text: this node has no model."""
        if not texts:
            return np.empty((0, self.dimension), np.float32)
        raise InvalidInput(
            f"embedding is required: this node has no model, send {self.dimension} numbers"
        )
