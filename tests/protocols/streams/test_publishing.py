"""Messages that were made elsewhere, with chains of their own: those of an outbox."""

from __future__ import annotations

import pytest

from shoal.base.errors import UsageError
from shoal.base.ids import MessageId, NodeId
from shoal.identity import PrivateKey
from shoal.identity.message_body import Position
from shoal.kernel.effects import Effect, Notify
from shoal.kernel.records import Delivered, Published
from shoal.protocols.streams.commands import (
    JoinStream,
    MessageArrived,
    Publish,
    ReadySent,
    SendReady,
)
from shoal.protocols.streams.member.stream_node import StreamNode
from shoal.protocols.streams.messages import Flood
from shoal.protocols.streams.signed_message import VerifiedMessage, sign_message
from tests.support.streams import (
    ALICE,
    BOB,
    CAROL,
    ME,
    NOW_MS,
    OTHER_STREAM,
    STREAM,
    Bench,
    linked_node,
    new_node,
    of_kind,
    sent,
    sign_as,
)


def ready(count: int, publisher: NodeId = ME) -> tuple[VerifiedMessage, ...]:
    """So many messages of a chain "outbox", from its beginning."""
    made, previous = [], None
    for number in range(count):
        id = MessageId(STREAM, 0, NOW_MS, number, publisher, "outbox")
        made.append(sign_message(sign_as(publisher), id, previous, 1, b"row %d" % number))
        previous = Position(NOW_MS, number)
    return tuple(made)


def told(effects: list[Effect]) -> list[object]:
    return [effect.event for effect in effects if isinstance(effect, Notify)]


def test_ready_messages_go_to_all_neighbours_as_they_are() -> None:
    bench = linked_node(ALICE, BOB)
    messages = ready(3)
    effects = bench.command(SendReady(STREAM, messages), token="t")
    floods = [(flood.signed, peers) for flood, peers in sent(effects, Flood)]
    assert [signed for signed, _ in floods] == [message.signed for message in messages]
    assert all(set(peers) == {ALICE, BOB} for _, peers in floods)
    assert [record.message for record in of_kind(effects, Published)] == [m.id for m in messages]
    assert told(effects)[-1] == ReadySent("t", True)


def test_what_was_sent_before_goes_out_again_and_nobody_here_is_told_twice() -> None:
    bench = linked_node(ALICE)
    first = bench.command(SendReady(STREAM, ready(2)))
    again = bench.command(SendReady(STREAM, ready(3)))
    assert len(sent(first, Flood)) == 2
    assert len(sent(again, Flood)) == 3
    arrived = [
        event.message.id.sequence
        for event in [*told(first), *told(again)]
        if isinstance(event, MessageArrived)
    ]
    assert arrived == [0, 1, 2]
    assert len(of_kind(again, Published)) == len(of_kind(again, Delivered)) == 1


def test_the_own_chain_of_the_node_goes_on_as_if_nothing_was() -> None:
    plain, bench = linked_node(ALICE), linked_node(ALICE)
    bench.command(SendReady(STREAM, ready(2)))
    one, other = (sent(b.command(Publish(STREAM, b"{}")), Flood) for b in (plain, bench))
    assert one[0][0].signed == other[0][0].signed


def test_without_a_neighbour_yet_none_is_sent_and_none_is_held() -> None:
    bench: Bench[StreamNode] = new_node()
    bench.command(JoinStream(STREAM))
    effects = bench.command(SendReady(STREAM, ready(2)), token="t")
    assert told(effects) == [ReadySent("t", False)]
    assert not bench.machine.streams[STREAM].held


@pytest.mark.parametrize(
    ("stream", "publisher", "complaint"),
    [(STREAM, CAROL, "only messages of"), (OTHER_STREAM, ME, "join it first")],
)
def test_others_messages_and_other_streams_are_refused(
    stream: str, publisher: NodeId, complaint: str
) -> None:
    bench = linked_node(ALICE)
    with pytest.raises(UsageError, match=complaint):
        bench.command(SendReady(stream, ready(1, publisher)))  # type: ignore[arg-type]


def test_the_same_place_gives_the_same_bytes_also_after_a_restart() -> None:
    secret = bytes(range(1, 33))
    first, again = PrivateKey.from_bytes(secret), PrivateKey.from_bytes(secret)
    id = MessageId(STREAM, 0, NOW_MS, 7, first.address, "outbox")
    made = [
        sign_message(key.sign, id, Position(NOW_MS, 6), 1, b"row").signed for key in (first, again)
    ]
    assert made[0] == made[1]
