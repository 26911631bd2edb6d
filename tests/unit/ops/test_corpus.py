"""The text of a mesh run: enough of it, fit for memories, the same each time."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from ops.corpus import (
    ASSIGNMENT,
    MAX_CHARS,
    MIN_CHARS,
    CorpusError,
    Document,
    by_subject,
    chunks,
    for_agent,
    load_default,
    load_folder,
    question,
    with_repeats,
)
from ops.subjects import SUBJECTS
from storage.content import normalize


@pytest.fixture(scope="module")
def documents() -> list[Document]:
    return load_default()


def test_this_python_alone_gives_thousands_of_documents(documents: list[Document]) -> None:
    assert len(documents) >= 3000


def test_every_subject_has_texts(documents: list[Document]) -> None:
    assert list(by_subject(documents)) == [subject.name for subject in SUBJECTS]


def test_every_text_has_the_size_of_a_memory(documents: list[Document]) -> None:
    sizes = [len(document.text) for document in documents]
    assert min(sizes) >= MIN_CHARS
    assert max(sizes) <= MAX_CHARS


def test_no_two_documents_are_one_memory(documents: list[Document]) -> None:
    hashes = Counter(normalize(document.text).content_hash for document in documents)
    assert [key for key, count in hashes.items() if count > 1] == []


def test_one_seed_gives_one_order(documents: list[Document]) -> None:
    assert load_default() == documents


def test_another_seed_gives_another_order_of_the_same_documents(documents: list[Document]) -> None:
    other = load_default(seed=1)
    assert other != documents
    assert Counter(other) == Counter(documents)


def test_each_repeat_follows_its_original_and_is_the_same_memory(
    documents: list[Document],
) -> None:
    repeated = with_repeats(documents, count=12)
    hashes = [normalize(document.text).content_hash for document in repeated]
    neighbours = [i for i in range(1, len(hashes)) if hashes[i] == hashes[i - 1]]
    exact = [i for i in neighbours if repeated[i].text == repeated[i - 1].text]
    assert (len(repeated), len(neighbours), len(exact)) == (len(documents) + 12, 12, 6)


def test_a_question_is_no_quotation(documents: list[Document]) -> None:
    assert [d.title for d in documents if question(d) in d.text] == []


def test_a_question_uses_only_words_of_its_document(documents: list[Document]) -> None:
    document = documents[0]
    assert all(word in document.text.lower() for word in question(document).split())


def test_three_agents_live_on_each_of_three_nodes() -> None:
    assert Counter(agent.node for agent in ASSIGNMENT) == {"A": 3, "B": 3, "C": 3}


def test_no_subject_has_two_writers() -> None:
    written = Counter(subject for agent in ASSIGNMENT for subject in agent.subjects)
    assert set(written.values()) == {1}
    assert set(written) <= {subject.name for subject in SUBJECTS}


def test_every_agent_has_something_to_say(documents: list[Document]) -> None:
    for agent in ASSIGNMENT:
        assert agent.description
        assert len(for_agent(agent, documents)) >= 50


def test_code_is_left_out_of_chunks() -> None:
    prose = "This paragraph is about the weather and it is long enough to be kept on its own."
    code = ">>> this_is(the, code) and it is not for the reader of a text that is to be kept"
    assert chunks(f"{prose}\n\n{code}") == [prose]


def test_a_long_paragraph_is_cut_at_sentences() -> None:
    sentence = "It is the nature of a sentence to end with a full stop and to begin again."
    pieces = chunks(" ".join([sentence] * 30))
    assert all(piece.endswith("again.") for piece in pieces)
    assert max(map(len, pieces)) <= MAX_CHARS


def test_a_folder_gives_one_subject_per_sub_folder(tmp_path: Path) -> None:
    text = "A paragraph that is long enough to be taken as a memory of its own, number"
    (tmp_path / "birds").mkdir()
    (tmp_path / "birds" / "a.md").write_text(f"{text} 1.\n\n{text} 2.\n")
    (tmp_path / "fish.txt").write_text(f"{text} 3.\n")
    lines = [{"text": f"{text} 4."}, {"text": f"{text} 5.", "subject": "trees"}]
    (tmp_path / "birds" / "b.jsonl").write_text("\n".join(map(json.dumps, lines)))
    found = by_subject(load_folder(tmp_path))
    assert {subject: len(texts) for subject, texts in found.items()} == {
        "birds": 3,
        "fish": 1,
        "trees": 1,
    }


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("a.jsonl", b"{not json}", "a.jsonl:1: not JSON"),
        ("a.jsonl", b'{"text": 7}', 'a.jsonl:1: wanted an object with a "text"'),
        ("a.jsonl", b'{"text": "x", "subject": []}', 'a.jsonl:1: "subject" must be a string'),
        ("a.txt", b"\xff\xfe", "a.txt: not UTF-8 at byte 0"),
        ("a.txt", b"short", "holds no text of 60 characters"),
    ],
)
def test_an_unusable_file_is_named(
    tmp_path: Path, name: str, content: bytes, complaint: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CorpusError) as caught:
        load_folder(tmp_path)
    assert complaint in str(caught.value)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="nowhere is not a folder"):
        load_folder(tmp_path / "nowhere")
