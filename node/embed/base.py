"""What an embedder is, and the checks that all of them share.

Remember, recall and re-embedding call `embed`; they see texts going in and unit vectors coming
out and never know which model made them. Nothing here loads a model or opens a socket.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import trio

from storage.content import check_text
from storage.errors import InvalidInput, MnemeshError, StartRefused, Unavailable

Vectors: TypeAlias = npt.NDArray[np.float32]

MAX_TEXTS: Final = 4096
"""Texts in one call of `embed`; larger work is cut by its caller."""
MAX_DIMENSION: Final = 4000
"""What a `halfvec` column can index."""
BATCH_CHARACTERS: Final = 1 << 18
"""Characters that one thread call takes, so that a cancelled caller frees its thread soon."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:+-]{0,127}")


class EmbeddingFailed(MnemeshError):
    """The embedding model answered with something that is no usable vector."""

    code = "embedding_failed"


class EmbeddingUnavailable(Unavailable):
    """The embedding server does not answer now."""

    code = "embedding_unavailable"


class Embedder(Protocol):
    """Texts to vectors of one model.

    `embed` returns float32 of shape (len(texts), dimension), each row of length 1, in the order
    of the texts; an empty sequence gives shape (0, dimension). It runs on trio, never blocks the
    loop and may be called by many tasks at once. It raises InvalidInput for a text that cannot be
    embedded, EmbeddingFailed and EmbeddingUnavailable for what a model server does.
    """

    @property
    def model_id(self) -> str:
        """`name@dimension#digest`; vectors of two ids are never compared."""
        ...

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        ...

    async def embed(self, texts: Sequence[str]) -> Vectors:
        """Unit vectors of `texts`."""
        ...


def make_model_id(name: str, dimension: int, digest: str) -> str:
    """The id that every vector row carries. Raises StartRefused for an unusable part."""
    if not _NAME.fullmatch(name):
        raise StartRefused("embedding.model: a model name has letters, digits and . _ / : + -")
    check_dimension(dimension, "embedding.dimensions")
    return f"{name}@{dimension}#{digest}"


def check_dimension(dimension: int, field: str) -> int:
    """`dimension` unchanged. Raises StartRefused outside 1..4000."""
    if not 1 <= dimension <= MAX_DIMENSION:
        raise StartRefused(f"{field} must be between 1 and {MAX_DIMENSION}, not {dimension}")
    return dimension


def digest_files(paths: Sequence[Path]) -> str:
    """16 hex digits of BLAKE2b over the files' bytes, each preceded by its length."""
    state = blake2b(digest_size=8)
    for path in paths:
        state.update(path.stat().st_size.to_bytes(8, "big"))
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                state.update(chunk)
    return state.hexdigest()


def check_texts(texts: Sequence[str]) -> list[str]:
    """The texts as a list.

    Raises InvalidInput for more than MAX_TEXTS, and naming the position for one that is blank,
    no text, or not storable.
    """
    if isinstance(texts, str):
        raise InvalidInput("texts must be a list of texts")
    if len(texts) > MAX_TEXTS:
        raise InvalidInput(f"texts must be at most {MAX_TEXTS}")
    for at, text in enumerate(texts):
        if not check_text(text, f"texts[{at}]").strip():
            raise InvalidInput(f"texts[{at}] is blank")
    return list(texts)


def batches(texts: Sequence[str], size: int) -> Iterator[list[str]]:
    """Cuts `texts` in order into lists of at most `size` texts and about BATCH_CHARACTERS."""
    batch: list[str] = []
    characters = 0
    for text in texts:
        if batch and (len(batch) == size or characters + len(text) > BATCH_CHARACTERS):
            yield batch
            batch, characters = [], 0
        batch.append(text)
        characters += len(text)
    if batch:
        yield batch


async def embed_in_threads(
    encode: Callable[[list[str]], npt.NDArray[np.floating]],
    texts: Sequence[str],
    *,
    dimension: int,
    batch_size: int,
    limiter: trio.CapacityLimiter,
) -> Vectors:
    """Runs a blocking, side-effect free `encode` batch by batch in threads of `limiter`.

    A cancelled caller leaves at once; the thread finishes its batch and keeps its token until
    then, so cancelled work cannot pile up.
    """
    rows: list[Vectors] = []
    for batch in batches(check_texts(texts), batch_size):
        raw = await trio.to_thread.run_sync(
            partial(encode, batch), abandon_on_cancel=True, limiter=limiter
        )
        rows.append(unit_rows(raw, (len(batch), dimension)))
    return np.concatenate(rows) if rows else np.empty((0, dimension), np.float32)


def unit_rows(raw: npt.NDArray[np.floating], shape: tuple[int, int]) -> Vectors:
    """`raw` as float32 rows of length 1.

    Raises EmbeddingFailed for another shape, a number that is not finite, or a row of zeros.
    """
    if raw.shape != shape:
        raise EmbeddingFailed(f"the model returned shape {raw.shape} instead of {shape}")
    wide = raw.astype(np.float64)
    if not np.isfinite(wide).all():
        raise EmbeddingFailed("the model returned a number that is not finite")
    largest = np.abs(wide).max(axis=1, keepdims=True, initial=0.0)
    if (largest == 0).any():
        raise EmbeddingFailed("the model returned a vector of zeros")
    scaled = wide / largest
    unit = scaled / np.linalg.norm(scaled, axis=1, keepdims=True)
    return np.ascontiguousarray(unit, np.float32)


def check_vector(value: object, dimension: int, field: str = "embedding") -> Vectors:
    """A vector that a client sent, as float32 of shape (dimension,) and length 1.

    Raises InvalidInput that names the field, for anything but a list of `dimension` finite
    numbers which are not all zero.
    """
    if not isinstance(value, Sequence | np.ndarray) or isinstance(value, str | bytes):
        raise InvalidInput(f"{field} must be a list of numbers")
    if len(value) != dimension:
        raise InvalidInput(f"{field} must have {dimension} numbers, not {len(value)}")
    if any(isinstance(x, bool) or not isinstance(x, int | float | np.floating) for x in value):
        raise InvalidInput(f"{field} must hold numbers only")
    try:
        rows = unit_rows(np.asarray([value], np.float64), (1, dimension))
    except (EmbeddingFailed, OverflowError) as error:
        raise InvalidInput(f"{field} must be finite and not all zero") from error
    return rows.reshape(dimension)
