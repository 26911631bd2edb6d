"""The fusion of searches and the words of a question: pure functions."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from node.memory.ranking import MAX_WORDS, Source, Worded, fuse, least_words, terms


def found(number: int, rank: float, cosine: float | None = None) -> Worded:
    return Worded(bytes([number]) * 16, rank, cosine)


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
    unique_by=lambda each: each.id,
)


@given(near_lists, word_lists, st.floats(0, 1), st.integers(1, 50))
def test_the_list_is_ordered_bounded_and_without_repeats(
    near: list[tuple[bytes, float]], words: list[Worded], alpha: float, limit: int
) -> None:
    hits = fuse(near, words, alpha=alpha, min_score=0.0, limit=limit)
    assert len(hits) <= limit
    assert len({hit.id for hit in hits}) == len(hits)
    assert all(-1e-9 <= hit.score <= 1 + 1e-9 for hit in hits)
    assert [(-hit.score, hit.id) for hit in hits] == sorted((-hit.score, hit.id) for hit in hits)
    assert hits == fuse(near[::-1], words[::-1], alpha=alpha, min_score=0.0, limit=limit)


@given(
    st.dictionaries(ids, st.floats(-1, 1), max_size=40),
    word_lists,
    st.floats(0, 1),
    st.floats(0, 1),
    st.integers(1, 20),
)
@example({bytes(16): 1.0}, [found(0, 1.0, None), found(1, 2.0, None)], 0.0, 0.5, 1)
def test_whoever_has_too_few_words_for_the_list_is_not_in_it(
    near: dict[bytes, float], words: list[Worded], ceiling: float, alpha: float, limit: int
) -> None:
    words = [
        found(each.id[0], each.rank, near.get(each.id, min(each.cosine or 0.0, ceiling)))
        for each in words
    ]
    best = max((each.rank for each in words), default=0.0)
    ranks = {each.id: each.rank for each in words}
    least = least_words(near, ranks, best, ceiling, alpha=alpha, limit=limit)
    kept = [each for each in words if each.id in near or each.rank >= least * best]
    whole, short = (
        fuse(near.items(), part, alpha=alpha, min_score=0.0, limit=limit) for part in (words, kept)
    )
    assert short == whole


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
