"""JSON documents and queries as payloads, also of strangers."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.errors import MalformedMessage, OversizedMessage, RemoteError, UsageError
from shoal.protocols.search.queries.config import DOCUMENT_BYTES_MAX, QUERY_CHARS_MAX
from shoal.protocols.search.queries.documents import document_of
from shoal.protocols.search.queries.json_matcher import (
    JsonDocument,
    JsonMatcher,
    decode_document,
    encode_document,
    encode_query,
)
from shoal.protocols.search.queries.parser import parse
from shoal.protocols.search.queries.query import Query
from tests.support.search_queries import queries

MATCHER = JsonMatcher()
AIR = {"title": "Air quality, Kallio", "pm25": 7.1}


def test_a_document_and_a_query_meet_through_their_payloads() -> None:
    payload = encode_document("document", AIR)
    assert decode_document(payload) == JsonDocument("document", AIR)
    document = MATCHER.read_document(payload)
    assert document == document_of("document", AIR)
    query = MATCHER.read_query(encode_query(parse("title:air pm25:<10")))
    assert MATCHER.matches(query, document)
    held = MATCHER.collection(1_000_000)
    assert held.put(b"key", document)
    assert [hit.key for hit in held.search(query, 1)] == [b"key"]


@given(queries)
def test_a_query_survives_its_payload(query: Query) -> None:
    assert MATCHER.read_query(encode_query(query)) == query


@pytest.mark.parametrize(
    ("kind", "content", "remedy"),
    [
        ("", AIR, "1 to 64 characters"),
        ("k" * 65, AIR, "1 to 64 characters"),
        ("event", {"a": object()}, "is no JSON"),
        ("event", {"a": "\ud800"}, "is no JSON"),
        ("event", {"a": "x" * DOCUMENT_BYTES_MAX}, "at most 65536 bytes, this one 655.*in parts"),
    ],
)
def test_what_is_no_document_is_not_put(kind: str, content: dict[str, Any], remedy: str) -> None:
    with pytest.raises(UsageError, match=remedy):
        encode_document(kind, content)


def test_a_document_in_itself_is_not_put() -> None:
    circle: dict[str, Any] = {}
    circle["a"] = circle
    with pytest.raises(UsageError, match="is no JSON"):
        encode_document("event", circle)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{}",
        b"7",
        b'{"kind": "event", "content": 7}',
        b'{"kind": 7, "content": {}}',
        b'{"kind": "", "content": {}}',
        json.dumps({"kind": "k" * 65, "content": {}}).encode(),
        b'{"kind": "event", "content": {"a": "\xff"}}',
        b'{"kind": "event", "content": {"a": NaN}}',
        b'{"kind": "event", "content": {"a": 1e999}}',
        b'{"kind": "event", "content": {"a": ' + b"9" * 5000 + b"}}",
        b'{"kind": "event", "content": {"a": ' + b"[" * 60_000 + b"]" * 5000 + b"}}",
    ],
)
def test_a_stranger_may_send_no_document(payload: bytes) -> None:
    with pytest.raises(MalformedMessage):
        MATCHER.read_document(payload)


def test_a_stranger_may_send_a_deep_or_a_huge_number() -> None:
    deep = b'{"kind": "event", "content": {"a": ' + b"[" * 500 + b"]" * 500 + b"}}"
    assert MATCHER.read_document(deep).numbers == ()
    huge = b'{"kind": "event", "content": {"a": ' + b"9" * 400 + b', "b": -1e308}}'
    assert [number.path for number in MATCHER.read_document(huge).numbers] == ["b"]


@pytest.mark.parametrize("payload", [b"", b"\xff", b"a:", b"(" * 100, b"\xed\xa0\x80"])
def test_a_stranger_may_send_no_query(payload: bytes) -> None:
    with pytest.raises(MalformedMessage):
        MATCHER.read_query(payload)


def test_payloads_are_bounded() -> None:
    with pytest.raises(OversizedMessage):
        MATCHER.read_document(b" " * (DOCUMENT_BYTES_MAX + 1))
    with pytest.raises(OversizedMessage):
        MATCHER.read_query(b"a" * (4 * QUERY_CHARS_MAX + 1))
    longest = " ".join(["\U00010400" * 127] * 8)
    assert len(longest.encode()) > 3 * QUERY_CHARS_MAX
    assert MATCHER.read_query(longest.encode()) == parse(longest)


@given(
    st.binary(max_size=100) | st.text(max_size=40).map(lambda text: text.encode("utf-8", "replace"))
)
def test_any_bytes_are_read_or_refused(payload: bytes) -> None:
    for read in (MATCHER.read_query, MATCHER.read_document):
        with suppress(RemoteError):
            read(payload)
