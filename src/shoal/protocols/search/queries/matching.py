"""Whether a document matches a query. This is the definition; an index only gets there faster."""

from __future__ import annotations

from shoal.protocols.search.queries.documents import Document
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
