"""Anti-entropy of topics: storage nodes copy each other's events and logs, and believe no event."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from shoal.base.ids import NodeId, StreamId
from shoal.base.units import S_NS
from shoal.identity import PrivateKey, SeededEntropy, verify_signed
from shoal.identity.topics.cid import Cid, cid_of, show_cid
from shoal.identity.topics.descriptor_codec import encode_descriptor
from shoal.identity.topics.descriptors import (
    EventDescriptor,
    EventMetadata,
    PeerList,
    is_allowed,
    new_topic,
)
from shoal.identity.topics.event_signatures import publish_event, sign_event, sign_topic
from shoal.protocols.streams.config import SyncConfig
from shoal.protocols.streams.history.anti_entropy import FollowStream
from shoal.protocols.streams.history.log_entries import event_message
from shoal.protocols.streams.history.log_follower import body_digest
from shoal.protocols.streams.history.messages import (
    SYNC_QUESTIONS,
    AskHeads,
    SeqMessage,
    TellMessages,
    TellRows,
)
from tests.support.storage_host import StorageHost
from tests.support.streams import NOW_NS
from tests.support.topics import ALICE, BOB, CREATED_MS, META_CID, peer

EVE = PrivateKey.generate(SeededEntropy("eve"))
TOPIC = sign_topic(
    new_topic(
        "delays",
        peer(ALICE),
        CREATED_MS,
        meta=META_CID,
        publishers=PeerList(True, (peer(ALICE), peer(BOB))),
    ),
    ALICE,
)
CID = cid_of(encode_descriptor(TOPIC))
TOPIC_ID = StreamId(show_cid(CID))
A, B = NodeId(b"a" * 20), NodeId(b"b" * 20)

Lie = Callable[[Any], Any]


def event(
    payload: bytes,
    author: PrivateKey = ALICE,
    publisher: PrivateKey = ALICE,
    topic: Cid = CID,
    parent: Cid | None = None,
) -> EventDescriptor:
    unsigned = EventDescriptor(topic, peer(author), payload, EventMetadata(CREATED_MS))
    return publish_event(sign_event(unsigned, author), publisher, parent)


class Pair:
    """Two storage nodes of one topic; what A says may be changed on the way."""

    def __init__(self, folder: Path) -> None:
        self.hosts = {
            name: StorageHost(
                name,
                folder / name.hex(),
                peers=(A, B),
                permits=lambda one: one.topic == CID and is_allowed(TOPIC, one),
                signed=lambda effect: verify_signed(effect.signer, effect.signed),
            )
            for name in (A, B)
        }
        self.lie: Lie = lambda said: said

    def follow(self, *names: NodeId) -> None:
        for name in names:
            self.hosts[name].command(self.hosts[name].sync, FollowStream(TOPIC_ID))

    def connect(self) -> None:
        self.hosts[A].link_opened(B)
        self.hosts[B].link_opened(A)

    def append(self, name: NodeId, *events: EventDescriptor) -> None:
        rows = [event_message(one, encode_descriptor(one)) for one in events]
        self.hosts[name].store_below.append(rows, NOW_NS)

    def run(self, seconds: int = 10) -> list[Any]:
        """Let time pass; what B has asked meanwhile."""
        asked: list[Any] = []
        for _ in range(seconds * 4):
            for host in self.hosts.values():
                host.advance(S_NS // 4)
            while self._exchange(asked):
                pass
        return asked

    def _exchange(self, asked: list[Any]) -> bool:
        moved = False
        for name, other in ((A, B), (B, A)):
            self.hosts[name].finish_all()
            for said in self.hosts[name].said(other):
                moved = True
                if name == B and isinstance(said, SYNC_QUESTIONS):
                    asked.append(said)
                self.hosts[other].received(name, self.lie(said) if name == A else said)
        return moved

    def blocks(self, at: NodeId, owner: NodeId) -> list[bytes]:
        """The log of a node as another one has it."""
        store, log = self.hosts[at].store_below, self.hosts[owner].store_below.log
        if log not in store.heads(TOPIC_ID, 0):
            return []
        return [row.signed for row in store.log_read(log, TOPIC_ID, 0, 0, 1000).rows]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path)
    yield pair
    for host in pair.hosts.values():
        host.store_below.check_invariants()
        host.sync.check_invariants()
        host.close()


def test_each_gets_what_the_other_has_and_its_log_too(pair: Pair) -> None:
    one, two, three = (event(payload) for payload in (b"1", b"2", b"3"))
    blocks = [encode_descriptor(event) for event in (one, two, three)]
    pair.append(A, one, two)
    pair.append(B, three, one)
    pair.follow(A, B)
    pair.connect()
    pair.run()
    for owner, other in ((A, B), (B, A)):
        assert pair.blocks(other, owner) == pair.blocks(owner, owner)
        assert sorted(pair.blocks(owner, owner)) == sorted(blocks)
    assert not pair.hosts[A].reasons() + pair.hosts[B].reasons()


def test_an_event_that_two_have_published_is_one_row(pair: Pair) -> None:
    """Its publishers gave it two parents, and so two CIDs."""
    first = event(b"1", author=EVE, publisher=ALICE)
    second = event(b"1", author=EVE, publisher=BOB, parent=cid_of(b"before"))
    pair.append(A, first)
    pair.append(B, second)
    pair.follow(A, B)
    pair.connect()
    pair.run()
    assert pair.blocks(A, A) == pair.blocks(B, A) == [encode_descriptor(first)]
    assert pair.blocks(B, B) == pair.blocks(A, B) == [encode_descriptor(second)]
    a, b = pair.hosts[A].store_below, pair.hosts[B].store_below
    page = b.log_read(b.log, TOPIC_ID, 0, 0, 10, {a.log: 1})
    assert (page.rows, page.through) == ([], 1), "who has read it along A is not given it again"


GOOD = event(b"1")


def unsigned() -> bytes:
    """One bit of its signature is another."""
    block = bytearray(encode_descriptor(GOOD))
    assert GOOD.metadata.signatures is not None
    assert GOOD.metadata.signatures.publisher is not None
    block[block.index(GOOD.metadata.signatures.publisher) + 5] ^= 1
    return bytes(block)


@pytest.mark.parametrize(
    ("reason", "lie"),
    [
        ("bad-signature", unsigned()),
        ("not-allowed", encode_descriptor(event(b"1", publisher=EVE))),
        ("malformed-body", encode_descriptor(event(b"1", topic=cid_of(b"another")))),
        ("malformed-body", encode_descriptor(sign_event(GOOD, ALICE))),
        ("another-message", encode_descriptor(event(b"2"))),
    ],
)
def test_nothing_is_believed_of_events(pair: Pair, reason: str, lie: bytes) -> None:
    def change(said: Any) -> Any:
        if isinstance(said, TellRows):
            rows = tuple([replace(row, digest=body_digest(lie)) for row in said.rows])
            return replace(said, rows=rows)
        if isinstance(said, TellMessages):
            return replace(said, rows=(SeqMessage(1, lie),))
        return said

    pair.append(A, GOOD)
    pair.follow(A, B)
    pair.connect()
    pair.lie = change
    pair.run()
    assert pair.hosts[B].reasons() == [reason]
    assert pair.blocks(B, A) == pair.blocks(B, B) == []


def test_a_peer_that_does_not_keep_the_topic_is_asked_now_and_then(pair: Pair) -> None:
    pair.append(A, GOOD)
    pair.follow(B)
    pair.connect()
    host = pair.hosts[B]
    asked = pair.run(SyncConfig().not_kept_ns // S_NS)
    assert [type(one) for one in asked] == [AskHeads]
    assert (host.reasons(), host.links.is_claimed(A)) == ([], False), "nothing is wrong with it"
    pair.follow(A)
    pair.run(1)
    assert host.links.is_claimed(A)
    pair.connect()
    pair.run()
    assert pair.blocks(B, A) == [encode_descriptor(GOOD)]
