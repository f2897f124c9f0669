"""A document as queries see it: texts, labels and numbers, each with the path of its field.

Paths are the folded keys on the way, with dots between them. The items of a list have the list's
path. Text counts for bare words and for its field. The document's kind and truth values are labels:
they count for their field only, or everybody who looks for the word `event` would get all events.
Numbers are floats; what is none of all this (null, numbers beyond all floats, NaN) is passed over.
"""

from __future__ import annotations

import math
from itertools import islice
from sys import getsizeof

import msgspec

from shoal.protocols.search.config import (
    DOCUMENT_CHARS_MAX,
    DOCUMENT_DEPTH_MAX,
    DOCUMENT_VALUES_MAX,
    DOCUMENT_WORDS_MAX,
    KIND_CHARS_MAX,
    PATH_CHARS_MAX,
)
from shoal.protocols.search.queries.words import fold, words_of

KIND = "kind"


class Text(msgspec.Struct, frozen=True, gc=False):
    """The words of one text."""

    path: str
    words: tuple[str, ...]


class Number(msgspec.Struct, frozen=True, gc=False):
    path: str
    value: float


class Document(msgspec.Struct, frozen=True, gc=False):
    """All that can be found of a document."""

    texts: tuple[Text, ...]
    labels: tuple[Text, ...]
    numbers: tuple[Number, ...]

    @property
    def length(self) -> int:
        """How many words its texts have."""
        return sum(len(text.words) for text in self.texts)


def document_of(kind: str, content: object) -> Document:
    """Read a JSON value; never raises, whatever a stranger put into it."""
    reader = _Reader()
    reader.label(KIND, kind[:KIND_CHARS_MAX])
    reader.read("", content, DOCUMENT_DEPTH_MAX)
    return Document(tuple(reader.texts), tuple(reader.labels), tuple(reader.numbers))


class _Reader:
    """Goes through a value as far as the bounds reach."""

    def __init__(self) -> None:
        self.texts: list[Text] = []
        self.labels: list[Text] = []
        self.numbers: list[Number] = []
        self._values_left = DOCUMENT_VALUES_MAX
        self._chars_left = DOCUMENT_CHARS_MAX
        self._words_left = DOCUMENT_WORDS_MAX

    def read(self, path: str, value: object, levels: int) -> None:
        if self._values_left == 0:
            return
        self._values_left -= 1
        match value:
            case str():
                self._text(path, value)
            case bool():
                self.label(path, "true" if value else "false")
            case int() | float():
                self._number(path, value)
            case dict() if levels:
                # Also keys that are passed over take time.
                for key, inner in islice(value.items(), self._values_left):
                    inner_path = _path(path, key)
                    if inner_path is not None:
                        self.read(inner_path, inner, levels - 1)
            case list() | tuple() if levels:
                for inner in islice(value, self._values_left):
                    self.read(path, inner, levels - 1)
            case _:
                pass

    def label(self, path: str, text: str) -> None:
        self.labels.append(Text(path, words_of(text)))

    def _text(self, path: str, value: str) -> None:
        text = value[: self._chars_left]
        words = words_of(text, self._words_left)
        self._chars_left -= len(text)
        self._words_left -= len(words)
        if words:
            self.texts.append(Text(path, words))

    def _number(self, path: str, value: float) -> None:
        try:
            number = float(value)
        except OverflowError:
            return
        if math.isfinite(number):
            self.numbers.append(Number(path, number))


def _path(outer: str, key: object) -> str | None:
    """The path of a field in an object; None if no query can name it."""
    if not isinstance(key, str) or len(key) > PATH_CHARS_MAX:
        return None
    path = f"{outer}.{fold(key)}" if outer else fold(key)
    return path if len(path) <= PATH_CHARS_MAX else None


# What documents take in an index, about: measured with tracemalloc, rounded up.
#
# Dictionaries are counted as they are right after they grew, when they are emptiest. Those that
# lost much do not shrink: an index never takes more than it said at its fullest.


_DOCUMENT_BYTES = 700
_TEXT_BYTES = 112
_REFERENCE_BYTES = 8
_NUMBER_BYTES = 72

ENTRY_BYTES = 80
"""A document among those that have a word in a field."""
NUMBER_ENTRY_BYTES = 80
"""A document among those that have a number in a field."""


def bytes_of(document: Document) -> int:
    """What it is made of."""
    total = _DOCUMENT_BYTES
    for text in (*document.texts, *document.labels):
        total += _TEXT_BYTES + getsizeof(text.path) + _REFERENCE_BYTES * len(text.words)
        total += sum(map(getsizeof, {*text.words}))
    for number in document.numbers:
        total += _NUMBER_BYTES + getsizeof(number.path)
    return total


def word_bytes(word: str) -> int:
    """A word that some document has, besides its fields."""
    return 320 + getsizeof(word)


def field_bytes(path: str) -> int:
    """A field that has a word, or numbers, besides the documents in it."""
    return 256 + getsizeof(path)
