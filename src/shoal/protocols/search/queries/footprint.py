"""What documents take in an index, about: measured with tracemalloc, rounded up.

Dictionaries are counted as they are right after they grew, when they are emptiest. Those that lost
much do not shrink: an index never takes more than it said at its fullest.
"""

from __future__ import annotations

from sys import getsizeof

from shoal.protocols.search.queries.documents import Document

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
