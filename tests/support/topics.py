"""Topics and events to test with: the original's vectors, signed examples, strategies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from shoal.base.ids import Contact
from shoal.identity import PrivateKey, SeededEntropy
from shoal.identity.topics.cid import Cid, cid_of
from shoal.identity.topics.descriptors import (
    CREATED_MS_MAX,
    CREATED_MS_MIN,
    SIGNATURE_BYTES,
    EventDescriptor,
    EventLinking,
    EventMetadata,
    PeerList,
    Signatures,
    TopicDescriptor,
    TopicMetadata,
)
from shoal.protocols.topics.messages import (
    Digest,
    Heads,
    JoinTopic,
    Lacks,
    LeaveTopic,
    Message,
    NewTopic,
    PublishAnswer,
    PublishEvent,
    Redirect,
    RequestToPublish,
    Stamp,
    Want,
)
from shoal.protocols.topics.messages import (
    Path as TreePath,
)
from tests.strategies import node_ids

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "golden" / "pulsarcast-vectors.json").read_text()
)
BLOCKS = {name: VECTORS[name] for name in ("meta", "topic", "eventUnpublished")}
RPCS: dict[str, str] = VECTORS["rpc"]

ONE = bytes.fromhex("1220" + "01" * 32)
TWO = bytes.fromhex("1220" + "02" * 32)
META_CID = Cid(bytes.fromhex(VECTORS["meta"]["cidBytes"]))
TOPIC_CID = Cid(bytes.fromhex(VECTORS["topic"]["cidBytes"]))
CREATED_MS = 1_577_934_245_678  # 2020-01-02T03:04:05.678Z

ALICE = PrivateKey.generate(SeededEntropy("alice"))
BOB = PrivateKey.generate(SeededEntropy("bob"))


def peer(key: PrivateKey) -> bytes:
    """The peer id of a key, as descriptors hold it."""
    return bytes(key.public.peer_id)


def event_of(author: PrivateKey, payload: bytes = b"hello") -> EventDescriptor:
    """An event that nobody has signed yet."""
    return EventDescriptor(TOPIC_CID, peer(author), payload, EventMetadata(CREATED_MS))


def flipped(raw: bytes, bit: int) -> bytes:
    """The bytes with one bit the other way round."""
    changed = bytearray(raw)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


# Strategies: anything within the bounds, small where size says nothing

cids = st.binary(max_size=8).map(cid_of)
peers = st.integers(1, 64).flatmap(
    lambda size: st.builds(
        lambda code, digest: bytes([code, size]) + digest,
        st.integers(0, 127),
        st.binary(min_size=size, max_size=size),
    )
)
names = st.text(max_size=40)
moments_ms = st.integers(CREATED_MS_MIN, CREATED_MS_MAX)
versions = st.just("/pulsarcast/1.0.0") | st.text(max_size=16)
_signature = st.binary(min_size=SIGNATURE_BYTES, max_size=SIGNATURE_BYTES)
peer_lists = st.builds(PeerList, st.booleans(), st.lists(peers, max_size=4).map(tuple))
topics = st.builds(
    TopicDescriptor,
    name=names,
    author=peers,
    metadata=st.builds(
        TopicMetadata,
        created_ms=moments_ms,
        allowed_publishers=peer_lists,
        request_to_publish=peer_lists,
        event_linking=st.sampled_from(EventLinking),
        protocol_version=versions,
        signatures=st.none() | st.builds(Signatures, _signature),
    ),
    parent=st.none() | cids,
    sub_topics=st.dictionaries(names, cids, max_size=5).map(lambda subs: tuple(subs.items())),
)
events = st.builds(
    EventDescriptor,
    topic=cids,
    author=peers,
    payload=st.binary(max_size=400),
    metadata=st.builds(
        EventMetadata,
        created_ms=moments_ms,
        protocol_version=versions,
        signatures=st.none() | st.builds(Signatures, _signature, st.none() | _signature),
    ),
    publisher=st.none() | peers,
    parent=st.none() | cids,
)
descriptors = topics | events

_stamps = st.builds(Stamp, moments_ms, versions)
_addresses = st.lists(st.text(max_size=30), max_size=3).map(tuple)
_contacts = st.builds(Contact, node_ids, _addresses)
_some_cids = st.lists(cids, max_size=4).map(tuple)
_numbers = st.integers(0, 2**64 - 1)
_spans = st.lists(st.tuples(_numbers, _numbers), max_size=4).map(tuple)
BY_MESSAGE: dict[type, st.SearchStrategy[Message]] = {
    PublishEvent: st.builds(PublishEvent, events, _stamps),
    JoinTopic: st.builds(JoinTopic, cids, _stamps, _addresses),
    LeaveTopic: st.builds(LeaveTopic, cids, _stamps),
    NewTopic: st.builds(NewTopic, topics, _stamps),
    RequestToPublish: st.builds(RequestToPublish, events, _stamps, st.none() | cids),
    Heads: st.builds(Heads, cids, _some_cids, _stamps),
    Redirect: st.builds(Redirect, cids, st.lists(_contacts, max_size=4).map(tuple), _stamps),
    PublishAnswer: st.builds(PublishAnswer, cids, cids, cids, _stamps)
    | st.builds(PublishAnswer, cids, cids, st.none(), _stamps, st.text(min_size=1, max_size=40)),
    TreePath: st.builds(TreePath, cids, st.lists(_contacts, max_size=4).map(tuple), _stamps),
    Want: st.builds(Want, cids, _some_cids, _stamps, _some_cids, _numbers),
    Lacks: st.builds(Lacks, cids, _some_cids, _stamps),
    Digest: st.builds(Digest, cids, _numbers, _spans, _stamps),
}
messages: st.SearchStrategy[Message] = st.one_of(*BY_MESSAGE.values())
