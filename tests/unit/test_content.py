"""Content forms: published vectors, cases, and invariants."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.content import (
    FULL_TEXT_BYTES,
    bigrams,
    check_text,
    full_text_part,
    normalize,
)
from storage.errors import ContentTooLarge, InvalidInput

HELLO = "b94d27b9934d3e08a52e52d7da7dabfac484efe37a5380ee9088f7ace2efcde9"
LINES = "e490ed577595f61675761642aa202c2f1f59ef292f58c24fe0b431b05eeb86ec"
CAFE = "850f7dc43910ff890f8879c0ed26fe697c93a067ad93a7d50f466a7028a9bf4e"
A_B = "c8687a08aa5d6ed2044328fa6a697ab8e96dc34291e8c2034ae8c38e6fcc6d65"
AB = "fb8e20fc2e4c3f248c60c39bd652f3c1347298bb977b8b4d5903b85055620603"
PLUS = "41c61a5e1f26cd87760fb243a3aeb17d2d1504c535dbabc5e3fde6a18a73e512"
WOMAN, LAPTOP, ZWJ = "\U0001f469", "\U0001f4bb", "\u200d"

VECTORS = [
    ("V1.1", "Hello   World!", "Hello World!", "hello world", HELLO),
    ("V1.2", " hello world ", "hello world", "hello world", HELLO),
    ("V1.3", "hello world?!...", "hello world?!...", "hello world", HELLO),
    (
        "V1.4",
        "\r\nLine one\r\n\r\nline  two ;",
        "Line one line two ;",
        "line one line two",
        LINES,
    ),
    (
        "V1.5",
        "!!!",
        "!!!",
        "!!!",
        "e84c538e7fe250730ef62de220c40dfa808d3008c0cdb437181564b88b8714b8",
    ),
    (
        "V1.6",
        "Wait ...  !",
        "Wait ... !",
        "wait ...",
        "c9a63dacd91ea04a198cdcce25ec9da3b753ba160375b32d9cd0a65dcc3866ac",
    ),
    (
        "V1.7",
        "End.) ",
        "End.)",
        "end.)",
        "58e8eb82d10235e56399afb277b5984bf125ffe00d2f4506fad807b0cc46c6cb",
    ),
    (
        "V1.8",
        "Ünïcode  CAFÉ.",
        "Ünïcode CAFÉ.",
        "ünïcode café",
        "2f5cf40a6337e1bf0083e127c244f7c8b1f20bef8da08e0a82dc31e8d667e839",
    ),
    (
        "V1.10",
        "I use C",
        "I use C",
        "i use c",
        "b781a3070e0387f3d6b8525f60bb739bcb1e1dba1a143f26f0a66a547ca63968",
    ),
    ("V1.10", "I use C++", "I use C++", "i use c++", PLUS),
    (
        "V1.10",
        "I use C#",
        "I use C#",
        "i use c#",
        "caa1c933a938ab6dc7787ae8d71b745885470a7a2ae96e413e58d9a4331c6d0f",
    ),
    ("V1.11", "I use C++.", "I use C++.", "i use c++", PLUS),
    ("V1.12", "caf\u00e9", "caf\u00e9", "caf\u00e9", CAFE),
    ("V1.12", "cafe\u0301", "caf\u00e9", "caf\u00e9", CAFE),
    ("V1.13", "a\u00a0b", "a b", "a b", A_B),
    ("V1.13", "a\u3000b", "a b", "a b", A_B),
    ("V1.13", "a\ufeffb", "a b", "a b", A_B),
    ("V1.13", "a\r\nb", "a b", "a b", A_B),
    ("V1.13", "a\nb", "a b", "a b", A_B),
    ("V1.14", "a\u200bb", "a\u200bb", "ab", AB),
    ("V1.14", "ab", "ab", "ab", AB),
    (
        "V1.15",
        WOMAN + ZWJ + LAPTOP,
        WOMAN + ZWJ + LAPTOP,
        WOMAN + ZWJ + LAPTOP,
        "427274538f1f24ef137872891551ffb4263f6edd90c80c533534578e8a5a9893",
    ),
    (
        "V1.15",
        WOMAN + LAPTOP,
        WOMAN + LAPTOP,
        WOMAN + LAPTOP,
        "d25e37d7cceaf5f3a4af76b4aa6fd5a313b3ba355482d10c4357ec72bbff327c",
    ),
    (
        "V1.16",
        "東京",
        "東京",
        "東京",
        "130016b2599bf7e5978cae78e528c67f29aa47eaa2490ffedd729df334a2790c",
    ),
    (
        "V1.16",
        "Αθήνα",
        "Αθήνα",
        "αθήνα",
        "3e6724f0c5aee35e2726ad15f3b874a2b00fb4256fa7b475309bfb5b9d2f2b72",
    ),
    (
        "V1.16",
        "🎉",
        "🎉",
        "🎉",
        "6146299cd54818a0e659eb6ac88e80f6f8f70536bbbd962d36973f2d2323f26c",
    ),
    (
        "V1.16",
        "🔥",
        "🔥",
        "🔥",
        "ed8d830565bfcc5cb5b15e7deef7b6d07645d06597c8d17c7bdd49ad6f0e310a",
    ),
    (
        "V1.17",
        "東京。",
        "東京。",
        "東京。",
        "7ff531754f066a5d4ab9c3e3d18ae99674b16e686dc0c539d259a51cb3bebeca",
    ),
]


@pytest.mark.parametrize(("name", "text", "storage", "normalized", "digest"), VECTORS)
def test_published_vector(name: str, text: str, storage: str, normalized: str, digest: str) -> None:
    forms = normalize(text)
    assert (forms.storage, forms.normalized, forms.content_hash, forms.hash_version) == (
        storage,
        normalized,
        digest,
        1,
    ), name


@pytest.mark.parametrize(
    ("text", "storage"),
    [
        ("Hello   World!", "Hello   World!"),
        ("\r\nLine one\r\n\r\nline  two ;", "Line one\n\nline  two ;"),
        ("Wait ...  !", "Wait ...  !"),
        ("a\rb", "a\nb"),
    ],
)
def test_without_collapse_inner_whitespace_stays(text: str, storage: str) -> None:
    assert normalize(text, collapse=False).storage == storage


@pytest.mark.parametrize("text", ["   ", "", "\r\n", "\ufeff\u00a0\u3000\u2028"])
def test_v1_9_blank_content_is_required(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"^content is required$"):
        normalize(text)


def test_missing_content_is_required() -> None:
    with pytest.raises(InvalidInput, match=r"^content is required$"):
        normalize(None)  # type: ignore[arg-type]


def test_l_16_texts_without_latin_letters_have_four_hashes() -> None:
    assert len({normalize(text).content_hash for text in ("東京", "Αθήνα", "🎉", "🔥")}) == 4


def test_l_17_punctuation_alone_keeps_its_own_hash() -> None:
    bang, question = normalize("!!!"), normalize("???")
    assert bang.content_hash == "e84c538e7fe250730ef62de220c40dfa808d3008c0cdb437181564b88b8714b8"
    assert bang.content_hash != question.content_hash


def test_punctuation_alone_is_reported_as_folded_empty() -> None:
    assert (normalize("!!!").folded_empty, normalize("a!").folded_empty) == (True, False)


def test_l_18_c_and_its_children_stay_apart() -> None:
    texts = ("I use C", "I use C++", "I use C#")
    assert len({normalize(text).content_hash for text in texts}) == 3


def test_l_19_a_trailing_dot_makes_no_second_row() -> None:
    assert normalize("I use C++").content_hash == normalize("I use C++.").content_hash


def test_l_20_composed_and_decomposed_meet() -> None:
    assert {normalize("caf\u00e9").content_hash, normalize("cafe\u0301").content_hash} == {CAFE}


def test_l_21_every_kind_of_space_meets() -> None:
    texts = ("a\u00a0b", "a b", "a\r\nb", "a\nb")
    assert {normalize(text).content_hash for text in texts} == {A_B}


def test_l_22_joined_emoji_stays_joined_and_apart() -> None:
    joined, loose = normalize(WOMAN + ZWJ + LAPTOP), normalize(WOMAN + LAPTOP)
    assert ZWJ in joined.storage
    assert joined.content_hash != loose.content_hash


def test_l_23_collapse_changes_storage_and_never_the_hash() -> None:
    text = "\r\nLine one\r\n\r\nline  two ;"
    on, off = normalize(text), normalize(text, collapse=False)
    assert (on.storage, off.storage) == ("Line one line two ;", "Line one\n\nline  two ;")
    assert (on.content_hash, off.content_hash) == (LINES, LINES)


def test_l_24_the_strip_runs_once() -> None:
    assert normalize("Wait ...  !").normalized == "wait ..."


def test_l_29_two_numbers_are_two_rows() -> None:
    assert normalize("rent is 900").content_hash != normalize("rent is 950").content_hash


@pytest.mark.parametrize("text", ["a\x00b", "a\ud800", "\udfffb"])
def test_unstorable_character_is_refused_without_repeating_it(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        normalize(text)
    assert str(caught.value) == "content contains a character that cannot be stored"


def test_check_text_names_the_field() -> None:
    with pytest.raises(InvalidInput, match=r"^who contains a character that cannot be stored$"):
        check_text("\x00", "who")


def test_check_text_refuses_another_type() -> None:
    with pytest.raises(InvalidInput, match=r"^tags must be text$"):
        check_text(7, "tags")  # type: ignore[arg-type]


def test_content_of_exactly_the_limit_is_kept() -> None:
    assert len(normalize("x" * (1 << 20)).storage) == 1 << 20


@pytest.mark.parametrize("text", ["x" * ((1 << 20) + 1), "é" * ((1 << 19) + 1)])
def test_content_above_the_limit_is_refused(text: str) -> None:
    with pytest.raises(ContentTooLarge, match=r"^content exceeds 1048576 bytes$"):
        normalize(text)


def test_storage_form_that_grows_beyond_the_limit_is_refused() -> None:
    grows = "\u0958"  # its composed form is two characters
    with pytest.raises(ContentTooLarge):
        normalize(grows * 10, max_bytes=30)


@given(st.text(alphabet=st.characters(blacklist_categories=["Cs"], blacklist_characters="\0")))
def test_always_flag_independent_and_storable(text: str) -> None:
    try:
        on = normalize(text)
    except InvalidInput:
        with pytest.raises(InvalidInput):
            normalize(text, collapse=False)
        return
    off = normalize(text, collapse=False)
    assert (on.content_hash, on.normalized) == (off.content_hash, off.normalized)
    assert on.normalized
    again = normalize(on.storage)
    assert (again.storage, again.content_hash) == (on.storage, on.content_hash)


def test_final_sigma_before_a_byte_order_mark_hashes_alike_with_and_without_collapse() -> None:
    text = "ΑΣ\ufeffΑ"
    assert normalize(text).content_hash == normalize(text, collapse=False).content_hash


def test_bigrams_cover_runs_only() -> None:
    assert bigrams("Hello 東京都 v1.2") == ["東", "京", "都", "東京", "京都"]


def test_bigrams_do_not_cross_a_gap() -> None:
    assert bigrams("東 京") == ["東", "京"]


def test_bigrams_fold_half_width_forms() -> None:
    assert bigrams("ﾄｳ") == ["ト", "ウ", "トウ"]


def test_bigrams_of_latin_text_are_none() -> None:
    assert bigrams("plain words, naïve & fancy") == []


@given(st.text(alphabet="東京都の天気予報カタ x"), st.integers(0, 20), st.integers(1, 20))
def test_always_terms_of_a_part_are_terms_of_the_whole(text: str, at: int, size: int) -> None:
    assert set(bigrams(text[at : at + size])) <= set(bigrams(text))


@given(st.text(max_size=50))
def test_always_bigrams_are_lower_case_and_unique(text: str) -> None:
    terms = bigrams(text)
    assert len(terms) == len(set(terms))
    assert all(term == unicodedata.normalize("NFKC", term).lower() for term in terms)


@pytest.mark.parametrize("unit", ["x", "é", "東", "🎉"])
def test_full_text_part_cuts_between_characters(unit: str) -> None:
    part = full_text_part(unit * FULL_TEXT_BYTES)
    assert len(part.encode()) <= FULL_TEXT_BYTES
    assert set(part) == {unit}
    assert len(part.encode()) > FULL_TEXT_BYTES - 4
