"""The RPC: the original's vectors, golden bytes of our own, and what no handler ever sees."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path as FilePath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.errors import MalformedMessage, OversizedMessage, UsageError
from shoal.base.ids import Contact, NodeId
from shoal.identity.topics.cid import PAYLOAD_BYTES_MAX, cid_of
from shoal.identity.topics.descriptor_codec import decode_descriptor, descriptor_cid
from shoal.identity.topics.descriptors import (
    Descriptor,
    EventDescriptor,
    EventMetadata,
    TopicDescriptor,
    new_topic,
)
from shoal.identity.topics.event_signatures import (
    publish_event,
    sign_event,
    sign_topic,
    signatures_hold,
)
from shoal.protocols.topics.config import (
    CONTACTS_MAX,
    HEADS_MAX,
    MESSAGES_MAX,
    PATH_MAX,
    RPC_BYTES_MAX,
    SPANS_MAX,
)
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
from shoal.protocols.topics.wire import OPS, Op, decode_rpc, encode_rpc, strip_length, varint
from tests.support.topics import (
    ALICE,
    BLOCKS,
    BOB,
    BY_MESSAGE,
    CREATED_MS,
    META_CID,
    ONE,
    RPCS,
    TOPIC_CID,
    TWO,
    descriptors,
    event_of,
    flipped,
    messages,
    peer,
)

GOLDEN = FilePath(__file__).parents[2] / "golden" / "topics-messages-v1.json"
STAMP = Stamp(1_577_934_249_000)
PARENT = cid_of(b"the event before")

# What the vectors say, in our own words: the parent is the vector's event, published by ONE.
FIRST = EventDescriptor(TOPIC_CID, TWO, b"hello", EventMetadata(1_577_934_247_000), publisher=ONE)
MEANT: dict[str, Message] = {
    "join": JoinTopic(TOPIC_CID, STAMP),
    "publish": PublishEvent(
        EventDescriptor(
            topic=TOPIC_CID,
            author=TWO,
            payload=b"\x00\xff",
            metadata=EventMetadata(1_577_934_248_000),
            publisher=ONE,
            parent=descriptor_cid(FIRST),
        ),
        STAMP,
    ),
}
REQUESTED = sign_event(event_of(ALICE), ALICE)
TOPIC = sign_topic(
    new_topic(
        "straße",
        peer(ALICE),
        CREATED_MS,
        meta=META_CID,
        parent=TOPIC_CID,
        sub_topics=(("a", TOPIC_CID),),
    ),
    ALICE,
)
ABOVE = (Contact(ALICE.address, ("ws://a:1", "ws://b:2")), Contact(BOB.address))
EXAMPLES: dict[str, Message] = {
    "publish-event": PublishEvent(publish_event(REQUESTED, BOB, PARENT), STAMP),
    "publish-first-event": PublishEvent(publish_event(REQUESTED, ALICE, None), STAMP),
    "join-topic": JoinTopic(TOPIC_CID, Stamp(CREATED_MS, "/pulsarcast/1.0.1")),
    "leave-topic": LeaveTopic(TOPIC_CID, STAMP),
    "new-topic": NewTopic(TOPIC, STAMP),
    "request-to-publish": RequestToPublish(REQUESTED, STAMP),
    "request-to-publish-after": RequestToPublish(REQUESTED, STAMP, PARENT),
    "heads": Heads(TOPIC_CID, (PARENT, META_CID), STAMP),
    "no-heads": Heads(TOPIC_CID, (), STAMP),
    "redirect": Redirect(TOPIC_CID, ABOVE, STAMP),
    "publish-answer": PublishAnswer(TOPIC_CID, META_CID, PARENT, STAMP),
    "publish-refusal": PublishAnswer(TOPIC_CID, META_CID, None, STAMP, "over quota"),
    "join-topic-with-addresses": JoinTopic(TOPIC_CID, STAMP, ("ws://a:1", "wss://straße:2")),
    "path": Path(TOPIC_CID, ABOVE, STAMP),
    "want": Want(TOPIC_CID, (PARENT, META_CID), STAMP),
    "want-back-to": Want(TOPIC_CID, (PARENT,), STAMP, (META_CID, TOPIC_CID), 64),
    "lacks": Lacks(TOPIC_CID, (PARENT, META_CID), STAMP),
    "digest": Digest(TOPIC_CID, 60_000, ((120_000, 1), (180_000, 2**64 - 1)), STAMP),
    "digest-of-nothing": Digest(TOPIC_CID, 0, (), STAMP),
}


# Round trips and golden bytes


@pytest.mark.parametrize("name", RPCS)
def test_the_originals_bytes(name: str) -> None:
    raw = bytes.fromhex(RPCS[name])
    assert decode_rpc(raw) == (MEANT[name],)
    assert encode_rpc([MEANT[name]]).hex() == RPCS[name]


@pytest.mark.parametrize("kind", OPS, ids=lambda kind: kind.__name__)
def test_every_message_comes_back(kind: type) -> None:
    @given(BY_MESSAGE[kind])
    def round_trip(message: Message) -> None:
        assert decode_rpc(encode_rpc([message])) == (message,)

    round_trip()


@given(st.lists(messages, min_size=1, max_size=4))
def test_many_messages_keep_their_order(several: list[Message]) -> None:
    assert decode_rpc(encode_rpc(several)) == tuple(several)


@given(descriptors)
def test_a_cid_survives_the_wire(descriptor: Descriptor) -> None:
    if isinstance(descriptor, TopicDescriptor):
        (topic,) = decode_rpc(encode_rpc([NewTopic(descriptor, STAMP)]))
        assert isinstance(topic, NewTopic)
        assert descriptor_cid(topic.topic) == descriptor_cid(descriptor)
    else:
        (event,) = decode_rpc(encode_rpc([PublishEvent(descriptor, STAMP)]))
        assert isinstance(event, PublishEvent)
        assert descriptor_cid(event.event) == descriptor_cid(descriptor)


@pytest.mark.parametrize("name", BLOCKS)
def test_the_originals_descriptors_survive_the_wire(name: str) -> None:
    descriptor = decode_descriptor(bytes.fromhex(BLOCKS[name]["cbor"]))
    sent: Message
    if isinstance(descriptor, TopicDescriptor):
        sent = NewTopic(descriptor, STAMP)
    else:
        sent = RequestToPublish(descriptor, STAMP)
    assert decode_rpc(encode_rpc([sent])) == (sent,)


def test_every_message_has_a_golden_encoding() -> None:
    assert {type(message) for message in EXAMPLES.values()} == set(OPS)
    assert set(golden()) == set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_message_is_the_bytes_it_always_was(name: str) -> None:
    assert encode_rpc([EXAMPLES[name]]).hex() == golden()[name]
    assert decode_rpc(bytes.fromhex(golden()[name])) == (EXAMPLES[name],)


def golden() -> dict[str, str]:
    text: dict[str, str] = json.loads(GOLDEN.read_text())
    return text


def test_the_originals_numbers_stay_free() -> None:
    assert {0, 1}.isdisjoint(set(Op))
    assert {op for op in Op if op < 16} == {2, 3, 4, 5, 6}
    assert sorted(OPS.values()) == sorted(Op)


# Lengths and changes on the way


@given(st.lists(messages, min_size=1, max_size=2))
def test_a_length_in_front_goes_off(several: list[Message]) -> None:
    rpc = encode_rpc(several)
    assert strip_length(varint(len(rpc)) + rpc) == rpc


@pytest.mark.parametrize("text", ["", "02ff", "00ff", "80", "8100ff"])
def test_a_wrong_length_is_refused(text: str) -> None:
    with pytest.raises(MalformedMessage):
        strip_length(bytes.fromhex(text))


@pytest.mark.parametrize("name", ["publish-event", "publish-first-event", "new-topic"])
def test_a_flipped_bit_never_gives_another_signed_descriptor(name: str) -> None:
    sent = EXAMPLES[name]
    raw = encode_rpc([sent])
    for bit in range(len(raw) * 8):
        with suppress(MalformedMessage):
            for read in decode_rpc(flipped(raw, bit)):
                descriptor = carried(read)
                # The message around a descriptor is nobody's signature's business.
                assert descriptor in (None, carried(sent)) or not signatures_hold(descriptor)


def carried(message: Message) -> Descriptor | None:
    match message:
        case PublishEvent(event) | RequestToPublish(event):
            return event
        case NewTopic(topic):
            return topic
    return None


# Sizes


def test_an_rpc_has_bounds_for_both_sides() -> None:
    many = [JoinTopic(TOPIC_CID, STAMP)] * MESSAGES_MAX
    assert len(decode_rpc(encode_rpc(many))) == MESSAGES_MAX
    for wrong in ([], many + many[:1]):
        with pytest.raises(UsageError, match="send several"):
            encode_rpc(wrong)
        with pytest.raises(MalformedMessage, match="1 to 256 messages"):
            decode_rpc(encode_rpc(many[:1]) * len(wrong))
    with pytest.raises(OversizedMessage):
        decode_rpc(bytes(RPC_BYTES_MAX + 1))


def test_the_largest_event_fits_and_two_do_not() -> None:
    event = sign_event(event_of(ALICE, bytes(PAYLOAD_BYTES_MAX)), ALICE)
    message = PublishEvent(publish_event(event, BOB, PARENT), STAMP)
    assert decode_rpc(encode_rpc([message])) == (message,)
    with pytest.raises(UsageError, match="send several"):
        encode_rpc([message, message])


def test_the_largest_of_ours_cannot_be_built_larger() -> None:
    node = Contact(NodeId(bytes(20)))
    assert Heads(TOPIC_CID, (PARENT,) * HEADS_MAX, STAMP)
    assert Redirect(TOPIC_CID, (node,) * CONTACTS_MAX, STAMP)
    assert Path(TOPIC_CID, (node,) * PATH_MAX, STAMP)
    assert Want(TOPIC_CID, (PARENT,) * HEADS_MAX, STAMP, (PARENT,) * HEADS_MAX)
    assert Lacks(TOPIC_CID, (PARENT,) * HEADS_MAX, STAMP)
    assert Digest(TOPIC_CID, 0, ((0, 0),) * SPANS_MAX, STAMP)
    too_large: tuple[Callable[[], Message], ...] = (
        lambda: Heads(TOPIC_CID, (PARENT,) * (HEADS_MAX + 1), STAMP),
        lambda: Redirect(TOPIC_CID, (node,) * (CONTACTS_MAX + 1), STAMP),
        lambda: Path(TOPIC_CID, (node,) * (PATH_MAX + 1), STAMP),
        lambda: Want(TOPIC_CID, (PARENT,) * (HEADS_MAX + 1), STAMP),
        lambda: Want(TOPIC_CID, (), STAMP, (PARENT,) * (HEADS_MAX + 1)),
        lambda: Lacks(TOPIC_CID, (PARENT,) * (HEADS_MAX + 1), STAMP),
        lambda: Digest(TOPIC_CID, 0, ((0, 0),) * (SPANS_MAX + 1), STAMP),
    )
    for make in too_large:
        with pytest.raises(UsageError, match="send several"):
            make()
    with pytest.raises(UsageError, match="at most 256 bytes"):
        PublishAnswer(TOPIC_CID, PARENT, None, STAMP, "é" * 129)
