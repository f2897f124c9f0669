"""Which standing queries a document could match, without asking all of them.

From each query we take terms of which one at least has to match, if the query does: of terms that
must all match, the one that the fewest documents match; of alternatives, all. A term waits under
its word, or among the ranges of its field; a document wakes those that its words and numbers lead
to. A query that only says what must not match has no such term, and is always asked.

Which terms are rare is learnt from the last documents that came by. A query that is taken out and
put in again, as when its owner prolongs it, waits where it is best now.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterator
from math import frexp, inf, isinf, ldexp

from shoal.protocols.search.queries.document_view import KIND, Document
from shoal.protocols.search.queries.matching import matches
from shoal.protocols.search.queries.query import AllOf, AnyOf, Between, Compare, Not, Query, Words

_PREFIX_CHARS = 8  # words that begin alike wait under so many letters of them at most

_SAMPLE_MAX = 16  # documents that terms are tried on
_SAMPLE_WORDS_MAX = 256  # of each: strangers send long ones, and queries with 64 terms

_Term = Words | Compare | Between
_Key = tuple[str | None, str]  # field, or any; and a word, or its beginning and a star
_Cost = tuple[int, int, int]  # documents of the sample; how rough; how many wait there
_EQUAL = -2000  # the group of ranges with one number; floats differ by 2^-1074 at least
_LARGE = 1024  # the group of ranges as long as floats can tell


class WatchFilter:
    """Queries by number."""

    def __init__(self) -> None:
        self._terms: dict[int, list[_Term]] = {}
        self._always: dict[int, None] = {}
        self._words: dict[_Key, dict[int, None]] = {}
        self._prefixes = 0  # terms under a beginning: without any, we need not look there
        self._ranges: dict[str, _Ranges] = {}
        self._sample: deque[Document] = deque(maxlen=_SAMPLE_MAX)

    def __len__(self) -> int:
        return len(self._terms)

    def add(self, number: int, query: Query) -> None:
        """A query whose number is not in here."""
        terms = self._cover(query)
        self._terms[number] = terms or []
        if terms is None:
            self._always[number] = None
            return
        for term in terms:
            if isinstance(term, Words):
                key = _key(term)
                self._prefixes += key[1].endswith("*")
                self._words.setdefault(key, {})[number] = None
            else:
                self._ranges.setdefault(term.path, _Ranges()).add(number, term)

    def remove(self, number: int) -> None:
        """Take out what add() put in."""
        self._always.pop(number, None)
        for term in self._terms.pop(number):
            if isinstance(term, Words):
                self._remove_word(number, _key(term))
            else:
                ranges = self._ranges[term.path]
                ranges.remove(number, term)
                if not len(ranges):
                    del self._ranges[term.path]

    def candidates(self, document: Document) -> list[int]:
        """The queries that could match, by number; all that do are among them."""
        if document.length <= _SAMPLE_WORDS_MAX:
            self._sample.append(document)
        found = dict(self._always)
        for path, word in _words_of(document):
            self._wake((path, word), found)
            if self._prefixes:
                for end in range(1, min(len(word), _PREFIX_CHARS) + 1):
                    self._wake((path, word[:end] + "*"), found)
        for number in document.numbers:
            ranges = self._ranges.get(number.path)
            if ranges is not None:
                found.update(dict.fromkeys(ranges.around(number.value)))
        return sorted(found)

    def _wake(self, key: _Key, found: dict[int, None]) -> None:
        waiting = self._words.get(key)
        if waiting is not None:
            found.update(waiting)

    def _remove_word(self, number: int, key: _Key) -> None:
        waiting = self._words[key]
        del waiting[number]
        self._prefixes -= key[1].endswith("*")
        if not waiting:
            del self._words[key]

    def _cover(self, query: Query) -> list[_Term] | None:
        """Terms of which one has to match, each once; None: there are none."""
        match query:
            case Words(path, words, prefix):
                whole: list[_Term] = [
                    Words(path, (word,)) for word in (words[:-1] if prefix else words)
                ]
                return [min(whole, key=self._cost)] if whole else [query]
            case Compare() | Between():
                return [query]
            case Not():
                return None
            case AllOf(parts):
                covers = [cover for part in parts if (cover := self._cover(part)) is not None]
                return min(covers, key=self._cost_of_all, default=None)
            case AnyOf(parts):
                alternatives: list[_Term] = []
                for part in parts:
                    cover = self._cover(part)
                    if cover is None:
                        return None
                    alternatives += cover
                return _distinct(alternatives)

    def _cost_of_all(self, terms: list[_Term]) -> _Cost:
        hits, roughness, waiting = zip(*map(self._cost, terms), strict=True)
        return sum(hits), max(roughness), sum(waiting)

    def _cost(self, term: _Term) -> _Cost:
        """How often we expect it to match. What is often asked for is often said, too."""
        hits = sum(matches(term, document) for document in self._sample)
        match term:
            case Words(path, _, prefix):
                roughness = 3 if path == KIND else 1 if prefix else 0
                return hits, roughness, len(self._words.get(_key(term), ()))
            case Between():
                return hits, 0, 0
            case Compare():
                return hits, 2, 0


class _Ranges:
    """Ranges of one field. Those with two ends are in groups by their length, so that few are
    looked at which end before the number that we have."""

    def __init__(self) -> None:
        self._below: list[tuple[float, int]] = []  # numbers below this one fit
        self._above: list[tuple[float, int]] = []
        self._between: dict[int, list[tuple[float, int]]] = {}  # by their lower ends
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, number: int, term: Compare | Between) -> None:
        self._count += 1
        insort(self._list_of(term), (_bound(term), number))

    def remove(self, number: int, term: Compare | Between) -> None:
        self._count -= 1
        places = self._list_of(term)
        del places[bisect_left(places, (_bound(term), number))]
        if not places and isinstance(term, Between):
            del self._between[_group(term)]

    def around(self, value: float) -> Iterator[int]:
        """Ranges that could hold this number; all that do are among them."""
        yield from (number for _, number in self._below[bisect_left(self._below, (value, -1)) :])
        yield from (number for _, number in self._above[: bisect_right(self._above, (value, inf))])
        for group, places in self._between.items():
            begin = bisect_left(places, (value - _length(group), -1))
            end = bisect_right(places, (value, inf))
            yield from (number for _, number in places[begin:end])

    def _list_of(self, term: Compare | Between) -> list[tuple[float, int]]:
        match term:
            case Between():
                return self._between.setdefault(_group(term), [])
            case Compare(_, "<" | "<="):
                return self._below
            case Compare():
                return self._above


def _bound(term: Compare | Between) -> float:
    return term.low if isinstance(term, Between) else term.number


def _group(term: Between) -> int:
    """The power of two above the length of a range."""
    length = term.high - term.low
    if isinf(length):
        return _LARGE
    return frexp(length)[1] if length else _EQUAL


def _length(group: int) -> float:
    """No range of the group is longer."""
    return inf if group >= _LARGE else 0.0 if group == _EQUAL else ldexp(1.0, group)


def _key(term: Words) -> _Key:
    word = term.words[0]
    return term.path, word[:_PREFIX_CHARS] + "*" if term.prefix else word


def _distinct(terms: list[_Term]) -> list[_Term]:
    """One term for each place where terms wait: beginnings may share theirs."""
    by_place: dict[object, _Term] = {}
    for term in terms:
        by_place.setdefault(_key(term) if isinstance(term, Words) else term, term)
    return list(by_place.values())


def _words_of(document: Document) -> dict[_Key, None]:
    """The words that a document has, by field and without one; labels have a field only."""
    found: dict[_Key, None] = {}
    for text in document.texts:
        for word in text.words:
            found[None, word] = None
            found[text.path, word] = None
    for label in document.labels:
        for word in label.words:
            found[label.path, word] = None
    return found
