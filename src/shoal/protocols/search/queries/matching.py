"""Whether a document matches a query. This is the definition; an index only gets there faster."""

from __future__ import annotations

import math
from collections.abc import Iterator

from shoal.protocols.search.queries.document_view import Document
from shoal.protocols.search.queries.query import AllOf, AnyOf, Between, Compare, Not, Query, Words


def matches(query: Query, document: Document) -> bool:
    """Whether this document is what the query looks for."""
    match query:
        case Words():
            return says(query, document)
        case Compare(path) | Between(path):
            return any(one.path == path and fits(query, one.value) for one in document.numbers)
        case Not(part):
            return not matches(part, document)
        case AllOf(parts):
            return all(matches(part, document) for part in parts)
        case AnyOf(parts):
            return any(matches(part, document) for part in parts)


def says(query: Words, document: Document) -> bool:
    """Whether one text of the document has these words in a row."""
    path = query.path
    for text in document.texts:
        if (path is None or text.path == path) and _in_a_row(query, text.words):
            return True
    # A bare word does not mean labels.
    return path is not None and any(
        label.path == path and _in_a_row(query, label.words) for label in document.labels
    )


def fits(query: Compare | Between, value: float) -> bool:
    """Whether a number is in the range."""
    match query:
        case Between(_, low, high):
            return low <= value <= high
        case Compare(_, "<", number):
            return value < number
        case Compare(_, "<=", number):
            return value <= number
        case Compare(_, ">", number):
            return value > number
        case Compare(_, _, number):
            return value >= number


def _in_a_row(query: Words, words: tuple[str, ...]) -> bool:
    wanted = query.words
    if len(wanted) == 1 and not query.prefix:
        return wanted[0] in words
    first, last = wanted[:-1], wanted[-1]
    if first and first[0] not in words:
        return False
    for end in range(len(first), len(words)):
        word = words[end]
        ends_so = word.startswith(last) if query.prefix else word == last
        if ends_so and words[end - len(first) : end] == first:
            return True
    return False


# Which of the documents that match come first: BM25.
#
# A word counts for more if few documents have it; the tenth time it stands in a document adds
# little; and in a short document it says more than in a long one. Comparisons choose, they do not
# rank; nor do words that may go on, since adding up the thousands that begin alike takes long. What
# a word is worth depends on the other documents of the index: scores of two nodes are only roughly
# comparable.


# The usual values (Robertson and Zaragoza, 2009).
_K1 = 1.2  # how fast repeating a word stops to count
_B = 0.75  # how much length matters


def ranking_words(query: Query) -> Iterator[tuple[str | None, str]]:
    """The words that are looked for, with their fields; none of what must not match."""
    match query:
        case Words(path):
            for word in query.whole:
                yield path, word
        case AllOf(parts) | AnyOf(parts):
            for part in parts:
                yield from ranking_words(part)
        case _:
            pass


def rarity(having: int, documents: int) -> float:
    """What a word is worth that so many of the documents have."""
    return math.log(1 + (documents - having + 0.5) / (having + 0.5))


def weight(count: int, length: int, mean_length: float) -> float:
    """What a word adds to a document of this length that has it so often."""
    relative = length / mean_length if mean_length else 1.0
    return count * (_K1 + 1) / (count + _K1 * (1 - _B + _B * relative))
