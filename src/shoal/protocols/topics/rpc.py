"""The RPC: several messages in one frame, as protobuf (thesis, listing 3.3; decision 0012).

    RPC { repeated Message msgs = 1 }
    Message { op = 1; oneof payload { topic = 2; event = 3; topicId = 5 }; metadata = 6; ... }

Everything is validated here, before any handler sees it. A message may carry fields that we do not
know (a later version's), which are ignored; a payload that its op does not take is refused, and so
is whatever is unknown inside a descriptor. One bad message spoils its RPC: they came in one frame,
from one neighbour.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum

from shoal.base.errors import MalformedMessage, OversizedMessage, UsageError
from shoal.base.ids import node_id
from shoal.identity.topics.cid import Cid, cid_of_bytes
from shoal.identity.topics.dates import parse_moment
from shoal.kernel.contact import ADDRESS_CHARS_MAX, ADDRESSES_MAX, Contact
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
    Stamp,
    Want,
)
from shoal.protocols.topics.protobuf import (
    Reader,
    as_text,
    bytes_field,
    number_field,
    read_varint,
    text_field,
)
from shoal.protocols.topics.rpc_descriptors import (
    CREATED,
    VERSION,
    read_event,
    read_topic,
    write_event,
    write_stamp,
    write_topic,
)


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
