"""What a node publishes: whom it goes to, what waits for a neighbour, and what is refused."""

from __future__ import annotations

import pytest

from shoal.base.errors import StreamUnavailable, UsageError
from shoal.base.ids import PARTITIONS_MAX, MessageId
from shoal.base.units import S_NS, US_NS
from shoal.identity.message_body import CONTENT_BYTES_MAX
from shoal.kernel.effects import Notify, Send
from shoal.kernel.records import Delivered, Published, ReceivedAgain, Sent
from shoal.protocols.streams.commands import JoinStream, MessageArrived, Publish, PublishAccepted
from shoal.protocols.streams.config import NodeConfig
from shoal.protocols.streams.messages import Flood, Heads, Open, Ping
from tests.support.streams import (
    ALICE,
    BOB,
    ME,
    NOW_MS,
    NOW_NS,
    OTHER_STREAM,
    STREAM,
    TRACKER,
    instruction,
    linked_node,
    message_id,
    of_kind,
    ready_node,
    sent,
)

CONFIG = NodeConfig()


def own_id(number: int = 0, timestamp_ms: int = NOW_MS, partition: int = 0) -> MessageId:
    return message_id(
        number, publisher=ME, chain="c1", timestamp_ms=timestamp_ms, partition=partition
    )


def test_a_published_message_goes_to_all_neighbours_and_to_the_local_subscriber() -> None:
    bench = linked_node(ALICE, BOB)
    effects = bench.command(Publish(STREAM, b"{}", partition=3), token="t")
    id = own_id(partition=3)
    (flood,) = [message for message, _ in sent(effects, Flood)]
    (arrived,) = [e.event for e in of_kind(effects, Notify) if isinstance(e.event, MessageArrived)]
    assert (arrived.message.id, arrived.hops) == (id, 0)
    assert effects == [
        Published(id, len(flood.signed)),
        Notify(PublishAccepted(id, "t", flood.signed)),
        Send(Flood(0, 0, NOW_NS // US_NS, arrived.message.signed), (ALICE, BOB)),
        Sent(id, 2),
        Notify(arrived),
        Delivered(id, 0, 0),
    ]


def test_a_publisher_that_does_not_subscribe_is_not_told() -> None:
    bench = linked_node(ALICE, subscribe=False)
    effects = bench.command(Publish(STREAM, b"{}"))
    assert [type(effect) for effect in effects] == [Published, Notify, Send, Sent]


def test_an_own_message_that_comes_back_is_a_duplicate() -> None:
    bench = linked_node(ALICE, BOB)
    [(flood, _)] = sent(bench.command(Publish(STREAM, b"{}")), Flood)
    assert bench.receive(BOB, flood) == [ReceivedAgain(own_id(), BOB)]


def test_messages_wait_until_the_first_instruction_is_settled() -> None:
    # Before, the neighbours may be newcomers too, and whoever they know is nobody.
    bench = ready_node()
    bench.command(JoinStream(STREAM))
    effects = bench.command(Publish(STREAM, b"1"))
    assert [type(e) for e in effects] == [Published, Notify, Notify, Delivered]
    bench.receive(TRACKER, instruction(1, ALICE, BOB))
    bench.link_up(ALICE)
    assert sent(bench.receive(ALICE, Open(STREAM, False)), Flood) == []
    assert sent(bench.command(Publish(STREAM, b"2"))) == []
    bench.link_up(BOB)
    floods = sent(bench.receive(BOB, Open(STREAM, False)), Flood)
    assert [peers for _, peers in floods] == [(ALICE, BOB), (ALICE, BOB)]
    [(_, peers)] = sent(bench.command(Publish(STREAM, b"3")), Flood)
    assert peers == (ALICE, BOB)


def test_messages_wait_while_every_neighbour_is_down() -> None:
    bench = linked_node(ALICE)
    bench.link_down(ALICE)
    assert sent(bench.command(Publish(STREAM, b"1"))) == []
    bench.fire(("retry", STREAM))
    bench.link_up(ALICE)
    assert len(sent(bench.receive(ALICE, Open(STREAM, True)), Flood)) == 1  # said once
    assert sent(bench.receive(ALICE, Open(STREAM, True)), Flood) == []


def test_our_open_goes_before_the_messages_that_waited_for_it() -> None:
    bench = ready_node()
    bench.command(JoinStream(STREAM))
    bench.command(Publish(STREAM, b"1"))
    bench.receive(ALICE, Open(STREAM, False))
    bench.receive(TRACKER, instruction(1, ALICE))
    kinds = [type(message) for message, peers in sent(bench.link_up(ALICE)) if ALICE in peers]
    assert kinds == [Open, Ping, Flood]


def test_a_node_alone_in_its_stream_publishes_to_itself() -> None:
    bench = ready_node()
    bench.command(JoinStream(STREAM))
    bench.receive(TRACKER, instruction(1))
    effects = bench.command(Publish(STREAM, b"1"))
    assert [type(e) for e in effects] == [Published, Notify, Notify, Delivered]
    bench.receive(TRACKER, instruction(2, ALICE))
    bench.link_up(ALICE)
    assert sent(bench.receive(ALICE, Open(STREAM, True)), Flood) == []


def test_what_a_node_published_alone_is_there_for_those_who_come_later() -> None:
    # It may be alone at a tracker that the others have not reached.
    bench = linked_node()
    bench.command(Publish(STREAM, b"{}"))
    bench.now_ns += S_NS
    bench.receive(TRACKER, instruction(2, ALICE))
    bench.link_up(ALICE)
    [(heads, peers)] = sent(bench.receive(ALICE, Open(STREAM, True)), Heads)
    assert peers == (ALICE,)
    assert [chain[0] for chain, _ in heads.chains] == [ME]


def test_only_so_many_messages_wait() -> None:
    bench = ready_node(NodeConfig(held_messages_max=2))
    bench.command(JoinStream(STREAM))
    for _ in range(2):
        bench.command(Publish(STREAM, b"{}"))
    with pytest.raises(StreamUnavailable, match="2 messages wait"):
        bench.command(Publish(STREAM, b"{}"))
    bench.receive(TRACKER, instruction(1, ALICE))
    bench.link_up(ALICE)
    assert len(sent(bench.receive(ALICE, Open(STREAM, True)), Flood)) == 2
    [(flood, _)] = sent(bench.command(Publish(STREAM, b"{}")), Flood)
    assert b"{}" in flood.signed


def test_a_message_that_waited_too_long_is_not_sent_to_be_refused() -> None:
    bench = ready_node()
    bench.command(JoinStream(STREAM))
    bench.command(Publish(STREAM, b"{}"))
    bench.now_ns += CONFIG.freshness_ns + S_NS
    bench.receive(TRACKER, instruction(1, ALICE))
    bench.link_up(ALICE)
    assert sent(bench.receive(ALICE, Open(STREAM, True)), Flood) == []


@pytest.mark.parametrize(
    ("publish", "says"),
    [
        (Publish(OTHER_STREAM, b""), "join it first"),
        (Publish(STREAM, bytes(CONTENT_BYTES_MAX + 1)), "the limit is 524288"),
        (Publish(STREAM, b"", partition=PARTITIONS_MAX), "partition 100"),
        (Publish(STREAM, b"", partition=-1), "partition -1"),
        (Publish(STREAM, b"", content_type=256), "content type 256"),
    ],
)
def test_what_cannot_be_published_is_refused_and_leaves_no_trace(
    publish: Publish, says: str
) -> None:
    bench = linked_node(ALICE)
    with pytest.raises(UsageError, match=says):
        bench.command(publish)
    effects = bench.command(Publish(STREAM, b"{}"))
    assert effects[0] == Published(own_id(), len(sent(effects, Flood)[0][0].signed))
