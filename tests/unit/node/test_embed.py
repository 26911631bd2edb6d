"""Embedders: shapes, ids, refusals, and that nothing reaches for the network on its own."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from node.embed.base import (
    BATCH_CHARACTERS,
    MAX_TEXTS,
    EmbeddingFailed,
    EmbeddingUnavailable,
    batches,
    check_texts,
    check_vector,
    make_model_id,
    unit_rows,
)
from node.embed.bundled import BundledEmbedder, load_bundled
from node.embed.choose import open_embedder
from node.embed.onnx import OnnxEmbedder, load_onnx
from node.embed.precomputed import PrecomputedEmbedder
from node.embed.remote import RemoteEmbedder, open_remote
from node.embed.settings import EmbeddingSettings
from storage.errors import InvalidInput, StartRefused


@pytest.fixture(scope="module")
def bundled() -> BundledEmbedder:
    return load_bundled()


# the bundled model


def test_bundled_model_id_is_stable(bundled: BundledEmbedder) -> None:
    assert bundled.model_id == "wordllama-l2-supercat@256#d074a04937a68e8f"


async def test_bundled_vectors_are_unit_rows(bundled: BundledEmbedder) -> None:
    with trio.fail_after(60):
        vectors = await bundled.embed(["a cat sat", "東京", "!"])
    assert (vectors.shape, vectors.dtype) == ((3, 256), np.dtype(np.float32))
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


async def test_bundled_no_texts_give_no_rows(bundled: BundledEmbedder) -> None:
    assert (await bundled.embed([])).shape == (0, 256)


async def test_bundled_near_meaning_is_nearer(bundled: BundledEmbedder) -> None:
    with trio.fail_after(60):
        cat, kitten, tax = await bundled.embed(
            ["the cat sleeps", "a kitten is sleeping", "quarterly tax report"]
        )
    assert cat @ kitten > cat @ tax + 0.2


async def test_bundled_result_does_not_depend_on_the_batch(bundled: BundledEmbedder) -> None:
    texts = [f"sentence number {n} about gossip" for n in range(9)]
    with trio.fail_after(60):
        together = await load_bundled(batch_size=4).embed(texts)
        alone = np.concatenate([await bundled.embed([text]) for text in texts])
    np.testing.assert_array_equal(together, alone)


async def test_bundled_vectors_equal_the_packages_own(bundled: BundledEmbedder) -> None:
    texts = ["a cat sat on the mat", "forget what I said", "東京 v1.2.3"]
    script = (
        "import json, pathlib, sys, wordllama;"
        "folder = pathlib.Path(wordllama.__file__).parent;"
        "model = wordllama.WordLlama.load(cache_dir=folder, disable_download=True);"
        "print(json.dumps(model.embed(json.loads(sys.argv[1]), norm=True).tolist()))"
    )
    with trio.fail_after(60):
        done = await trio.run_process(
            [sys.executable, "-c", script, json.dumps(texts)],
            capture_stdout=True,
            stderr=subprocess.DEVNULL,
        )
        vectors = await bundled.embed(texts)
    np.testing.assert_allclose(vectors, np.asarray(json.loads(done.stdout)), atol=1e-5)


async def test_bundled_loads_and_embeds_without_a_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object, **_kwargs: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    with trio.fail_after(60):
        vectors = await load_bundled().embed(["offline"])
    assert vectors.shape == (1, 256)


def test_bundled_imports_no_http_client_and_no_package_code() -> None:
    script = (
        "import sys; from node.embed.bundled import load_bundled; load_bundled();"
        "print(sorted({'requests', 'wordllama', 'huggingface_hub'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        cwd=Path(__file__).parents[3],
    )
    assert done.stdout.strip() == "[]"


def test_bundled_names_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(StartRefused, match=r"l2_supercat_256\.safetensors is missing.*0\.3\.9"):
        load_bundled(folder=tmp_path)


def test_bundled_refuses_damaged_weights(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    (tmp_path / "tokenizers").mkdir()
    (tmp_path / "weights" / "l2_supercat_256.safetensors").write_bytes(b"\xff" * 64)
    (tmp_path / "tokenizers" / "l2_supercat_tokenizer_config.json").write_text("{}")
    with pytest.raises(StartRefused, match="is damaged"):
        load_bundled(folder=tmp_path)


@pytest.mark.parametrize("text", ["", "  \n", "a\x00b", "\ud800"])
async def test_unusable_text_is_named_by_position(bundled: BundledEmbedder, text: str) -> None:
    with pytest.raises(InvalidInput, match=r"^texts\[1\] "):
        await bundled.embed(["fine", text])


# shared checks


def test_texts_above_the_limit_are_refused() -> None:
    with pytest.raises(InvalidInput, match=f"at most {MAX_TEXTS}"):
        check_texts(["x"] * (MAX_TEXTS + 1))


def test_one_bare_text_is_no_list() -> None:
    with pytest.raises(InvalidInput, match="list of texts"):
        check_texts("abc")


@given(st.lists(st.text(max_size=20), max_size=30), st.integers(1, 7))
def test_always_batches_keep_order_and_size(texts: list[str], size: int) -> None:
    cut = list(batches(texts, size))
    assert [text for batch in cut for text in batch] == texts
    assert all(1 <= len(batch) <= size for batch in cut)


def test_long_texts_get_batches_of_their_own() -> None:
    long = "x" * BATCH_CHARACTERS
    assert [len(batch) for batch in batches([long, "a", "b", long], 10)] == [1, 2, 1]


@given(arrays(np.float32, (3, 5), elements=st.floats(-(2.0**126), 2.0**126, width=32)))
def test_always_unit_rows_are_unit_or_refused(raw: Any) -> None:
    if (raw == 0).all(axis=1).any():
        with pytest.raises(EmbeddingFailed):
            unit_rows(raw, (3, 5))
    else:
        rows = unit_rows(raw, (3, 5))
        np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)


@pytest.mark.parametrize(
    "value",
    [
        None,
        "abc",
        [1.0, 2.0],
        [1.0, 2.0, "3"],
        [1.0, 2.0, True],
        [1.0, 2.0, None],
        [1.0, 2.0, float("nan")],
        [1.0, 2.0, float("inf")],
        [1.0, 2.0, 10**400],
        [0.0, 0.0, 0.0],
        [[1.0], [2.0], [3.0]],
    ],
)
def test_bad_client_vector_is_refused_by_name(value: object) -> None:
    with pytest.raises(InvalidInput, match=r"^embedding must "):
        check_vector(value, 3)


def test_good_client_vector_is_normalised() -> None:
    np.testing.assert_allclose(check_vector([3, 0, 4], 3), [0.6, 0.0, 0.8], atol=1e-7)


@pytest.mark.parametrize("name", ["", "a b", "a@b", "a#b", "x" * 129, "-a"])
def test_unusable_model_name_is_refused(name: str) -> None:
    with pytest.raises(StartRefused, match=r"embedding\.model"):
        make_model_id(name, 3, "d")


# precomputed


async def test_precomputed_has_no_model_to_embed_with() -> None:
    embedder = PrecomputedEmbedder("mine", 12)
    assert embedder.model_id == "mine@12#precomputed"
    with pytest.raises(InvalidInput, match=r"embedding is required: .* send 12 numbers"):
        await embedder.embed(["text"])


# onnx


class FakeSession:
    def __init__(self, states: Any, inputs: Sequence[str], output: str = "last_hidden_state"):
        self.states = states
        self.inputs = inputs
        self.output = output
        self.fed: dict[str, Any] = {}

    def get_inputs(self) -> Sequence[Any]:
        return [SimpleNamespace(name=name) for name in self.inputs]

    def get_outputs(self) -> Sequence[Any]:
        return [SimpleNamespace(name=self.output, shape=["batch", "tokens", 2])]

    def run(self, names: list[str], feed: dict[str, Any]) -> Sequence[Any]:
        assert names == [self.output]
        self.fed = feed
        return [self.states]


def word_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(WordLevel({"[PAD]": 0, "[UNK]": 1, "a": 2, "b": 3}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    return tokenizer


async def test_onnx_pools_over_the_mask_only() -> None:
    states = np.asarray([[[1, 0], [9, 9]], [[0, 2], [0, 4]]], np.float32)
    session = FakeSession(states, ["input_ids", "attention_mask"])
    embedder = OnnxEmbedder(session, word_tokenizer(), name="tiny", digest="00", batch_size=8)
    with trio.fail_after(60):
        vectors = await embedder.embed(["a", "a b"])
    np.testing.assert_allclose(vectors, [[1, 0], [0, 1]], atol=1e-6)
    assert session.fed["input_ids"].tolist() == [[2, 0], [2, 3]]
    assert sorted(session.fed) == ["attention_mask", "input_ids"]


async def test_onnx_takes_a_pooled_output_as_it_is() -> None:
    session = FakeSession(np.asarray([[0, 5]], np.float32), ["input_ids"], "sentence_embedding")
    embedder = OnnxEmbedder(session, word_tokenizer(), name="tiny", digest="00", batch_size=8)
    with trio.fail_after(60):
        np.testing.assert_allclose(await embedder.embed(["a"]), [[0, 1]])
    assert embedder.model_id == "tiny@2#00"


def test_onnx_refuses_an_unknown_input() -> None:
    with pytest.raises(StartRefused, match="asks for an input pixels"):
        OnnxEmbedder(
            FakeSession(None, ["pixels"]), word_tokenizer(), name="x", digest="0", batch_size=1
        )


@pytest.mark.parametrize("missing", ["model.onnx", "tokenizer.json"])
def test_onnx_names_the_missing_file(tmp_path: Path, missing: str) -> None:
    for name in {"model.onnx", "tokenizer.json"} - {missing}:
        (tmp_path / name).write_text("{}")
    with pytest.raises(StartRefused, match=f"{missing} is missing"):
        load_onnx(tmp_path)


def test_onnx_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.onnx").write_bytes(b"")
    (tmp_path / "tokenizer.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(StartRefused, match=r"pip install mnemesh\[onnx\]"):
        load_onnx(tmp_path)


# remote

Handler = Callable[[httpx.Request], httpx.Response]


def answer(vectors: list[list[float]], order: Sequence[int] | None = None) -> httpx.Response:
    places = order or range(len(vectors))
    data = [{"index": at, "embedding": vectors[at]} for at in places]
    return httpx.Response(200, json={"data": data, "model": "m"})


async def ask(
    handler: Handler, texts: Sequence[str], *, environ: dict[str, str] | None = None, **options: Any
) -> Any:
    settings: dict[str, Any] = {
        "base_url": "http://embed.test/v1",
        "model": "m",
        "dimension": 2,
        "api_key_env": None,
        "environ": environ or {},
        "transport": httpx.MockTransport(handler),
    }
    async with open_remote(**(settings | options)) as embedder:
        return await embedder.embed(texts)


async def test_remote_asks_in_the_expected_form() -> None:
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return answer([[1, 0]])

    await ask(handler, ["hello"], environ={"KEY": "s3cret"}, api_key_env="KEY")
    assert str(seen[0].url) == "http://embed.test/v1/embeddings"
    assert seen[0].headers["authorization"] == "Bearer s3cret"
    assert json.loads(seen[0].content) == {
        "model": "m",
        "input": ["hello"],
        "encoding_format": "float",
    }


async def test_remote_restores_the_order_and_normalises() -> None:
    vectors = await ask(lambda _: answer([[3, 0], [0, 5]], order=[1, 0]), ["a", "b"])
    np.testing.assert_allclose(vectors, [[1, 0], [0, 1]])


async def test_remote_cuts_batches() -> None:
    sizes: list[int] = []

    def handler(request: httpx.Request) -> httpx.Response:
        count = len(json.loads(request.content)["input"])
        sizes.append(count)
        return answer([[1, 0]] * count)

    vectors = await ask(handler, list("abcde"), batch_size=2)
    assert (sizes, vectors.shape) == ([2, 2, 1], (5, 2))


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_remote_tries_again_and_succeeds(status: int, autojump_clock: object) -> None:
    answers = [httpx.Response(status), httpx.Response(status), answer([[1, 0]])]
    assert (await ask(lambda _: answers.pop(0), ["a"])).shape == (1, 2)


async def test_remote_gives_up_after_four_tries(autojump_clock: object) -> None:
    calls: list[int] = []

    def handler(_: httpx.Request) -> httpx.Response:
        calls.append(1)
        raise httpx.ConnectError("no")

    with pytest.raises(EmbeddingUnavailable, match="could not be reached"):
        await ask(handler, ["a"])
    assert len(calls) == 4


async def test_remote_waits_as_long_as_the_server_asks(autojump_clock: object) -> None:
    answers = [httpx.Response(429, headers={"retry-after": "7"}), answer([[1, 0]])]
    before = trio.current_time()
    await ask(lambda _: answers.pop(0), ["a"])
    assert 7 <= trio.current_time() - before < 8


@pytest.mark.parametrize("status", [301, 400, 401, 403, 404])
async def test_remote_does_not_repeat_a_refusal_nor_its_text(status: int) -> None:
    calls: list[int] = []

    def handler(_: httpx.Request) -> httpx.Response:
        calls.append(1)
        return httpx.Response(status, text="you sent: secret memory")

    with pytest.raises(EmbeddingFailed) as caught:
        await ask(handler, ["secret memory"])
    assert len(calls) == 1
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"data": 3}',
        b'{"data": [null]}',
        b'{"data": [{"embedding": "AAAA"}]}',
        b'{"data": [{"embedding": [1]}]}',
        b'{"data": [{"embedding": [1, 0, 0]}]}',
        b'{"data": [{"embedding": [0, 0]}]}',
        b'{"data": [{"embedding": [NaN, 0]}]}',
        b'{"data": [{"embedding": [1, 0], "index": 1}]}',
        b'{"data": [{"embedding": [1, 0], "index": true}]}',
        b'{"data": []}',
        b"[" * 60_000,
        b" " * 100_000,
    ],
)
async def test_remote_refuses_a_malformed_answer(body: bytes) -> None:
    with pytest.raises(EmbeddingFailed):
        await ask(lambda _: httpx.Response(200, content=body), ["a"])


async def test_remote_names_both_dimensions() -> None:
    with pytest.raises(EmbeddingFailed, match=r"sent 3 dimensions, embedding\.dimensions is 2"):
        await ask(lambda _: answer([[1, 0, 0]]), ["a"])


@pytest.mark.parametrize("environ", [{}, {"KEY": " "}, {"KEY": "a\nb"}, {"KEY": "ключ"}])
async def test_remote_names_the_key_variable(environ: dict[str, str]) -> None:
    with pytest.raises(StartRefused, match=r"embedding\.api_key_env: KEY"):
        await ask(lambda _: answer([[1, 0]]), ["a"], environ=environ, api_key_env="KEY")


@pytest.mark.parametrize("url", ["ftp://x/v1", "embed.test", "http://", "http://u:p@x/v1"])
async def test_remote_refuses_an_unusable_url(url: str) -> None:
    with pytest.raises(StartRefused, match=r"embedding\.base_url"):
        await ask(lambda _: answer([[1, 0]]), ["a"], base_url=url)


async def test_remote_speaks_to_a_real_server() -> None:
    async def serve(stream: trio.SocketStream) -> None:
        request = b""
        while b"\r\n\r\n" not in request or not request.endswith(b"}"):
            request += await stream.receive_some(65536)
        body = json.dumps({"data": [{"index": 0, "embedding": [0.0, 2.0]}]}).encode()
        head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        await stream.send_all(head + body)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(
                trio.serve_listeners, serve, await trio.open_tcp_listeners(0, host="127.0.0.1")
            )
            port = listeners[0].socket.getsockname()[1]
            async with open_remote(
                base_url=f"http://127.0.0.1:{port}/v1/",
                model="m",
                dimension=2,
                api_key_env=None,
                environ={},
            ) as embedder:
                np.testing.assert_allclose(await embedder.embed(["a"]), [[0, 1]])
            nursery.cancel_scope.cancel()


# choosing


async def test_default_is_bundled() -> None:
    with trio.fail_after(60):
        async with open_embedder(EmbeddingSettings(), {}) as embedder:
            assert isinstance(embedder, BundledEmbedder)


async def test_remote_is_chosen() -> None:
    settings = EmbeddingSettings(
        provider="remote", model="m", dimensions=2, base_url="http://embed.test/v1"
    )
    async with open_embedder(settings, {}) as embedder:
        assert isinstance(embedder, RemoteEmbedder)
        assert embedder.model_id == "m@2#remote"


@pytest.mark.parametrize(
    "settings, key",
    [
        (EmbeddingSettings(provider="remote", model="m", dimensions=2), "base_url"),
        (EmbeddingSettings(provider="remote", base_url="http://x", dimensions=2), "model"),
        (EmbeddingSettings(provider="remote", base_url="http://x", model="m"), "dimensions"),
        (EmbeddingSettings(provider="precomputed", model="m"), "dimensions"),
        (EmbeddingSettings(provider="precomputed", dimensions=3), "model"),
        (EmbeddingSettings(provider="onnx"), "model"),
    ],
)
async def test_missing_key_is_named(settings: EmbeddingSettings, key: str) -> None:
    with pytest.raises(StartRefused, match=rf"^embedding\.{key} is required for provider"):
        async with open_embedder(settings, {}):
            pytest.fail("it opened")


async def test_contradicting_dimension_is_refused() -> None:
    with pytest.raises(
        StartRefused, match=r"^embedding\.dimensions is 64, the bundled model has 256$"
    ):
        async with open_embedder(EmbeddingSettings(dimensions=64), {}):
            pytest.fail("it opened")


async def test_onnx_folder_is_chosen(tmp_path: Path) -> None:
    shutil.rmtree(tmp_path)
    settings = EmbeddingSettings(provider="onnx", model=str(tmp_path))
    with pytest.raises(StartRefused, match=r"model\.onnx is missing"):
        async with open_embedder(settings, {}):
            pytest.fail("it opened")
