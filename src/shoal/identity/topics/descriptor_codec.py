"""Descriptors as canonical DAG-CBOR, and back: byte for byte what the original writes.

A missing link is an empty map, a missing publisher null. Signatures are a field of the metadata
that the original does not have; without them the bytes are the original's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from shoal.base.errors import MalformedMessage, UsageError
from shoal.identity.topics import dag_cbor
from shoal.identity.topics.cid import Cid, cid_of
from shoal.identity.topics.dag_cbor import Link, Value
from shoal.identity.topics.descriptors import (
    Descriptor,
    EventDescriptor,
    EventLinking,
    EventMetadata,
    PeerList,
    Signatures,
    TopicDescriptor,
    TopicMetadata,
    parse_moment,
    show_moment,
)

Map = dict[str, Value]
T = TypeVar("T")


def encode_descriptor(descriptor: Descriptor) -> bytes:
    """The block of a descriptor."""
    if isinstance(descriptor, TopicDescriptor):
        return dag_cbor.encode(_topic_map(descriptor))
    signatures = descriptor.metadata.signatures
    return encode_event(descriptor, descriptor.publisher, descriptor.parent, signatures)


def descriptor_cid(descriptor: Descriptor) -> Cid:
    """The name of a descriptor."""
    return cid_of(encode_descriptor(descriptor))


def decode_descriptor(block: bytes) -> Descriptor:
    """The descriptor; MalformedMessage unless it encodes to exactly these bytes."""
    value = dag_cbor.decode(block)
    try:
        if not isinstance(value, dict):
            raise MalformedMessage(f"a descriptor is a map, not {type(value).__name__}")
        return _event(value) if "topic" in value else _topic(value)
    except UsageError as error:
        raise MalformedMessage(str(error)) from None


# To maps


def _topic_map(topic: TopicDescriptor) -> Map:
    metadata = topic.metadata
    described: Map = {
        "created": show_moment(metadata.created_ms),
        "eventLinking": int(metadata.event_linking),
        "protocolVersion": metadata.protocol_version,
        "requestToPublish": _peers_map(metadata.request_to_publish),
        "allowedPublishers": _peers_map(metadata.allowed_publishers),
    }
    _add_signatures(described, metadata.signatures)
    return {
        "#": {name: Link(cid) for name, cid in topic.sub_topics},
        "name": topic.name,
        "author": topic.author,
        "parent": _link_or_empty(topic.parent),
        "metadata": described,
    }


# Events are encoded four times for each delivery, in three forms: from their parts, which stand in
# canonical order here, instead of by way of a map.

_TOPIC = b"\xa6\x65topic" + dag_cbor.LINK_HEAD  # six fields follow
_AUTHOR = b"\x66author"
_PARENT = b"\x66parent"
_PAYLOAD = b"\x67payload"
_CREATED = b"\x68metadata\xa2\x67created\x78\x18"  # two fields, the first of 24 characters
_CREATED_SIGNED = b"\x68metadata\xa3\x67created\x78\x18"
_SIGNED_BY_AUTHOR = b"\x6asignatures\xa1\x66author\x58\x40"  # 64 bytes
_SIGNED_BY_BOTH = b"\x6asignatures\xa2\x66author\x58\x40"
_BY_PUBLISHER = b"\x69publisher\x58\x40"
_VERSION = b"\x6fprotocolVersion"
_PUBLISHER = b"\x69publisher"
_EMPTY_MAP, _NULL = b"\xa0", b"\xf6"


def encode_event(
    event: EventDescriptor,
    publisher: bytes | None,
    parent: Cid | None,
    signatures: Signatures | None,
) -> bytes:
    """The block of an event, with these in place of its own."""
    metadata = event.metadata
    created = show_moment(metadata.created_ms).encode()
    if signatures is None:
        signed: tuple[bytes, ...] = (_CREATED, created)
    elif signatures.publisher is None:
        signed = (_CREATED_SIGNED, created, _SIGNED_BY_AUTHOR, signatures.author)
    else:
        by_publisher = (_BY_PUBLISHER, signatures.publisher)
        signed = (_CREATED_SIGNED, created, _SIGNED_BY_BOTH, signatures.author, *by_publisher)
    return b"".join(
        (
            *(_TOPIC, event.topic),
            *(_AUTHOR, dag_cbor.encode_bytes(event.author)),
            *((_PARENT, _EMPTY_MAP) if parent is None else (_PARENT, dag_cbor.LINK_HEAD, parent)),
            *(_PAYLOAD, dag_cbor.encode_bytes(event.payload)),
            *signed,
            *(_VERSION, dag_cbor.encode_text(metadata.protocol_version)),
            _PUBLISHER,
            _NULL if publisher is None else dag_cbor.encode_bytes(publisher),
        )
    )


def _add_signatures(metadata: Map, signatures: Signatures | None) -> None:
    if signatures is not None:
        signed: Map = {"author": signatures.author}
        if signatures.publisher is not None:
            signed["publisher"] = signatures.publisher
        metadata["signatures"] = signed


def _peers_map(peers: PeerList) -> Value:
    return {"peers": list(peers.peers), "enabled": peers.enabled}


def _link_or_empty(cid: Cid | None) -> Value:
    return {} if cid is None else Link(cid)


# From maps


def _topic(value: Map) -> TopicDescriptor:
    _expect("a topic", value, ("#", "name", "author", "parent", "metadata"))
    metadata = _typed("metadata", value["metadata"], dict)
    _expect(
        "a topic's metadata",
        metadata,
        (
            "created",
            "eventLinking",
            "protocolVersion",
            "requestToPublish",
            "allowedPublishers",
        ),
        optional="signatures",
    )
    links = _typed("#", value["#"], dict)
    return TopicDescriptor(
        name=_typed("name", value["name"], str),
        author=_typed("author", value["author"], bytes),
        metadata=TopicMetadata(
            created_ms=parse_moment(_typed("created", metadata["created"], str)),
            allowed_publishers=_peers("allowedPublishers", metadata["allowedPublishers"]),
            request_to_publish=_peers("requestToPublish", metadata["requestToPublish"]),
            event_linking=_linking(metadata["eventLinking"]),
            protocol_version=_typed("protocolVersion", metadata["protocolVersion"], str),
            signatures=_signatures(metadata),
        ),
        parent=_parent(value["parent"]),
        sub_topics=tuple((name, _typed("#", link, Link).cid) for name, link in links.items()),
    )


def _event(value: Map) -> EventDescriptor:
    _expect("an event", value, ("topic", "author", "parent", "payload", "metadata", "publisher"))
    metadata = _typed("metadata", value["metadata"], dict)
    _expect("an event's metadata", metadata, ("created", "protocolVersion"), optional="signatures")
    publisher = value["publisher"]
    return EventDescriptor(
        topic=_typed("topic", value["topic"], Link).cid,
        author=_typed("author", value["author"], bytes),
        payload=_typed("payload", value["payload"], bytes),
        metadata=EventMetadata(
            created_ms=parse_moment(_typed("created", metadata["created"], str)),
            protocol_version=_typed("protocolVersion", metadata["protocolVersion"], str),
            signatures=_signatures(metadata),
        ),
        publisher=None if publisher is None else _typed("publisher", publisher, bytes),
        parent=_parent(value["parent"]),
    )


def _signatures(metadata: Map) -> Signatures | None:
    if "signatures" not in metadata:
        return None
    signed = _typed("signatures", metadata["signatures"], dict)
    _expect("signatures", signed, ("author",), optional="publisher")
    publisher = signed.get("publisher")
    return Signatures(
        author=_typed("author's signature", signed["author"], bytes),
        publisher=_typed("publisher's signature", publisher, bytes) if len(signed) > 1 else None,
    )


def _peers(what: str, value: Value) -> PeerList:
    peers = _typed(what, value, dict)
    _expect(what, peers, ("peers", "enabled"))
    listed = _typed("peers", peers["peers"], list)
    return PeerList(
        enabled=_typed("enabled", peers["enabled"], bool),
        peers=tuple(_typed("a peer", peer, bytes) for peer in listed),
    )


def _linking(value: Value) -> EventLinking:
    if type(value) is not int or value not in (EventLinking.LAST_SEEN, EventLinking.CUSTOM):
        raise MalformedMessage(f"eventLinking is 0 (LAST_SEEN) or 1 (CUSTOM), not {value!r}")
    return EventLinking(value)


def _parent(value: Value) -> Cid | None:
    return None if value == {} else _typed("parent", value, Link).cid


def _expect(what: str, value: Map, names: Iterable[str], optional: str | None = None) -> None:
    """Refuse what is missing and what is unknown: a field that we drop would change the CID."""
    for name in names:
        if name not in value:
            raise MalformedMessage(f"{what} has no {name!r}")
    for name in value:
        if name not in names and name != optional:
            raise MalformedMessage(f"{what} has no field {name[:40]!r}")


def _typed(what: str, value: object, kind: type[T]) -> T:
    if type(value) is not kind:
        raise MalformedMessage(f"{what} is {kind.__name__}, not {type(value).__name__}")
    return value
