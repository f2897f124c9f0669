"""Documents in memory, found by their words and numbers.

A document has a number here, given when it is put. Words lead to numbers (postings.py), and so do
ranges (numbers.py); queries are sets of numbers, cut and joined. What the sets cannot tell, whether
words stand in a row, is asked of the document itself, by the rule of matching.py.

Nothing is let go to make room: whoever puts documents knows which of them matter.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Set
from heapq import nlargest
from itertools import chain
from itertools import count as count_up
from operator import itemgetter
from sys import maxunicode
from typing import Generic, NamedTuple, TypeVar

from shoal.protocols.search.config import INDEX_BYTES_MAX
from shoal.protocols.search.queries.document_view import (
    ENTRY_BYTES,
    NUMBER_ENTRY_BYTES,
    Document,
    Number,
    Text,
    bytes_of,
    field_bytes,
    word_bytes,
)
from shoal.protocols.search.queries.matching import matches, ranking_words, rarity, says, weight
from shoal.protocols.search.queries.query import AllOf, AnyOf, Between, Compare, Not, Query, Words

Key = TypeVar("Key", bound=Hashable)

_READ_COST = 16  # looking at a document takes about as long as taking so many from an array


class _Held(NamedTuple, Generic[Key]):
    key: Key
    document: Document
    length: int
    bytes: int


class Index(Generic[Key]):
    """Documents by key, in bounded memory."""

    def __init__(self, bytes_max: int = INDEX_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._numbers = count_up()
        self._number_of: dict[Key, int] = {}
        self._held: dict[int, _Held[Key]] = {}
        self._held_bytes = 0
        self._length_sum = 0
        self._texts = Postings()
        self._labels = Postings()
        self._values = Numbers()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def bytes(self) -> int:
        """What it takes, about."""
        return self._held_bytes + self._texts.bytes + self._labels.bytes + self._values.bytes

    def put(self, key: Key, document: Document) -> bool:
        """Add a document, or replace the one of this key; False: there is no room, and nothing
        changed."""
        old_number = self._number_of.get(key)
        old = None if old_number is None else self._take(old_number)
        number = next(self._numbers)
        self._insert(number, _Held(key, document, document.length, bytes_of(document)))
        if self.bytes <= self._bytes_max:
            return True
        # What it takes depends on the words that others have: only now we know.
        self._take(number)
        if old_number is not None and old is not None:
            self._insert(old_number, old)
        return False

    def remove(self, key: Key) -> bool:
        """Forget a document; False: there was none."""
        if key not in self._number_of:
            return False
        self._take(self._number_of[key])
        return True

    def _insert(self, number: int, held: _Held[Key]) -> None:
        self._number_of[held.key] = number
        self._held[number] = held
        self._held_bytes += held.bytes
        self._length_sum += held.length
        self._texts.add(number, held.document.texts)
        self._labels.add(number, held.document.labels)
        self._values.add(number, held.document.numbers)

    def _take(self, number: int) -> _Held[Key]:
        held = self._held.pop(number)
        del self._number_of[held.key]
        self._held_bytes -= held.bytes
        self._length_sum -= held.length
        self._texts.remove(number, held.document.texts)
        self._labels.remove(number, held.document.labels)
        self._values.remove(number, held.document.numbers)
        return held

    def search(self, query: Query, limit: int) -> list[Hit[Key]]:
        """The best documents that match, best first; of equal ones, the one put last."""
        scores = dict.fromkeys(self._find(query, self._held.keys()), 0.0)
        for path, word in ranking_words(query):
            self._score(word, path, scores)
        best = nlargest(limit, scores.items(), key=lambda entry: (entry[1], entry[0]))
        return [Hit(self._held[number].key, score) for number, score in best]

    def _find(self, query: Query, within: Set[int]) -> Set[int]:
        """Which of these documents match."""
        match query:
            case Words():
                return self._with_words(query, within)
            case Compare() | Between():
                if self._values.count(query) < _READ_COST * len(within):
                    return self._values.find(query) & within
                return {one for one in within if matches(query, self._held[one].document)}
            case Not(part):
                return within - self._find(part, within)
            case AllOf(parts):
                # The rarest first: the others need not look at what it leaves out.
                for part in sorted(parts, key=self._cost):
                    within = self._find(part, within)
                return within
            case AnyOf(parts):
                found: set[int] = set()
                for part in parts:
                    found |= self._find(part, within)
                return found

    def _with_words(self, query: Words, within: Set[int]) -> Set[int]:
        for word in query.whole:
            within = _among(self._postings(word, query.path), within)
        if len(query.words) == 1:
            if not query.prefix:
                return within
            tables, (prefix,) = self._tables(query.path), query.words
            if sum(table.count_prefix(prefix) for table in tables) < _READ_COST * len(within):
                postings = (table.of_prefix(prefix, query.path) for table in tables)
                return _among(chain.from_iterable(postings), within)
        return {one for one in within if says(query, self._held[one].document)}

    def _postings(self, word: str, path: str | None) -> Iterator[Posting]:
        """Who has a word where."""
        for table in self._tables(path):
            yield from table.of_word(word, path)

    def _tables(self, path: str | None) -> tuple[Postings, ...]:
        # A bare word does not mean labels.
        return (self._texts,) if path is None else (self._texts, self._labels)

    def _cost(self, query: Query) -> int:
        """At most so many documents match; for prefixes, which take long to count, and for what
        must not match, all of them."""
        match query:
            case Words(path):
                counts = [sum(map(len, self._postings(word, path))) for word in query.whole]
                return min(counts, default=len(self))
            case Compare() | Between():
                return self._values.count(query)
            case Not():
                return len(self)
            case AllOf(parts):
                return min(map(self._cost, parts), default=len(self))
            case AnyOf(parts):
                return sum(map(self._cost, parts))

    def _score(self, word: str, path: str | None, scores: dict[int, float]) -> None:
        """Add what a word is worth to the documents that have it."""
        having = 0
        counts: dict[int, int] = {}
        for posting in self._postings(word, path):
            having += len(posting)
            for number in posting.keys() & scores.keys():
                counts[number] = counts.get(number, 0) + posting[number]
        # Who has a word in two fields is counted twice: near enough, and quickly known.
        worth = rarity(min(having, len(self)), len(self))
        mean_length = self._length_sum / len(self) if self._held else 0.0
        for number, times in counts.items():
            scores[number] += worth * weight(times, self._held[number].length, mean_length)


def _among(postings: Iterator[Posting], within: Set[int]) -> Set[int]:
    """Who of these is in one of the postings."""
    found: set[int] = set()
    for posting in postings:
        # A prefix has thousands, each of a document or two: they are compared at the end.
        found.update(posting if len(posting) < len(within) else posting.keys() & within)
    return found & within


# Which documents have which words in which fields, and how often.


Posting = Mapping[int, int]
"""Documents, by their number in the index, and how often each has a word in a field."""


class Postings:
    """From words to documents. Words are kept in order too, for those that begin alike."""

    def __init__(self) -> None:
        self.bytes = 0
        """What it takes, about."""
        self._by_word: dict[str, dict[str, dict[int, int]]] = {}
        self._in_order: list[str] = []

    def add(self, number: int, texts: Iterable[Text]) -> None:
        """A document has these texts."""
        for (word, path), count in _counts(texts).items():
            by_path = self._by_word.get(word)
            if by_path is None:
                by_path = self._by_word[word] = {}
                insort(self._in_order, word)
                self.bytes += word_bytes(word)
            posting = by_path.get(path)
            if posting is None:
                posting = by_path[path] = {}
                self.bytes += field_bytes(path)
            posting[number] = count
            self.bytes += ENTRY_BYTES

    def remove(self, number: int, texts: Iterable[Text]) -> None:
        """Take out what add() put in: the same texts."""
        for word, path in _counts(texts):
            by_path = self._by_word[word]
            del by_path[path][number]
            self.bytes -= ENTRY_BYTES
            if not by_path[path]:
                del by_path[path]
                self.bytes -= field_bytes(path)
            if not by_path:
                del self._by_word[word]
                del self._in_order[bisect_left(self._in_order, word)]
                self.bytes -= word_bytes(word)

    def of_word(self, word: str, path: str | None) -> Iterator[Posting]:
        """Who has this word, in this field, or in each field that has it."""
        by_path = self._by_word.get(word)
        if by_path is None:
            return
        if path is None:
            yield from by_path.values()
        elif path in by_path:
            yield by_path[path]

    def of_prefix(self, prefix: str, path: str | None) -> Iterator[Posting]:
        """Who has a word that begins so."""
        for at in self._beginning(prefix):
            yield from self.of_word(self._in_order[at], path)

    def count_prefix(self, prefix: str) -> int:
        """How many words begin so."""
        return len(self._beginning(prefix))

    def _beginning(self, prefix: str) -> range:
        # The last character of all is in no word.
        end = bisect_left(self._in_order, prefix + chr(maxunicode))
        return range(bisect_left(self._in_order, prefix), end)


def _counts(texts: Iterable[Text]) -> Counter[tuple[str, str]]:
    return Counter((word, text.path) for text in texts for word in text.words)


# Which documents have which numbers in which fields: a sorted array for each field.


# Where a document stands in a field's array: by its value, then by its number in the index.
_Place = tuple[float, int]


class Numbers:
    """From ranges to documents."""

    def __init__(self) -> None:
        self.bytes = 0
        """What it takes, about."""
        self._by_path: dict[str, list[_Place]] = {}

    def add(self, number: int, values: Iterable[Number]) -> None:
        """A document has these values."""
        for value in values:
            places = self._by_path.get(value.path)
            if places is None:
                places = self._by_path[value.path] = []
                self.bytes += field_bytes(value.path)
            insort(places, (value.value, number))
            self.bytes += NUMBER_ENTRY_BYTES

    def remove(self, number: int, values: Iterable[Number]) -> None:
        """Take out what add() put in: the same values."""
        for value in values:
            places = self._by_path[value.path]
            del places[bisect_left(places, (value.value, number))]
            self.bytes -= NUMBER_ENTRY_BYTES
            if not places:
                del self._by_path[value.path]
                self.bytes -= field_bytes(value.path)

    def count(self, query: Compare | Between) -> int:
        """How many values fit."""
        begin, end = _slice(self._by_path.get(query.path, []), query)
        return max(0, end - begin)

    def find(self, query: Compare | Between) -> set[int]:
        """Who has a value that fits."""
        places = self._by_path.get(query.path, [])
        begin, end = _slice(places, query)
        return {number for _, number in places[begin:end]}


def _slice(places: list[_Place], query: Compare | Between) -> tuple[int, int]:
    """Where the values that fit begin and end."""
    match query:
        case Between(_, low, high):
            return _before(places, low), _after(places, high)
        case Compare(_, "<", number):
            return 0, _before(places, number)
        case Compare(_, "<=", number):
            return 0, _after(places, number)
        case Compare(_, ">", number):
            return _after(places, number), len(places)
        case Compare(_, _, number):
            return _before(places, number), len(places)


def _before(places: list[_Place], value: float) -> int:
    return bisect_left(places, value, key=itemgetter(0))


def _after(places: list[_Place], value: float) -> int:
    return bisect_right(places, value, key=itemgetter(0))


# What an index answers.


class Hit(NamedTuple, Generic[Key]):
    """A document that matches, and how well."""

    key: Key
    score: float
