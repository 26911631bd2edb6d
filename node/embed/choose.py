"""Builds the embedder that the settings name; the only place that knows all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import trio

from node.embed.base import Embedder
from node.embed.bundled import load_bundled
from node.embed.onnx import load_onnx
from node.embed.precomputed import PrecomputedEmbedder
from node.embed.remote import open_remote
from node.embed.settings import EmbeddingSettings
from storage.errors import StartRefused

T = TypeVar("T")


@asynccontextmanager
async def open_embedder(
    settings: EmbeddingSettings, environ: Mapping[str, str]
) -> AsyncIterator[Embedder]:
    """The configured embedder, loaded off the loop; what it holds open ends with the context.

    Raises StartRefused naming the configuration key that is missing, contradicts the model, or
    points at nothing.
    """
    if settings.provider == "remote":
        async with open_remote(
            base_url=_needed(settings.base_url, "base_url", settings),
            model=_needed(settings.model, "model", settings),
            dimension=_needed(settings.dimensions, "dimensions", settings),
            api_key_env=settings.api_key_env,
            environ=environ,
            batch_size=settings.batch_size,
            timeout_ms=settings.timeout_ms,
        ) as remote:
            yield remote
        return
    embedder: Embedder
    if settings.provider == "precomputed":
        embedder = PrecomputedEmbedder(
            _needed(settings.model, "model", settings),
            _needed(settings.dimensions, "dimensions", settings),
        )
    elif settings.provider == "onnx":
        folder = Path(_needed(settings.model, "model", settings))
        embedder = await trio.to_thread.run_sync(
            partial(load_onnx, folder, batch_size=settings.batch_size)
        )
    else:
        embedder = await trio.to_thread.run_sync(
            partial(load_bundled, batch_size=settings.batch_size)
        )
    if settings.dimensions not in (None, embedder.dimension):
        raise StartRefused(
            f"embedding.dimensions is {settings.dimensions},"
            f" the {settings.provider} model has {embedder.dimension}"
        )
    yield embedder


def _needed(value: T | None, key: str, settings: EmbeddingSettings) -> T:
    if value is None:
        raise StartRefused(f"embedding.{key} is required for provider {settings.provider}")
    return value
