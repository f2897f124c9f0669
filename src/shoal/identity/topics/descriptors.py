"""Topics and events: immutable, known by the CID of their bytes (thesis, listings 3.1 and 3.2).

A descriptor that breaks a bound cannot be built: UsageError. Whoever decodes one from a peer turns
that into MalformedMessage.

Peers are named by multihash bytes, whichever kind of key they have: descriptors of the original
must keep their CIDs. To sign, a peer needs a secp256k1 key (signing.py).
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import IntEnum
from functools import lru_cache

import msgspec

from shoal.base.errors import UsageError
from shoal.identity.topics.cid import (
    NAME_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
    PEERS_MAX,
    SUB_TOPICS_MAX,
    VERSION_BYTES_MAX,
    Cid,
)

PROTOCOL = "/pulsarcast/1.0.0"
META = "meta"  # the sub-topic that tells of new versions
SIGNATURE_BYTES = 64  # r || s: see signing.py

_MULTIHASH_BYTES_MAX = 2 + 64  # sha2-512 is the longest that peers are named by


class EventLinking(IntEnum):
    """Who chooses the parent of an event."""

    LAST_SEEN = 0
    """The publisher: the last event that it has seen."""
    CUSTOM = 1
    """The caller."""


class PeerList(msgspec.Struct, frozen=True, gc=False):
    """Peers with a right. As allowed_publishers: if enabled, only these publish, else anyone. As
    request_to_publish: if enabled, these may ask, or anyone if none is named; else nobody."""

    enabled: bool
    peers: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        if len(self.peers) > PEERS_MAX:
            raise UsageError(f"a list has at most {PEERS_MAX} peers, this one {len(self.peers)}")
        for peer in self.peers:
            _check_peer(peer)


ANYONE = PeerList(enabled=False)
"""As allowed_publishers: no limit."""
ALL_REQUESTS = PeerList(enabled=True)
"""As request_to_publish: whoever wants to may ask."""


class Signatures(msgspec.Struct, frozen=True, gc=False):
    """Added to the original's metadata. An event has both once it is published; a topic has the
    author's only."""

    author: bytes
    publisher: bytes | None = None

    def __post_init__(self) -> None:
        for signature in (self.author, self.publisher or self.author):
            if len(signature) != SIGNATURE_BYTES:
                raise UsageError(
                    f"a descriptor's signature has {SIGNATURE_BYTES} bytes, not {len(signature)}"
                )


class EventMetadata(msgspec.Struct, frozen=True, gc=False):
    """When, and by which rules."""

    created_ms: int
    protocol_version: str = PROTOCOL
    signatures: Signatures | None = None

    def __post_init__(self) -> None:
        check_stamp(self.created_ms, self.protocol_version)


class TopicMetadata(msgspec.Struct, frozen=True, gc=False):
    """When, by which rules, and who may publish how."""

    created_ms: int
    allowed_publishers: PeerList
    request_to_publish: PeerList = ALL_REQUESTS
    event_linking: EventLinking = EventLinking.LAST_SEEN
    protocol_version: str = PROTOCOL
    signatures: Signatures | None = None

    def __post_init__(self) -> None:
        check_stamp(self.created_ms, self.protocol_version)
        if self.signatures is not None and self.signatures.publisher is not None:
            raise UsageError("a topic is signed by its author only: leave the publisher out")


class TopicDescriptor(msgspec.Struct, frozen=True, gc=False):
    """One version of a topic."""

    name: str
    author: bytes
    metadata: TopicMetadata
    parent: Cid | None = None
    """The version before this one."""
    sub_topics: tuple[tuple[str, Cid], ...] = ()
    """Name and topic, as they stand under `#`; kept in the order of their encoding."""

    def __post_init__(self) -> None:
        _check_peer(self.author)
        check_text("a topic's name", self.name, NAME_BYTES_MAX)
        if len(self.sub_topics) > SUB_TOPICS_MAX:
            raise UsageError(
                f"a topic has at most {SUB_TOPICS_MAX} sub-topics, this one"
                f" {len(self.sub_topics)}: give them a level of their own"
            )
        if self.sub_topics:
            self._sort_sub_topics()

    def _sort_sub_topics(self) -> None:
        for name, _ in self.sub_topics:
            check_text("a sub-topic's name", name, NAME_BYTES_MAX)
        links = dict(self.sub_topics)
        if len(links) < len(self.sub_topics):
            raise UsageError(f"sub-topics {[name for name, _ in self.sub_topics]}: one name twice")
        ordered = sorted(links.items(), key=lambda link: (len(link[0].encode()), link[0].encode()))
        msgspec.structs.force_setattr(self, "sub_topics", tuple(ordered))

    def sub_topic(self, name: str) -> Cid | None:
        """The sub-topic of this name; META is the one that every topic but a meta topic has."""
        return dict(self.sub_topics).get(name)


class EventDescriptor(msgspec.Struct, frozen=True, gc=False):
    """One event; published once it has a publisher."""

    topic: Cid
    author: bytes
    payload: bytes
    metadata: EventMetadata
    publisher: bytes | None = None
    parent: Cid | None = None
    """The event before this one."""

    def __post_init__(self) -> None:
        _check_peer(self.author)
        if self.publisher is not None:
            _check_peer(self.publisher)
        check_payload(self.payload)


Descriptor = TopicDescriptor | EventDescriptor


def new_topic(
    name: str,
    author: bytes,
    created_ms: int,
    *,
    meta: Cid,
    sub_topics: tuple[tuple[str, Cid], ...] = (),
    parent: Cid | None = None,
    publishers: PeerList | None = None,
    requests: PeerList = ALL_REQUESTS,
    linking: EventLinking = EventLinking.LAST_SEEN,
) -> TopicDescriptor:
    """A topic with the defaults of the thesis: only its author publishes, all may ask."""
    allowed = PeerList(True, (author,)) if publishers is None else publishers
    metadata = TopicMetadata(created_ms, allowed, requests, linking)
    return TopicDescriptor(name, author, metadata, parent, ((META, meta), *sub_topics))


def new_meta_topic(name: str, author: bytes, created_ms: int) -> TopicDescriptor:
    """The topic that tells of new versions of the topic of this name: it has none of its own."""
    metadata = TopicMetadata(created_ms, PeerList(True, (author,)))
    return TopicDescriptor(f"{META}-{name}", author, metadata)


def _check_peer(peer: bytes) -> None:
    """A multihash: which hash, how long, and so many bytes; one byte each for the first two."""
    # Codes and lengths from 128 on would take two bytes; no peer is named by such a hash.
    if (
        len(peer) < 3
        or len(peer) > _MULTIHASH_BYTES_MAX
        or peer[0] > 127
        or peer[1] != len(peer) - 2
    ):
        raise UsageError(
            f"{peer[:_MULTIHASH_BYTES_MAX].hex() or 'nothing'} is no peer id: write its multihash"
            " bytes, as PublicKey.peer_id gives them"
        )


def check_stamp(created_ms: int, protocol_version: str) -> None:
    """When, and by which protocol: bounds that descriptors and messages share."""
    check_text("a protocol version", protocol_version, VERSION_BYTES_MAX)
    if not CREATED_MS_MIN <= created_ms <= CREATED_MS_MAX:
        raise UsageError(
            f"created_ms = {created_ms} is beyond the years 1 to 9999: give milliseconds since 1970"
        )


def check_payload(payload: bytes) -> None:
    """What an event carries, within its bound."""
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise UsageError(
            f"a payload has at most {PAYLOAD_BYTES_MAX} bytes, this one {len(payload)}:"
            " publish it in parts"
        )


def check_text(what: str, text: str, bytes_max: int) -> None:
    """Text that can be encoded, within its bound."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise UsageError(f"{what}, {text!r}, holds half a character: write whole ones") from None
    if size > bytes_max:
        raise UsageError(f"{what} has at most {bytes_max} bytes, {text[:40]!r}... has {size}")


# Moments as JavaScript writes them: ISO 8601 in UTC with milliseconds, 2020-01-02T03:04:05.678Z.
#
# Descriptors hold milliseconds since 1970. Text and number must stand for each other one to one, or
# a descriptor would not come back as the bytes it was: so there is no other way to write a moment.


_EPOCH = datetime(1970, 1, 1)
_MS = timedelta(milliseconds=1)
_TEXT_CHARS = 24
MOMENTS_MAX = 4096  # an event's is written four times while it passes through

CREATED_MS_MIN = (datetime.min - _EPOCH) // _MS
CREATED_MS_MAX = (datetime.max - _EPOCH) // _MS


@lru_cache(maxsize=MOMENTS_MAX)
def show_moment(created_ms: int) -> str:
    """The moment as descriptors write it, within CREATED_MS_MIN and CREATED_MS_MAX."""
    return (_EPOCH + created_ms * _MS).isoformat(timespec="milliseconds") + "Z"


@lru_cache(maxsize=MOMENTS_MAX)
def parse_moment(text: str) -> int:
    """Milliseconds since 1970."""
    try:
        moment = datetime.fromisoformat(text[:-1]) if len(text) == _TEXT_CHARS else None
        if moment is not None and moment.isoformat(timespec="milliseconds") + "Z" == text:
            return (moment - _EPOCH) // _MS
    except ValueError:
        pass
    raise UsageError(f"{text[:_TEXT_CHARS]!r} is no moment: write 2020-01-02T03:04:05.678Z")


def is_chain(topic: TopicDescriptor) -> bool:
    """Whether each event of a topic follows the one before: one publisher gives them their place,
    behind the last one."""
    allowed, linking = topic.metadata.allowed_publishers, topic.metadata.event_linking
    return allowed.enabled and len(allowed.peers) == 1 and linking is EventLinking.LAST_SEEN


def may_publish(topic: TopicDescriptor, peer: bytes) -> bool:
    """Whether a peer may give events their place in a topic."""
    allowed = topic.metadata.allowed_publishers
    return not allowed.enabled or peer in allowed.peers


def may_request(topic: TopicDescriptor, peer: bytes) -> bool:
    """Whether a peer may have its events published by others."""
    requests: PeerList = topic.metadata.request_to_publish
    return requests.enabled and (not requests.peers or peer in requests.peers)


def is_allowed(topic: TopicDescriptor, event: EventDescriptor) -> bool:
    """Whether a published event may be part of a topic."""
    if event.publisher is None or not may_publish(topic, event.publisher):
        return False
    return event.publisher == event.author or may_request(topic, event.author)


def is_the_only_publishers(topic: TopicDescriptor, event: EventDescriptor) -> bool:
    """Whether an event was made and placed by the only one who publishes in a topic: whoever signs
    one that follows it has signed for all of it."""
    allowed = topic.metadata.allowed_publishers
    sole = allowed.enabled and allowed.peers == (event.publisher,)
    return sole and event.author == event.publisher
