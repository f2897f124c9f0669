"""Head records: whose they are, where they lie, and what the DHT lets in."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.identity.topics.cid import Cid, cid_of
from shoal.identity.topics.descriptor_codec import encode_descriptor
from shoal.identity.topics.descriptors import ANYONE, PeerList, TopicDescriptor
from shoal.protocols.dht.validators import Judged, sign_record
from shoal.protocols.topics.config import HEADS_IN_RECORD, PUBLISHERS_ASKED
from shoal.protocols.topics.heads import (
    heads_of,
    judge_topics,
    keys_of,
    make_record,
    own_key,
    record_key,
)
from tests.support.topic_bench import contact_of, id_of, key_of, peer_of, topic_by

CLOSED = topic_by(0, publishers=PeerList(True, (peer_of(0), peer_of(1))))
OPEN = topic_by(0, publishers=ANYONE)
HEADS = [cid_of(b"%d" % n) for n in range(3)]


def record(topic: TopicDescriptor, number: int, heads: list[Cid]) -> tuple[bytes, bytes]:
    key = key_of(number)
    return make_record(id_of(topic), topic, key.address, key.sign, 7, heads)


def test_named_publishers_have_keys_of_their_own() -> None:
    id = id_of(CLOSED)
    first, second = contact_of(0).node, contact_of(1).node
    assert keys_of(id, CLOSED) == [record_key(id, first), record_key(id, second)]
    assert own_key(id, CLOSED, second) == record_key(id, second)
    assert record(CLOSED, 1, HEADS)[0] == record_key(id, second)


def test_where_anyone_publishes_they_share_one() -> None:
    id = id_of(OPEN)
    assert keys_of(id, OPEN) == [record_key(id, None)]
    assert own_key(id, OPEN, contact_of(4).node) == record_key(id, None)


def test_of_many_publishers_a_few_are_asked_and_only_those_with_keys() -> None:
    keyless = bytes.fromhex("1220" + "01" * 32)
    named = (keyless, *[peer_of(n) for n in range(PUBLISHERS_ASKED)])
    topic = topic_by(0, publishers=PeerList(True, named))
    assert len(keys_of(id_of(topic), topic)) == PUBLISHERS_ASKED - 1


def test_a_record_names_its_number_and_the_newest_heads() -> None:
    many = [cid_of(b"%d" % n) for n in range(HEADS_IN_RECORD + 5)]
    _, value = record(CLOSED, 0, many)
    signer = contact_of(0).node
    assert heads_of(value) == (signer, 7, many[-HEADS_IN_RECORD:])
    assert heads_of(record(CLOSED, 0, [])[1]) == (signer, 7, [])
    assert heads_of(b"nonsense") == (None, 0, [])


@pytest.mark.parametrize("topic", [CLOSED, OPEN], ids=["closed", "open"])
def test_the_dht_takes_a_record_where_it_belongs(topic: TopicDescriptor) -> None:
    key, value = record(topic, 1, HEADS)
    judged = judge_topics(key, value)
    assert judged is not None
    assert (judged.signer, judged.number) == (contact_of(1).node, 7)


def test_nobody_puts_a_record_at_the_key_of_another() -> None:
    id = id_of(CLOSED)
    key = record_key(id, contact_of(0).node)
    eve = key_of(4)
    payload_of_eve = record(CLOSED, 4, HEADS)[1]
    assert judge_topics(key, payload_of_eve) is None
    payload = msgspec.msgpack.encode((id, HEADS))
    own = record_key(id, eve.address)
    assert judge_topics(own, sign_record(eve.address, eve.sign, own, 9, payload)) is not None
    assert judge_topics(key, sign_record(eve.address, eve.sign, key, 9, payload)) is None
    other_topic = record(OPEN, 4, HEADS)
    assert judge_topics(record_key(id, eve.address), other_topic[1]) is None


def test_the_dht_takes_blocks_under_their_names() -> None:
    block = encode_descriptor(OPEN)
    assert judge_topics(id_of(OPEN), block) == Judged()
    assert judge_topics(id_of(CLOSED), block) is None
    assert judge_topics(b"", block) is None


@given(st.binary(max_size=120), st.binary(max_size=60))
def test_the_judge_never_raises(key: bytes, value: bytes) -> None:
    assert judge_topics(key, value) is None or cid_of(value) == key
    heads_of(value)


@given(st.binary(max_size=80))
def test_a_signed_payload_may_be_nonsense(payload: bytes) -> None:
    eve = key_of(4)
    key = record_key(id_of(OPEN), None)
    value = sign_record(eve.address, eve.sign, key, 3, payload)
    assert judge_topics(key, value) is None
    assert heads_of(value) == (eve.address, 3, [])
