"""What the embedders need to know, without the file that says it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Provider: TypeAlias = Literal["bundled", "onnx", "remote", "precomputed"]


@dataclass(frozen=True, slots=True)
class EmbeddingSettings:
    """Which model makes the vectors of this node.

    `model` is the model's name (`remote`, `precomputed`) or the folder of its files (`onnx`).
    `dimensions` must be given where nothing else tells it (`remote`, `precomputed`) and is
    compared where the model tells it. `api_key_env` names an environment variable, so that no
    key stands in a file.
    """

    provider: Provider = "bundled"
    model: str | None = None
    dimensions: int | None = None
    base_url: str | None = None
    api_key_env: str | None = None
    batch_size: int = 64
    timeout_ms: int = 30_000
