"""Folding and cutting text into words."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.protocols.search.config import MARKS_MAX, WORD_CHARS_MAX
from shoal.protocols.search.queries.words import fold, words_of


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Air quality, Kallio", ["air", "quality", "kallio"]),
        ("", []),
        ("... !? __", []),
        ("air_quality pm2.5 2024-05-01", ["air", "quality", "pm2", "5", "2024", "05", "01"]),
        # German: ß and capitals; an umlaut is a letter, however it is written.
        ("STRASSE Straße STRAẞE", ["strasse", "strasse", "strasse"]),
        ("Luftqualit\u00e4t LUFTQUALITA\u0308T", ["luftqualität", "luftqualität"]),
        ("S-Bahn-Linie", ["s", "bahn", "linie"]),
        ("Donau\u00addampf\u200bschiff", ["donaudampfschiff"]),
        # Finnish: ä, ö and å are letters of their own.
        ("Hyvää yötä, Åbo! linja-auto", ["hyvää", "yötä", "åbo", "linja", "auto"]),
        ("sää saa", ["sää", "saa"]),
        # Compatible forms.
        ("ﬁnland \uff12\uff10\uff12\uff14 m²", ["finland", "2024", "m2"]),
        ("Σίσυφος ΣΊΣΥΦΟΣ", ["σίσυφοσ", "σίσυφοσ"]),
        # Without spaces: one word per character.
        ("東京タワーABC", ["東", "京", "タ", "ワ", "ー", "abc"]),
        ("2024年 ｶﾞ", ["2024", "年", "ガ"]),
        ("ที่นี่", ["ที่", "นี่"]),
        # With spaces, and marks that belong to words.
        ("हिन्दी में", ["हिन्दी", "में"]),
        ("서울 공기", ["서울", "공기"]),
        ("שָׁלוֹם", ["שָׁלוֹם"]),
    ],
)
def test_words_of_many_scripts(text: str, words: list[str]) -> None:
    assert list(words_of(text)) == words


def test_folding_any_character_twice_is_folding_it_once() -> None:
    # Beyond, only the compatible forms of Chinese characters become others.
    codes = (*range(0x20000), *range(0x2F800, 0x2FA20))
    folded = [fold(chr(code)) for code in codes]
    assert [text for text in folded if fold(text) != text] == []


@given(st.text())
def test_folding_twice_is_folding_once(text: str) -> None:
    assert fold(fold(text)) == fold(text)


@given(st.text())
def test_a_word_is_its_own_word(text: str) -> None:
    for word in words_of(text):
        assert words_of(word) == (word,)
        assert len(word) <= WORD_CHARS_MAX


def test_marks_without_end_are_cut_and_take_no_time() -> None:
    begin_s = time.process_time()
    # Out of order, and one that becomes two.
    for marks in ("\u0315\u0316", "\u0344"):
        folded = fold("a" + marks * 100_000)
        assert len(folded) == 1 + MARKS_MAX
        assert fold(folded) == folded
    assert time.process_time() - begin_s < 2.0  # 12 s if they were put in order first


def test_a_long_word_is_cut() -> None:
    assert words_of("a" * 200) == ("a" * WORD_CHARS_MAX,)
    assert words_of("ä" * 200) == ("ä" * WORD_CHARS_MAX,)


def test_only_so_many_words_are_taken() -> None:
    assert words_of("a b c", 2) == ("a", "b")
    assert words_of("ä b c", 2) == ("ä", "b")
    assert words_of("a b c", 0) == ()
