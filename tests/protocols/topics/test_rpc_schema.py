"""What the RPC's schema allows, and what no handler ever sees."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.errors import MalformedMessage
from shoal.base.ids import ADDRESSES_MAX
from shoal.protocols.topics.config import CONTACTS_MAX, HEADS_MAX, PATH_MAX, SPANS_MAX
from shoal.protocols.topics.messages import Message
from shoal.protocols.topics.wire import (
    bytes_field,
    decode_rpc,
    encode_rpc,
    number_field,
    text_field,
)
from tests.support.topics import ONE, TOPIC_CID, TWO, flipped, messages

METADATA = bytes_field(6, text_field(1, "2020-01-02T03:04:09.000Z") + text_field(2, "v"))
TOPIC_ID = bytes_field(5, TOPIC_CID)
LINK = bytes_field(1, TOPIC_CID)
JOIN = number_field(1, 3) + TOPIC_ID + METADATA
EVENT = {
    1: bytes_field(1, ONE),
    2: bytes_field(2, LINK),
    3: bytes_field(3, b"hello"),
    4: bytes_field(4, TWO),
    5: bytes_field(5, LINK),
    6: METADATA,
}
ENABLED = number_field(1, 1)
TOPIC_METADATA = {
    1: text_field(1, "2020-01-02T03:04:09.000Z"),
    2: text_field(2, "v"),
    3: bytes_field(3, ENABLED),
    4: bytes_field(4, ENABLED),
    5: number_field(5, 0),
}


def event_with(**changes: bytes) -> bytes:
    """A PUBLISH_EVENT, one field of whose event is another: f3=b"" leaves the payload out."""
    fields = {**EVENT, **{int(name[1:]): value for name, value in changes.items()}}
    return number_field(1, 2) + bytes_field(3, b"".join(fields.values())) + METADATA


def topic_with(metadata: dict[int, bytes] | None = None, **changes: bytes) -> bytes:
    """A NEW_TOPIC, one field of whose topic, or its metadata, is another."""
    inner = b"".join({**TOPIC_METADATA, **(metadata or {})}.values())
    fields = {
        1: text_field(1, "t"),
        2: bytes_field(2, ONE),
        3: b"",
        4: bytes_field(4, inner),
        5: bytes_field(5, b""),
        **{int(name[1:]): value for name, value in changes.items()},
    }
    return number_field(1, 5) + bytes_field(2, b"".join(fields.values())) + METADATA


def said(op: int, fields: bytes = b"") -> bytes:
    """A message about a topic."""
    return number_field(1, op) + TOPIC_ID + METADATA + fields


def entry(name: str, link: bytes = LINK) -> bytes:
    return bytes_field(3, text_field(1, name) + bytes_field(2, link))


FINE = {
    "join": JOIN,
    "join-in-another-order": METADATA + TOPIC_ID + number_field(1, 3),
    "join-with-a-later-field": JOIN + number_field(99, 1) + bytes_field(100, b"x"),
    "metadata-with-a-later-field": number_field(1, 3)
    + TOPIC_ID
    + bytes_field(6, METADATA[2:] + number_field(9, 9)),
    "join-with-addresses": JOIN + text_field(20, "ws://a:1") + text_field(20, ""),
    "path-of-nobody": said(19),
    "want-of-nothing": said(20, number_field(23, 0)),
    "digest-of-nothing": said(22, bytes_field(22, bytes(8))),
    "event": event_with(),
    "event-unpublished": event_with(f4=b"", f5=bytes_field(5, b"")),
    "event-empty": event_with(f3=bytes_field(3, b"")),
    "topic": topic_with(),
    "topic-with-subs": topic_with(f3=entry("b") + entry("a")),
}
REFUSED: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "field 1 once"),
    "op-missing": (TOPIC_ID + METADATA, "field 1 once"),
    "op-twice": (number_field(1, 3) + JOIN, "field 1 once, not 2 times"),
    "op-as-bytes": (bytes_field(1, b"\3") + TOPIC_ID + METADATA, "field 1 is a number"),
    "op-ping": (number_field(1, 0) + METADATA, "op 0 is reserved or unknown"),
    "op-update": (number_field(1, 1) + bytes_field(4, b"") + METADATA, "op 1 is reserved"),
    "op-7": (number_field(1, 7) + TOPIC_ID + METADATA, "op 7 is reserved or unknown"),
    "op-15": (number_field(1, 15) + TOPIC_ID + METADATA, "op 15 is reserved or unknown"),
    "op-23": (number_field(1, 23) + TOPIC_ID + METADATA, "op 23 is reserved or unknown"),
    "op-huge": (number_field(1, 2**64 - 1) + TOPIC_ID + METADATA, "reserved or unknown"),
    "join-without-topic": (number_field(1, 3) + METADATA, "field 5 once"),
    "join-with-event": (JOIN + bytes_field(3, b""), "JOIN_TOPIC takes no field 3"),
    "join-with-peer-tree": (JOIN + bytes_field(4, b""), "JOIN_TOPIC takes no field 4"),
    "join-with-heads": (JOIN + bytes_field(17, TOPIC_CID), "JOIN_TOPIC takes no field 17"),
    "publish-with-parent": (
        event_with() + bytes_field(16, TOPIC_CID),
        "PUBLISH_EVENT takes no field 16",
    ),
    "topic-id-cut": (number_field(1, 3) + bytes_field(5, TOPIC_CID[:-1]) + METADATA, "36 bytes"),
    "no-metadata": (number_field(1, 3) + TOPIC_ID, "field 6 once"),
    "empty-metadata": (number_field(1, 3) + TOPIC_ID + bytes_field(6, b""), "field 1 once"),
    "created-later": (
        number_field(1, 3) + TOPIC_ID + bytes_field(6, text_field(1, "now") + text_field(2, "v")),
        "no moment",
    ),
    "version-long": (
        number_field(1, 3) + TOPIC_ID + bytes_field(6, METADATA[2:-3] + text_field(2, "v" * 65)),
        "at most 64 bytes",
    ),
    "event-author-twice": (event_with(f1=EVENT[1] * 2), "field 1 once, not 2 times"),
    "event-author-missing": (event_with(f1=b""), "field 1 once, not 0 times"),
    "event-author-nonsense": (event_with(f1=bytes_field(1, b"abc")), "no peer id"),
    "event-topic-empty": (event_with(f2=bytes_field(2, b"")), "a link is a CID in field 1"),
    "event-topic-bare": (event_with(f2=bytes_field(2, TOPIC_CID)), "a link is a CID in field 1"),
    "event-without-payload": (event_with(f3=b""), "field 3 once"),
    "event-publisher-empty": (event_with(f4=bytes_field(4, b"")), "no peer id"),
    "event-without-parent": (event_with(f5=b""), "field 5 once"),
    "event-with-a-later-field": (event_with(f7=number_field(7, 1)), "an event has no field 7"),
    "event-metadata-later": (
        event_with(f6=bytes_field(6, METADATA[2:] + number_field(9, 9))),
        "an event's metadata has no field 9",
    ),
    "event-signatures-empty": (
        event_with(f6=bytes_field(6, METADATA[2:] + bytes_field(16, b""))),
        "signatures has field 1 once",
    ),
    "event-signature-short": (
        event_with(f6=bytes_field(6, METADATA[2:] + bytes_field(16, bytes_field(1, b"a")))),
        "64 bytes",
    ),
    "topic-as-the-original": (
        topic_with(f5=bytes_field(2, b"")),
        "field 2 once, not 2 times",
    ),
    "topic-name-not-utf8": (topic_with(f1=bytes_field(1, b"\xff")), "no UTF-8"),
    "topic-sub-twice": (topic_with(f3=entry("a") + entry("a")), "one name twice"),
    "topic-sub-empty": (topic_with(f3=entry("a", b"")), "a link is a CID in field 1"),
    "topic-enabled-2": (
        topic_with({3: bytes_field(3, number_field(1, 2))}),
        "field 1 is 0 or 1, not 2",
    ),
    "topic-enabled-missing": (topic_with({4: bytes_field(4, b"")}), "a list of peers has field 1"),
    "topic-linking-2": (topic_with({5: number_field(5, 2)}), "field 5 is 0 or 1, not 2"),
    "topic-linking-missing": (topic_with({5: b""}), "field 5 once"),
    "too-many-heads": (
        number_field(1, 16) + TOPIC_ID + METADATA + bytes_field(17, TOPIC_CID) * (HEADS_MAX + 1),
        "at most 256 heads",
    ),
    "too-many-contacts": (
        number_field(1, 17)
        + TOPIC_ID
        + METADATA
        + bytes_field(18, bytes_field(1, b"n" * 20)) * (CONTACTS_MAX + 1),
        "at most 8 contacts",
    ),
    "too-many-addresses": (
        number_field(1, 17)
        + TOPIC_ID
        + METADATA
        + bytes_field(18, bytes_field(1, b"n" * 20) + text_field(2, "a") * (ADDRESSES_MAX + 1)),
        "a node has 4 addresses",
    ),
    "long-address": (
        number_field(1, 17)
        + TOPIC_ID
        + METADATA
        + bytes_field(18, bytes_field(1, b"n" * 20) + text_field(2, "a" * 257)),
        "of 256 characters",
    ),
    "short-node": (
        number_field(1, 17) + TOPIC_ID + METADATA + bytes_field(18, bytes_field(1, b"n" * 19)),
        "20 bytes",
    ),
    "join-with-many-addresses": (
        JOIN + text_field(20, "a") * (ADDRESSES_MAX + 1),
        "a node has 4 addresses",
    ),
    "join-with-a-long-address": (JOIN + text_field(20, "a" * 257), "of 256 characters"),
    "join-with-no-text": (JOIN + bytes_field(20, b"\xff"), "no UTF-8"),
    "leave-with-addresses": (said(4, text_field(20, "a")), "LEAVE_TOPIC takes no field 20"),
    "long-path": (
        said(19, bytes_field(18, bytes_field(1, b"n" * 20)) * (PATH_MAX + 1)),
        "at most 64 nodes of a path",
    ),
    "path-with-heads": (said(19, bytes_field(17, TOPIC_CID)), "PATH takes no field 17"),
    "want-too-much": (
        said(20, bytes_field(17, TOPIC_CID) * (HEADS_MAX + 1) + number_field(23, 0)),
        "at most 256 events wanted",
    ),
    "want-knows-too-much": (
        said(20, bytes_field(21, TOPIC_CID) * (HEADS_MAX + 1) + number_field(23, 0)),
        "at most 256 events known",
    ),
    "want-without-behind": (said(20), "field 23 once"),
    "want-behind-as-bytes": (said(20, bytes_field(23, b"")), "field 23 is a number"),
    "lacks-behind": (said(21, number_field(23, 0)), "LACKS takes no field 23"),
    "want-no-cid": (said(20, bytes_field(17, b"x")), "36 bytes"),
    "lacks-and-knows": (said(21, bytes_field(21, TOPIC_CID)), "LACKS takes no field 21"),
    "digest-missing": (said(22), "field 22 once"),
    "digest-twice": (said(22, bytes_field(22, bytes(8)) * 2), "field 22 once, not 2 times"),
    "digest-empty": (said(22, bytes_field(22, b"")), "a floor and up to 512 spans, not 0 B"),
    "digest-half-a-span": (said(22, bytes_field(22, bytes(16))), "up to 512 spans, not 16 B"),
    "digest-odd": (said(22, bytes_field(22, bytes(9))), "up to 512 spans, not 9 B"),
    "digest-long": (
        said(22, bytes_field(22, bytes(8 * (3 + 2 * SPANS_MAX)))),
        "up to 512 spans, not 8216 B",
    ),
    "answer-without-both": (
        number_field(1, 18) + TOPIC_ID + METADATA + bytes_field(19, bytes_field(1, TOPIC_CID)),
        "an answer has an event, or a reason",
    ),
    "answer-with-both": (
        number_field(1, 18)
        + TOPIC_ID
        + METADATA
        + bytes_field(19, LINK + bytes_field(2, TOPIC_CID) + text_field(3, "no")),
        "an answer has an event, or a reason",
    ),
}


@pytest.mark.parametrize("name", FINE)
def test_what_the_schema_allows_is_read(name: str) -> None:
    (message,) = decode_rpc(bytes_field(1, FINE[name]))
    assert decode_rpc(encode_rpc([message])) == (message,)


@pytest.mark.parametrize("name", REFUSED)
def test_everything_else_is_refused_before_any_handler(name: str) -> None:
    raw, complaint = REFUSED[name]
    with pytest.raises(MalformedMessage, match=complaint):
        decode_rpc(bytes_field(1, raw))
    with pytest.raises(MalformedMessage, match=complaint):
        decode_rpc(bytes_field(1, JOIN) + bytes_field(1, raw))


@given(st.binary(max_size=200))
def test_any_bytes_are_an_rpc_or_malformed(raw: bytes) -> None:
    with suppress(MalformedMessage):
        decode_rpc(raw)


@given(messages, st.data())
def test_changed_bytes_are_an_rpc_or_malformed(message: Message, data: st.DataObject) -> None:
    raw = encode_rpc([message])
    changed = flipped(raw, data.draw(st.integers(0, len(raw) * 8 - 1)))
    with suppress(MalformedMessage):
        read = decode_rpc(changed)
        assert decode_rpc(encode_rpc(read)) == read
