"""Descriptors as bytes: the original's vectors, both ways, and bytes that are no descriptor."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from shoal.base.errors import MalformedMessage
from shoal.identity.topics import dag_cbor
from shoal.identity.topics.cid import Cid, show_cid
from shoal.identity.topics.dag_cbor import Link
from shoal.identity.topics.descriptor_codec import (
    decode_descriptor,
    descriptor_cid,
    encode_descriptor,
)
from shoal.identity.topics.descriptors import (
    Descriptor,
    EventDescriptor,
    EventMetadata,
    PeerList,
    Signatures,
    new_meta_topic,
    new_topic,
)
from tests.support.topics import (
    BLOCKS,
    CREATED_MS,
    META_CID,
    ONE,
    RPCS,
    TOPIC_CID,
    TWO,
    descriptors,
    flipped,
)

# What the vectors say, in our own words.
MEANT: dict[str, Descriptor] = {
    "meta": new_meta_topic("t", ONE, CREATED_MS),
    "topic": new_topic(
        "t",
        ONE,
        CREATED_MS,
        meta=META_CID,
        publishers=PeerList(True, (ONE, TWO)),
        requests=PeerList(True, (TWO,)),
    ),
    "eventUnpublished": EventDescriptor(TOPIC_CID, TWO, b"hello", EventMetadata(1_577_934_247_000)),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_the_originals_bytes(name: str) -> None:
    vector = BLOCKS[name]
    assert encode_descriptor(MEANT[name]).hex() == vector["cbor"]
    assert decode_descriptor(bytes.fromhex(vector["cbor"])) == MEANT[name]
    assert descriptor_cid(MEANT[name]).hex() == vector["cidBytes"]
    assert show_cid(descriptor_cid(MEANT[name])) == vector["cid"]


def test_the_parent_in_the_originals_rpc_is_the_event_once_published() -> None:
    published = replace(MEANT["eventUnpublished"], publisher=ONE)
    assert descriptor_cid(published).hex() in RPCS["publish"]


@given(descriptors)
def test_every_descriptor_comes_back(descriptor: Descriptor) -> None:
    block = encode_descriptor(descriptor)
    assert decode_descriptor(block) == descriptor
    assert encode_descriptor(decode_descriptor(block)) == block


@given(descriptors, st.data())
def test_changed_bytes_are_another_descriptor_or_malformed(
    descriptor: Descriptor, data: st.DataObject
) -> None:
    block = encode_descriptor(descriptor)
    changed = flipped(block, data.draw(st.integers(0, len(block) * 8 - 1)))
    with suppress(MalformedMessage):
        other = decode_descriptor(changed)
        assert other != descriptor
        assert encode_descriptor(other) == changed


@given(st.binary(max_size=200))
def test_any_bytes_are_a_descriptor_or_malformed(raw: bytes) -> None:
    with suppress(MalformedMessage):
        assert encode_descriptor(decode_descriptor(raw)) == raw


def test_signatures_are_an_added_field() -> None:
    plain = MEANT["eventUnpublished"]
    signed = replace(
        plain, metadata=replace(plain.metadata, signatures=Signatures(b"a" * 64, b"p" * 64))
    )
    value: Any = dag_cbor.decode(encode_descriptor(signed))
    assert value["metadata"].pop("signatures") == {"author": b"a" * 64, "publisher": b"p" * 64}
    assert dag_cbor.encode(value) == encode_descriptor(plain)


# Whoever can write canonical bytes can still write nonsense.


def topic_with(**changes: Any) -> dict[str, Any]:
    value: Any = dag_cbor.decode(bytes.fromhex(BLOCKS["topic"]["cbor"]))
    return {**value, **changes}


def topic_metadata_with(**changes: Any) -> dict[str, Any]:
    return topic_with(metadata={**topic_with()["metadata"], **changes})


def event_with(**changes: Any) -> dict[str, Any]:
    value: Any = dag_cbor.decode(bytes.fromhex(BLOCKS["eventUnpublished"]["cbor"]))
    return {**value, **changes}


def event_metadata_with(**changes: Any) -> dict[str, Any]:
    return event_with(metadata={**event_with()["metadata"], **changes})


def without(value: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: item for key, item in value.items() if key != name}


NONSENSE: dict[str, tuple[Any, str]] = {
    "a-list": ([], "a descriptor is a map"),
    "nothing": ({}, "has no '#'"),
    "no-name": (without(topic_with(), "name"), "has no 'name'"),
    "no-metadata": (without(event_with(), "metadata"), "has no 'metadata'"),
    "no-publisher": (without(event_with(), "publisher"), "has no 'publisher'"),
    "one-more": (topic_with(more=1), "no field 'more'"),
    "both": (event_with(**{"#": {}}), "no field '#'"),
    "name-as-bytes": (topic_with(name=b"t"), "name is str, not bytes"),
    "author-as-text": (topic_with(author="t"), "author is bytes"),
    "author-as-link": (topic_with(author=Link(TOPIC_CID)), "author is bytes"),
    "author-no-multihash": (topic_with(author=b"abc"), "no peer id"),
    "parent-null": (topic_with(parent=None), "parent is Link"),
    "parent-map": (topic_with(parent={"/": b"a"}), "parent is Link"),
    "parent-bytes": (event_with(parent=bytes(TOPIC_CID)), "parent is Link"),
    "subs-null": (topic_with(**{"#": None}), "# is dict"),
    "sub-missing": (topic_with(**{"#": {"meta": {}}}), "# is Link"),
    "metadata-list": (topic_with(metadata=[]), "metadata is dict"),
    "linking-2": (topic_metadata_with(eventLinking=2), "0 \\(LAST_SEEN\\) or 1"),
    "linking-false": (topic_metadata_with(eventLinking=False), "0 \\(LAST_SEEN\\) or 1"),
    "linking-text": (topic_metadata_with(eventLinking="CUSTOM"), "0 \\(LAST_SEEN\\) or 1"),
    "created-number": (topic_metadata_with(created=1), "created is str"),
    "created-short": (event_metadata_with(created="2020-01-02T03:04:05Z"), "no moment"),
    "version-null": (event_metadata_with(protocolVersion=None), "protocolVersion is str"),
    "allowed-list": (topic_metadata_with(allowedPublishers=[]), "allowedPublishers is dict"),
    "enabled-1": (
        topic_metadata_with(requestToPublish={"enabled": 1, "peers": []}),
        "enabled is bool",
    ),
    "peers-map": (
        topic_metadata_with(requestToPublish={"enabled": True, "peers": {}}),
        "peers is list",
    ),
    "peer-as-text": (
        topic_metadata_with(requestToPublish={"enabled": True, "peers": ["a"]}),
        "a peer is bytes",
    ),
    "topic-missing": (event_with(topic={}), "topic is Link"),
    "payload-text": (event_with(payload="hello"), "payload is bytes"),
    "publisher-empty-map": (event_with(publisher={}), "publisher is bytes"),
    "publisher-empty": (event_with(publisher=b""), "no peer id"),
    "signatures-null": (event_metadata_with(signatures=None), "signatures is dict"),
    "signatures-empty": (event_metadata_with(signatures={}), "has no 'author'"),
    "signatures-publisher-null": (
        event_metadata_with(signatures={"author": bytes(64), "publisher": None}),
        "publisher's signature is bytes",
    ),
    "signature-short": (event_metadata_with(signatures={"author": b"a"}), "64 bytes"),
    "topic-signed-by-publisher": (
        topic_metadata_with(signatures={"author": bytes(64), "publisher": bytes(64)}),
        "author only",
    ),
}


@pytest.mark.parametrize("name", NONSENSE)
def test_canonical_nonsense_is_malformed(name: str) -> None:
    value, complaint = NONSENSE[name]
    with pytest.raises(MalformedMessage, match=complaint):
        decode_descriptor(dag_cbor.encode(value))


def test_the_bytes_that_nonsense_is_made_from_are_fine() -> None:
    assert decode_descriptor(dag_cbor.encode(topic_metadata_with())) == MEANT["topic"]
    event = decode_descriptor(dag_cbor.encode(event_with(parent=Link(Cid(TOPIC_CID)))))
    assert event.parent == TOPIC_CID
