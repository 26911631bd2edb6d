"""Vectors from any server that speaks the OpenAI `/v1/embeddings` form.

The server is trusted with the texts and with nothing else: the size of its answer is limited
while it is read, every number is checked, redirects are not followed, proxies and credentials
are not taken from the environment behind the operator's back, and its words never reach an
error, since it may repeat what it was sent.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx
import numpy as np
import trio

from node.embed.base import (
    EmbeddingFailed,
    EmbeddingUnavailable,
    Vectors,
    batches,
    check_texts,
    make_model_id,
    unit_rows,
)
from storage.errors import StartRefused

RETRIES: Final = 3
BACKOFF_S: Final = 0.5
MAX_WAIT_S: Final = 30.0
_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
_BYTES_PER_NUMBER = 32
_BYTES_PER_ANSWER = 1 << 16


class RemoteEmbedder:
    """Asks the server batch by batch; at most two requests at a time.

    A request is idempotent, so time-outs, refused connections and busy answers are tried again
    up to three times with doubling pauses (or as long as the server asks, up to 30 s).
    """

    def __init__(
        self, client: httpx.AsyncClient, *, model: str, dimension: int, batch_size: int
    ) -> None:
        self._client = client
        self._model = model
        self._batch_size = batch_size
        self._limiter = trio.CapacityLimiter(2)
        self.dimension = dimension
        self.model_id = make_model_id(model, dimension, "remote")

    async def embed(self, texts: Sequence[str]) -> Vectors:
        """See `Embedder`. All texts or an error: a half answered call returns nothing."""
        rows = [
            await self._embed_batch(batch)
            for batch in batches(check_texts(texts), self._batch_size)
        ]
        return np.concatenate(rows) if rows else np.empty((0, self.dimension), np.float32)

    async def _embed_batch(self, batch: list[str]) -> Vectors:
        body = {"model": self._model, "input": batch, "encoding_format": "float"}
        attempt = 0
        while True:
            try:
                async with self._limiter:
                    return self._vectors(await self._post(body, len(batch)), len(batch))
            except _Busy as busy:
                if attempt == RETRIES:
                    raise EmbeddingUnavailable(f"the embedding server {busy.why}") from busy
                wait = BACKOFF_S * 2**attempt if busy.wait_s is None else busy.wait_s
            await trio.sleep(min(wait, MAX_WAIT_S))
            attempt += 1

    async def _post(self, body: Mapping[str, Any], count: int) -> bytes:
        limit = count * self.dimension * _BYTES_PER_NUMBER + _BYTES_PER_ANSWER
        try:
            async with self._client.stream("POST", "embeddings", json=body) as response:
                if response.status_code in _AGAIN:
                    raise _Busy(f"answered {response.status_code}", _retry_after(response))
                if response.status_code in (401, 403):
                    raise EmbeddingFailed("the embedding server refused the API key")
                if response.status_code != 200:
                    raise EmbeddingFailed(f"the embedding server answered {response.status_code}")
                answer = bytearray()
                async for chunk in response.aiter_bytes():
                    answer += chunk
                    if len(answer) > limit:
                        raise EmbeddingFailed(f"the embedding server sent more than {limit} bytes")
                return bytes(answer)
        except httpx.TimeoutException as error:
            raise _Busy("did not answer in time", None) from error
        except httpx.TransportError as error:
            raise _Busy("could not be reached", None) from error
        except httpx.DecodingError as error:
            raise EmbeddingFailed("the embedding server's answer does not decompress") from error

    def _vectors(self, answer: bytes, count: int) -> Vectors:
        try:
            rows: list[Any] = [None] * count
            entries = json.loads(answer)["data"]
            if len(entries) != count:
                raise EmbeddingFailed(f"the server sent {len(entries)} vectors for {count} texts")
            for at, entry in enumerate(entries):
                rows[_index(entry.get("index", at), count)] = entry["embedding"]
            raw = np.asarray(rows, np.float64)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise EmbeddingFailed("the embedding server's answer is malformed") from error
        if raw.ndim == 2 and raw.shape[1] != self.dimension:
            raise EmbeddingFailed(
                f"the embedding server sent {raw.shape[1]} dimensions,"
                f" embedding.dimensions is {self.dimension}"
            )
        return unit_rows(raw, (count, self.dimension))


class _Busy(Exception):
    def __init__(self, why: str, wait_s: float | None) -> None:
        super().__init__(why)
        self.why = why
        self.wait_s = wait_s


def _index(value: object, count: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < count:
        raise ValueError("index")
    return value


def _retry_after(response: httpx.Response) -> float | None:
    text = response.headers.get("retry-after", "")
    return float(text) if text.isascii() and text.isdigit() else None


@asynccontextmanager
async def open_remote(
    *,
    base_url: str,
    model: str,
    dimension: int,
    api_key_env: str | None,
    environ: Mapping[str, str],
    batch_size: int = 64,
    timeout_ms: int = 30_000,
    transport: httpx.AsyncBaseTransport | None = None,
) -> AsyncIterator[RemoteEmbedder]:
    """A client of `base_url`, which ends before `/embeddings` (say `http://host:8080/v1`).

    Sends nothing by itself; a server that is down shows with the first text. Raises StartRefused
    for an unusable URL and for an `api_key_env` that names no set variable.
    """
    headers = {}
    if api_key_env is not None:
        key = environ.get(api_key_env, "").strip()
        if not key or not key.isascii() or not key.isprintable():
            raise StartRefused(f"embedding.api_key_env: {api_key_env} holds no usable key")
        headers["authorization"] = f"Bearer {key}"
    async with httpx.AsyncClient(
        base_url=_checked_url(base_url),
        headers=headers,
        timeout=timeout_ms / 1000,
        follow_redirects=False,
        trust_env=False,
        transport=transport,
    ) as client:
        yield RemoteEmbedder(client, model=model, dimension=dimension, batch_size=batch_size)


def _checked_url(text: str) -> httpx.URL:
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL as error:
        raise StartRefused("embedding.base_url is no URL") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise StartRefused("embedding.base_url must start with http:// or https://")
    if url.userinfo:
        raise StartRefused("embedding.base_url must not carry credentials; use api_key_env")
    return url
