"""Head records: what a publisher says its topic ends with, signed and numbered, in the DHT.

A parent link tells what came before an event, never that another one follows. Neighbours tell each
other; where there are none, or they all lost the last event, the publisher's record tells.

If a topic names its publishers, each has a key of its own, where nobody else's record is valid:
others cannot crowd it out. Where anyone may publish, they share one.
"""

from __future__ import annotations

from hashlib import sha256

import msgspec

from shoal.base.errors import MalformedMessage
from shoal.base.ids import NodeId
from shoal.identity.topics.cid import Cid, cid_of, cid_of_bytes
from shoal.identity.topics.descriptors import TopicDescriptor
from shoal.identity.topics.signing import signer_of
from shoal.protocols.dht.checking import Judged
from shoal.protocols.dht.validators import Sign, judge_record, read_record, sign_record
from shoal.protocols.topics.config import HEADS_IN_RECORD, PUBLISHERS_ASKED

_DOMAIN = b"shoal/topics/heads\0"


class _Payload(msgspec.Struct, frozen=True, array_like=True, gc=False):
    topic: bytes
    heads: list[bytes]


_payloads = msgspec.msgpack.Decoder(_Payload)


def record_key(topic: Cid, publisher: NodeId | None) -> bytes:
    """Where a publisher's record is; None: all of them, where anyone publishes."""
    return sha256(_DOMAIN + topic + (publisher or b"")).digest()


def own_key(id: Cid, topic: TopicDescriptor, node: NodeId) -> bytes:
    """Where a publisher of this topic keeps its record."""
    return record_key(id, node if topic.metadata.allowed_publishers.enabled else None)


def keys_of(id: Cid, topic: TopicDescriptor) -> list[bytes]:
    """Where to look for records."""
    allowed = topic.metadata.allowed_publishers
    if not allowed.enabled:
        return [record_key(id, None)]
    keys: list[bytes] = []
    for peer in allowed.peers[:PUBLISHERS_ASKED]:
        try:
            keys.append(record_key(id, signer_of(peer)))
        except MalformedMessage:
            continue  # it cannot sign, so it has no record
    return keys


def make_record(
    id: Cid, topic: TopicDescriptor, node: NodeId, sign: Sign, number: int, heads: list[Cid]
) -> tuple[bytes, bytes]:
    """Key and value of a record, to be put."""
    key = own_key(id, topic, node)
    payload = msgspec.msgpack.encode(_Payload(id, list[bytes](heads[-HEADS_IN_RECORD:])))
    return key, sign_record(node, sign, key, number, payload)


def heads_of(value: bytes) -> tuple[NodeId | None, int, list[Cid]]:
    """Signer, number and heads of a record that the DHT has checked."""
    read = read_record(value)
    if read is None:
        return None, 0, []
    signer, body = read
    try:
        heads = _payloads.decode(body.payload).heads[:HEADS_IN_RECORD]
        return signer, body.number, [cid_of_bytes(raw) for raw in heads]
    except (msgspec.MsgspecError, MalformedMessage):
        return signer, body.number, []


def judge_topics(key: bytes, value: bytes) -> Judged | None:
    """The DHT's judge: blocks under their CIDs, and head records."""
    if cid_of(value) == key:
        return Judged()
    judged = judge_record(key, value)
    read = read_record(value)
    if judged is None or read is None or judged.signer is None:
        return None
    try:
        topic = Cid(_payloads.decode(read[1].payload).topic)
    except msgspec.MsgspecError:
        return None
    return judged if key in (record_key(topic, judged.signer), record_key(topic, None)) else None
