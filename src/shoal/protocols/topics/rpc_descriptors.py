"""Descriptors inside the RPC: protobuf, as listings 3.4 and 3.5 of the thesis have them.

Decision 0012 says where the numbers come from. Every field of a descriptor is written, and none
that is unknown is read: what one side dropped, the other side's CID would miss.
"""

from __future__ import annotations

from shoal.base.errors import MalformedMessage
from shoal.identity.topics.cid import CID_BYTES, Cid, cid_of_bytes
from shoal.identity.topics.dates import parse_moment, show_moment
from shoal.identity.topics.descriptors import (
    EventDescriptor,
    EventLinking,
    EventMetadata,
    PeerList,
    Signatures,
    TopicDescriptor,
    TopicMetadata,
)
from shoal.protocols.topics.protobuf import Reader, bytes_field, number_field, text_field

_LINK = 1  # the one field of a Link
_LINK_HEAD = bytes_field(_LINK, bytes(CID_BYTES))[:-CID_BYTES]
_ENTRY_KEY, _ENTRY_VALUE = 1, 2  # of a map, by protobuf's own rule

_TOPIC_NAME, _TOPIC_AUTHOR, _TOPIC_SUBS, _TOPIC_METADATA, _TOPIC_PARENT = 1, 2, 3, 4, 5
_EVENT_AUTHOR, _EVENT_TOPIC, _EVENT_PAYLOAD = 1, 2, 3
_EVENT_PUBLISHER, _EVENT_PARENT, _EVENT_METADATA = 4, 5, 6
CREATED, VERSION = 1, 2  # of all metadata, a message's own included
_ALLOWED, _REQUESTS, _LINKING = 3, 4, 5
_SIGNATURES = 16
_LIST_ENABLED, _LIST_PEERS = 1, 2
_BY_AUTHOR, _BY_PUBLISHER = 1, 2

_TOPIC_FIELDS = (_TOPIC_NAME, _TOPIC_AUTHOR, _TOPIC_SUBS, _TOPIC_METADATA, _TOPIC_PARENT)
_TOPIC_METADATA_FIELDS = (CREATED, VERSION, _ALLOWED, _REQUESTS, _LINKING, _SIGNATURES)
_EVENT_FIELDS = (
    _EVENT_AUTHOR,
    _EVENT_TOPIC,
    _EVENT_PAYLOAD,
    _EVENT_PUBLISHER,
    _EVENT_PARENT,
    _EVENT_METADATA,
)
_EVENT_METADATA_FIELDS = (CREATED, VERSION, _SIGNATURES)


# Topics


def write_topic(topic: TopicDescriptor) -> bytes:
    """The protobuf bytes of a topic."""
    parts = [text_field(_TOPIC_NAME, topic.name), bytes_field(_TOPIC_AUTHOR, topic.author)]
    for name, cid in topic.sub_topics:
        entry = text_field(_ENTRY_KEY, name) + bytes_field(_ENTRY_VALUE, _write_link(cid))
        parts.append(bytes_field(_TOPIC_SUBS, entry))
    parts.append(bytes_field(_TOPIC_METADATA, _write_topic_metadata(topic.metadata)))
    parts.append(bytes_field(_TOPIC_PARENT, _write_link(topic.parent)))
    return b"".join(parts)


def read_topic(raw: bytes) -> TopicDescriptor:
    """The topic; MalformedMessage or UsageError if there is none in these bytes."""
    topic = Reader("a topic", raw, _TOPIC_FIELDS)
    return TopicDescriptor(
        name=topic.text(_TOPIC_NAME),
        author=topic.blob(_TOPIC_AUTHOR),
        metadata=_read_topic_metadata(topic.blob(_TOPIC_METADATA)),
        parent=_read_parent(topic, _TOPIC_PARENT),
        sub_topics=tuple(_read_sub_topic(entry) for entry in topic.several(_TOPIC_SUBS)),
    )


def _write_topic_metadata(metadata: TopicMetadata) -> bytes:
    return b"".join(
        (
            write_stamp(metadata.created_ms, metadata.protocol_version),
            bytes_field(_ALLOWED, _write_peers(metadata.allowed_publishers)),
            bytes_field(_REQUESTS, _write_peers(metadata.request_to_publish)),
            number_field(_LINKING, metadata.event_linking),
            _write_signatures(metadata.signatures),
        )
    )


def _read_topic_metadata(raw: bytes) -> TopicMetadata:
    metadata = Reader("a topic's metadata", raw, _TOPIC_METADATA_FIELDS)
    linking = metadata.flag(_LINKING)  # an enum of two
    return TopicMetadata(
        created_ms=parse_moment(metadata.text(CREATED)),
        allowed_publishers=_read_peers(metadata.blob(_ALLOWED)),
        request_to_publish=_read_peers(metadata.blob(_REQUESTS)),
        event_linking=EventLinking(linking),
        protocol_version=metadata.text(VERSION),
        signatures=_read_signatures(metadata),
    )


def _read_sub_topic(raw: bytes) -> tuple[str, Cid]:
    entry = Reader("a sub-topic", raw, (_ENTRY_KEY, _ENTRY_VALUE))
    return entry.text(_ENTRY_KEY), _read_link(entry.blob(_ENTRY_VALUE))


def _write_peers(peers: PeerList) -> bytes:
    listed = b"".join(bytes_field(_LIST_PEERS, peer) for peer in peers.peers)
    return number_field(_LIST_ENABLED, peers.enabled) + listed


def _read_peers(raw: bytes) -> PeerList:
    peers = Reader("a list of peers", raw, (_LIST_ENABLED, _LIST_PEERS))
    return PeerList(peers.flag(_LIST_ENABLED), tuple(peers.several(_LIST_PEERS)))


# Events


def write_event(event: EventDescriptor) -> bytes:
    """The protobuf bytes of an event."""
    metadata = event.metadata
    stamp = write_stamp(metadata.created_ms, metadata.protocol_version)
    publisher = event.publisher
    return b"".join(
        (
            bytes_field(_EVENT_AUTHOR, event.author),
            bytes_field(_EVENT_TOPIC, _write_link(event.topic)),
            bytes_field(_EVENT_PAYLOAD, event.payload),
            b"" if publisher is None else bytes_field(_EVENT_PUBLISHER, publisher),
            bytes_field(_EVENT_PARENT, _write_link(event.parent)),
            bytes_field(_EVENT_METADATA, stamp + _write_signatures(metadata.signatures)),
        )
    )


def read_event(raw: bytes) -> EventDescriptor:
    """The event; MalformedMessage or UsageError if there is none in these bytes."""
    event = Reader("an event", raw, _EVENT_FIELDS)
    metadata = Reader("an event's metadata", event.blob(_EVENT_METADATA), _EVENT_METADATA_FIELDS)
    return EventDescriptor(
        topic=_read_link(event.blob(_EVENT_TOPIC)),
        author=event.blob(_EVENT_AUTHOR),
        payload=event.blob(_EVENT_PAYLOAD),
        metadata=EventMetadata(
            created_ms=parse_moment(metadata.text(CREATED)),
            protocol_version=metadata.text(VERSION),
            signatures=_read_signatures(metadata),
        ),
        publisher=event.blob(_EVENT_PUBLISHER) if event.has(_EVENT_PUBLISHER) else None,
        parent=_read_parent(event, _EVENT_PARENT),
    )


# What both have


def write_stamp(created_ms: int, protocol_version: str) -> bytes:
    """The first two fields of all metadata."""
    return text_field(CREATED, show_moment(created_ms)) + text_field(VERSION, protocol_version)


def _write_signatures(signatures: Signatures | None) -> bytes:
    if signatures is None:
        return b""
    signed = bytes_field(_BY_AUTHOR, signatures.author)
    if signatures.publisher is not None:
        signed += bytes_field(_BY_PUBLISHER, signatures.publisher)
    return bytes_field(_SIGNATURES, signed)


def _read_signatures(metadata: Reader) -> Signatures | None:
    if not metadata.has(_SIGNATURES):
        return None
    signed = Reader("signatures", metadata.blob(_SIGNATURES), (_BY_AUTHOR, _BY_PUBLISHER))
    publisher = signed.blob(_BY_PUBLISHER) if signed.has(_BY_PUBLISHER) else None
    return Signatures(signed.blob(_BY_AUTHOR), publisher)


def _write_link(cid: Cid | None) -> bytes:
    # The original writes a missing link as a Link without its field.
    return b"" if cid is None else bytes_field(_LINK, cid)


def _read_link(raw: bytes) -> Cid:
    # One field of one size can be written in one way only.
    if not raw.startswith(_LINK_HEAD):
        raise MalformedMessage(f"a link is a CID in field {_LINK}, not {raw[:CID_BYTES].hex()!r}")
    return cid_of_bytes(raw[len(_LINK_HEAD) :])


def _read_parent(descriptor: Reader, field: int) -> Cid | None:
    raw = descriptor.blob(field)
    return _read_link(raw) if raw else None
