"""The verifier answers for every input, and a flipped byte never passes."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from erasure import canonical, envelope
from erasure.documents import examine
from erasure.verify import verify_files
from tests.unit.erasure import example, files
from tests.unit.erasure.example import EXAMPLE
from tests.unit.erasure.files import Folder

GOOD = files.complete()
SIGNERS = {"C": "erasure_origin", "R_b": "erasure_peer_b", "Z": "erasure_origin"} | {
    "P_1": "erasure_origin",
    "P_2": "erasure_origin",
    "N": "erasure_origin",
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 1 << 53) | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4)
    ),
    max_leaves=12,
)


def verdict(name: str, data: bytes) -> int:
    with tempfile.TemporaryDirectory() as path:
        folder = Folder(Path(path), dict(GOOD))
        folder.files[name] = data
        return folder.verify().exit_code


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(GOOD)), st.binary(max_size=300))
def test_random_bytes_in_any_place_give_an_exit_code(name: str, data: bytes) -> None:
    assert verdict(name, data) in range(6)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(GOOD)), JSON)
def test_random_json_in_any_place_gives_an_exit_code(name: str, value: Any) -> None:
    assert verdict(name, json.dumps(value).encode()) in range(6)


def paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from paths(inner, (*at, name))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from paths(inner, (*at, index))


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(copy[path[0]], path[1:], new)
    return copy


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_signed_document_with_any_field_replaced_gives_an_exit_code(
    data: st.DataObject,
) -> None:
    name = data.draw(st.sampled_from(sorted(SIGNERS)))
    statement = EXAMPLE["statements"][name]
    path = data.draw(st.sampled_from(sorted(paths(statement), key=repr)))
    other = data.draw(
        st.sampled_from([None, True, 0, -1, 1 << 52, "", "x", "0" * 64, "0" * 32, [], {}, [[]]])
    )
    changed = replaced(statement, path, other)
    place = {
        "C": "cert.json",
        "R_b": "receipts/b.json",
        "N": "receipts/notice.json",
        "Z": "closure.json",
        "P_1": "addenda/1.json",
        "P_2": "addenda/2.json",
    }[name]
    if not isinstance(changed, dict):
        changed = {"statement": changed}
    sealed = envelope.seal(changed, example.key(SIGNERS[name]))
    assert verdict(place, sealed.to_bytes()) in range(6)
    examine(changed)


@pytest.mark.parametrize(
    "place, name", [("trust", "keys.json"), ("proof", "proof.json"), ("opening", "opening.json")]
)
def test_plain_files_with_any_field_replaced_give_an_exit_code(place: str, name: str) -> None:
    value = json.loads(GOOD[name])
    for path in paths(value):
        for other in (None, -1, "x", [], {}):
            data = canonical.encode(replaced(value, path, other))
            assert verdict(name, data) in range(6)


def test_each_flipped_payload_byte_of_the_certificate_is_refused(tmp_path: Path) -> None:
    told = EXAMPLE["envelopes"]["C"]
    payload = example.payload_of("C")
    (tmp_path / "keys.json").write_bytes(GOOD["keys.json"])
    cert = tmp_path / "cert.json"
    caught = 0
    for index in range(len(payload)):
        flipped = bytearray(payload)
        flipped[index] ^= 1 << (index % 8)
        changed = envelope.b64encode(bytes(flipped)).decode()
        cert.write_bytes(json.dumps(told | {"payload": changed}).encode())
        caught += verify_files(cert, tmp_path / "keys.json").exit_code in (1, 3, 4)
    assert caught == len(payload)


@pytest.mark.parametrize(
    "name",
    [
        "cert.json",
        "receipts/b.json",
        "closure.json",
        "addenda/2.json",
        "proof.json",
        "head.json",
    ],
)
def test_flipped_bytes_anywhere_in_a_file_fail(name: str, tmp_path: Path) -> None:
    data = GOOD[name]
    folder = Folder(tmp_path, dict(GOOD))
    step = max(1, len(data) // 150)
    for index in range(0, len(data), step):
        flipped = bytearray(data)
        flipped[index] ^= 1
        folder.files[name] = bytes(flipped)
        assert folder.verify().exit_code in (1, 3, 4, 5), index


def test_no_path_makes_it_raise(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    report = verify_files(nowhere, nowhere, *[nowhere] * 6)
    assert report.exit_code == 4
    assert verify_files(Path("a\0b"), tmp_path, tmp_path).exit_code == 4
