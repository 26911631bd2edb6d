"""The default embedder: WordLlama's static vectors, read from the installed package's folder.

The weights and the tokenizer are data files; they are read directly and the package's code is
never imported, because importing it brings an HTTP client that downloads what it misses and
reconfigures logging. So loading opens no socket, and a missing file is one clear refusal.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import trio
from safetensors import SafetensorError
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from node.embed.base import (
    Vectors,
    check_texts,
    digest_files,
    embed_in_threads,
    make_model_id,
    unit_rows,
)
from storage.errors import StartRefused

NAME: Final = "wordllama-l2-supercat"
DIMENSION: Final = 256
INLINE_CHARACTERS: Final = 2_000
"""Up to so much text is embedded on the loop: it takes less time than a thread does to start."""
_WEIGHTS = Path("weights", "l2_supercat_256.safetensors")
_TOKENIZER = Path("tokenizers", "l2_supercat_tokenizer_config.json")
_TENSOR = "embedding.weight"


class BundledEmbedder:
    """Mean of the static vectors of a text's tokens, normalised; no context, no truncation."""

    def __init__(
        self, table: Vectors, tokenizer: Tokenizer, digest: str, batch_size: int = 64
    ) -> None:
        self._table = table
        self._tokenizer = tokenizer
        self._batch_size = batch_size
        self._limiter = trio.CapacityLimiter(2)
        self.dimension: int = table.shape[1]
        self.model_id = make_model_id(NAME, self.dimension, digest)

    async def embed(self, texts: Sequence[str]) -> Vectors:
        """See `Embedder`; about 20,000 short texts a second."""
        if texts and sum(map(len, texts)) <= INLINE_CHARACTERS:
            given = check_texts(texts)
            await trio.lowlevel.checkpoint()
            return unit_rows(self._encode(given), (len(given), self.dimension))
        return await embed_in_threads(
            self._encode,
            texts,
            dimension=self.dimension,
            batch_size=self._batch_size,
            limiter=self._limiter,
        )

    def _encode(self, texts: list[str]) -> npt.NDArray[np.floating]:
        rows = np.zeros((len(texts), self.dimension), np.float32)
        encodings = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        for row, encoding in zip(rows, encodings, strict=True):
            tokens, counts = np.unique(np.asarray(encoding.ids, np.int64), return_counts=True)
            row[:] = counts.astype(np.float32) @ self._table[tokens] / max(len(encoding.ids), 1)
        return rows


def load_bundled(*, batch_size: int = 64, folder: Path | None = None) -> BundledEmbedder:
    """Reads 18 MB from `folder`, by default that of the installed package; call it in a thread.

    Raises StartRefused naming what is missing or unreadable.
    """
    folder = folder or _package_folder()
    weights, tokenizer_file = folder / _WEIGHTS, folder / _TOKENIZER
    for path in (weights, tokenizer_file):
        if not path.is_file():
            raise StartRefused(f"embedding: {path} is missing; install wordllama==0.3.9")
    try:
        table = load_file(weights)[_TENSOR]
    except (SafetensorError, KeyError, OSError) as error:
        raise StartRefused(f"embedding: {weights} is damaged") from error
    tokenizer = read_tokenizer(tokenizer_file)
    if table.ndim != 2 or table.shape[1] != DIMENSION:
        raise StartRefused(f"embedding: {weights} does not hold vectors of {DIMENSION} numbers")
    if tokenizer.get_vocab_size() > len(table):
        raise StartRefused(f"embedding: {tokenizer_file} knows more tokens than the weights")
    tokenizer.no_padding()
    tokenizer.no_truncation()
    digest = digest_files([weights, tokenizer_file])
    return BundledEmbedder(table.astype(np.float32), tokenizer, digest, batch_size)


def read_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a local `tokenizer.json`. Raises StartRefused when it does not parse."""
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises no narrower one
        raise StartRefused(f"embedding: {path} is no tokenizer") from error


def _package_folder() -> Path:
    spec = find_spec("wordllama")
    if spec is None or not spec.submodule_search_locations:
        raise StartRefused("embedding: the package wordllama is missing; install wordllama==0.3.9")
    return Path(next(iter(spec.submodule_search_locations)))
