"""Real text for a mesh run, without a download: what Python says about itself.

A mesh is only worth watching when its memories mean something, when subjects differ and when some
agents care for what others write.  The standard library's docstrings and the language reference
that pydoc carries are such a text, and they are on every machine that can run a node.  A folder of
one's own takes their place with `load_folder`.

Nothing here talks to a node or to an embedder, and nothing is random without a seed.
"""

from __future__ import annotations

import builtins
import hashlib
import importlib
import inspect
import json
import pkgutil
import random
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Final

from ops.subjects import ASSIGNMENT as ASSIGNMENT
from ops.subjects import SUBJECTS, Agent, Subject

MIN_CHARS: Final = 60
MAX_CHARS: Final = 900

UNSAFE: Final = ("antigravity", "idlelib", "test", "this", "tkinter", "turtle", "turtledemo")
"""Modules that open windows or browsers, print on import, or are no part of the text."""

_WORD = re.compile(r"[A-Za-z]{2,}")
_SENTENCE_END = re.compile(r"(?<=[.!?:;])\s+")
_SMALL = re.compile(
    r"\b(?:the|an?|of|to|in|is|are|be|and|or|if|it|that|this|for|with|on|by|as)\b", re.IGNORECASE
)
_SUFFIXES: Final = (".md", ".txt", ".jsonl")


class CorpusError(Exception):
    """A folder that cannot serve as a corpus; the text names the file, the line and the cause."""


@dataclass(frozen=True, slots=True)
class Document:
    """One memory to be: `text` has 60 to 900 characters, `title` tells where it is from."""

    subject: str
    title: str
    text: str


# --- the standard library ---------------------------------------------------------------------


def load_default(seed: int = 0) -> list[Document]:
    """Some thousand documents over the subjects of `SUBJECTS`, shuffled within each subject.

    The same interpreter and seed give the same list.  Modules that this platform lacks are left
    out.  Raises CorpusError where docstrings were stripped (`python -OO`).
    """
    seen: set[str] = set()
    documents: list[Document] = []
    for subject in SUBJECTS:
        found = [*_from_topics(subject, seen), *_from_modules(subject, seen)]
        random.Random(f"{seed}/{subject.name}").shuffle(found)
        documents += found
    if len(documents) < 1000:
        raise CorpusError("this Python carries no docstrings; run it without -OO")
    return documents


def _from_topics(subject: Subject, seen: set[str]) -> Iterator[Document]:
    from pydoc_data.topics import topics

    for topic in subject.topics:
        for text in chunks(topics.get(topic, "")):
            if _first_time(text, seen):
                yield Document(subject.name, f"reference: {topic}", text)


def _from_modules(subject: Subject, seen: set[str]) -> Iterator[Document]:
    for name in subject.modules:
        for title, doc in _named(name):
            for text in chunks(doc, room=MAX_CHARS - len(title) - 2):
                if _first_time(text, seen):
                    yield Document(subject.name, title, f"{title}: {text}")


def _named(name: str) -> Iterator[tuple[str, str]]:
    """The docstrings behind a name in `Subject.modules`: of a module, or of one built-in class."""
    if name.startswith("builtins:"):
        _, _, cls = name.partition(":")
        yield from _class_docstrings(cls, getattr(builtins, cls))
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in _walk(name):
            yield from _docstrings(module)


def _walk(name: str) -> Iterator[ModuleType]:
    """The module and, for a package, what is public below it; none that cannot be imported."""
    if name.split(".")[0] in UNSAFE:
        return
    try:
        module = importlib.import_module(name)
    except ImportError:
        return
    yield module
    for info in sorted(pkgutil.iter_modules(getattr(module, "__path__", ())), key=lambda i: i.name):
        if not info.name.startswith("_") and info.name not in UNSAFE:
            yield from _walk(f"{name}.{info.name}")


def _docstrings(module: ModuleType) -> Iterator[tuple[str, str]]:
    """Title and docstring of the module and of each public class, function and method in it."""
    if module.__doc__:
        yield module.__name__, module.__doc__
    home = {module.__name__, f"_{module.__name__}", "builtins"}
    for name, member in sorted(vars(module).items()):
        if name.startswith("_") or getattr(member, "__module__", "") not in home:
            continue
        if not (inspect.isclass(member) or inspect.isroutine(member)):
            continue
        title = name if module.__name__ == "builtins" else f"{module.__name__}.{name}"
        if inspect.isclass(member):
            yield from _class_docstrings(title, member)
        elif isinstance(doc := member.__doc__, str):
            yield title, doc


def _class_docstrings(title: str, cls: type) -> Iterator[tuple[str, str]]:
    if isinstance(cls.__doc__, str):
        yield title, cls.__doc__
    for name, value in sorted(vars(cls).items()):
        doc = getattr(value, "__doc__", None)
        if isinstance(doc, str) and not name.startswith("_"):
            yield f"{title}.{name}", doc


# --- paragraphs -------------------------------------------------------------------------------


def chunks(text: str, room: int = MAX_CHARS) -> list[str]:
    """Cut a text at its paragraphs into pieces of 60 to `room` characters of prose.

    Short neighbours are joined, long paragraphs are cut at the end of a sentence, and what is
    mostly code, table or grammar is left out.  Whitespace is collapsed.
    """
    pieces: list[str] = []
    pending = ""
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        if not _is_prose(paragraph):
            continue
        for part in _sentences(" ".join(paragraph.split()), room):
            if pending and len(pending) + len(part) + 1 > min(room, 300):
                if len(pending) >= MIN_CHARS:
                    pieces.append(pending)
                pending = ""
            pending = f"{pending} {part}".strip()
            if len(pending) > room:
                pending = ""
    if MIN_CHARS <= len(pending) <= room:
        pieces.append(pending)
    return pieces


def _sentences(paragraph: str, room: int) -> Iterator[str]:
    """The paragraph whole if there is room, else groups of its sentences that fit."""
    if len(paragraph) <= room:
        yield paragraph
        return
    group = ""
    for sentence in _SENTENCE_END.split(paragraph):
        if group and len(group) + len(sentence) + 1 > room:
            yield group
            group = ""
        group = f"{group} {sentence}".strip()
    yield group


def _is_prose(paragraph: str) -> bool:
    words = _WORD.findall(paragraph)
    small = len(_SMALL.findall(paragraph))
    letters = sum(map(str.isalpha, paragraph))
    return (
        len(words) >= 6
        and small * 10 >= len(words)
        and letters * 10 >= len(paragraph.replace(" ", "")) * 7
        and not paragraph.lstrip().startswith((">>>", "+--", "|", "class ", "def ", "import "))
        and "Copyright" not in paragraph
    )


def _first_time(text: str, seen: set[str]) -> bool:
    key = text.lower().rstrip(".,!?;: ")
    if key in seen:
        return False
    seen.add(key)
    return True


# --- a folder of one's own --------------------------------------------------------------------


def load_folder(path: Path, seed: int = 0) -> list[Document]:
    """Documents of all .md, .txt and .jsonl files below `path`, shuffled within each subject.

    The first sub-folder is the subject (files directly in `path`: the file's name); a line of a
    .jsonl file is an object with `text` and maybe `subject`, which wins.  Text is UTF-8.  Raises
    CorpusError for a folder that is missing or holds no text, and for each unreadable line.
    """
    if not path.is_dir():
        raise CorpusError(f"{path} is not a folder")
    grouped: dict[str, list[Document]] = {}
    seen: set[str] = set()
    for file in sorted(path.rglob("*")):
        if file.suffix.lower() in _SUFFIXES and file.is_file():
            for document in _from_file(file, path):
                if _first_time(document.text, seen):
                    grouped.setdefault(document.subject, []).append(document)
    if not grouped:
        kinds = ", ".join(_SUFFIXES)
        raise CorpusError(f"{path} holds no text of {MIN_CHARS} characters in {kinds} files")
    for subject, documents in grouped.items():
        random.Random(f"{seed}/{subject}").shuffle(documents)
    return [document for subject in sorted(grouped) for document in grouped[subject]]


def _from_file(file: Path, root: Path) -> Iterator[Document]:
    inner = file.relative_to(root)
    subject = inner.parts[0] if len(inner.parts) > 1 else file.stem
    try:
        content = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CorpusError(f"{inner}: not UTF-8 at byte {error.start}") from error
    if file.suffix.lower() == ".jsonl":
        yield from _from_lines(content, inner, subject)
        return
    for text in _paragraphs(content):
        yield Document(subject, str(inner), text)


def _from_lines(content: str, inner: Path, subject: str) -> Iterator[Document]:
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip():
            continue
        where = f"{inner}:{number}"
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise CorpusError(f"{where}: not JSON: {error.msg}") from error
        if not isinstance(record, dict) or not isinstance(record.get("text"), str):
            raise CorpusError(f'{where}: wanted an object with a "text" that is a string')
        own = record.get("subject", subject)
        if not isinstance(own, str) or not own:
            raise CorpusError(f'{where}: "subject" must be a string that is not empty')
        for text in _paragraphs(record["text"]):
            yield Document(own, where, text)


def _paragraphs(content: str) -> Iterator[str]:
    """A foreign text in any language: paragraphs that fit, longer ones in pieces."""
    for paragraph in re.split(r"\n\s*\n", content):
        flat = " ".join(paragraph.split())
        for start in range(0, len(flat), MAX_CHARS):
            if len(piece := flat[start : start + MAX_CHARS].strip()) >= MIN_CHARS:
                yield piece


# --- what a run does with documents -----------------------------------------------------------


def by_subject(documents: Iterable[Document]) -> dict[str, list[Document]]:
    """The documents of each subject, in their order."""
    grouped: dict[str, list[Document]] = {}
    for document in documents:
        grouped.setdefault(document.subject, []).append(document)
    return grouped


def with_repeats(documents: Sequence[Document], count: int = 12, seed: int = 0) -> list[Document]:
    """The documents with `count` repeats among them, each behind its original.

    Half of the repeats are exact, half end in other punctuation.  A node must keep one memory for
    an original and its repeat.
    """
    chosen = random.Random(f"{seed}/repeats").sample(
        range(len(documents)), min(count, len(documents))
    )
    kind = {index: number % 2 for number, index in enumerate(chosen)}
    result: list[Document] = []
    for index, document in enumerate(documents):
        result.append(document)
        if index in kind:
            bare = document.text.rstrip(".,!?;: ")
            text = document.text if kind[index] == 0 else f"{bare}!" if bare else document.text
            result.append(Document(document.subject, document.title, text))
    return result


def question(document: Document) -> str:
    """What somebody might ask who half remembers the document.

    The first sentence in lower case without its title and without every fourth word; which words
    are missing depends on the document alone.
    """
    text = document.text.removeprefix(f"{document.title}: ")
    words = re.findall(r"\w[\w'-]*", _SENTENCE_END.split(text)[0].lower())
    if len(words) < 6:
        words = re.findall(r"\w[\w'-]*", text.lower())[:16]
    phase = hashlib.sha256(document.text.encode()).digest()[0] % 2 + 1
    kept = [word for index, word in enumerate(words) if index % 4 != phase]
    return " ".join(kept[:24])


def for_agent(agent: Agent, documents: Iterable[Document]) -> list[Document]:
    """What an agent of `ASSIGNMENT` has to write, in the order of the documents."""
    return [document for document in documents if document.subject in agent.subjects]


def summary(documents: Iterable[Document]) -> str:
    """One line per subject with its number of documents, for the eye."""
    grouped = by_subject(documents)
    return "\n".join(f"{len(found):6}  {subject}" for subject, found in grouped.items())


if __name__ == "__main__":
    corpus = load_default() if len(sys.argv) < 2 else load_folder(Path(sys.argv[1]))
    sys.stdout.write(f"{summary(corpus)}\n{len(corpus):6}  in all\n")
