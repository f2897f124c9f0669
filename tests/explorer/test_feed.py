"""The live feed: what is told of records, within which bounds, and at which cost to nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count

import msgspec
import pytest

from shoal.base.ids import MessageId, NodeId, StreamId, show_node_id
from shoal.explorer import feed
from shoal.explorer import feed as batches
from shoal.explorer.feed import Batch, Batches, Feed, Reader
from shoal.explorer.nodes import SeenNode, SeenNodes
from shoal.kernel.machine import Machine
from shoal.kernel.records import (
    BubbleStep,
    LinkChanged,
    MemberChanged,
    Published,
    ReceivedFirst,
    Record,
)
from shoal.runtime.host import Observer
from tests.support.machines import peer_id

STREAM = StreamId("0x7e5f4552091a69125d5dfcb7b8c2659029395bdf/x")
ALICE, BOB, CAROL = peer_id(1), peer_id(2), peer_id(3)
_numbers = count()


def message(publisher: NodeId = ALICE) -> MessageId:
    return MessageId(STREAM, 0, next(_numbers), 0, publisher, "1")


class FakeHost:
    """A node's driver that only has observers."""

    def __init__(self, node: NodeId) -> None:
        self.node = node
        self.machines: Sequence[Machine] = ()
        self.observers: list[Observer] = []

    def now_ns(self) -> int:
        return 5_000_000

    def record(self, record: Record) -> None:
        for observer in self.observers:
            observer(self.now_ns(), record)


def test_the_steps_of_a_message_are_told() -> None:
    taken = Batches()
    id = message()
    taken.observe(ALICE, Published(id, 300))
    taken.observe(BOB, ReceivedFirst(id, ALICE, 1, 1500))
    taken.observe(CAROL, ReceivedFirst(id, BOB, 2, 2500))
    batch = taken.take(7_000_000)
    (followed,) = batch.followed
    assert (followed.stream, followed.publisher) == (STREAM, show_node_id(ALICE))
    assert [(step.sender, step.receiver, step.hops, step.age_us) for step in batch.steps] == [
        (show_node_id(ALICE), show_node_id(BOB), 1, 1500),
        (show_node_id(BOB), show_node_id(CAROL), 2, 2500),
    ]
    assert {step.message for step in batch.steps} == {followed.id}
    count = batch.counts[STREAM]
    assert (count.published, count.received, count.age_us_sum) == (1, 2, 4000)
    assert batch.time_ms == 7
    assert taken.take(0).empty


def test_a_message_of_a_node_elsewhere_is_followed_from_its_first_step() -> None:
    taken = Batches()
    id = message()
    taken.observe(BOB, ReceivedFirst(id, ALICE, 1, 10))
    late = message()
    taken.observe(BOB, ReceivedFirst(late, ALICE, 4, 10))  # its beginning is not known
    batch = taken.take(0)
    assert len(batch.followed) == len(batch.steps) == 1
    assert batch.counts[STREAM].received == 2


def test_a_message_of_a_node_elsewhere_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "BEGUN_MAX", 10)
    taken = Batches()
    for _ in range(50):
        id = message()
        taken.observe(BOB, ReceivedFirst(id, ALICE, 1, 10))
        taken.observe(CAROL, ReceivedFirst(id, ALICE, 1, 10))  # another neighbour of its publisher
    batch = taken.take(0)
    assert (batch.counts[STREAM].published, batch.counts[STREAM].received) == (50, 100)
    assert len(batch.followed) == batches.FOLLOWED_PER_BATCH


def test_changes_and_bubbles_are_told() -> None:
    taken = Batches()
    taken.observe(ALICE, MemberChanged(STREAM, BOB, False, "leave"))
    taken.observe(ALICE, LinkChanged(STREAM, BOB, CAROL, True))
    taken.observe(CAROL, BubbleStep(b"\x01\x02", 9, 0, 9, "handled"))
    batch = taken.take(0)
    member, link = batch.changes
    assert (member.a, member.b, member.present, member.reason) == (
        show_node_id(BOB),
        None,
        False,
        "leave",
    )
    assert (link.a, link.b, link.present) == (show_node_id(BOB), show_node_id(CAROL), True)
    (bubble,) = batch.bubbles
    assert (bubble.bubble, bubble.node, bubble.outcome) == ("0102", show_node_id(CAROL), "handled")


def test_a_busy_stream_is_sampled_and_all_of_it_counted() -> None:
    taken = Batches()
    for _ in range(1000):
        id = message()
        taken.observe(ALICE, Published(id, 300))
        taken.observe(BOB, ReceivedFirst(id, ALICE, 1, 5))
    batch = taken.take(0)
    assert len(batch.followed) == len(batch.steps) == batches.FOLLOWED_PER_BATCH
    assert batch.counts[STREAM].published == batch.counts[STREAM].received == 1000


def test_every_list_of_a_batch_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "STEPS_MAX", 3)
    monkeypatch.setattr(batches, "CHANGES_MAX", 2)
    monkeypatch.setattr(batches, "STREAMS_MAX", 1)
    taken = Batches()
    id = message()
    taken.observe(ALICE, Published(id, 300))
    for _ in range(5):
        taken.observe(BOB, ReceivedFirst(id, ALICE, 1, 5))
        taken.observe(ALICE, MemberChanged(STREAM, BOB, True, "join"))
    other = MessageId(StreamId(STREAM + "y"), 0, 1, 0, ALICE, "1")
    taken.observe(ALICE, Published(other, 300))
    batch = taken.take(0)
    assert (len(batch.steps), len(batch.changes), len(batch.counts)) == (3, 2, 1)
    assert batch.left_out == 2 + 3


def test_old_messages_are_followed_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "FOLLOWED_MAX", 1)
    taken = Batches()
    first, second = message(), message()
    taken.observe(ALICE, Published(first, 300))
    taken.observe(ALICE, Published(second, 300))
    taken.observe(BOB, ReceivedFirst(first, CAROL, 2, 5))
    taken.observe(BOB, ReceivedFirst(second, CAROL, 2, 5))
    assert len(taken.take(0).steps) == 1


def test_nodes_are_observed_only_while_somebody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "BEAT_S", 0.01)

    async def main() -> None:
        alice, bob = FakeHost(ALICE), FakeHost(BOB)
        nodes = SeenNodes()
        nodes.add(SeenNode(alice))
        told = Feed(nodes)
        assert not alice.observers
        first, second = Reader(), Reader()
        told.begin(first)
        told.begin(second)
        assert len(alice.observers) == 1
        late = SeenNode(bob)
        nodes.add(late)
        told.came(late)
        alice.record(Published(message(), 300))
        bob.record(MemberChanged(STREAM, BOB, True, "join"))
        for reader in (first, second):
            async with asyncio.timeout(5):
                line = await anext(reader.lines())
            batch = msgspec.json.decode(line, type=Batch)
            assert len(batch.followed) == len(batch.changes) == 1
        told.lost(late)
        assert not bob.observers
        told.end(first)
        assert alice.observers
        told.end(second)
        assert not alice.observers
        told.close()

    asyncio.run(main())


def test_a_quiet_feed_says_so_and_a_closed_one_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "BEAT_S", 0.001)

    async def main() -> None:
        nodes = SeenNodes()
        nodes.add(SeenNode(FakeHost(ALICE)))
        told, reader = Feed(nodes), Reader()
        told.begin(reader)
        lines = reader.lines()
        async with asyncio.timeout(5):
            assert msgspec.json.decode(await anext(lines), type=Batch).empty
            told.close()
            assert [line async for line in lines if not line] == []

    asyncio.run(main())


def test_a_slow_reader_loses_the_oldest() -> None:
    async def main() -> None:
        reader = Reader()
        for number in range(feed.WAITING_MAX + 3):
            reader.push(b"%d" % number)
        reader.end()
        lines = [line async for line in reader.lines()]
        assert lines == [b"%d" % number for number in range(3, feed.WAITING_MAX + 3)]

    asyncio.run(main())
