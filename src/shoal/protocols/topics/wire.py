"""The RPC: several messages in one frame, as protobuf (thesis, listing 3.3; decision 0012).

    RPC { repeated Message msgs = 1 }
    Message { op = 1; oneof payload { topic = 2; event = 3; topicId = 5 }; metadata = 6; ... }

Everything is validated here, before any handler sees it. A message may carry fields that we do not
know (a later version's), which are ignored; a payload that its op does not take is refused, and so
is whatever is unknown inside a descriptor. One bad message spoils its RPC: they came in one frame,
from one neighbour.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from enum import IntEnum
from typing import Any

from shoal.base.errors import MalformedMessage, OversizedMessage, UsageError
from shoal.base.ids import ADDRESS_CHARS_MAX, ADDRESSES_MAX, Contact, node_id
from shoal.identity.topics.cid import CID_BYTES, Cid, cid_of_bytes
from shoal.identity.topics.descriptors import (
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
from shoal.kernel.machine import TOPICS
from shoal.protocols.topics.config import MESSAGES_MAX, RPC_BYTES_MAX, SPANS_MAX
from shoal.protocols.topics.messages import (
    Digest,
    Heads,
    JoinTopic,
    Lacks,
    LeaveTopic,
    Message,
    NewTopic,
    Path,
    PublishAnswer,
    PublishEvent,
    Redirect,
    RequestToPublish,
    Rpc,
    Stamp,
    Want,
)

# The part of protobuf's wire format that the RPC needs: varints and bytes behind field numbers.
#
# Written out because the protobuf package answers other questions: it reads a singular field twice
# and keeps the last, ignores unknown fields, takes any varint. Here every peer must see the same
# descriptor in the same bytes, or refuse them alike. And the original's schema has fields named `/`
# and `#`, which protoc does not compile.


_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}
_VARINT_BYTES_MAX = 10
_UINT64_MAX = 2**64 - 1

Fields = dict[int, list[int | bytes]]


# Writing


def varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first."""
    if number < 128:
        return bytes((number,))
    digits = bytearray()
    while number >= 128:
        digits.append(number & 127 | 128)
        number >>= 7
    digits.append(number)
    return bytes(digits)


def number_field(field: int, number: int) -> bytes:
    """A field that holds a number, an enum or a boolean; written even if it is zero."""
    return varint(field << 3 | _VARINT) + varint(number)


def bytes_field(field: int, value: bytes) -> bytes:
    """A field that holds bytes or a message; written even if it is empty."""
    return varint(field << 3 | _BYTES) + varint(len(value)) + value


def text_field(field: int, value: str) -> bytes:
    """A field that holds text."""
    return bytes_field(field, value.encode())


# Reading


def read_varint(raw: bytes, at: int) -> tuple[int, int]:
    """The number and where it ends; the shortest form only."""
    if at + 1 < len(raw):  # nearly all of them: one byte, or two for the length of an event
        low, high = raw[at], raw[at + 1]
        if low < 128:
            return low, at + 1
        if 0 < high < 128:
            return high << 7 | low & 127, at + 2
    number = shift = 0
    for end in range(at, min(at + _VARINT_BYTES_MAX, len(raw))):
        byte = raw[end]
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            if number > _UINT64_MAX or (byte == 0 and end > at):
                break
            return number, end + 1
    raise MalformedMessage(f"byte {at} begins no varint, or one that could be shorter")


def read_fields(raw: bytes) -> Fields:
    """All fields of a message by number, each with all its values."""
    fields: Fields = {}
    at, size = 0, len(raw)
    while at < size:
        tag = raw[at]
        # Nearly all tags and lengths are one byte: a call for each would be half of the work.
        if tag < 128:
            at += 1
        else:
            tag, at = read_varint(raw, at)
        value: int | bytes
        if tag & 7 == _BYTES and at < size and raw[at] < 128 and at + raw[at] < size:
            end = at + 1 + raw[at]
            value, at = raw[at + 1 : end], end
        else:
            value, at = _read_value(raw, at, tag & 7)
        known = fields.get(tag >> 3)
        if known is None:
            fields[tag >> 3] = [value]
        else:
            known.append(value)
    if 0 in fields:
        raise MalformedMessage("a field has the number 0: they begin at 1")
    return fields


def _read_value(raw: bytes, at: int, kind: int) -> tuple[int | bytes, int]:
    if kind == _VARINT:
        return read_varint(raw, at)
    size: int | None
    size, at = read_varint(raw, at) if kind == _BYTES else (_FIXED_BYTES.get(kind), at)
    if size is None:
        raise MalformedMessage(f"byte {at}: protobuf fields of kind {kind} are not read here")
    if at + size > len(raw):
        raise MalformedMessage(f"byte {at}: {size} bytes are announced, {len(raw) - at} are there")
    return raw[at : at + size], at + size


class Reader:
    """One message from a peer, taken apart field by field."""

    __slots__ = ("_fields", "_what")

    def __init__(self, what: str, raw: bytes, known: Collection[int] | None = None) -> None:
        """Take the message apart; with `known` given, refuse every other field."""
        self._what = what
        self._fields = read_fields(raw)
        if known is not None:
            for field in self._fields:
                if field not in known:
                    raise MalformedMessage(f"{what} has no field {field}")

    def fields(self) -> Collection[int]:
        """Which fields are there."""
        return self._fields.keys()

    def has(self, field: int) -> bool:
        """Whether the field is there."""
        return field in self._fields

    def number(self, field: int) -> int:
        """A number that must be there, once."""
        values = self._fields.get(field, ())
        if len(values) == 1 and isinstance(values[0], int):
            return values[0]
        raise self._wrong(field, len(values), "a number")

    def flag(self, field: int) -> bool:
        """A boolean that must be there, once."""
        value = self.number(field)
        if value > 1:
            raise MalformedMessage(f"{self._what}: field {field} is 0 or 1, not {value}")
        return bool(value)

    def blob(self, field: int) -> bytes:
        """Bytes that must be there, once."""
        values = self._fields.get(field, ())
        if len(values) == 1 and isinstance(values[0], bytes):
            return values[0]
        raise self._wrong(field, len(values), "bytes")

    def text(self, field: int) -> str:
        """Text that must be there, once."""
        return as_text(self.blob(field))

    def several(self, field: int) -> list[bytes]:
        """Bytes that may be there any number of times."""
        values = self._fields.get(field, [])
        found = [value for value in values if isinstance(value, bytes)]
        if len(found) < len(values):
            raise self._wrong(field, 1, "bytes")
        return found

    def _wrong(self, field: int, times: int, kind: str) -> MalformedMessage:
        if times != 1:
            return MalformedMessage(f"{self._what} has field {field} once, not {times} times")
        return MalformedMessage(f"{self._what}: field {field} is {kind}")


def as_text(raw: bytes) -> str:
    """Text from a peer."""
    try:
        return str(raw, "utf-8")
    except UnicodeDecodeError as error:
        raise MalformedMessage(f"text is no UTF-8: {error}") from None


# Descriptors inside the RPC: protobuf, as listings 3.4 and 3.5 of the thesis have them.
#
# Decision 0012 says where the numbers come from. Every field of a descriptor is written, and none
# that is unknown is read: what one side dropped, the other side's CID would miss.


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


class Op(IntEnum):
    """What a message asks for. Up to 15 they are the original's, from 16 on ours; 0 (PING) and
    1 (UPDATE) are reserved: the original has them and never says them."""

    PUBLISH_EVENT = 2
    JOIN_TOPIC = 3
    LEAVE_TOPIC = 4
    NEW_TOPIC = 5
    REQUEST_TO_PUBLISH = 6
    HEADS = 16
    REDIRECT = 17
    PUBLISH_ANSWER = 18
    PATH = 19
    WANT = 20
    LACKS = 21
    DIGEST = 22


OPS: dict[type, Op] = {
    PublishEvent: Op.PUBLISH_EVENT,
    JoinTopic: Op.JOIN_TOPIC,
    LeaveTopic: Op.LEAVE_TOPIC,
    NewTopic: Op.NEW_TOPIC,
    RequestToPublish: Op.REQUEST_TO_PUBLISH,
    Heads: Op.HEADS,
    Redirect: Op.REDIRECT,
    PublishAnswer: Op.PUBLISH_ANSWER,
    Path: Op.PATH,
    Want: Op.WANT,
    Lacks: Op.LACKS,
    Digest: Op.DIGEST,
}

_MSGS = 1
_OP, _TOPIC, _EVENT, _PEER_TREE, _TOPIC_ID, _METADATA = 1, 2, 3, 4, 5, 6
_PARENT, _HEADS, _CONTACTS, _ANSWER = 16, 17, 18, 19
_ADDRESSES, _KNOWN, _SPANS, _BEHIND = 20, 21, 22, 23
_PAYLOADS = frozenset(
    (
        *(_TOPIC, _EVENT, _PEER_TREE, _TOPIC_ID),
        *(_PARENT, _HEADS, _CONTACTS, _ANSWER, _ADDRESSES, _KNOWN, _SPANS, _BEHIND),
    )
)
_CONTACT_NODE, _CONTACT_ADDRESSES = 1, 2
_ANSWER_CORE, _ANSWER_EVENT, _ANSWER_REASON = 1, 2, 3
_SPAN_NUMBER_BYTES = 8


# Whole RPCs


def encode_rpc(messages: Sequence[Message]) -> bytes:
    """The bytes of one RPC, without its length; UsageError for more than a peer would read."""
    rpc = b"".join([bytes_field(_MSGS, _write_message(message)) for message in messages])
    if not 0 < len(messages) <= MESSAGES_MAX or len(rpc) > RPC_BYTES_MAX:
        raise UsageError(
            f"an RPC has 1 to {MESSAGES_MAX} messages and at most {RPC_BYTES_MAX} bytes,"
            f" this {len(messages)} and {len(rpc)}: send several"
        )
    return rpc


def decode_rpc(raw: bytes) -> tuple[Message, ...]:
    """The messages of one RPC; MalformedMessage or OversizedMessage, never another exception."""
    if len(raw) > RPC_BYTES_MAX:
        raise OversizedMessage(f"an RPC has at most {RPC_BYTES_MAX} bytes, this has {len(raw)}")
    messages = Reader("an RPC", raw).several(_MSGS)
    if not 0 < len(messages) <= MESSAGES_MAX:
        raise MalformedMessage(f"an RPC has 1 to {MESSAGES_MAX} messages, this {len(messages)}")
    try:
        return tuple([_read_message(message) for message in messages])
    except UsageError as error:
        raise MalformedMessage(str(error)) from None


def strip_length(frame: bytes) -> bytes:
    """The RPC behind its length, a varint, as in a byte stream; MalformedMessage unless the frame
    is exactly that."""
    size, start = read_varint(frame, 0)
    if size != len(frame) - start:
        raise MalformedMessage(f"an RPC of {size} bytes is announced, {len(frame) - start} follow")
    return frame[start:]


# Writing


def _write_message(message: Message) -> bytes:
    # By number, as the original writes them: our own fields, from 16 on, come after the metadata.
    payload, ours = _write_payload(message)
    stamp = write_stamp(message.stamp.created_ms, message.stamp.protocol_version)
    return number_field(_OP, OPS[type(message)]) + payload + bytes_field(_METADATA, stamp) + ours


def _write_payload(message: Message) -> tuple[bytes, bytes]:
    match message:
        case PublishEvent(event):
            return bytes_field(_EVENT, write_event(event)), b""
        case JoinTopic(topic):
            addresses = b"".join(text_field(_ADDRESSES, text) for text in message.addresses)
            return bytes_field(_TOPIC_ID, topic), addresses
        case LeaveTopic(topic):
            return bytes_field(_TOPIC_ID, topic), b""
        case NewTopic(descriptor):
            return bytes_field(_TOPIC, write_topic(descriptor)), b""
        case RequestToPublish(event):
            parent = b"" if message.parent is None else bytes_field(_PARENT, message.parent)
            return bytes_field(_EVENT, write_event(event)), parent
        case Heads(topic, events) | Lacks(topic, events):
            return bytes_field(_TOPIC_ID, topic), _write_cids(_HEADS, events)
        case Want(topic, events):
            wanted = _write_cids(_HEADS, events) + _write_cids(_KNOWN, message.known)
            return bytes_field(_TOPIC_ID, topic), wanted + number_field(_BEHIND, message.behind)
        case Digest(topic):
            return bytes_field(_TOPIC_ID, topic), bytes_field(_SPANS, _write_spans(message))
        case Redirect(topic, contacts) | Path(topic, contacts):
            listed = b"".join(bytes_field(_CONTACTS, _write_contact(c)) for c in contacts)
            return bytes_field(_TOPIC_ID, topic), listed
        case PublishAnswer(topic):
            answer = bytes_field(_ANSWER, _write_answer(message))
            return bytes_field(_TOPIC_ID, topic), answer


def _write_cids(field: int, cids: Sequence[Cid]) -> bytes:
    return b"".join([bytes_field(field, cid) for cid in cids])


def _write_spans(digest: Digest) -> bytes:
    """The floor, then begin and digest of each span: 8 bytes each."""
    numbers = [digest.floor_ms, *[number for span in digest.spans for number in span]]
    return b"".join([number.to_bytes(_SPAN_NUMBER_BYTES) for number in numbers])


def _write_contact(contact: Contact) -> bytes:
    addresses = b"".join(text_field(_CONTACT_ADDRESSES, text) for text in contact.addresses)
    return bytes_field(_CONTACT_NODE, contact.node) + addresses


def _write_answer(answer: PublishAnswer) -> bytes:
    core = bytes_field(_ANSWER_CORE, answer.core)
    if answer.event is None:
        return core + text_field(_ANSWER_REASON, answer.reason)
    return core + bytes_field(_ANSWER_EVENT, answer.event)


# Reading


def _read_message(raw: bytes) -> Message:
    message = Reader("a message", raw)
    op = message.number(_OP)
    if op not in _READERS:
        known = ", ".join(f"{each.name} {each.value}" for each in Op)
        raise MalformedMessage(f"op {op} is reserved or unknown: {known} are read")
    taken, read = _READERS[op]
    for field in message.fields():
        if field in _PAYLOADS and field not in taken:
            raise MalformedMessage(f"{Op(op).name} takes no field {field}")
    metadata = Reader("a message's metadata", message.blob(_METADATA))
    stamp = Stamp(parse_moment(metadata.text(CREATED)), metadata.text(VERSION))
    return read(message, stamp)


def _topic_id(message: Reader) -> Cid:
    return cid_of_bytes(message.blob(_TOPIC_ID))


def _read_publish(message: Reader, stamp: Stamp) -> Message:
    return PublishEvent(read_event(message.blob(_EVENT)), stamp)


def _read_join(message: Reader, stamp: Stamp) -> Message:
    return JoinTopic(_topic_id(message), stamp, _read_addresses(message, _ADDRESSES))


def _read_leave(message: Reader, stamp: Stamp) -> Message:
    return LeaveTopic(_topic_id(message), stamp)


def _read_new_topic(message: Reader, stamp: Stamp) -> Message:
    return NewTopic(read_topic(message.blob(_TOPIC)), stamp)


def _read_request(message: Reader, stamp: Stamp) -> Message:
    parent = cid_of_bytes(message.blob(_PARENT)) if message.has(_PARENT) else None
    return RequestToPublish(read_event(message.blob(_EVENT)), stamp, parent)


def _read_cids(message: Reader, field: int) -> tuple[Cid, ...]:
    return tuple([cid_of_bytes(raw) for raw in message.several(field)])


def _read_heads(message: Reader, stamp: Stamp) -> Message:
    return Heads(_topic_id(message), _read_cids(message, _HEADS), stamp)


def _read_want(message: Reader, stamp: Stamp) -> Message:
    wanted, known = _read_cids(message, _HEADS), _read_cids(message, _KNOWN)
    return Want(_topic_id(message), wanted, stamp, known, message.number(_BEHIND))


def _read_lacks(message: Reader, stamp: Stamp) -> Message:
    return Lacks(_topic_id(message), _read_cids(message, _HEADS), stamp)


def _read_digest(message: Reader, stamp: Stamp) -> Message:
    raw, size = message.blob(_SPANS), _SPAN_NUMBER_BYTES
    if len(raw) % (2 * size) != size or len(raw) > size * (1 + 2 * SPANS_MAX):
        raise MalformedMessage(f"a digest is a floor and up to {SPANS_MAX} spans, not {len(raw)} B")
    numbers = [int.from_bytes(raw[at : at + size]) for at in range(0, len(raw), size)]
    spans = tuple(zip(numbers[1::2], numbers[2::2], strict=True))
    return Digest(_topic_id(message), numbers[0], spans, stamp)


def _read_redirect(message: Reader, stamp: Stamp) -> Message:
    return Redirect(_topic_id(message), _read_contacts(message), stamp)


def _read_path(message: Reader, stamp: Stamp) -> Message:
    return Path(_topic_id(message), _read_contacts(message), stamp)


def _read_contacts(message: Reader) -> tuple[Contact, ...]:
    return tuple([_read_contact(raw) for raw in message.several(_CONTACTS)])


def _read_contact(raw: bytes) -> Contact:
    contact = Reader("a contact", raw)
    addresses = _read_addresses(contact, _CONTACT_ADDRESSES)
    return Contact(node_id(contact.blob(_CONTACT_NODE)), addresses)


def _read_addresses(message: Reader, field: int) -> tuple[str, ...]:
    addresses = tuple([as_text(text) for text in message.several(field)])
    if len(addresses) > ADDRESSES_MAX or any(len(text) > ADDRESS_CHARS_MAX for text in addresses):
        raise MalformedMessage(
            f"a node has {ADDRESSES_MAX} addresses of {ADDRESS_CHARS_MAX} characters at most"
        )
    return addresses


def _read_answer(message: Reader, stamp: Stamp) -> Message:
    answer = Reader("an answer", message.blob(_ANSWER))
    return PublishAnswer(
        topic=_topic_id(message),
        core=cid_of_bytes(answer.blob(_ANSWER_CORE)),
        event=cid_of_bytes(answer.blob(_ANSWER_EVENT)) if answer.has(_ANSWER_EVENT) else None,
        stamp=stamp,
        reason=answer.text(_ANSWER_REASON) if answer.has(_ANSWER_REASON) else "",
    )


# By op: the payload fields that it takes, and who reads them.
_READERS: dict[int, tuple[tuple[int, ...], Callable[[Reader, Stamp], Message]]] = {
    Op.PUBLISH_EVENT: ((_EVENT,), _read_publish),
    Op.JOIN_TOPIC: ((_TOPIC_ID, _ADDRESSES), _read_join),
    Op.LEAVE_TOPIC: ((_TOPIC_ID,), _read_leave),
    Op.NEW_TOPIC: ((_TOPIC,), _read_new_topic),
    Op.REQUEST_TO_PUBLISH: ((_EVENT, _PARENT), _read_request),
    Op.HEADS: ((_TOPIC_ID, _HEADS), _read_heads),
    Op.REDIRECT: ((_TOPIC_ID, _CONTACTS), _read_redirect),
    Op.PUBLISH_ANSWER: ((_TOPIC_ID, _ANSWER), _read_answer),
    Op.PATH: ((_TOPIC_ID, _CONTACTS), _read_path),
    Op.WANT: ((_TOPIC_ID, _HEADS, _KNOWN, _BEHIND), _read_want),
    Op.LACKS: ((_TOPIC_ID, _HEADS), _read_lacks),
    Op.DIGEST: ((_TOPIC_ID, _SPANS), _read_digest),
}

# The codec port of topics: one frame is one RPC.


class TopicsCodec:
    """Encodes trusted messages, decodes untrusted bytes."""

    number = TOPICS
    messages: tuple[type, ...] = (Rpc,)

    def encode(self, message: Any) -> bytes:
        """The bytes of one RPC."""
        return encode_rpc(message.messages)

    def decode(self, frame: bytes) -> Rpc:
        """The RPC, or a RemoteError."""
        return Rpc(decode_rpc(frame))
