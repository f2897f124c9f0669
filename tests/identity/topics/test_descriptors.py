"""Descriptors: defaults, and what cannot be built."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from shoal.base.errors import UsageError
from shoal.identity.topics.cid import (
    NAME_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
    PEERS_MAX,
    SUB_TOPICS_MAX,
    VERSION_BYTES_MAX,
)
from shoal.identity.topics.descriptor_codec import decode_descriptor, encode_descriptor
from shoal.identity.topics.descriptors import (
    ANYONE,
    CREATED_MS_MAX,
    CREATED_MS_MIN,
    META,
    PROTOCOL,
    EventDescriptor,
    EventLinking,
    EventMetadata,
    PeerList,
    Signatures,
    TopicDescriptor,
    TopicMetadata,
    new_meta_topic,
    new_topic,
)
from tests.support.topics import CREATED_MS, META_CID, ONE, TOPIC_CID, TWO

TOPIC = new_topic("t", ONE, CREATED_MS, meta=META_CID)
EVENT = EventDescriptor(TOPIC_CID, ONE, b"", EventMetadata(CREATED_MS))


def test_by_default_only_the_author_publishes_and_all_may_ask() -> None:
    metadata = TOPIC.metadata
    assert metadata.allowed_publishers == PeerList(True, (ONE,))
    assert metadata.request_to_publish == PeerList(True, ())
    assert metadata.event_linking is EventLinking.LAST_SEEN
    assert metadata.protocol_version == PROTOCOL == "/pulsarcast/1.0.0"
    assert metadata.signatures is None
    assert TOPIC.parent is None
    assert TOPIC.sub_topic(META) == META_CID
    assert EVENT.publisher is EVENT.parent is None


def test_a_meta_topic_has_its_name_and_nothing_below() -> None:
    meta = new_meta_topic("t", ONE, CREATED_MS)
    assert meta.name == "meta-t"
    assert meta.sub_topics == ()
    assert meta.metadata.allowed_publishers == PeerList(True, (ONE,))


def test_sub_topics_are_kept_in_the_order_of_their_encoding() -> None:
    links = tuple((name, TOPIC_CID) for name in ("zz", "é", "b", "水", "", "a"))
    topic = new_topic("t", ONE, CREATED_MS, meta=META_CID, sub_topics=links, publishers=ANYONE)
    assert [name for name, _ in topic.sub_topics] == ["", "a", "b", "zz", "é", "水", "meta"]
    assert topic == replace(topic, sub_topics=tuple(reversed(topic.sub_topics)))
    assert topic.sub_topic("é") == TOPIC_CID
    assert topic.sub_topic("c") is None


def many(count: int) -> tuple[tuple[str, bytes], ...]:
    return tuple((str(number), TOPIC_CID) for number in range(count))


AT_THE_BOUND: dict[str, Callable[[], object]] = {
    "name": lambda: replace(TOPIC, name="é" * (NAME_BYTES_MAX // 2)),
    "sub-topics": lambda: replace(TOPIC, sub_topics=many(SUB_TOPICS_MAX)),
    "peers": lambda: PeerList(True, (ONE,) * PEERS_MAX),
    "payload": lambda: replace(EVENT, payload=bytes(PAYLOAD_BYTES_MAX)),
    "version": lambda: EventMetadata(0, "v" * VERSION_BYTES_MAX),
    "first-moment": lambda: EventMetadata(CREATED_MS_MIN),
    "last-moment": lambda: EventMetadata(CREATED_MS_MAX),
    "long-peer": lambda: PeerList(True, (b"\x13\x40" + bytes(64),)),
}
BEYOND: dict[str, Callable[[], object]] = {
    "name": lambda: replace(TOPIC, name="é" * (NAME_BYTES_MAX // 2) + "a"),
    "half-a-character": lambda: replace(TOPIC, name="\ud800"),
    "sub-topics": lambda: replace(TOPIC, sub_topics=many(SUB_TOPICS_MAX + 1)),
    "sub-topic-twice": lambda: replace(TOPIC, sub_topics=many(1) * 2),
    "sub-topic-name": lambda: replace(TOPIC, sub_topics=(("a" * (NAME_BYTES_MAX + 1), TOPIC_CID),)),
    "peers": lambda: PeerList(True, (ONE,) * (PEERS_MAX + 1)),
    "payload": lambda: replace(EVENT, payload=bytes(PAYLOAD_BYTES_MAX + 1)),
    "version": lambda: EventMetadata(0, "v" * (VERSION_BYTES_MAX + 1)),
    "topic-version": lambda: TopicMetadata(0, ANYONE, protocol_version="v" * 65),
    "too-early": lambda: EventMetadata(CREATED_MS_MIN - 1),
    "too-late": lambda: TopicMetadata(CREATED_MS_MAX + 1, ANYONE),
    "short-signature": lambda: Signatures(bytes(63)),
    "recoverable-signature": lambda: Signatures(bytes(64), bytes(65)),
    "topic-with-publisher": lambda: TopicMetadata(
        0, ANYONE, signatures=Signatures(bytes(64), bytes(64))
    ),
    "author-cut": lambda: replace(EVENT, author=ONE[:-1]),
    "author-longer": lambda: replace(TOPIC, author=ONE + b"\0"),
    "author-empty": lambda: replace(TOPIC, author=b""),
    "publisher-empty": lambda: replace(EVENT, publisher=b""),
    "peer-without-hash": lambda: PeerList(True, (TWO, b"\x12\x00")),
    "peer-too-long": lambda: PeerList(True, (b"\x13\x41" + bytes(65),)),
    "peer-of-a-long-code": lambda: PeerList(True, (b"\xa0\x20" + bytes(32),)),
}


@pytest.mark.parametrize("name", AT_THE_BOUND)
def test_a_descriptor_may_reach_its_bounds(name: str) -> None:
    AT_THE_BOUND[name]()


@pytest.mark.parametrize("name", BEYOND)
def test_a_descriptor_beyond_them_cannot_be_built(name: str) -> None:
    with pytest.raises(UsageError):
        BEYOND[name]()


def test_the_largest_topic_fits_an_event_of_its_meta_topic() -> None:
    long_peer = b"\x13\x40" + bytes(64)
    everybody = PeerList(True, (long_peer,) * PEERS_MAX)
    links = tuple(
        (str(number).rjust(NAME_BYTES_MAX), TOPIC_CID) for number in range(SUB_TOPICS_MAX)
    )
    topic = TopicDescriptor(
        "n" * NAME_BYTES_MAX,
        long_peer,
        TopicMetadata(0, everybody, everybody, signatures=Signatures(bytes(64))),
        TOPIC_CID,
        links,
    )
    block = encode_descriptor(topic)
    event = replace(EVENT, payload=block, publisher=long_peer, parent=TOPIC_CID)
    assert decode_descriptor(encode_descriptor(event)) == event
    assert decode_descriptor(event.payload) == topic
