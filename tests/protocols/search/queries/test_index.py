"""The index finds what a scan finds, in bounded memory, and forgets without a trace."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from shoal.protocols.search.config import INDEX_BYTES_MAX
from shoal.protocols.search.queries.document_view import Document, document_of
from shoal.protocols.search.queries.index import Index
from shoal.protocols.search.queries.matching import matches
from shoal.protocols.search.queries.parser import parse
from shoal.protocols.search.queries.query import Query
from tests.support.search_queries import contents, kinds, queries

ALL = 1000
DOCUMENTS = 100


def index_of(*texts: str) -> Index[int]:
    index: Index[int] = Index()
    for key, text in enumerate(texts):
        assert index.put(key, document_of("document", {"title": text}))
    return index


def keys(index: Index[int], text: str, limit: int = ALL) -> list[int]:
    return [hit.key for hit in index.search(parse(text), limit)]


documents = st.builds(document_of, kinds, contents)


@given(st.lists(documents, max_size=12), st.lists(queries, min_size=1, max_size=5))
def test_an_index_finds_what_a_scan_finds(held: list[Document], asked: list[Query]) -> None:
    index: Index[int] = Index()
    for key, document in enumerate(held):
        assert index.put(key, document)
    for query in asked:
        hits = index.search(query, ALL)
        found = [hit.key for hit in hits]
        assert sorted(found) == [key for key, one in enumerate(held) if matches(query, one)]
        scores = [hit.score for hit in hits]
        assert scores == sorted(scores, reverse=True)
        assert all(0 <= score < float("inf") for score in scores)
        assert index.search(query, 2) == hits[:2]


class IndexLife(RuleBasedStateMachine):
    """Documents come, change and go."""

    def __init__(self) -> None:
        super().__init__()
        self.index: Index[int] = Index()
        self.held: dict[int, Document] = {}

    @rule(key=st.integers(0, 5), document=documents)
    def put(self, key: int, document: Document) -> None:
        assert self.index.put(key, document)
        self.held[key] = document

    @rule(key=st.integers(0, 5))
    def remove(self, key: int) -> None:
        assert self.index.remove(key) == (self.held.pop(key, None) is not None)

    @rule(query=queries)
    def search(self, query: Query) -> None:
        found = {hit.key for hit in self.index.search(query, ALL)}
        assert found == {key for key, one in self.held.items() if matches(query, one)}

    @invariant()
    def it_is_as_large_as_one_that_never_held_anything_else(self) -> None:
        fresh: Index[int] = Index()
        for key, document in self.held.items():
            assert fresh.put(key, document)
        assert len(self.index) == len(fresh)
        assert self.index.bytes == fresh.bytes

    def teardown(self) -> None:
        for key in self.held:
            self.index.remove(key)
        assert self.index.bytes == len(self.index) == 0
        for table in (self.index._texts, self.index._labels, self.index._values):
            assert not any(vars(table).values())


IndexLife.TestCase.settings = settings(max_examples=30, stateful_step_count=30)
TestIndexLife = IndexLife.TestCase


def test_a_rare_word_counts_more_than_a_frequent_one() -> None:
    index = index_of("air bus", "air tram", "air ship", "air tram")
    assert keys(index, "bus OR air") == [0, 3, 2, 1]
    assert keys(index, "ship OR tram") == [2, 3, 1]


def test_often_and_short_comes_first() -> None:
    index = index_of("air and more of it", "air", "air air and more of it", "nothing")
    assert keys(index, "air") == [1, 2, 0]


def test_a_prefix_is_found_with_few_and_with_many_words() -> None:
    index = index_of(*(f"bus{number} air{number}" for number in range(50)), "tram airport")
    assert keys(index, "air*") == list(range(50, -1, -1))
    # One document is left when it comes to the prefix, and fifty words begin so.
    assert keys(index, "tram air*") == [50]
    assert keys(index, "tram bus*") == []
    assert keys(index, '"tram air"*') == [50]


def test_of_equal_documents_the_last_one_comes_first() -> None:
    index = index_of("air", "air", "air")
    assert keys(index, "air") == keys(index, "*") == [2, 1, 0]
    assert index.put(0, document_of("document", {"title": "air"}))
    assert keys(index, "air") == [0, 2, 1]
    assert keys(index, "air", limit=1) == [0]
    assert keys(index, "air", limit=0) == []


def test_what_must_not_match_does_not_rank() -> None:
    index = index_of("air air", "air")
    # Neither has a score, though the second part of the query names their word.
    assert {hit.score for hit in index.search(parse("kind:document OR x -air"), ALL)} != {0.0}
    assert {hit.score for hit in index.search(parse("-(x air)"), ALL)} == {0.0}


def test_an_index_has_room_for_so_many_bytes() -> None:
    small = document_of("document", {"title": "air quality", "pm25": 7.1})
    large = document_of("document", {"title": "air quality and more", "pm25": 7.1})
    both: Index[str] = Index()
    assert both.put("a", small)
    assert both.put("b", small)
    index: Index[str] = Index(both.bytes)
    assert index.put("a", small)
    assert index.put("b", small)
    # Neither a new document nor a larger one changes anything.
    before = index.search(parse("air pm25:>7"), ALL)
    assert not index.put("c", small)
    assert not index.put("b", large)
    assert index.search(parse("air pm25:>7"), ALL) == before
    assert index.search(parse("more"), ALL) == []
    assert index.put("a", small)
    assert index.remove("b")
    assert not index.remove("b")
    assert index.put("b", small)


def distinct_words(number: int) -> dict[str, Any]:
    return {"text": " ".join(f"w{number}x{word}" for word in range(100))}


def distinct_fields(number: int) -> dict[str, Any]:
    return {f"field{number}x{field}": f"v{number}x{field}" for field in range(100)}


def distinct_numbers(number: int) -> dict[str, Any]:
    return {f"field{number}x{field}": field for field in range(100)}


def usual(number: int) -> dict[str, Any]:
    return {"title": f"Air quality of place {number}", "pm25": number / 10, "place": {"x": number}}


def nearly_nothing(number: int) -> dict[str, Any]:
    return {}


def long_words(number: int) -> dict[str, Any]:
    return {"text": " ".join(f"{number}x{word}".rjust(128, "ㅁ") for word in range(20))}


def one_word(number: int) -> dict[str, Any]:
    return {"text": "東" * 2000}


def flags(number: int) -> dict[str, Any]:
    return {f"field{number}x{field}": field % 2 == 0 for field in range(100)}


@pytest.mark.parametrize(
    "content",
    [
        distinct_words,
        distinct_fields,
        distinct_numbers,
        usual,
        nearly_nothing,
        long_words,
        one_word,
        flags,
    ],
)
def test_it_takes_no_more_bytes_than_it_says(content: Any) -> None:
    def fill() -> Index[bytes]:
        index: Index[bytes] = Index(INDEX_BYTES_MAX)
        for number in range(DOCUMENTS):
            assert index.put(number.to_bytes(20), document_of("document", content(number)))
        return index

    fill()  # what Python keeps for itself is there now
    gc.collect()
    tracemalloc.start()
    try:
        index = fill()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken <= index.bytes
    assert taken > index.bytes / 8
