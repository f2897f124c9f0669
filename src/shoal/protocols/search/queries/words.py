"""Text as a search sees it: folded, and cut into words.

Folding makes no difference of case and of Unicode's compatible forms: STRASSE, Straße and strasse
are one word. Letters with dots stay what they are, since ä and a are different letters in Finnish.
There are no stems: `talo*` finds talossa.

A word is a run of letters and digits. Scripts that are written without spaces (Chinese, Japanese,
Thai, Lao, Khmer, Burmese) have one word per character, with the marks on it: as a query for several
of them is one for words in a row, it finds every text that holds them in a row.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import cache
from itertools import islice

from shoal.protocols.search.config import MARKS_MAX, WORD_CHARS_MAX

_ASCII_WORD = re.compile(r"[a-z0-9]+")

# Soft hyphens, joiners and marks of order: they are in a text for its looks.
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060\ufeff]+")

# Marks are among these; so are signs of which nobody needs as many in a row.
_TOO_MANY_MARKS = re.compile(rf"([^\w\s\x00-\x7f]{{{MARKS_MAX}}})[^\w\s\x00-\x7f]+")

# Marks of rare scripts lie beyond: there they end a word, in texts as in queries.
_MARKS_BEGIN, _MARKS_END = 0x300, 0x10000

_WITHOUT_SPACES = (
    "\u0e00-\u0eff"  # Thai, Lao
    "\u1000-\u109f"  # Burmese
    "\u1780-\u17ff"  # Khmer
    "\u3005-\u3007\u3040-\u30ff\u3100-\u312f\u31f0-\u31ff"  # kana, bopomofo
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Han
)


def fold(text: str) -> str:
    """The form in which texts are compared; folding it again changes nothing."""
    if text.isascii():
        return text.lower()
    cut = _TOO_MANY_MARKS.sub
    caseless = unicodedata.normalize("NFKC", cut(r"\1", _INVISIBLE.sub("", text))).casefold()
    # Cut once more: some marks are two after normalisation.
    return cut(r"\1", unicodedata.normalize("NFKC", caseless))


def words_of(text: str, words_max: int | None = None) -> tuple[str, ...]:
    """The words of a text, folded, in their order; the first ones if there are too many."""
    folded = fold(text)
    pattern = _ASCII_WORD if folded.isascii() else _word()
    return tuple(islice(_cut(pattern, folded), words_max))


def _cut(pattern: re.Pattern[str], folded: str) -> Iterator[str]:
    known: dict[str, str] = {}  # a word that stands there a thousand times is in memory once
    for found in pattern.finditer(folded):
        word = found[0][:WORD_CHARS_MAX]
        yield known.setdefault(word, word)


@cache  # Python's patterns know no marks, and looking for them takes 20 ms
def _word() -> re.Pattern[str]:
    marks = "".join(
        character
        for character in map(chr, range(_MARKS_BEGIN, _MARKS_END))
        if unicodedata.category(character).startswith("M")
    )
    alone = rf"(?=[^\W_])[{_WITHOUT_SPACES}][{marks}]*"
    letter = rf"[^\W_{_WITHOUT_SPACES}]"
    in_a_row = rf"{letter}+(?:[{marks}]+{letter}*)*"
    return re.compile(f"{alone}|{in_a_row}")
