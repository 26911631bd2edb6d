"""Chroma's own server as a peer, started for one benchmark and ended with it."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from ops.bench.result import Timing
from ops.bench.shapes import Vectors
from ops.mesh.nodes import free_port

START_S: Final = 60.0
BATCH: Final = 1_000


class PeerMissing(Exception):
    """A peer cannot take part; the text says why."""


class Chroma:
    """One collection of a running server."""

    def __init__(self, connect: Callable[[], Any]) -> None:
        self._connect = connect
        made = connect().create_collection(
            "bench", configuration={"hnsw": {"space": "ip", "ef_search": 64, "max_neighbors": 16}}
        )
        self._name = made.name

    def fill(self, vectors: Vectors, content: Callable[[int], str]) -> float:
        """Add all vectors with their texts; seconds."""
        collection = self._connect().get_collection(self._name)
        begun = time.perf_counter()
        for start in range(0, len(vectors), BATCH):
            part = vectors[start : start + BATCH]
            places = range(start, start + len(part))
            collection.add(
                ids=[str(place) for place in places],
                embeddings=part,
                documents=[content(place) for place in places],
            )
        return time.perf_counter() - begun

    def ask(self, asked: Vectors, clients: int, top: int) -> Timing:
        """Ask every question once, by so many threads with a client each."""
        todo = iter(list(asked))
        lock = threading.Lock()
        latencies: list[float] = []

        def work() -> None:
            collection = self._connect().get_collection(self._name)
            while True:
                with lock:
                    vector = next(todo, None)
                if vector is None:
                    return
                begun = time.perf_counter()
                collection.query(query_embeddings=[vector], n_results=top)
                with lock:
                    latencies.append(time.perf_counter() - begun)

        threads = [threading.Thread(target=work) for _ in range(clients)]
        begun = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return Timing(tuple(latencies), time.perf_counter() - begun)


@contextmanager
def open_chroma(folder: Path) -> Iterator[Chroma]:
    """A server on a free loopback port with an empty collection. Raises PeerMissing."""
    if importlib.util.find_spec("chromadb") is None:
        raise PeerMissing("the package chromadb is not installed")
    chromadb = importlib.import_module("chromadb")
    port = free_port()
    program = Path(sys.executable).with_name("chroma")
    command = [str(program), "run", "--host", "127.0.0.1", "--port", str(port)]
    with (folder / "chroma.log").open("wb") as log:
        server = subprocess.Popen(
            [*command, "--path", str(folder / "chroma")], stdout=log, stderr=log, cwd=folder
        )
    try:
        settings = chromadb.Settings(anonymized_telemetry=False)

        def connect() -> Any:
            return chromadb.HttpClient(host="127.0.0.1", port=port, settings=settings)

        _await(server, connect)
        yield Chroma(connect)
    finally:
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait(10)


def _await(server: subprocess.Popen[bytes], connect: Callable[[], Any]) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and server.poll() is None:
        try:
            connect().heartbeat()
        except Exception:  # noqa: BLE001 - the client raises many kinds while nobody listens
            time.sleep(0.2)
        else:
            return
    raise PeerMissing("its server did not start")
