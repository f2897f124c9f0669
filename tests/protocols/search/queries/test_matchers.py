"""Which queries meet which data, and what every collection must do."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shoal.base.errors import UsageError
from shoal.protocols.search.queries.documents import Document, document_of
from shoal.protocols.search.queries.footprint import bytes_of
from shoal.protocols.search.queries.index import Index
from shoal.protocols.search.queries.json_matcher import JsonMatcher
from shoal.protocols.search.queries.matchers import Collection, Matcher, Matchers, ScanCollection
from shoal.protocols.search.queries.matching import matches
from shoal.protocols.search.queries.parser import parse
from shoal.protocols.search.queries.query import EVERYTHING, Query

Documents = Collection[bytes, Query, Document]


def scan(bytes_max: int) -> Documents:
    return ScanCollection(matches, bytes_of, bytes_max)


every_collection = pytest.mark.parametrize("collection", [Index, scan])


def titled(title: str) -> Document:
    return document_of("document", {"title": title})


def keys(held: Documents, query: Query, limit: int = 10) -> list[bytes]:
    return [hit.key for hit in held.search(query, limit)]


@every_collection
def test_a_collection_finds_what_it_holds(collection: Callable[[int], Documents]) -> None:
    held = collection(1_000_000)
    assert keys(held, EVERYTHING) == []
    for key, title in ((b"1", "air"), (b"2", "tram"), (b"3", "air")):
        assert held.put(key, titled(title))
    assert len(held) == 3
    assert keys(held, parse("air")) == [b"3", b"1"]
    assert keys(held, parse("air"), limit=1) == [b"3"]
    assert keys(held, parse("-air")) == [b"2"]


@every_collection
def test_a_key_has_one_document(collection: Callable[[int], Documents]) -> None:
    held = collection(1_000_000)
    assert held.put(b"1", titled("air"))
    assert held.put(b"2", titled("tram"))
    assert held.put(b"1", titled("tram"))
    assert len(held) == 2
    assert keys(held, parse("air")) == []
    assert keys(held, parse("tram")) == [b"1", b"2"]
    assert held.remove(b"1")
    assert not held.remove(b"1")
    assert keys(held, parse("tram")) == [b"2"]


@every_collection
def test_a_collection_is_bounded(collection: Callable[[int], Documents]) -> None:
    small, large = titled("air"), titled("air " + "and a few more words " * 50)
    held = collection(20_000)
    number = 0
    while held.put(number.to_bytes(2), small):
        number += 1
    assert 5 < number < 50
    # Nothing changed, nor does it if there is no room for a new version.
    assert len(held) == number
    assert not held.put(b"\0\0", large)
    assert keys(held, parse("air"), limit=99)[-1] == b"\0\0"
    assert keys(held, parse("more")) == []
    for gone in range(1, number):
        assert held.remove(gone.to_bytes(2))
    assert held.put(b"\0\0", large)


class Length:
    """Queries and data are bytes; a query looks for data of its own length."""

    def read_query(self, payload: bytes) -> int:
        return len(payload)

    def read_document(self, payload: bytes) -> bytes:
        return payload

    def matches(self, query: int, document: bytes) -> bool:
        return query == len(document)

    def collection(self, bytes_max: int) -> Collection[bytes, int, bytes]:
        return ScanCollection(self.matches, len, bytes_max)


def test_bubbles_meet_by_their_types() -> None:
    matchers = Matchers()
    json: Matcher[Query, Document] = JsonMatcher()
    length: Matcher[int, bytes] = Length()
    matchers.register(1, 2, json)
    matchers.register(1, 3, length)
    matchers.register(4, 2, length)
    assert [(pair.data_type, pair.matcher) for pair in matchers.of_query(1)] == [
        (2, json),
        (3, length),
    ]
    assert [(pair.query_type, pair.matcher) for pair in matchers.of_data(2)] == [
        (1, json),
        (4, length),
    ]
    assert matchers.of_query(2) == matchers.of_data(1) == []
    with pytest.raises(UsageError, match=r"queries of type 1 and data of type 3 .*choose another"):
        matchers.register(1, 3, json)


def test_a_matcher_may_come_from_an_application() -> None:
    matcher = Length()
    held = matcher.collection(10)
    assert held.put(b"a", b"1234")
    assert held.put(b"b", b"123456")
    assert not held.put(b"c", b"1")
    assert [hit.key for hit in held.search(matcher.read_query(b"...."), 5)] == [b"a"]
