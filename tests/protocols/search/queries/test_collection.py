"""An index as a collection: what is put is found, replaced, removed, and bounded."""

from __future__ import annotations

from shoal.protocols.search.queries.document_view import Document, document_of
from shoal.protocols.search.queries.index import Index
from shoal.protocols.search.queries.parser import parse
from shoal.protocols.search.queries.query import EVERYTHING, Query

Documents = Index[bytes]


def titled(title: str) -> Document:
    return document_of("document", {"title": title})


def keys(held: Documents, query: Query, limit: int = 10) -> list[bytes]:
    return [hit.key for hit in held.search(query, limit)]


def test_a_collection_finds_what_it_holds() -> None:
    held: Documents = Index(1_000_000)
    assert keys(held, EVERYTHING) == []
    for key, title in ((b"1", "air"), (b"2", "tram"), (b"3", "air")):
        assert held.put(key, titled(title))
    assert len(held) == 3
    assert keys(held, parse("air")) == [b"3", b"1"]
    assert keys(held, parse("air"), limit=1) == [b"3"]
    assert keys(held, parse("-air")) == [b"2"]


def test_a_key_has_one_document() -> None:
    held: Documents = Index(1_000_000)
    assert held.put(b"1", titled("air"))
    assert held.put(b"2", titled("tram"))
    assert held.put(b"1", titled("tram"))
    assert len(held) == 2
    assert keys(held, parse("air")) == []
    assert keys(held, parse("tram")) == [b"1", b"2"]
    assert held.remove(b"1")
    assert not held.remove(b"1")
    assert keys(held, parse("tram")) == [b"2"]


def test_a_collection_is_bounded() -> None:
    small, large = titled("air"), titled("air " + "and a few more words " * 50)
    held: Documents = Index(20_000)
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
