"""JSON documents and the query language, as a matcher of bubbles.

A document's payload is the JSON object {"kind": ..., "content": {...}}, a query's is its text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from shoal.base.errors import MalformedMessage, OversizedMessage, UsageError
from shoal.protocols.search.queries.canonical import canonical
from shoal.protocols.search.queries.config import (
    DOCUMENT_BYTES_MAX,
    KIND_CHARS_MAX,
    QUERY_CHARS_MAX,
)
from shoal.protocols.search.queries.documents import Document, document_of
from shoal.protocols.search.queries.index import Index
from shoal.protocols.search.queries.matching import matches
from shoal.protocols.search.queries.parser import parse
from shoal.protocols.search.queries.query import Query

_UTF8_BYTES_MAX = 4  # of one character


class JsonDocument(msgspec.Struct, frozen=True):
    """What somebody put: of which kind (stream, topic, event, document), and what it says."""

    kind: str
    content: dict[str, Any]


_decoder = msgspec.json.Decoder(JsonDocument)


def encode_document(kind: str, content: Mapping[str, Any]) -> bytes:
    """The payload of a document; UsageError if it cannot be one."""
    if not 0 < len(kind) <= KIND_CHARS_MAX:
        raise UsageError(f"a kind has 1 to {KIND_CHARS_MAX} characters, {kind[:40]!r} {len(kind)}")
    try:
        payload = msgspec.json.encode(JsonDocument(kind, dict(content)))
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"this document is no JSON: {error}") from None
    if len(payload) > DOCUMENT_BYTES_MAX:
        raise UsageError(
            f"a document has at most {DOCUMENT_BYTES_MAX} bytes, this one {len(payload)}: put it in"
            " parts, or where to find it"
        )
    return payload


def decode_document(payload: bytes) -> JsonDocument:
    """A payload as its owner wrote it; RemoteError if it is none."""
    if len(payload) > DOCUMENT_BYTES_MAX:
        raise OversizedMessage(f"a document of {len(payload)} bytes")
    try:
        document = _decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage(f"no document: {error}") from None
    if not 0 < len(document.kind) <= KIND_CHARS_MAX:
        raise MalformedMessage(f"a kind of {len(document.kind)} characters")
    return document


def encode_query(query: Query) -> bytes:
    """The payload of a query."""
    return canonical(query).encode()


class JsonMatcher:
    """A Matcher."""

    def read_query(self, payload: bytes) -> Query:
        """Any text that parses will do."""
        if len(payload) > _UTF8_BYTES_MAX * QUERY_CHARS_MAX:
            raise OversizedMessage(f"a query of {len(payload)} bytes")
        try:
            return parse(payload.decode())
        except (UnicodeDecodeError, UsageError) as error:
            raise MalformedMessage(str(error)) from None

    def read_document(self, payload: bytes) -> Document:
        """As queries see it."""
        document = decode_document(payload)
        return document_of(document.kind, document.content)

    def matches(self, query: Query, document: Document) -> bool:
        """The rule of matching.py."""
        return matches(query, document)

    def collection(self, bytes_max: int) -> Index[bytes]:
        """Documents are found by an index."""
        return Index(bytes_max)
