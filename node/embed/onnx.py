"""A sentence model from a local folder, run by the optional onnxruntime.

For whoever wants better vectors and has the CPU for them: any encoder exported as `model.onnx`
with its `tokenizer.json` (MiniLM, bge, e5 and their kin). The folder is given by path; nothing
is ever downloaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import trio
from tokenizers import Tokenizer

from node.embed.base import Vectors, digest_files, embed_in_threads, make_model_id
from node.embed.bundled import read_tokenizer
from storage.errors import StartRefused

MAX_TOKENS: Final = 512
"""Where a text is cut when the tokenizer file does not say."""
_KNOWN_INPUTS = frozenset({"input_ids", "attention_mask", "token_type_ids"})


class Session(Protocol):
    """The part of onnxruntime.InferenceSession that is used."""

    def get_inputs(self) -> Sequence[Any]:
        """Descriptions of the inputs; each has a `name`."""
        ...

    def get_outputs(self) -> Sequence[Any]:
        """Descriptions of the outputs; each has a `name` and a `shape`."""
        ...

    def run(self, names: list[str], feed: dict[str, npt.NDArray[np.int64]]) -> Sequence[Any]:
        """The named outputs."""
        ...


class OnnxEmbedder:
    """Mean of the token states under the attention mask, or the pooled output if there is one."""

    def __init__(
        self, session: Session, tokenizer: Tokenizer, *, name: str, digest: str, batch_size: int
    ) -> None:
        inputs = [node.name for node in session.get_inputs()]
        unknown = sorted(set(inputs) - _KNOWN_INPUTS)
        if unknown:
            raise StartRefused(f"embedding.model: the model asks for an input {unknown[0]}")
        outputs = {node.name: node.shape for node in session.get_outputs()}
        self._output = (
            "sentence_embedding" if "sentence_embedding" in outputs else next(iter(outputs))
        )
        dimension = outputs[self._output][-1]
        if not isinstance(dimension, int):
            raise StartRefused("embedding.model: the model does not state its dimension")
        cut = (tokenizer.truncation or {}).get("max_length", MAX_TOKENS)
        tokenizer.enable_truncation(max_length=cut)
        padding = tokenizer.padding or {}
        tokenizer.enable_padding(
            pad_id=padding.get("pad_id", 0), pad_token=padding.get("pad_token", "[PAD]")
        )
        self._session = session
        self._inputs = inputs
        self._tokenizer = tokenizer
        self._batch_size = batch_size
        self._limiter = trio.CapacityLimiter(1)
        self.dimension: int = dimension
        self.model_id = make_model_id(name, dimension, digest)

    async def embed(self, texts: Sequence[str]) -> Vectors:
        """See `Embedder`; one batch at a time, because the runtime spreads over the cores."""
        return await embed_in_threads(
            self._encode,
            texts,
            dimension=self.dimension,
            batch_size=self._batch_size,
            limiter=self._limiter,
        )

    def _encode(self, texts: list[str]) -> npt.NDArray[np.floating]:
        encodings = self._tokenizer.encode_batch(texts)
        mask = np.asarray([e.attention_mask for e in encodings], np.int64)
        columns = {
            "input_ids": np.asarray([e.ids for e in encodings], np.int64),
            "attention_mask": mask,
            "token_type_ids": np.asarray([e.type_ids for e in encodings], np.int64),
        }
        feed = {name: columns[name] for name in self._inputs}
        states = np.asarray(self._session.run([self._output], feed)[0], np.float32)
        if states.ndim == 2:
            return states
        weight = mask[..., np.newaxis].astype(np.float32)
        pooled: npt.NDArray[np.floating] = (states * weight).sum(axis=1) / weight.sum(axis=1)
        return pooled


def load_onnx(folder: Path, *, batch_size: int = 64) -> OnnxEmbedder:
    """Loads `folder`/model.onnx and `folder`/tokenizer.json; slow, call it in a thread.

    `~` is expanded; the model's name is that of the folder. Raises StartRefused naming the
    missing file, the
    missing optional package, or what the runtime could not read.
    """
    folder = folder.expanduser()
    model, tokenizer_file = folder / "model.onnx", folder / "tokenizer.json"
    for path in (model, tokenizer_file):
        if not path.is_file():
            raise StartRefused(f"embedding.model: {path} is missing")
    try:
        import onnxruntime
    except ImportError as error:
        raise StartRefused(
            "embedding.provider onnx needs onnxruntime: pip install mnemesh[onnx]"
        ) from error
    tokenizer = read_tokenizer(tokenizer_file)
    try:
        session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    except Exception as error:  # the library's errors share no importable base
        raise StartRefused(f"embedding.model: {model} cannot be loaded") from error
    return OnnxEmbedder(
        session,
        tokenizer,
        name=folder.resolve().name,
        digest=digest_files([model, tokenizer_file]),
        batch_size=batch_size,
    )
