"""What is inside bubbles and answers: msgpack arrays, each with its number first.

The number of a payload is the type of its bubble, too, for documents. The thesis leaves types to
applications; its example has queries of type 3 and data of type 4 (3.2.7), and ours go on from
there. Spaces of applications have four types of their own with the same payloads (spaces.py).
Bubbles of other types belong to others: nodes forward them, and read nothing.
"""

from __future__ import annotations

from enum import IntEnum
from hashlib import sha256
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

from shoal.base.errors import MalformedMessage, OversizedMessage, RemoteError
from shoal.base.ids import Count, WireNodeId
from shoal.base.units import KIB
from shoal.protocols.search.config import ITEM_BYTES_MAX, PAYLOAD_BYTES_MAX, QUERY_CHARS_MAX
from shoal.protocols.search.documents.document import DOCUMENT_BYTES_MAX, Digest, DocumentId

HITS_MAX = 256  # of one node: a reader of more asks again, more precisely
WATCH_ID_BYTES = 8
LOOKUPS_MAX = 64  # documents in one question
QUESTION_BYTES_MAX = 16 * KIB  # in a space of an application: a vector of thousands of numbers


class BubbleType(IntEnum):
    """One for each payload, for ever."""

    QUERY = 3
    DOCUMENT = 4
    WATCH = 5
    LOOKUP = 6


WatchId = Annotated[bytes, Meta(min_length=WATCH_ID_BYTES, max_length=WATCH_ID_BYTES)]
_Text: TypeAlias = Any  # see _is_question(): msgspec takes no union of these two
_Signed = Annotated[bytes, Meta(max_length=DOCUMENT_BYTES_MAX)]


class Search(
    msgspec.Struct,
    frozen=True,
    array_like=True,
    tag=int(BubbleType.QUERY),
    forbid_unknown_fields=True,
    gc=False,
):
    """Who has something that matches? Answered with Hits."""

    text: _Text
    hits: Annotated[int, Meta(ge=1, le=HITS_MAX)]
    """So many of each node, the best ones."""


class Put(
    msgspec.Struct,
    frozen=True,
    array_like=True,
    tag=int(BubbleType.DOCUMENT),
    forbid_unknown_fields=True,
    gc=False,
):
    """Keep this document, or let it meet standing queries. Whoever has a newer version answers
    with a Hit."""

    signed: _Signed
    """See documents.read_document()."""


class Watch(
    msgspec.Struct,
    frozen=True,
    array_like=True,
    tag=int(BubbleType.WATCH),
    forbid_unknown_fields=True,
    gc=False,
):
    """Tell me of documents that match, as they come: a standing query. Answered with Sightings.
    Cast again to go on; an owner never uses an id for another query."""

    id: WatchId
    text: _Text
    expires_ms: Count
    """0: no more of it."""


class Wanted(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A version of a document, or what is newer."""

    id: DocumentId
    version: Count
    digest: Digest


class Lookup(
    msgspec.Struct,
    frozen=True,
    array_like=True,
    tag=int(BubbleType.LOOKUP),
    forbid_unknown_fields=True,
    gc=False,
):
    """Who has these? Answered with a Holding by those who have just this version, with a Hit by
    those who have a newer one. Version 0 and zeros for a digest get whatever there is."""

    documents: Annotated[tuple[Wanted, ...], Meta(min_length=1, max_length=LOOKUPS_MAX)]


Payload: TypeAlias = Search | Put | Watch | Lookup


class Hit(
    msgspec.Struct, frozen=True, array_like=True, tag=1, forbid_unknown_fields=True, gc=False
):
    """A document that answers the question, and how well, by the statistics of who has it."""

    signed: _Signed
    score: Annotated[float, Meta(ge=0)]


class Sighting(
    msgspec.Struct, frozen=True, array_like=True, tag=2, forbid_unknown_fields=True, gc=False
):
    """A document that a standing query has met."""

    watch: WatchId
    signed: _Signed


class Holding(
    msgspec.Struct, frozen=True, array_like=True, tag=3, forbid_unknown_fields=True, gc=False
):
    """I have this version as well."""

    id: DocumentId
    digest: Digest
    node: WireNodeId
    """Who says so: each node counts once."""


Item: TypeAlias = Hit | Sighting | Holding

NOTHING = bytes(16)  # the digest of no document: anything is newer

_INFINITY = float("inf")
_encode = msgspec.msgpack.Encoder().encode
_items: msgspec.msgpack.Decoder[Item] = msgspec.msgpack.Decoder(Item)
_TYPES: dict[type, BubbleType] = {
    Search: BubbleType.QUERY,
    Put: BubbleType.DOCUMENT,
    Watch: BubbleType.WATCH,
    Lookup: BubbleType.LOOKUP,
}
_payloads: dict[BubbleType, msgspec.msgpack.Decoder[Payload]] = {
    number: msgspec.msgpack.Decoder(payload) for payload, number in _TYPES.items()
}


def type_of(payload: Payload) -> BubbleType:
    """The type of the bubble that carries it, among documents."""
    return _TYPES[type(payload)]


def encode_payload(payload: Payload) -> bytes:
    """The bytes of a payload that we made."""
    return _encode(payload)


def decode_payload(bubble_type: BubbleType, payload: bytes) -> Payload:
    """What a bubble says. Raises RemoteError."""
    decoder = _payloads[bubble_type]
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise OversizedMessage(f"{len(payload)} bytes, the limit is {PAYLOAD_BYTES_MAX}")
    try:
        said = decoder.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage(f"no payload of type {bubble_type:d}: {error}") from None
    if isinstance(said, Search | Watch) and not _is_question(said.text):
        raise MalformedMessage(f"no payload of type {bubble_type:d}: it asks nothing")
    return said


def _is_question(text: object) -> bool:
    """Text in the query language, or bytes in a space of an application."""
    if isinstance(text, str):
        return 1 <= len(text) <= QUERY_CHARS_MAX
    return isinstance(text, bytes) and len(text) <= QUESTION_BYTES_MAX


def encode_item(item: Item) -> bytes:
    """The bytes of an answer that we give."""
    return _encode(item)


def decode_item(raw: bytes) -> Item:
    """An answer; raises RemoteError."""
    if len(raw) > ITEM_BYTES_MAX:
        raise OversizedMessage(f"{len(raw)} bytes, the limit is {ITEM_BYTES_MAX}")
    try:
        item: Item = _items.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage(f"no answer: {error}") from None
    if isinstance(item, Hit) and not item.score < _INFINITY:
        raise MalformedMessage(f"a score of {item.score}: finite, 0 or more")
    return item


def item_key(raw: bytes) -> bytes:
    """What an answer is about: of two about the same, one is enough on the way back. Answers to
    bubbles of other types than ours are about themselves."""
    try:
        item = decode_item(raw)
    except RemoteError:
        return sha256(raw).digest()[:16]
    if isinstance(item, Hit):
        return sha256(item.signed).digest()[:16]
    return sha256(raw).digest()[:16]
