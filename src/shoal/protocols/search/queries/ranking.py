"""Which of the documents that match come first: BM25.

A word counts for more if few documents have it; the tenth time it stands in a document adds little;
and in a short document it says more than in a long one. Comparisons choose, they do not rank; nor
do words that may go on, since adding up the thousands that begin alike takes long. What a word is
worth depends on the other documents of the index: scores of two nodes are only roughly comparable.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from shoal.protocols.search.queries.query import AllOf, AnyOf, Query, Words

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
