"""Which documents have which numbers in which fields: a sorted array for each field."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from operator import itemgetter

from shoal.protocols.search.queries.documents import Number
from shoal.protocols.search.queries.footprint import NUMBER_ENTRY_BYTES, field_bytes
from shoal.protocols.search.queries.query import Between, Compare

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
