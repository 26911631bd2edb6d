"""The fusion of searches and the words of a question: pure functions."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from node.memory.ranking import MAX_WORDS, Source, fuse, terms
from storage.memories import Found
from storage.model import Memory, MemoryKind

NOW = datetime(2026, 8, 1, tzinfo=UTC)


def found(number: int, words: float, cosine: float | None = None) -> Found:
    memory = Memory(
        id=bytes([number]) * 16,
        kind=MemoryKind.CELL,
        agent_id=bytes(16),
        project_id=None,
        content="x",
        normalized_content="x",
        content_hash=None,
        created_at=NOW,
        updated_at=NOW,
        origin_node=bytes(16),
        agent_epoch=1,
        project_epoch=0,
        hlc=1,
    )
    return Found(memory, cosine, words)


def test_parts_are_weighed_and_words_scaled_to_the_best() -> None:
    hits = fuse(
        [(bytes([1]) * 16, 0.9), (bytes([2]) * 16, 0.5)],
        [found(2, 8.0), found(3, 2.0, 0.2)],
        alpha=0.7,
        min_score=0.0,
        limit=10,
    )
    assert [(hit.id[0], round(hit.score, 3), hit.source) for hit in hits] == [
        (2, 0.65, Source.HYBRID),
        (1, 0.63, Source.VECTOR),
        (3, 0.215, Source.HYBRID),
    ]


def test_a_row_without_a_vector_scores_by_words_alone() -> None:
    (hit,) = fuse([], [found(1, 3.0)], alpha=0.7, min_score=0.0, limit=10)
    assert (round(hit.score, 3), hit.source) == (0.3, Source.TEXT)


def test_opposite_meaning_counts_as_none() -> None:
    assert fuse([(bytes(16), -0.8)], [], alpha=0.7, min_score=0.0, limit=10)[0].cosine == 0.0
    assert fuse([], [found(1, 1.0, -0.5)], alpha=0.7, min_score=0.0, limit=10)[0].cosine == 0.0


def test_weak_hits_are_left_out_and_ties_break_by_id() -> None:
    near = [(bytes([number]) * 16, 0.5) for number in (3, 1, 2)] + [(bytes([4]) * 16, 0.1)]
    hits = fuse(near, [], alpha=1.0, min_score=0.2, limit=2)
    assert [hit.id[0] for hit in hits] == [1, 2]


ids = st.integers(0, 30).map(lambda number: bytes([number]) * 16)
near_lists = st.lists(st.tuples(ids, st.floats(-1, 1)), max_size=40)
word_lists = st.lists(
    st.builds(
        found,
        st.integers(0, 30),
        st.floats(0, 50),
        st.none() | st.floats(-1, 1),
    ),
    max_size=40,
    unique_by=lambda each: each.memory.id,
)


@given(near_lists, word_lists, st.floats(0, 1), st.integers(1, 50))
def test_the_list_is_ordered_bounded_and_without_repeats(
    near: list[tuple[bytes, float]], words: list[Found], alpha: float, limit: int
) -> None:
    hits = fuse(near, words, alpha=alpha, min_score=0.0, limit=limit)
    assert len(hits) <= limit
    assert len({hit.id for hit in hits}) == len(hits)
    assert all(-1e-9 <= hit.score <= 1 + 1e-9 for hit in hits)
    assert [(-hit.score, hit.id) for hit in hits] == sorted((-hit.score, hit.id) for hit in hits)
    assert hits == fuse(near[::-1], words[::-1], alpha=alpha, min_score=0.0, limit=limit)


def test_words_come_whole_and_in_parts_in_lower_case() -> None:
    assert terms("State-of-the-art C++ ") == (
        ["state-of-the-art", "state", "of", "the", "art", "c++", "c"],
        [],
    )


def test_unspaced_scripts_become_pairs_and_a_lone_character_itself() -> None:
    assert terms("会議室") == ([], ["会議", "議室"])
    assert terms("東") == ([], ["東"])
    assert terms("meeting 会議") == (["meeting"], ["会議"])


@given(st.text(max_size=2_000))
def test_a_question_has_a_bounded_number_of_terms(query: str) -> None:
    words, pairs = terms(query)
    assert len(words) <= MAX_WORDS
    assert len(pairs) <= MAX_WORDS
    assert len(set(words)) == len(words)
    assert all(word and not word.isspace() for word in words)
